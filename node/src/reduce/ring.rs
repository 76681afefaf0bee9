//! The ring: reduce-scatter, then all-gather, pipelined by chunk.
//!
//! A reduction has two tasks. The *reader* takes the predecessor's frames in the one order that the [`Plan`] allows,
//! adds this node's part to partial sums, checks finished sums, and puts both on the [`Board`]. The *writer* sends what
//! is on the board in an order of its own, and encodes this node's part of the first segment: each frame leaves as soon
//! as the frames have arrived from which it follows. Nothing waits for a timer; an attempt that makes no progress is
//! ended from outside by dropping it.
//!
//! Any attempt but the first begins with a round of [`words`], after which all members know which sums are kept.

mod words;

use super::board::Board;
use super::chunk::ChunkCoder;
use super::error::{PeerFault, ReduceError};
use super::links::BulkLinks;
use super::progress::{Progress, ProgressFn, of_ring};
use super::stream::{close, expect_end, fault, fill_frame, read_frame};
use super::sums::{Beginning, Sheet};
use super::{Attempt, ReduceEngine, ReduceJob, note_refusal};
use crate::net::BulkStream;
use futures::future::BoxFuture;
use starling_protocol::frame::{FRAME_HEADER_BYTES, FRAME_PAYLOAD_BYTES_MAX, FrameKind, FrameScope};
use starling_protocol::ring::Ring;
use starling_protocol::ring::plan::{Arriving, Plan};
use starling_protocol::update;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;
use words::{Ends, Neighbours};

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
            let sums = Arc::clone(&job.sums);
            let result = reduce(&links, job, Progress::new(progress)).await;
            note_refusal(&result, &sums);
            result
        })
    }
}

/// The state that both tasks share.
struct Context {
    job: ReduceJob,
    scope: FrameScope,
    plan: Plan,
    neighbours: Neighbours,
    weight: f32,
    board: Board,
    progress: Progress,
}

impl Context {
    fn coder(&self) -> ChunkCoder {
        ChunkCoder::new(self.job.codec, self.weight, Arc::clone(&self.job.delta))
    }
}

async fn reduce(links: &Arc<dyn BulkLinks>, job: ReduceJob, progress: Progress) -> Result<Vec<u8>, ReduceError> {
    if !job.codec.suits_rings() {
        return Err(ReduceError::Unsuited { codec: job.codec });
    }
    let position = job.position()?;
    let (elements, members, key) = (job.delta.len(), job.members.len(), job.key);
    let beginning = Beginning { key, members: &job.members, codec: job.codec, elements, longest: None };
    let sheet = Sheet::begin(&job.sums, &beginning);
    let ring = Ring::new(members, update::chunks(elements));
    // Both are members: positions are taken modulo their number.
    let neighbours = Neighbours {
        next: job.members[ring.next(position)].member,
        previous: job.members[ring.previous(position)].member,
    };
    let (ends, finished) = if members > 1 && key.attempt > 0 {
        let heard = words::exchange(links, (&job, position), neighbours, &sheet, &progress).await;
        heard.map(|(ends, finished)| (Some(ends), finished))?
    } else {
        (None, vec![Vec::new(); members])
    };
    let context = Arc::new(Context {
        scope: FrameScope { run: job.run, key, codec: job.codec, elements },
        plan: Plan::new(position, update::chunks(elements), &finished),
        neighbours,
        weight: job.weight(position),
        board: Board::new(sheet),
        progress,
        job,
    });
    if members == 1 {
        encode_alone(Arc::clone(&context)).await?;
    } else {
        travel(links, &context, ends).await?;
    }
    context.progress.finish();
    context.board.sheet.take().ok_or(ReduceError::Over)
}

/// The update of a group of one.
async fn encode_alone(context: Arc<Context>) -> Result<(), ReduceError> {
    let encode = move || {
        let (mut coder, mut payload) = (context.coder(), Vec::new());
        let chunks = 0..update::chunks(context.scope.elements);
        for chunk in chunks.filter(|chunk| !context.board.sheet.has(*chunk)) {
            coder.own(chunk, &mut payload)?;
            context.board.sheet.finish(chunk, &payload, context.job.me);
        }
        Ok(())
    };
    tokio::task::spawn_blocking(encode).await.map_err(|e| ReduceError::Task(e.to_string()))?
}

/// Runs reader and writer until both are done or one fails; then the other is stopped.
async fn travel(links: &Arc<dyn BulkLinks>, context: &Arc<Context>, ends: Option<Ends>) -> Result<(), ReduceError> {
    let mut tasks = JoinSet::new();
    let (to, from) = ends.map_or((None, None), |Ends { to, from }| (Some(to), Some(from)));
    tasks.spawn(write(Arc::clone(links), Arc::clone(context), to));
    tasks.spawn(read(Arc::clone(links), Arc::clone(context), from));
    while let Some(ended) = tasks.join_next().await {
        let result = ended.unwrap_or_else(|error| Err(ReduceError::Task(error.to_string())));
        if result.is_err() {
            tasks.shutdown().await;
            return result;
        }
    }
    Ok(())
}

async fn write(
    links: Arc<dyn BulkLinks>,
    context: Arc<Context>,
    stream: Option<BulkStream>,
) -> Result<(), ReduceError> {
    let mut stream = match stream {
        Some(stream) => stream,
        None => words::open(&links, &context.job, context.neighbours).await?,
    };
    write_frames(&mut stream, &context).await?;
    tokio::spawn(close(stream));
    Ok(())
}

async fn write_frames(stream: &mut BulkStream, context: &Context) -> Result<(), ReduceError> {
    let lost = |error| fault(context.neighbours.next, PeerFault::Lost(error));
    let (mut coder, mut payload) = (context.coder(), Vec::with_capacity(FRAME_PAYLOAD_BYTES_MAX));
    let mut frame = Vec::with_capacity(FRAME_HEADER_BYTES + FRAME_PAYLOAD_BYTES_MAX);
    for leaving in &context.plan.leaving {
        if leaving.begins {
            coder.own(leaving.chunk, &mut payload)?;
        } else {
            if context.board.received_count() < leaving.after {
                // The successor shall have all finished frames during the wait.
                stream.flush().await.map_err(lost)?;
                let mut nothing = [0];
                tokio::select! {
                    biased;
                    () = context.board.wait_received(leaving.after) => (),
                    // The successor writes nothing here: the read returns when it has closed the stream, or the
                    // connection is gone. Without it the successor may wait for the lost frames, and this node for
                    // frames that depend on them, until a deadline ends the attempt.
                    _ = stream.read(&mut nothing) => return Err(lost(std::io::ErrorKind::BrokenPipe.into())),
                }
            }
            if !context.board.sheet.copy(leaving.chunk, &mut payload) {
                return Err(ReduceError::Over);
            }
        }
        context.board.picked();
        fill_frame(&mut frame, &context.scope, leaving.kind, leaving.chunk, &payload);
        stream.write_all(&frame).await.map_err(lost)?;
    }
    stream.flush().await.map_err(lost)
}

async fn read(links: Arc<dyn BulkLinks>, context: Arc<Context>, stream: Option<BulkStream>) -> Result<(), ReduceError> {
    let from = context.neighbours.previous;
    let mut stream = match stream {
        Some(stream) => stream,
        None => words::accept(&links, &context.job, context.neighbours).await?,
    };
    let mut desk = ReaderDesk::new(&context);
    let mut received = 0;
    context.progress.reach(of_ring(context.plan.hops_with(0), 0));
    for (index, arriving) in context.plan.arriving.iter().enumerate() {
        let (kind, chunk) = (arriving.kind, arriving.chunk);
        read_frame(&mut stream, &context.scope, kind, chunk, &mut desk.payload).await.map_err(|e| fault(from, e))?;
        desk.take(&context, index, arriving)?;
        context.board.received();
        received += (FRAME_HEADER_BYTES + desk.payload.len()) as u64;
        context.progress.reach(of_ring(context.plan.hops_with(index + 1), received));
    }
    tokio::spawn(expect_end(stream, from));
    Ok(())
}

/// The reader's buffers.
struct ReaderDesk {
    coder: ChunkCoder,
    /// The frame that was read last.
    payload: Vec<u8>,
    /// The sum that was made last.
    sum: Vec<u8>,
}

impl ReaderDesk {
    fn new(context: &Context) -> Self {
        let (payload, sum) = (Vec::with_capacity(FRAME_PAYLOAD_BYTES_MAX), Vec::with_capacity(FRAME_PAYLOAD_BYTES_MAX));
        Self { coder: context.coder(), payload, sum }
    }

    /// Puts the frame that was read last onto the board: a part added to this node's own, or a checked sum.
    fn take(&mut self, context: &Context, index: usize, arriving: &Arriving) -> Result<(), ReduceError> {
        debug_assert_eq!(context.board.received_count(), index);
        let (from, chunk, sheet) = (context.neighbours.previous, arriving.chunk, &context.board.sheet);
        let refused = |source| fault(from, PeerFault::Payload { chunk, source });
        match arriving.kind {
            FrameKind::Contrib => {
                self.coder.add(chunk, &self.payload, &mut self.sum)?.map_err(refused)?;
                if arriving.finishes {
                    sheet.finish(chunk, &self.sum, context.job.me);
                } else {
                    sheet.put(chunk, &self.sum);
                }
            }
            FrameKind::Reduced => {
                if context.plan.has_unsent_partial(chunk, context.board.picked_count()) {
                    return Err(fault(from, PeerFault::Early { chunk }));
                }
                self.coder.check(chunk, &self.payload).map_err(refused)?;
                sheet.finish(chunk, &self.payload, from);
            }
            // Only due frames are read, and these kinds are never due.
            FrameKind::Change | FrameKind::Drift | FrameKind::RowSum | FrameKind::Known => {}
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "ring_test.rs"]
mod tests;
