//! Owners: one member adds up each chunk, and then sends the encoded sum to all. That takes two hops for any number of
//! members, and each contribution is encoded once.
//!
//! A reduction has a *writer* and a *reader* for each other member, and an *adder*. A writer sends this node's parts of
//! the chunks that the member owns, then the sums that this node has finished. A reader takes the member's parts of
//! this node's chunks, then the sums that the member owns. The adder adds parts in the order of members, however they
//! arrive. Writers take turns by short slices, beginning with the one to the member after this node, so that no owner
//! gets everybody's parts at once; a member that takes its time does not hold up the others
//! ([`Turns`](super::turns::Turns)).
//!
//! Readers wait for nothing but their stream, and parts depend on nothing from others, so no members wait for each
//! other in a circle. An attempt that makes no progress is ended from outside by dropping it.
//!
//! Repair: an owner keeps the parts that it was sent until the record is decided ([`Parts`](super::Parts)), also those
//! that arrive after a failure. In a later attempt it first says which parts it has ([`held`]), and only the others are
//! sent.

mod context;
mod desk;

use super::error::{PeerFault, ReduceError};
use super::held;
use super::links::BulkLinks;
use super::opening;
use super::progress::{Progress, ProgressFn, Way};
use super::stream::{close, expect_end, fault, fill_frame, read_frame};
use super::turns::Turn;
use super::{Attempt, ReduceEngine, ReduceJob, count_refusal};
use crate::net::BulkStream;
use context::{Context, repairs};
use desk::Desk;
use futures::future::BoxFuture;
use starling_protocol::frame::{FRAME_HEADER_BYTES, FRAME_PAYLOAD_BYTES_MAX, FrameKind};
use starling_protocol::message::Awaited;
use starling_protocol::update;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Time for which a node whose reduction has failed goes on serving the others. Members that have not yet seen the real
/// cause would suspect a node that closed its streams at once; and some of them may still end with the update.
const LINGER: Duration = Duration::from_millis(if cfg!(test) { 200 } else { 2000 });

/// The owners engine. Cheap to clone.
#[derive(Clone)]
pub struct OwnersReducer {
    links: Arc<dyn BulkLinks>,
}

impl OwnersReducer {
    pub fn new(links: impl BulkLinks) -> Self {
        Self { links: Arc::new(links) }
    }
}

impl ReduceEngine for OwnersReducer {
    fn run(&self, job: ReduceJob, progress: ProgressFn) -> BoxFuture<'static, Result<Vec<u8>, ReduceError>> {
        let links = Arc::clone(&self.links);
        Box::pin(async move {
            let attempt = Attempt { links: Arc::clone(&links), key: job.key };
            let result = reduce(links, attempt, job, Progress::new(progress)).await;
            count_refusal(&result);
            result
        })
    }
}

async fn reduce(
    links: Arc<dyn BulkLinks>,
    attempt: Attempt,
    job: ReduceJob,
    progress: Progress,
) -> Result<Vec<u8>, ReduceError> {
    // The norm of the offer takes as long to compute as settling takes; both run on a thread that may block.
    let beginning = move || {
        job.feedback.settle();
        Context::new(job, progress)
    };
    let context = tokio::task::spawn_blocking(beginning).await;
    let context = Arc::new(context.map_err(|error| ReduceError::Task(error.to_string()))??);
    let mut tasks = JoinSet::new();
    let (members, owned) = (context.members.len(), context.owners.chunks(context.me).len());
    let mut arriving: Vec<_> = (0..members).map(|_| None).collect();
    for place in (1..members).map(|after| (context.me + after) % members) {
        let (arrived, parts) = mpsc::channel(owned.max(1));
        arriving[place] = Some(parts);
        tasks.spawn(write(Arc::clone(&links), Arc::clone(&context), place));
        tasks.spawn(read(Arc::clone(&links), Arc::clone(&context), place, arrived));
    }
    tasks.spawn(add_up(Arc::clone(&context), arriving));
    while let Some(ended) = tasks.join_next().await {
        let result = ended.unwrap_or_else(|error| Err(ReduceError::Task(error.to_string())));
        if let Err(error) = result {
            // Parts that still arrive are kept for the next attempt.
            tokio::spawn(linger(tasks, attempt));
            return Err(error);
        }
    }
    context.progress.finish();
    Ok(context.sheet.take())
}

/// Goes on serving the others for a while.
async fn linger(mut tasks: JoinSet<Result<(), ReduceError>>, attempt: Attempt) {
    let rest = async { while tasks.join_next().await.is_some() {} };
    drop(tokio::time::timeout(LINGER, rest).await);
    tasks.shutdown().await;
    drop(attempt);
}

/// Adds up this node's chunks, one after another. Its own part is encoded and decoded like every other.
async fn add_up(
    context: Arc<Context>,
    mut arriving: Vec<Option<mpsc::Receiver<Arc<Vec<u8>>>>>,
) -> Result<(), ReduceError> {
    let (mut desk, mut sum) = (Desk::new(&context), Vec::new());
    let mut before = vec![0.0; context.members.len()];
    for chunk in context.owners.chunks(context.me).iter().copied() {
        sum.clear();
        sum.resize(update::chunk_elements(context.scope.elements, chunk).len(), 0.0);
        for (place, parts) in arriving.iter_mut().enumerate() {
            match parts {
                None => desk.encode_own(&context, chunk)?,
                Some(parts) => {
                    // A reader that ends before its last part has reported why.
                    let Some(part) = parts.recv().await else { return Ok(()) };
                    desk.payload.clear();
                    desk.payload.extend_from_slice(&part);
                }
            }
            desk.add(&context, chunk, (place, &mut before[place]), &mut sum)?;
        }
        desk.finish(&context, chunk, &mut sum)?;
        // Other tasks get a turn between chunks: with one member nothing here ever waits.
        tokio::task::yield_now().await;
    }
    Ok(())
}

async fn write(links: Arc<dyn BulkLinks>, context: Arc<Context>, place: usize) -> Result<(), ReduceError> {
    let (mut stream, held) = open(&links, &context, place).await?;
    let mut turn = context.turns.join();
    write_parts(&mut stream, &context, place, &held, &mut turn).await?;
    write_sums(&mut stream, &context, place, turn).await?;
    tokio::spawn(close(stream));
    Ok(())
}

/// Opens a stream to the member at `place`; also returns which of this node's parts it has already.
async fn open(
    links: &Arc<dyn BulkLinks>,
    context: &Context,
    place: usize,
) -> Result<(BulkStream, Vec<bool>), ReduceError> {
    let lost = |error| context.fault(place, PeerFault::Lost(error));
    let stream = links.open(context.members[place].member).await;
    let mut stream = stream.map_err(|e| context.fault(place, PeerFault::Unreachable(e.to_string())))?;
    stream.write_all(&opening::encode(&context.job.run, &context.job.key)).await.map_err(lost)?;
    // The member shall know at once from which node it gets something, though that node's turn may come later.
    context.progress.wait(place, Way::Out, Awaited::Room, stream.flush()).await.map_err(lost)?;
    let chunks = context.owners.chunks(place).len();
    if !repairs(&context.job) {
        return Ok((stream, vec![false; chunks]));
    }
    let said = context.progress.wait(place, Way::Out, Awaited::Part, held::read(&mut stream, chunks)).await;
    let held = said.map_err(|what| context.fault(place, what))?;
    context.sent[place].store(all_there(&held, 0), Ordering::Release);
    context.told[place].send_replace(true);
    Ok((stream, held))
}

/// The index of the first part at or after `from` that the owner does not hold.
fn all_there(held: &[bool], from: usize) -> usize {
    held.iter().skip(from).position(|held| !held).map_or(held.len(), |more| from + more)
}

/// Writes this node's parts of the chunks that the member at `place` owns.
async fn write_parts(
    stream: &mut BulkStream,
    context: &Context,
    place: usize,
    held: &[bool],
    turn: &mut Turn<'_>,
) -> Result<(), ReduceError> {
    let lost = |error| context.fault(place, PeerFault::Lost(error));
    let mut desk = Desk::new(context);
    let mut frame = Vec::with_capacity(FRAME_HEADER_BYTES + FRAME_PAYLOAD_BYTES_MAX);
    let chunks = context.owners.chunks(place).iter().copied().enumerate();
    for (index, chunk) in chunks.filter(|(index, _)| !held[*index]) {
        // The part is counted before it leaves: the sum may be back before the write returns.
        context.sent[place].store(all_there(held, index + 1), Ordering::Release);
        desk.encode_own(context, chunk)?;
        fill_frame(&mut frame, &context.scope, FrameKind::Contrib, chunk, &desk.payload);
        let written = context.progress.wait(place, Way::Out, Awaited::Room, stream.write_all(&frame));
        turn.write(frame.len(), written).await.map_err(lost)?;
        context.progress.add(frame.len());
    }
    Ok(())
}

/// Writes the sums that this node owns, as they are finished.
async fn write_sums(
    stream: &mut BulkStream,
    context: &Context,
    place: usize,
    mut turn: Turn<'_>,
) -> Result<(), ReduceError> {
    let lost = |error| context.fault(place, PeerFault::Lost(error));
    let mut frame = Vec::with_capacity(FRAME_HEADER_BYTES + FRAME_PAYLOAD_BYTES_MAX);
    let mut payload = Vec::with_capacity(FRAME_PAYLOAD_BYTES_MAX);
    for (index, chunk) in context.owners.chunks(context.me).iter().copied().enumerate() {
        if *context.finished.borrow() <= index {
            turn.rest();
            // The member shall have all finished sums during the wait.
            context.progress.wait(place, Way::Out, Awaited::Room, stream.flush()).await.map_err(lost)?;
        }
        let mut nothing = [0];
        tokio::select! {
            biased;
            () = context.finished(index) => (),
            // The member writes nothing here: the read returns when it has closed the stream. A write would show that
            // too late.
            _ = stream.read(&mut nothing) => return Err(lost(std::io::ErrorKind::BrokenPipe.into())),
        }
        context.sheet.copy(chunk, &mut payload);
        fill_frame(&mut frame, &context.scope, FrameKind::Reduced, chunk, &payload);
        let written = context.progress.wait(place, Way::Out, Awaited::Room, stream.write_all(&frame));
        turn.write(frame.len(), written).await.map_err(lost)?;
        context.progress.add(frame.len());
    }
    drop(turn);
    context.progress.wait(place, Way::Out, Awaited::Room, stream.flush()).await.map_err(lost)
}

async fn read(
    links: Arc<dyn BulkLinks>,
    context: Arc<Context>,
    place: usize,
    arrived: mpsc::Sender<Arc<Vec<u8>>>,
) -> Result<(), ReduceError> {
    let from = context.members[place].member;
    let stream = context.progress.wait(place, Way::In, Awaited::Part, links.accept(context.job.key, from)).await;
    let mut stream = stream.map_err(|error| fault(from, PeerFault::Silent(error)))?;
    read_parts(&mut stream, &context, place, arrived).await?;
    read_sums(&mut stream, &context, place).await?;
    tokio::spawn(expect_end(stream, from));
    Ok(())
}

/// Reads the member's parts of this node's chunks: those kept from an earlier attempt, and the others.
async fn read_parts(
    stream: &mut BulkStream,
    context: &Context,
    place: usize,
    arrived: mpsc::Sender<Arc<Vec<u8>>>,
) -> Result<(), ReduceError> {
    let chunks = context.owners.chunks(context.me);
    let (key, member) = (&context.job.key, &context.members[place]);
    let mut kept = vec![None; chunks.len()];
    if repairs(&context.job) {
        kept = chunks.iter().map(|chunk| context.job.parts.get(key, member, *chunk)).collect();
        let held: Vec<bool> = kept.iter().map(Option::is_some).collect();
        let written = held::write(stream, &held).await;
        written.map_err(|error| context.fault(place, PeerFault::Lost(error)))?;
    }
    let mut desk = Desk::new(context);
    for (chunk, kept) in chunks.iter().copied().zip(kept) {
        let part = match kept {
            Some(kept) => kept,
            None => {
                let read = read_frame(stream, &context.scope, FrameKind::Contrib, chunk, &mut desk.payload);
                let read = context.progress.wait(place, Way::In, Awaited::Part, read).await;
                read.map_err(|what| context.fault(place, what))?;
                let elements = update::chunk_elements(context.scope.elements, chunk).len();
                let refused = |source| context.fault(place, PeerFault::Payload { chunk, source });
                desk.coder.check(&desk.payload, elements).map_err(refused)?;
                context.progress.add(FRAME_HEADER_BYTES + desk.payload.len());
                let part = Arc::new(desk.payload.clone());
                context.job.parts.keep(key, member, chunk, Arc::clone(&part));
                part
            }
        };
        // The channel has room for all parts; they are kept even if the adder has stopped.
        drop(arrived.try_send(part));
    }
    Ok(())
}

/// Reads the sums that the member owns.
async fn read_sums(stream: &mut BulkStream, context: &Context, place: usize) -> Result<(), ReduceError> {
    let (mut desk, mut before) = (Desk::new(context), 0.0);
    for (index, chunk) in context.owners.chunks(place).iter().copied().enumerate() {
        let read = read_frame(stream, &context.scope, FrameKind::Reduced, chunk, &mut desk.payload);
        let read = context.progress.wait(place, Way::In, Awaited::Sum, read).await;
        read.map_err(|what| context.fault(place, what))?;
        // The sender is in the context, so the channel cannot close during the wait.
        drop(context.told[place].subscribe().wait_for(|told| *told).await);
        if context.sent[place].load(Ordering::Acquire) <= index {
            return Err(context.fault(place, PeerFault::Early { chunk }));
        }
        desk.check_sum(context, chunk, (place, &mut before))?;
        context.progress.add(FRAME_HEADER_BYTES + desk.payload.len());
        context.sheet.put(chunk, &desk.payload);
    }
    Ok(())
}

#[cfg(test)]
#[path = "owners_test.rs"]
mod tests;
