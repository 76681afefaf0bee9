//! The source of an engine's streams: the network, or pipes in tests.

use super::router::{BulkRouter, RouterError};
use crate::net::{BulkStream, NetHandle};
use futures::future::BoxFuture;
use starling_protocol::NodeId;
use starling_protocol::engine::io::AttemptKey;
use std::io;

/// Streams to and from members.
pub trait BulkLinks: Send + Sync + 'static {
    /// A fresh stream to a member.
    fn open(&self, to: NodeId) -> BoxFuture<'static, io::Result<BulkStream>>;
    /// The stream that a member opened to us for this attempt, its opening read.
    fn accept(&self, key: AttemptKey, from: NodeId) -> BoxFuture<'static, Result<BulkStream, RouterError>>;
    /// Leaves this attempt: its streams are not wanted any more.
    fn leave(&self, key: AttemptKey);
}

/// Links of a running node.
#[derive(Clone)]
pub struct NetLinks {
    net: NetHandle,
    router: BulkRouter,
}

impl NetLinks {
    pub fn new(net: NetHandle, router: BulkRouter) -> Self {
        Self { net, router }
    }
}

impl BulkLinks for NetLinks {
    fn open(&self, to: NodeId) -> BoxFuture<'static, io::Result<BulkStream>> {
        let net = self.net.clone();
        Box::pin(async move {
            let stream = net.open_bulk(to).await.map_err(io::Error::other)?;
            #[cfg(feature = "byzantine")]
            let stream = crate::byzantine::link(stream);
            Ok(stream)
        })
    }

    fn accept(&self, key: AttemptKey, from: NodeId) -> BoxFuture<'static, Result<BulkStream, RouterError>> {
        let router = self.router.clone();
        Box::pin(async move { router.accept(key, from).await })
    }

    fn leave(&self, key: AttemptKey) {
        self.router.leave(key);
    }
}
