//! The stream from one member to this node.

use super::desk::Desk;
use super::members::Group;
use crate::net::BulkStream;
use crate::reduce::error::{PeerFault, ReduceError};
use crate::reduce::linger::LINGER;
use crate::reduce::links::BulkLinks;
use crate::reduce::progress::Way;
use crate::reduce::stream::{expect_end, fault, read_frame};
use starling_protocol::frame::{FRAME_HEADER_BYTES, FrameKind};
use starling_protocol::message::Awaited;
use std::sync::Arc;
use tokio::sync::{OwnedMutexGuard, mpsc};
use tokio::time::error::Elapsed;

/// The stream from the member at `place`.
pub(in crate::reduce) struct Inlet<'a> {
    pub group: &'a Group,
    pub place: usize,
    pub stream: BulkStream,
    _reading: Result<OwnedMutexGuard<()>, Elapsed>,
}

impl<'a> Inlet<'a> {
    /// Accepts the stream, on which `first` is due.
    pub async fn accept(
        links: &Arc<dyn BulkLinks>,
        group: &'a Group,
        place: usize,
        first: Awaited,
    ) -> Result<Self, ReduceError> {
        let from = group.members[place].member;
        let stream = group.progress.wait(place, Way::In, first, links.accept(group.job.key, from)).await;
        let stream = stream.map_err(|error| fault(from, PeerFault::Silent(error)))?;
        // The member ends its streams of earlier attempts when it begins one. Bytes that are still in them count.
        let reading = tokio::time::timeout(LINGER, group.sheet.gate(from).lock_owned()).await;
        Ok(Self { group, place, stream, _reading: reading })
    }

    /// Reads the member's parts of these chunks, each with the part that is kept of an earlier attempt.
    pub async fn read_parts(
        &mut self,
        chunks: impl Iterator<Item = (usize, Option<Arc<Vec<u8>>>)>,
        arrived: mpsc::Sender<Arc<Vec<u8>>>,
    ) -> Result<(), ReduceError> {
        let mut desk = Desk::new(self.group);
        for (chunk, kept) in chunks {
            let part = match kept {
                Some(kept) => kept,
                None => self.read_part(chunk, &mut desk).await?,
            };
            // The channel has room for all parts; they are kept even if the adder has stopped.
            drop(arrived.try_send(part));
        }
        Ok(())
    }

    async fn read_part(&mut self, chunk: usize, desk: &mut Desk) -> Result<Arc<Vec<u8>>, ReduceError> {
        let (group, place) = (self.group, self.place);
        let read = read_frame(&mut self.stream, &group.scope, FrameKind::Contrib, chunk, &mut desk.payload);
        group.hear((place, Way::In), Awaited::Part, read).await?;
        let refused = |source| group.fault(place, PeerFault::Payload { chunk, source });
        desk.coder.check(&desk.payload, group.elements_of(chunk)).map_err(refused)?;
        group.progress.add(FRAME_HEADER_BYTES + desk.payload.len());
        let part = Arc::new(desk.payload.clone());
        group.job.parts.keep(&group.job.key, &group.members[place], chunk, Arc::clone(&part));
        Ok(part)
    }

    /// Ends the stream, on which nothing more is due.
    pub fn end(self) {
        tokio::spawn(expect_end(self.stream, self.group.members[self.place].member));
    }
}
