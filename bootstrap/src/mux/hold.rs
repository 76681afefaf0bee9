//! Bounds the memory of this node that a stranger's connection holds: received bytes that are not read yet.
//!
//! yamux promises every stream 256 KiB from its first moment. A peer may open a stream whose name it never says, or
//! send on one that is not read for a while: 48 connections with 64 streams each would fill the whole machine. yamux's
//! window cannot be made smaller, so the frames of a connection are counted as they come. While too much is unread, the
//! next frame waits in the system's buffer for the socket. A known peer is not held back. A peer that becomes known
//! meanwhile goes on as soon as something is read.

use crate::doors::Doors;
use futures::{AsyncRead, AsyncWrite};
use libp2p::PeerId;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

/// Bytes that a stranger may have unread on one connection: one of the longest frames that nodes send.
pub const UNREAD_MAX: usize = 84 << 10;
/// The memory of a frame beside its bytes, so that short ones are not free.
const FRAME_COST: usize = 128;
/// Streams that may be open on one connection.
pub const STREAMS_MAX: usize = 64;
/// Streams that are remembered: the open ones, and as many that yamux has closed and this node has not dropped yet.
const REMEMBERED_MAX: usize = 2 * STREAMS_MAX;
const HEAD_BYTES: usize = 12;
const DATA: u8 = 0;
const WINDOW_UPDATE: u8 = 1;
const OPENS: u16 = 1;
const RESETS: u16 = 8;

/// The unread bytes of one connection; cheap to clone.
#[derive(Clone, Debug)]
pub struct Hold {
    peer: PeerId,
    doors: Doors,
    unread: Arc<Mutex<Unread>>,
}

#[derive(Debug, Default)]
struct Unread {
    /// Unread bytes, with the costs of their frames.
    bytes: usize,
    /// The lengths of the frames of each open stream; the first one's is reduced by the bytes read of it.
    streams: BTreeMap<u32, VecDeque<usize>>,
    /// The waker of the connection, while it waits for something to be read.
    waits: Option<Waker>,
}

/// A frame that no node sends.
#[derive(Debug, thiserror::Error)]
pub enum Unfit {
    #[error("a stranger sent a frame of {0} bytes; the limit is {UNREAD_MAX}")]
    TooLong(usize),
    #[error("more streams than there may be")]
    TooMany,
}

impl Hold {
    pub fn new(peer: PeerId, doors: Doors) -> Self {
        Self { peer, doors, unread: Arc::default() }
    }

    /// No statement leaves the counts half-changed, so the content of a poisoned lock is still good.
    fn unread(&self) -> MutexGuard<'_, Unread> {
        self.unread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn opens(&self, stream: u32) {
        self.unread().streams.entry(stream).or_default();
    }

    /// Bytes of a stream have been read.
    pub fn read(&self, stream: u32, bytes: usize) {
        let mut unread = self.unread();
        let (mut left, mut freed) = (bytes, 0);
        let Some(frames) = unread.streams.get_mut(&stream) else { return };
        while let Some(first) = frames.front_mut().filter(|_| left > 0) {
            let of_first = left.min(*first);
            (*first, left, freed) = (*first - of_first, left - of_first, freed + of_first);
            if *first == 0 {
                frames.pop_front();
                freed += FRAME_COST;
            }
        }
        unread.free(freed);
    }

    /// The stream is dropped here: the rest of it will not be read.
    pub fn closes(&self, stream: u32) {
        let mut unread = self.unread();
        let frames = unread.streams.remove(&stream).unwrap_or_default();
        unread.free(frames.iter().map(|bytes| bytes + FRAME_COST).sum());
    }

    /// Takes in a frame whose head has come, when there is room for it.
    fn poll_take(&self, head: &[u8; HEAD_BYTES], cx: &mut Context<'_>) -> Poll<Result<usize, Unfit>> {
        let [_, kind, f0, f1, s0, s1, s2, s3, l0, l1, l2, l3] = *head;
        let (stream, flags) = (u32::from_be_bytes([s0, s1, s2, s3]), u16::from_be_bytes([f0, f1]));
        let mut unread = self.unread();
        // yamux opens no stream that is reset at once, and ends a connection with too many.
        if matches!(kind, DATA | WINDOW_UPDATE) && flags & (OPENS | RESETS) == OPENS {
            if unread.streams.len() >= REMEMBERED_MAX {
                return Poll::Ready(Err(Unfit::TooMany));
            }
            unread.streams.entry(stream).or_default();
        }
        let bytes = if kind == DATA { u32::from_be_bytes([l0, l1, l2, l3]) as usize } else { 0 };
        if bytes == 0 {
            return Poll::Ready(Ok(0));
        }
        let cost = bytes.saturating_add(FRAME_COST);
        if unread.bytes.saturating_add(cost) > UNREAD_MAX && !self.doors.is_known(&self.peer) {
            if cost > UNREAD_MAX {
                return Poll::Ready(Err(Unfit::TooLong(bytes)));
            }
            unread.waits = Some(cx.waker().clone());
            return Poll::Pending;
        }
        // yamux drops data for a stream that has been closed here.
        if let Some(frames) = unread.streams.get_mut(&stream) {
            frames.push_back(bytes);
            unread.bytes += cost;
        }
        Poll::Ready(Ok(bytes))
    }

    /// Unread bytes, and whether more of them wait.
    #[cfg(test)]
    pub fn state(&self) -> (usize, bool) {
        let unread = self.unread();
        (unread.bytes, unread.waits.is_some())
    }
}

impl Unread {
    fn free(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(bytes);
        if let Some(waits) = self.waits.take() {
            waits.wake();
        }
    }
}

/// The frame that is being read.
#[derive(Debug)]
enum Frame {
    /// The number of bytes of its head that have come.
    Head(usize),
    /// The head is complete: its bytes passed on so far, and the bytes that follow it.
    Passed(usize, usize),
    /// The rest of the bytes that follow.
    Body(usize),
}

/// A connection whose frames are counted, if it has a hold.
pub struct Held<C> {
    io: C,
    hold: Option<Hold>,
    head: [u8; HEAD_BYTES],
    frame: Frame,
}

impl<C> Held<C> {
    pub fn new(io: C, hold: Option<Hold>) -> Self {
        Self { io, hold, head: [0; HEAD_BYTES], frame: Frame::Head(0) }
    }
}

impl<C: AsyncRead + Unpin> AsyncRead for Held<C> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let Some(hold) = &this.hold else { return Pin::new(&mut this.io).poll_read(cx, buffer) };
        loop {
            match this.frame {
                Frame::Head(HEAD_BYTES) => {
                    let body = ready!(hold.poll_take(&this.head, cx)).map_err(|error| {
                        metrics::counter!("starling_refused_total", "reason" => "frame_unfit").increment(1);
                        io::Error::new(io::ErrorKind::InvalidData, error)
                    })?;
                    this.frame = Frame::Passed(0, body);
                }
                Frame::Head(got) => match ready!(Pin::new(&mut this.io).poll_read(cx, &mut this.head[got..]))? {
                    0 => return Poll::Ready(Ok(0)),
                    more => this.frame = Frame::Head(got + more),
                },
                Frame::Passed(HEAD_BYTES, 0) | Frame::Body(0) => this.frame = Frame::Head(0),
                Frame::Passed(HEAD_BYTES, body) => this.frame = Frame::Body(body),
                Frame::Passed(passed, body) => {
                    let more = buffer.len().min(HEAD_BYTES - passed);
                    buffer[..more].copy_from_slice(&this.head[passed..passed + more]);
                    this.frame = Frame::Passed(passed + more, body);
                    return Poll::Ready(Ok(more));
                }
                Frame::Body(left) => {
                    let room = buffer.len().min(left);
                    let more = ready!(Pin::new(&mut this.io).poll_read(cx, &mut buffer[..room]))?;
                    this.frame = Frame::Body(left - more);
                    return Poll::Ready(Ok(more));
                }
            }
        }
    }
}

impl<C: AsyncWrite + Unpin> AsyncWrite for Held<C> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_close(cx)
    }
}

/// A stream of a connection.
pub struct Substream {
    stream: yamux::Stream,
    hold: Option<Hold>,
}

impl Substream {
    pub fn new(stream: yamux::Stream, hold: Option<Hold>) -> Self {
        if let Some(hold) = &hold {
            hold.opens(stream.id().val());
        }
        Self { stream, hold }
    }
}

impl Drop for Substream {
    fn drop(&mut self) {
        if let Some(hold) = &self.hold {
            hold.closes(self.stream.id().val());
        }
    }
}

impl AsyncRead for Substream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let read = ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        if let Some(hold) = &self.hold {
            hold.read(self.stream.id().val(), read);
        }
        Poll::Ready(Ok(read))
    }
}

impl AsyncWrite for Substream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_close(cx)
    }
}
