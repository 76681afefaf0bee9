//! All that this node sends to one member: parts, then sums of rows, then finished sums.

use super::context::{Context, repairs};
use super::desk::Desk;
use super::known::{Known, NOTHING};
use crate::net::BulkStream;
use crate::reduce::error::{PeerFault, ReduceError};
use crate::reduce::links::BulkLinks;
use crate::reduce::opening;
use crate::reduce::progress::Way;
use crate::reduce::stream::{close, fill_frame};
use crate::reduce::turns::Turn;
use starling_protocol::frame::{FRAME_HEADER_BYTES, FRAME_PAYLOAD_BYTES_MAX, FrameKind};
use starling_protocol::message::Awaited;
use starling_protocol::update::lattice::{encode_row_sum, sum_hash};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

pub(super) async fn write(links: Arc<dyn BulkLinks>, context: Arc<Context>, place: usize) -> Result<(), ReduceError> {
    let (mut stream, known) = open(&links, &context, place).await?;
    let written = {
        let frame = Vec::with_capacity(FRAME_HEADER_BYTES + FRAME_PAYLOAD_BYTES_MAX);
        let turn = context.turns.join();
        let mut writer = Writer { context: &context, place, stream: &mut stream, turn, frame };
        writer.write_all(&known).await
    };
    // A stream that a later attempt ends is closed in order as well: the member counts what is in it.
    if matches!(written, Ok(()) | Err(ReduceError::Over)) {
        tokio::spawn(close(stream));
    }
    written
}

/// Opens a stream to the member at `place`; also returns what it has already.
async fn open(links: &Arc<dyn BulkLinks>, context: &Context, place: usize) -> Result<(BulkStream, Known), ReduceError> {
    let lost = |error| context.fault(place, PeerFault::Lost(error));
    let stream = links.open(context.members[place].member).await;
    let mut stream = stream.map_err(|e| context.fault(place, PeerFault::Unreachable(e.to_string())))?;
    stream.write_all(&opening::encode(&context.job.run, &context.job.key)).await.map_err(lost)?;
    // The member shall know at once from which node it gets something, though that node's turn may come later.
    context.progress.wait(place, Way::Out, Awaited::Room, stream.flush()).await.map_err(lost)?;
    let cargo = &context.leaving[place];
    let due = (cargo.parts.len(), cargo.row_sums.len(), cargo.sums.len());
    if !repairs(&context.job) {
        return Ok((stream, Known::nothing(due.0, due.1, due.2)));
    }
    let said = context.progress.wait(place, Way::Out, Awaited::Part, Known::read(&mut stream, due)).await;
    let known = said.map_err(|what| context.fault(place, what))?;
    context.sent[place].store(all_there(&known.parts, 0), Ordering::Release);
    context.told[place].send_replace(true);
    Ok((stream, known))
}

/// The index of the first part at or after `from` that the member does not hold.
fn all_there(held: &[bool], from: usize) -> usize {
    held.iter().skip(from).position(|held| !held).map_or(held.len(), |more| from + more)
}

/// The stream to one member.
struct Writer<'a> {
    context: &'a Context,
    place: usize,
    stream: &'a mut BulkStream,
    turn: Turn<'a>,
    frame: Vec<u8>,
}

impl Writer<'_> {
    async fn write_all(&mut self, known: &Known) -> Result<(), ReduceError> {
        self.write_parts(&known.parts).await?;
        self.write_row_sums(&known.row_sums).await?;
        self.write_sums(&known.sums).await?;
        self.flush().await
    }

    fn lost(&self, error: std::io::Error) -> ReduceError {
        self.context.fault(self.place, PeerFault::Lost(error))
    }

    async fn flush(&mut self) -> Result<(), ReduceError> {
        let flushed = self.context.progress.wait(self.place, Way::Out, Awaited::Room, self.stream.flush()).await;
        flushed.map_err(|error| self.lost(error))
    }

    /// Writes the frame at hand when this writer's turn comes.
    async fn write_frame(&mut self) -> Result<(), ReduceError> {
        let Self { context, place, stream, turn, frame } = self;
        let written = context.progress.wait(*place, Way::Out, Awaited::Room, stream.write_all(frame));
        turn.write(frame.len(), written).await.map_err(|error| context.fault(*place, PeerFault::Lost(error)))?;
        context.progress.add(frame.len());
        Ok(())
    }

    /// Writes this node's parts of the chunks that the member adds up.
    async fn write_parts(&mut self, held: &[bool]) -> Result<(), ReduceError> {
        let context = self.context;
        let mut desk = Desk::new(context);
        let chunks = context.leaving[self.place].parts.iter().copied().enumerate();
        for (index, chunk) in chunks.filter(|(index, _)| !held[*index]) {
            if !context.sheet.is_current() {
                return Err(ReduceError::Over);
            }
            // The part is counted before it leaves: the sum may be back before the write returns.
            context.sent[self.place].store(all_there(held, index + 1), Ordering::Release);
            desk.encode_own(context, chunk)?;
            fill_frame(&mut self.frame, &context.scope, FrameKind::Contrib, chunk, &desk.payload);
            self.write_frame().await?;
        }
        Ok(())
    }

    /// Writes the sums of rows that this node has made or passes on, as they are there.
    async fn write_row_sums(&mut self, unwanted: &[bool]) -> Result<(), ReduceError> {
        let context = self.context;
        let mut payload = Vec::new();
        for ((chunk, row), unwanted) in context.leaving[self.place].row_sums.iter().copied().zip(unwanted) {
            if *unwanted {
                continue;
            }
            let ready = context.post.has((chunk, row));
            self.wait_for(ready, context.post.arrived((chunk, row))).await?;
            let Some(sum) = context.post.take((chunk, row)) else { return Err(ReduceError::Over) };
            encode_row_sum(&sum, &mut payload);
            fill_frame(&mut self.frame, &context.scope, FrameKind::RowSum, chunk, &payload);
            self.write_frame().await?;
        }
        Ok(())
    }

    /// Writes the finished sums, as they are there: of those that the member holds, the header only.
    async fn write_sums(&mut self, held: &[u64]) -> Result<(), ReduceError> {
        let context = self.context;
        let mut payload = Vec::with_capacity(FRAME_PAYLOAD_BYTES_MAX);
        for (chunk, held) in context.leaving[self.place].sums.iter().copied().zip(held) {
            self.wait_for(context.is_done(chunk), context.finished(chunk)).await?;
            if !context.sheet.copy(chunk, &mut payload) {
                return Err(ReduceError::Over);
            }
            if *held != NOTHING && *held == sum_hash(&payload) {
                fill_frame(&mut self.frame, &context.scope, FrameKind::Known, chunk, &payload);
                self.frame.truncate(FRAME_HEADER_BYTES);
            } else {
                fill_frame(&mut self.frame, &context.scope, FrameKind::Reduced, chunk, &payload);
            }
            self.write_frame().await?;
        }
        Ok(())
    }

    /// Waits until what is due is there, if it is not `ready`.
    async fn wait_for(&mut self, ready: bool, arrives: impl Future<Output = ()>) -> Result<(), ReduceError> {
        if !ready {
            self.turn.rest();
            // The member shall have all that is there during the wait.
            self.flush().await?;
        }
        let mut nothing = [0];
        tokio::select! {
            biased;
            () = self.context.sheet.superseded() => Err(ReduceError::Over),
            () = arrives => Ok(()),
            // The member writes nothing here: the read returns when it has closed the stream. A write would show that
            // too late.
            _ = self.stream.read(&mut nothing) => Err(self.lost(std::io::ErrorKind::BrokenPipe.into())),
        }
    }
}
