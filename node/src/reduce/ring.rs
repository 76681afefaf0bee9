//! The ring: reduce-scatter, then all-gather, pipelined by chunk.
//!
//! Two tasks a reduction. The *reader* takes the predecessor's frames in the one order that the schedule allows, adds
//! this node's part to partial sums, checks finished ones, and puts both on the [`Board`]. The *writer* first encodes
//! this node's own part of the first segment, then sends what the reader has put down, in the same order: frame `i`
//! received is frame `first segment + i` sent, until the last segment, which ends here. Nothing waits for a timer; an
//! attempt that makes no progress is ended from outside by dropping it.

use super::board::Board;
use super::chunk::ChunkCoder;
use super::error::{PeerFault, ReduceError};
use super::links::RingLinks;
use super::opening;
use super::progress::{Progress, ProgressFn};
use super::{ReduceEngine, ReduceJob};
use crate::net::BulkStream;
use futures::future::BoxFuture;
use starling_protocol::NodeId;
use starling_protocol::engine::io::AttemptKey;
use starling_protocol::frame::{FRAME_HEADER_BYTES, FRAME_PAYLOAD_BYTES_MAX, FrameHeader, FrameKind, FrameScope};
use starling_protocol::ring::{Half, Ring};
use starling_protocol::update;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::task::JoinSet;

/// How long a finished stream is kept to be closed in order.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes that the reader takes from the transport at once.
const READ_BYTES: usize = 64 * 1024;

/// The ring engine. Cheap to clone.
#[derive(Clone)]
pub struct RingReducer {
    links: Arc<dyn RingLinks>,
}

impl RingReducer {
    pub fn new(links: impl RingLinks) -> Self {
        Self { links: Arc::new(links) }
    }
}

impl ReduceEngine for RingReducer {
    fn run(&self, job: ReduceJob, progress: ProgressFn) -> BoxFuture<'static, Result<Vec<u8>, ReduceError>> {
        let links = Arc::clone(&self.links);
        Box::pin(async move {
            let _left_at_the_end = Attempt { links: Arc::clone(&links), key: job.key };
            let result = reduce(&links, job, Progress::new(progress)).await;
            if let Some(reason) = result.as_ref().err().and_then(ReduceError::refusal) {
                metrics::counter!("starling_refused_total", "reason" => reason).increment(1);
            }
            result
        })
    }
}

/// Leaves the attempt however its future ends.
struct Attempt {
    links: Arc<dyn RingLinks>,
    key: AttemptKey,
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.links.leave(self.key);
    }
}

/// What both tasks know.
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

    /// Chunks whose partial sums begin here: the first segment sent.
    fn begun_here(&self) -> usize {
        self.ring.hops(self.position).next().map_or(0, |hop| self.ring.segment(hop.send).len())
    }
}

async fn reduce(links: &Arc<dyn RingLinks>, job: ReduceJob, progress: Progress) -> Result<Vec<u8>, ReduceError> {
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
    // Both tasks have ended, so theirs are gone.
    let context = Arc::into_inner(context).ok_or_else(|| ReduceError::Task("the update is still in use".into()))?;
    Ok(context.board.into_update())
}

/// The update of a group of one.
async fn encode_alone(context: Arc<Context>) -> Result<(), ReduceError> {
    let encode = move || {
        let (mut coder, mut payload) = (context.coder(), Vec::new());
        for chunk in 0..context.ring.chunks() {
            payload.resize(context.board.payload_len(chunk), 0);
            coder.own(chunk, &mut payload)?;
            context.board.put(chunk, &payload);
        }
        Ok(())
    };
    tokio::task::spawn_blocking(encode).await.map_err(|e| ReduceError::Task(e.to_string()))?
}

/// Runs reader and writer until both are done or one fails; then the other is stopped.
async fn travel(links: &Arc<dyn RingLinks>, context: &Arc<Context>) -> Result<(), ReduceError> {
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

async fn write(links: Arc<dyn RingLinks>, context: Arc<Context>) -> Result<(), ReduceError> {
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
    let (mut coder, mut frame) = (context.coder(), Vec::with_capacity(FRAME_HEADER_BYTES + FRAME_PAYLOAD_BYTES_MAX));
    for (index, (kind, chunk)) in context.frames(true).enumerate() {
        frame.resize(FRAME_HEADER_BYTES + context.board.payload_len(chunk), 0);
        let (head, payload) = frame.split_at_mut(FRAME_HEADER_BYTES);
        if index < begun_here {
            coder.own(chunk, payload)?;
        } else {
            let needed = index - begun_here + 1;
            if context.board.received_count() < needed {
                // The successor shall have all that there is while we wait.
                stream.flush().await.map_err(lost)?;
                context.board.wait_received(needed).await;
            }
            context.board.copy(chunk, payload);
        }
        context.board.picked();
        head.copy_from_slice(&FrameHeader::new(&context.scope, kind, chunk, payload).encode());
        stream.write_all(&frame).await.map_err(lost)?;
        context.progress.add(frame.len());
    }
    stream.flush().await.map_err(lost)
}

async fn read(links: Arc<dyn RingLinks>, context: Arc<Context>) -> Result<(), ReduceError> {
    let from = context.previous();
    let stream = links.accept(context.job.key, from).await;
    let stream = stream.map_err(|error| fault(from, PeerFault::Silent(error)))?;
    let mut stream = BufReader::with_capacity(READ_BYTES, stream);
    let mut desk = ReaderDesk::new(&context);
    for (index, (kind, chunk)) in context.frames(false).enumerate() {
        read_frame(&mut stream, &context, kind, chunk, &mut desk.payload).await.map_err(|e| fault(from, e))?;
        desk.take(&context, index, kind, chunk)?;
        context.board.received();
        context.progress.add(FRAME_HEADER_BYTES + desk.payload.len());
    }
    tokio::spawn(expect_end(stream, from));
    Ok(())
}

/// Reads the frame that is due, and no other, into `payload`.
async fn read_frame(
    stream: &mut BufReader<BulkStream>,
    context: &Context,
    kind: FrameKind,
    chunk: usize,
    payload: &mut Vec<u8>,
) -> Result<(), PeerFault> {
    let mut header = [0; FRAME_HEADER_BYTES];
    stream.read_exact(&mut header).await.map_err(PeerFault::Lost)?;
    let header = FrameHeader::decode(&header)?;
    header.belongs_to(&context.scope)?;
    if header.kind != kind || header.chunk as usize != chunk {
        let (got, got_chunk) = (header.kind, header.chunk);
        return Err(PeerFault::OutOfOrder { expected: kind, expected_chunk: chunk, got, got_chunk });
    }
    // At most FRAME_PAYLOAD_BYTES_MAX: decoding has checked it.
    payload.resize(header.payload_len(), 0);
    stream.read_exact(payload).await.map_err(PeerFault::Lost)?;
    Ok(header.check_payload(payload)?)
}

/// The reader's buffers, and what it needs to know about frames sent.
struct ReaderDesk {
    coder: ChunkCoder,
    /// The frame just read.
    payload: Vec<u8>,
    /// The sum just made.
    sum: Vec<u8>,
    /// For each segment: which frame sent carries the first chunk's partial sum, if any does.
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

    /// Puts the frame just read onto the board, as what it means.
    fn take(&mut self, context: &Context, index: usize, kind: FrameKind, chunk: usize) -> Result<(), ReduceError> {
        debug_assert_eq!(context.board.received_count(), index);
        let from = context.previous();
        let refused = |source| fault(from, PeerFault::Payload { chunk, source });
        match kind {
            FrameKind::Contrib => {
                self.sum.resize(self.payload.len(), 0);
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

fn fault(suspect: NodeId, fault: PeerFault) -> ReduceError {
    ReduceError::Peer { suspect, fault }
}

/// Closes a stream in order, so that its last bytes are not lost with it.
async fn close(mut stream: BulkStream) {
    let closing = async {
        stream.shutdown().await?;
        // The successor writes nothing: this returns when it has read all and let go.
        stream.read(&mut [0]).await
    };
    // Whatever happens now does not matter to an attempt that is done.
    drop(tokio::time::timeout(CLOSE_TIMEOUT, closing).await);
}

/// Counts a predecessor that goes on after its last frame.
async fn expect_end(mut stream: BufReader<BulkStream>, from: NodeId) {
    let mut more = [0];
    if let Ok(Ok(1)) = tokio::time::timeout(CLOSE_TIMEOUT, stream.read(&mut more)).await {
        tracing::debug!(peer = %from.short(), "more data after the last frame of an attempt");
        metrics::counter!("starling_refused_total", "reason" => "reduce_trailing").increment(1);
    }
}

#[cfg(test)]
#[path = "ring_test.rs"]
mod tests;
