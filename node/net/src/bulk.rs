//! A byte stream for bulk data, over any transport.

use super::books::Slot;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

trait ByteStream: AsyncRead + AsyncWrite + Send {}
impl<S: AsyncRead + AsyncWrite + Send> ByteStream for S {}

/// A stream to or from one peer. Dropping it before its end resets it for the other side.
pub struct BulkStream {
    io: Pin<Box<dyn ByteStream>>,
    /// Its place among the streams that peers have opened.
    _slot: Option<Slot>,
}

impl BulkStream {
    pub fn new(io: impl AsyncRead + AsyncWrite + Send + 'static) -> Self {
        Self { io: Box::pin(io), _slot: None }
    }

    pub(super) fn with_slot(self, slot: Slot) -> Self {
        Self { _slot: Some(slot), ..self }
    }
}

impl std::fmt::Debug for BulkStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BulkStream")
    }
}

impl AsyncRead for BulkStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.io.as_mut().poll_read(cx, buf)
    }
}

impl AsyncWrite for BulkStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.io.as_mut().poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.as_mut().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.as_mut().poll_shutdown(cx)
    }
}
