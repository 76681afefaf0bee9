//! The ring: reduce-scatter, then all-gather, pipelined by chunk.
//!
//! A reduction has two tasks. The *reader* takes the predecessor's frames in the one order that the schedule allows,
//! adds this node's part to partial sums, checks finished sums, and puts both on the [`Board`]. The *writer* first
//! encodes this node's own part of the first segment, then sends the frames on the board in the same order: frame `i`
//! received is frame `first segment + i` sent, until the last segment, which ends here. Nothing waits for a timer; an
//! attempt that makes no progress is ended from outside by dropping it.

use super::board::Board;
use super::chunk::ChunkCoder;
use super::error::{PeerFault, ReduceError};
use super::links::BulkLinks;
use super::opening;
use super::progress::{Progress, ProgressFn, of_ring};
use super::stream::{close, expect_end, fault, fill_frame, read_frame};
use super::{Attempt, ReduceEngine, ReduceJob, count_refusal};
use crate::net::BulkStream;
use futures::future::BoxFuture;
use starling_protocol::NodeId;
use starling_protocol::frame::{FRAME_HEADER_BYTES, FRAME_PAYLOAD_BYTES_MAX, FrameKind, FrameScope};
use starling_protocol::ring::{Half, Ring};
use starling_protocol::update;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

/// The ring engine. Cheap to clone.
#[derive(Clone)]
pub struct RingReducer {
    links: Arc<dyn BulkLinks>,
}

impl RingReducer {
    pub fn new(links: impl BulkLinks) -> Self {
        Self { links: Arc::new(links) }
    }
}

impl ReduceEngine for RingReducer {
    fn run(&self, job: ReduceJob, progress: ProgressFn) -> BoxFuture<'static, Result<Vec<u8>, ReduceError>> {
        let links = Arc::clone(&self.links);
        Box::pin(async move {
            let _left_at_the_end = Attempt { links: Arc::clone(&links), key: job.key };
            let result = reduce(&links, job, Progress::new(progress)).await;
            count_refusal(&result);
            result
        })
    }
}

/// The state that both tasks share.
struct Context {
    job: ReduceJob,
    scope: FrameScope,
    ring: Ring,
    position: usize,
    weight: f32,
    board: Board,
    progress: Progress,
}

impl Context {
    fn coder(&self) -> ChunkCoder {
        ChunkCoder::new(self.job.codec, self.weight, Arc::clone(&self.job.delta))
    }

    fn member(&self, position: usize) -> NodeId {
        // Positions are taken modulo the number of members.
        self.job.members[position].member
    }

    fn next(&self) -> NodeId {
        self.member(self.ring.next(self.position))
    }

    fn previous(&self) -> NodeId {
        self.member(self.ring.previous(self.position))
    }

    /// Frames in the order in which they leave (`true`) or arrive (`false`).
    fn frames(&self, leaving: bool) -> impl Iterator<Item = (FrameKind, usize)> + use<> {
        let ring = self.ring;
        ring.hops(self.position).flat_map(move |hop| {
            let kind = match hop.half {
                Half::ReduceScatter => FrameKind::Contrib,
                Half::AllGather => FrameKind::Reduced,
            };
            ring.segment(if leaving { hop.send } else { hop.receive }).map(move |chunk| (kind, chunk))
        })
    }

    /// The number of hops that have arrived whole, for each number of received frames from none to all.
    fn hops_before(&self) -> Vec<usize> {
        let hops = self.ring.hops(self.position).enumerate();
        let of_frames = hops.flat_map(|(n, hop)| self.ring.segment(hop.receive).map(move |_| n));
        of_frames.chain([self.ring.hops(self.position).count()]).collect()
    }

    /// Chunks whose partial sums begin here: the first segment sent.
    fn begun_here(&self) -> usize {
        self.ring.hops(self.position).next().map_or(0, |hop| self.ring.segment(hop.send).len())
    }
}

async fn reduce(links: &Arc<dyn BulkLinks>, job: ReduceJob, progress: Progress) -> Result<Vec<u8>, ReduceError> {
    if !job.codec.suits_rings() {
        return Err(ReduceError::Unsuited { codec: job.codec });
    }
    let position = job.position()?;
    let elements = job.delta.len();
    let scope = FrameScope { run: job.run, key: job.key, codec: job.codec, elements };
    let context = Arc::new(Context {
        scope,
        ring: Ring::new(job.members.len(), update::chunks(elements)),
        position,
        weight: job.weight(position),
        board: Board::new(job.codec, elements),
        progress,
        job,
    });
    if context.ring.positions() == 1 {
        encode_alone(Arc::clone(&context)).await?;
    } else {
        travel(links, &context).await?;
    }
    context.progress.finish();
    // Both tasks have ended, so this is the only reference.
    let context = Arc::into_inner(context).ok_or_else(|| ReduceError::Task("the update is still in use".into()))?;
    Ok(context.board.into_update())
}

/// The update of a group of one.
async fn encode_alone(context: Arc<Context>) -> Result<(), ReduceError> {
    let encode = move || {
        let (mut coder, mut payload) = (context.coder(), Vec::new());
        for chunk in 0..context.ring.chunks() {
            coder.own(chunk, &mut payload)?;
            context.board.put(chunk, &payload);
        }
        Ok(())
    };
    tokio::task::spawn_blocking(encode).await.map_err(|e| ReduceError::Task(e.to_string()))?
}

/// Runs reader and writer until both are done or one fails; then the other is stopped.
async fn travel(links: &Arc<dyn BulkLinks>, context: &Arc<Context>) -> Result<(), ReduceError> {
    let mut tasks = JoinSet::new();
    tasks.spawn(write(Arc::clone(links), Arc::clone(context)));
    tasks.spawn(read(Arc::clone(links), Arc::clone(context)));
    while let Some(ended) = tasks.join_next().await {
        let result = ended.unwrap_or_else(|error| Err(ReduceError::Task(error.to_string())));
        if result.is_err() {
            tasks.shutdown().await;
            return result;
        }
    }
    Ok(())
}

async fn write(links: Arc<dyn BulkLinks>, context: Arc<Context>) -> Result<(), ReduceError> {
    let to = context.next();
    let stream = links.open(to).await;
    let mut stream = stream.map_err(|e| fault(to, PeerFault::Unreachable(e.to_string())))?;
    write_frames(&mut stream, &context).await?;
    tokio::spawn(close(stream));
    Ok(())
}

async fn write_frames(stream: &mut BulkStream, context: &Context) -> Result<(), ReduceError> {
    let to = context.next();
    let lost = |error| fault(to, PeerFault::Lost(error));
    stream.write_all(&opening::encode(&context.job.run, &context.job.key)).await.map_err(lost)?;
    let begun_here = context.begun_here();
    let (mut coder, mut payload) = (context.coder(), Vec::with_capacity(FRAME_PAYLOAD_BYTES_MAX));
    let mut frame = Vec::with_capacity(FRAME_HEADER_BYTES + FRAME_PAYLOAD_BYTES_MAX);
    for (index, (kind, chunk)) in context.frames(true).enumerate() {
        if index < begun_here {
            coder.own(chunk, &mut payload)?;
        } else {
            let needed = index - begun_here + 1;
            if context.board.received_count() < needed {
                // The successor shall have all finished frames during the wait.
                stream.flush().await.map_err(lost)?;
                let mut nothing = [0];
                tokio::select! {
                    biased;
                    () = context.board.wait_received(needed) => (),
                    // The successor writes nothing here: the read returns when it has closed the stream, or the
                    // connection is gone. Without it the successor may wait for the lost frames, and this node for
                    // frames that depend on them, until a deadline ends the attempt.
                    _ = stream.read(&mut nothing) => return Err(lost(std::io::ErrorKind::BrokenPipe.into())),
                }
            }
            payload.resize(context.board.payload_len(chunk), 0);
            context.board.copy(chunk, &mut payload);
        }
        context.board.picked();
        fill_frame(&mut frame, &context.scope, kind, chunk, &payload);
        stream.write_all(&frame).await.map_err(lost)?;
    }
    stream.flush().await.map_err(lost)
}

async fn read(links: Arc<dyn BulkLinks>, context: Arc<Context>) -> Result<(), ReduceError> {
    let from = context.previous();
    let stream = links.accept(context.job.key, from).await;
    let mut stream = stream.map_err(|error| fault(from, PeerFault::Silent(error)))?;
    let mut desk = ReaderDesk::new(&context);
    let (hops, mut received) = (context.hops_before(), 0);
    context.progress.reach(of_ring(hops[0], 0));
    for (index, (kind, chunk)) in context.frames(false).enumerate() {
        read_frame(&mut stream, &context.scope, kind, chunk, &mut desk.payload).await.map_err(|e| fault(from, e))?;
        desk.take(&context, index, kind, chunk)?;
        context.board.received();
        received += (FRAME_HEADER_BYTES + desk.payload.len()) as u64;
        context.progress.reach(of_ring(hops[index + 1], received));
    }
    tokio::spawn(expect_end(stream, from));
    Ok(())
}

/// The reader's buffers, and the place of partial sums among the frames sent.
struct ReaderDesk {
    coder: ChunkCoder,
    /// The frame that was read last.
    payload: Vec<u8>,
    /// The sum that was made last.
    sum: Vec<u8>,
    /// For each segment, the number of the sent frame that carries its first chunk's partial sum, if one does.
    partial_sent_as: Vec<Option<usize>>,
}

impl ReaderDesk {
    fn new(context: &Context) -> Self {
        let mut partial_sent_as = vec![None; context.ring.positions()];
        let mut frames = 0;
        for hop in context.ring.hops(context.position).filter(|hop| hop.half == Half::ReduceScatter) {
            partial_sent_as[hop.send] = Some(frames);
            frames += context.ring.segment(hop.send).len();
        }
        let (payload, sum) = (Vec::with_capacity(FRAME_PAYLOAD_BYTES_MAX), Vec::with_capacity(FRAME_PAYLOAD_BYTES_MAX));
        Self { coder: context.coder(), payload, sum, partial_sent_as }
    }

    /// Puts the frame that was read last onto the board: a part added to this node's own, or a checked sum.
    fn take(&mut self, context: &Context, index: usize, kind: FrameKind, chunk: usize) -> Result<(), ReduceError> {
        debug_assert_eq!(context.board.received_count(), index);
        let from = context.previous();
        let refused = |source| fault(from, PeerFault::Payload { chunk, source });
        match kind {
            FrameKind::Contrib => {
                self.coder.add(chunk, &self.payload, &mut self.sum)?.map_err(refused)?;
                context.board.put(chunk, &self.sum);
            }
            FrameKind::Reduced => {
                if self.has_unsent_partial(context, chunk) {
                    return Err(fault(from, PeerFault::Early { chunk }));
                }
                self.coder.check(chunk, &self.payload).map_err(refused)?;
                context.board.put(chunk, &self.payload);
            }
            // Only due frames are read, and these kinds are never due.
            FrameKind::Change | FrameKind::Drift => {}
        }
        Ok(())
    }

    fn has_unsent_partial(&self, context: &Context, chunk: usize) -> bool {
        let Some(segment) = context.ring.owner(chunk) else { return false };
        let Some(first) = self.partial_sent_as[segment] else { return false };
        let frame = first + (chunk - context.ring.segment(segment).start);
        context.board.picked_count() <= frame
    }
}

#[cfg(test)]
#[path = "ring_test.rs"]
mod tests;
