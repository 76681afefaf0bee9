//! The stream from this node to one member.

use super::desk::Desk;
use super::members::{Group, all_there};
use crate::net::BulkStream;
use crate::reduce::error::{PeerFault, ReduceError};
use crate::reduce::links::BulkLinks;
use crate::reduce::opening;
use crate::reduce::progress::Way;
use crate::reduce::stream::{close, fill_frame};
use crate::reduce::turns::Turn;
use starling_protocol::frame::{FRAME_HEADER_BYTES, FRAME_PAYLOAD_BYTES_MAX, FrameKind};
use starling_protocol::message::Awaited;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// The stream to the member at `place`. Frames take turns with those to the other members.
pub(in crate::reduce) struct Outlet<'a> {
    group: &'a Group,
    place: usize,
    stream: BulkStream,
    turn: Turn<'a>,
    frame: Vec<u8>,
}

impl<'a> Outlet<'a> {
    /// Opens the stream.
    pub async fn open(links: &Arc<dyn BulkLinks>, group: &Group, place: usize) -> Result<BulkStream, ReduceError> {
        let lost = |error| group.fault(place, PeerFault::Lost(error));
        let stream = links.open(group.members[place].member).await;
        let mut stream = stream.map_err(|e| group.fault(place, PeerFault::Unreachable(e.to_string())))?;
        stream.write_all(&opening::encode(&group.job.run, &group.job.key)).await.map_err(lost)?;
        // The member shall know at once from which node it gets something, though that node's turn may come later.
        group.progress.wait(place, Way::Out, Awaited::Room, stream.flush()).await.map_err(lost)?;
        Ok(stream)
    }

    pub fn new(group: &'a Group, place: usize, stream: BulkStream) -> Self {
        let frame = Vec::with_capacity(FRAME_HEADER_BYTES + FRAME_PAYLOAD_BYTES_MAX);
        Self { group, place, stream, turn: group.turns.join(), frame }
    }

    /// Closes the stream after its last frame, or after the one under way when a later attempt ends it: the member counts
    /// what is in it.
    pub fn end(self, written: Result<(), ReduceError>) -> Result<(), ReduceError> {
        if matches!(written, Ok(()) | Err(ReduceError::Over)) {
            tokio::spawn(close(self.stream));
        }
        written
    }

    /// Writes this node's parts of these chunks, but for those that the member holds.
    pub async fn write_parts(&mut self, chunks: &[usize], held: &[bool]) -> Result<(), ReduceError> {
        let group = self.group;
        let mut desk = Desk::new(group);
        for (index, chunk) in chunks.iter().copied().enumerate().filter(|(index, _)| !held[*index]) {
            if !group.sheet.is_current() {
                return Err(ReduceError::Over);
            }
            // The part is counted before it leaves: the sum may be back before the write returns.
            group.sent[self.place].store(all_there(held, index + 1), Ordering::Release);
            desk.encode_own(group, chunk)?;
            self.write_frame(FrameKind::Contrib, chunk, &desk.payload).await?;
        }
        Ok(())
    }

    /// Writes a frame when its turn comes; of [`FrameKind::Known`] the header only.
    pub async fn write_frame(&mut self, kind: FrameKind, chunk: usize, payload: &[u8]) -> Result<(), ReduceError> {
        let Self { group, place, stream, turn, frame } = self;
        fill_frame(frame, &group.scope, kind, chunk, payload);
        if kind == FrameKind::Known {
            frame.truncate(FRAME_HEADER_BYTES);
        }
        let written = group.progress.wait(*place, Way::Out, Awaited::Room, stream.write_all(frame));
        turn.write(frame.len(), written).await.map_err(|error| group.fault(*place, PeerFault::Lost(error)))?;
        group.progress.add(frame.len());
        Ok(())
    }

    /// Writes bytes that are no frame.
    pub async fn write_word(&mut self, word: &[u8]) -> Result<(), ReduceError> {
        let written = self.stream.write_all(word);
        let written = self.group.progress.wait(self.place, Way::Out, Awaited::Room, written).await;
        written.map_err(|error| self.lost(error))
    }

    /// Waits until what is due is there, if it is not `ready`.
    pub async fn wait_for(&mut self, ready: bool, arrives: impl Future<Output = ()>) -> Result<(), ReduceError> {
        if !ready {
            self.turn.rest();
            // The member shall have all that is there during the wait.
            self.flush().await?;
        }
        let mut nothing = [0];
        tokio::select! {
            biased;
            () = self.group.sheet.superseded() => Err(ReduceError::Over),
            () = arrives => Ok(()),
            // The member writes nothing here: the read returns when it has closed the stream. A write would show that
            // too late.
            _ = self.stream.read(&mut nothing) => Err(self.lost(std::io::ErrorKind::BrokenPipe.into())),
        }
    }

    /// Writes what is under way, after the last frame.
    pub async fn finish(&mut self) -> Result<(), ReduceError> {
        self.turn.rest();
        self.flush().await
    }

    async fn flush(&mut self) -> Result<(), ReduceError> {
        let flushed = self.group.progress.wait(self.place, Way::Out, Awaited::Room, self.stream.flush()).await;
        flushed.map_err(|error| self.lost(error))
    }

    fn lost(&self, error: std::io::Error) -> ReduceError {
        self.group.fault(self.place, PeerFault::Lost(error))
    }
}
