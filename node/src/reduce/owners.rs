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
//! that arrive after a failure, and everybody keeps the finished sums ([`Sums`](super::Sums)). In a later attempt each
//! member first says which parts and sums it has ([`held`]), and only the others are sent. An owner makes no sum again
//! that holds the contributions of all who are left.
//!
//! When a later attempt begins, a node ends its streams of the one before with the frame under way. Its readers first
//! take what still flows of the earlier streams, so that it is not sent again.

mod context;
mod desk;

use super::error::{PeerFault, ReduceError};
use super::held;
use super::linger::{LINGER, linger};
use super::links::BulkLinks;
use super::opening;
use super::progress::{Progress, ProgressFn, Way};
use super::stream::{close, expect_end, fault, fill_frame, read_frame};
use super::turns::Turn;
use super::word::{self, WordKind};
use super::{Attempt, ReduceEngine, ReduceJob, note_refusal};
use crate::net::BulkStream;
use context::{Context, repairs};
use desk::Desk;
use futures::future::BoxFuture;
use starling_protocol::frame::{FRAME_HEADER_BYTES, FRAME_PAYLOAD_BYTES_MAX, FrameKind};
use starling_protocol::message::Awaited;
use starling_protocol::update;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

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
            let sums = Arc::clone(&job.sums);
            let result = reduce(links, attempt, job, Progress::new(progress)).await;
            note_refusal(&result, &sums);
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
    let (members, made) = (context.members.len(), context.made().count());
    let mut arriving: Vec<_> = (0..members).map(|_| None).collect();
    for place in (1..members).map(|after| (context.me + after) % members) {
        let (arrived, parts) = mpsc::channel(made.max(1));
        arriving[place] = Some(parts);
        tasks.spawn(write(Arc::clone(&links), Arc::clone(&context), place));
        tasks.spawn(read(Arc::clone(&links), Arc::clone(&context), place, arrived));
    }
    tasks.spawn(add_up(Arc::clone(&context), arriving));
    while let Some(ended) = tasks.join_next().await {
        let result = ended.unwrap_or_else(|error| Err(ReduceError::Task(error.to_string())));
        if let Err(error) = result {
            // Parts and sums that still arrive are kept for the next attempt.
            tokio::spawn(linger(tasks, attempt, Arc::clone(&context.job.sums)));
            return Err(error);
        }
    }
    context.progress.finish();
    context.sheet.take().ok_or(ReduceError::Over)
}

/// Adds up this node's chunks, one after another, but for those whose sums are kept. Its own part is encoded and
/// decoded like every other.
async fn add_up(
    context: Arc<Context>,
    mut arriving: Vec<Option<mpsc::Receiver<Arc<Vec<u8>>>>>,
) -> Result<(), ReduceError> {
    let (mut desk, mut sum) = (Desk::new(&context), Vec::new());
    let mut before = vec![0.0; context.members.len()];
    for chunk in context.made() {
        if !context.sheet.is_current() {
            return Err(ReduceError::Over);
        }
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
    let mut written = write_parts(&mut stream, &context, place, &held.parts, &mut turn).await;
    if written.is_ok() {
        written = write_sums(&mut stream, &context, place, &held.sums, turn).await;
    }
    // A stream that a later attempt ends is closed in order as well: the member counts what is in it.
    if matches!(written, Ok(()) | Err(ReduceError::Over)) {
        tokio::spawn(close(stream));
    }
    written
}

/// The parts and sums that a member has already.
struct Held {
    /// Whether it has this node's part, for each of its own chunks.
    parts: Vec<bool>,
    /// Whether it has the sum, for each of this node's chunks.
    sums: Vec<bool>,
}

/// Opens a stream to the member at `place`; also returns what it has already.
async fn open(links: &Arc<dyn BulkLinks>, context: &Context, place: usize) -> Result<(BulkStream, Held), ReduceError> {
    let lost = |error| context.fault(place, PeerFault::Lost(error));
    let stream = links.open(context.members[place].member).await;
    let mut stream = stream.map_err(|e| context.fault(place, PeerFault::Unreachable(e.to_string())))?;
    stream.write_all(&opening::encode(&context.job.run, &context.job.key)).await.map_err(lost)?;
    // The member shall know at once from which node it gets something, though that node's turn may come later.
    context.progress.wait(place, Way::Out, Awaited::Room, stream.flush()).await.map_err(lost)?;
    let (theirs, mine) = (context.owners.chunks(place).len(), context.owners.chunks(context.me).len());
    if !repairs(&context.job) {
        return Ok((stream, Held { parts: vec![false; theirs], sums: vec![false; mine] }));
    }
    let answer = async {
        let parts = held::read(&mut stream, theirs).await?;
        let sums = held::read_sums(&mut stream, mine, context.job.key.attempt).await?;
        Ok::<_, PeerFault>((parts, sums))
    };
    let said = context.progress.wait(place, Way::Out, Awaited::Part, answer).await;
    let (parts, sums) = said.map_err(|what| context.fault(place, what))?;
    context.sent[place].store(all_there(&parts, 0), Ordering::Release);
    context.told[place].send_replace(true);
    Ok((stream, Held { parts, sums: context.there(&sums) }))
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
        if !context.sheet.is_current() {
            return Err(ReduceError::Over);
        }
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

/// Writes the sums that this node owns and the member at `place` lacks, as they are finished.
async fn write_sums(
    stream: &mut BulkStream,
    context: &Context,
    place: usize,
    there: &[bool],
    mut turn: Turn<'_>,
) -> Result<(), ReduceError> {
    let lost = |error| context.fault(place, PeerFault::Lost(error));
    if repairs(&context.job) {
        let word = word::encode(WordKind::There, there);
        context.progress.wait(place, Way::Out, Awaited::Room, stream.write_all(&word)).await.map_err(lost)?;
    }
    let mut frame = Vec::with_capacity(FRAME_HEADER_BYTES + FRAME_PAYLOAD_BYTES_MAX);
    let mut payload = Vec::with_capacity(FRAME_PAYLOAD_BYTES_MAX);
    let chunks = context.owners.chunks(context.me).iter().copied().enumerate();
    for (index, chunk) in chunks.filter(|(index, _)| !there[*index]) {
        if !context.is_finished(index) {
            turn.rest();
            // The member shall have all finished sums during the wait.
            context.progress.wait(place, Way::Out, Awaited::Room, stream.flush()).await.map_err(lost)?;
        }
        let mut nothing = [0];
        tokio::select! {
            biased;
            () = context.sheet.superseded() => return Err(ReduceError::Over),
            () = context.finished(index) => (),
            // The member writes nothing here: the read returns when it has closed the stream. A write would show that
            // too late.
            _ = stream.read(&mut nothing) => return Err(lost(std::io::ErrorKind::BrokenPipe.into())),
        }
        if !context.sheet.copy(chunk, &mut payload) {
            return Err(ReduceError::Over);
        }
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
    // The member ends its streams of earlier attempts when it begins one. Bytes that are still in them count.
    let _reading = tokio::time::timeout(LINGER, context.sheet.gate(from).lock_owned()).await;
    let answer = answer(&mut stream, &context, place).await?;
    read_parts(&mut stream, &context, place, answer.parts, arrived).await?;
    read_sums(&mut stream, &context, place, &answer.sums).await?;
    tokio::spawn(expect_end(stream, from));
    Ok(())
}

/// The things that this node has told a member.
struct Answer {
    /// The member's parts that are here, for each of this node's chunks that are made in this attempt.
    parts: Vec<Option<Arc<Vec<u8>>>>,
    /// The bytes about the sums of the member's chunks.
    sums: Vec<u8>,
}

/// Tells the member at `place` what is here of it, in any attempt but the first.
async fn answer(stream: &mut BulkStream, context: &Context, place: usize) -> Result<Answer, ReduceError> {
    let theirs = context.owners.chunks(place);
    if !repairs(&context.job) {
        return Ok(Answer { parts: vec![None; context.made().count()], sums: vec![0; theirs.len()] });
    }
    let (key, member) = (&context.job.key, &context.members[place]);
    let parts: Vec<_> = context.made().map(|chunk| context.job.parts.get(key, member, chunk)).collect();
    // A part of a sum that is kept is not needed.
    let mut made = parts.iter().map(Option::is_some);
    let chunks = 0..context.owners.chunks(context.me).len();
    let held: Vec<bool> = chunks.map(|index| context.is_kept(index) || made.next() == Some(true)).collect();
    let sums = context.sheet.tell(member.member, theirs);
    let written = held::write(stream, &held, &sums).await;
    written.map_err(|error| context.fault(place, PeerFault::Lost(error)))?;
    Ok(Answer { parts, sums })
}

/// Reads the member's parts of this node's chunks that are made in this attempt: `kept` are those of an earlier one.
async fn read_parts(
    stream: &mut BulkStream,
    context: &Context,
    place: usize,
    kept: Vec<Option<Arc<Vec<u8>>>>,
    arrived: mpsc::Sender<Arc<Vec<u8>>>,
) -> Result<(), ReduceError> {
    let (key, member) = (&context.job.key, &context.members[place]);
    let mut desk = Desk::new(context);
    for (chunk, kept) in context.made().zip(kept) {
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

/// Reads the sums that the member owns, but for those that are here. `told` are this node's bytes about them.
async fn read_sums(stream: &mut BulkStream, context: &Context, place: usize, told: &[u8]) -> Result<(), ReduceError> {
    let (mut desk, mut before) = (Desk::new(context), 0.0);
    let mut there = vec![false; told.len()];
    if repairs(&context.job) {
        let read = word::read(stream, WordKind::There, told.len());
        let read = context.progress.wait(place, Way::In, Awaited::Sum, read).await;
        there = read.map_err(|what| context.fault(place, what))?;
    }
    if there.iter().zip(told).any(|(there, told)| *there && *told == 0) {
        return Err(context.fault(place, PeerFault::Held));
    }
    let chunks = context.owners.chunks(place).iter().copied().enumerate();
    for (index, chunk) in chunks.filter(|(index, _)| !there[*index]) {
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
        context.sheet.arrive(chunk, &desk.payload, context.members[place].member);
    }
    Ok(())
}

#[cfg(test)]
#[path = "owners_test.rs"]
mod tests;
