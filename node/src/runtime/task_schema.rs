//! Finds the document of an external task's tensors: on this disk, or at peers.

use super::learned::{keep_schema, kept_schema};
use super::text::Search;
use crate::exit::{Code, Failure};
use crate::net::fetch::{Expect, FetchRequest};
use crate::net::{NetEvent, NetEvents, NetHandle};
use crate::watch::event::Event;
use crate::watch::screen::Screen;
use futures::StreamExt;
use futures::future::FutureExt;
use starling_protocol::NodeId;
use starling_protocol::run::{ExternalSpec, TaskSchema};
use std::path::Path;
use std::time::Duration;
use tokio::time::Instant;

/// Network events that are kept while the document is fetched.
const EARLY_MAX: usize = 1024;

/// The document, from the folder or from the first peer that has it. Network events that arrive meanwhile are added to
/// `early`.
pub async fn complete(
    task: &ExternalSpec,
    home: &Path,
    (net, events, early): (&NetHandle, &mut NetEvents, &mut Vec<NetEvent>),
    screen: &mut Screen,
) -> Result<TaskSchema, Failure> {
    if let Some(schema) = kept_schema(home, task) {
        return Ok(schema);
    }
    let why = "a peer that has the names and shapes of the run's tensors".into();
    screen.show(&Event::Waiting { on: Vec::new(), why });
    let mut retry = tokio::time::interval(Duration::from_secs(1));
    let mut search = Search::new();
    let mut interrupted = std::pin::pin!(tokio::signal::ctrl_c());
    loop {
        tokio::select! {
            _ = &mut interrupted => {
                return Err(Failure::message(Code::Refused, "interrupted while waiting for the run's tensors"));
            }
            event = events.recv() => match event {
                Some(NetEvent::DialFailed { peer, address, why }) => {
                    screen.show(&Event::dial_failed(peer, address, why));
                }
                Some(event) if early.len() < EARLY_MAX => early.push(event),
                Some(_) => {}
                None => return Err(Failure::message(Code::Refused, "the network stopped; see the log")),
            },
            Some((peer, schema)) = search.answers.next() => {
                search.asking.remove(&peer);
                if let Some(schema) = schema {
                    if let Err(e) = keep_schema(home, &schema) {
                        tracing::warn!("the run's tensors are not kept: {}", starling_words::of(&e));
                    }
                    return Ok(schema);
                }
            }
            _ = retry.tick() => {
                let is_stranger = |peer: &NodeId| net.is_stranger(peer);
                search.ask(Instant::now(), net.shuffled(), is_stranger, |peer| fetched(net, peer, task).boxed());
            }
        }
    }
}

async fn fetched(net: &NetHandle, peer: NodeId, task: &ExternalSpec) -> (NodeId, Option<TaskSchema>) {
    let request = FetchRequest::Schema;
    let expected = Expect::of(&request);
    match net.fetch(peer, request, expected).await {
        Ok(bytes) => match TaskSchema::decode(&bytes) {
            Ok(schema) if schema.is_of(task) => return (peer, Some(schema)),
            _ => tracing::warn!("{} sent tensors that are not the run's; asking others", peer.short()),
        },
        Err(e) => tracing::debug!("{} does not give the run's tensors: {e}", peer.short()),
    }
    (peer, None)
}
