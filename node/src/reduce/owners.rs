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

use super::error::{PeerFault, ReduceError};
use super::group::{self, Arriving, Desk, Excess, Inlet, Outlet};
use super::held;
use super::links::BulkLinks;
use super::progress::{Progress, ProgressFn, Way};
use super::stream::read_frame;
use super::word::{self, WordKind};
use super::{Attempt, ReduceEngine, ReduceJob, note_refusal};
use crate::net::BulkStream;
use context::Context;
use futures::future::BoxFuture;
use starling_protocol::frame::{FRAME_HEADER_BYTES, FRAME_PAYLOAD_BYTES_MAX, FrameKind};
use starling_protocol::message::Awaited;
use std::sync::Arc;
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
    let context = group::begin(job, progress, Context::new).await?;
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
    group::end(tasks, attempt, &context).await
}

/// Adds up this node's chunks, one after another, but for those whose sums are kept. Its own part is encoded and
/// decoded like every other.
async fn add_up(context: Arc<Context>, mut arriving: Vec<Arriving>) -> Result<(), ReduceError> {
    let (mut desk, mut sum) = (Desk::new(&context), Vec::new());
    let mut before = vec![0.0; context.members.len()];
    let all: Vec<usize> = (0..context.members.len()).collect();
    for chunk in context.made() {
        let came = (arriving.as_mut_slice(), before.as_mut_slice());
        if !group::add_up(&context, &mut desk, (chunk, &all), came, &mut sum).await? {
            return Ok(());
        }
        desk.finish(&context, chunk, &mut sum)?;
        context.finish_next();
        // Other tasks get a turn between chunks: with one member nothing here ever waits.
        tokio::task::yield_now().await;
    }
    Ok(())
}

async fn write(links: Arc<dyn BulkLinks>, context: Arc<Context>, place: usize) -> Result<(), ReduceError> {
    let mut stream = Outlet::open(&links, &context, place).await?;
    let held = hear_held(&mut stream, &context, place).await?;
    let mut outlet = Outlet::new(&context, place, stream);
    let mut written = outlet.write_parts(context.owners.chunks(place), &held.parts).await;
    if written.is_ok() {
        written = write_sums(&mut outlet, &context, &held.sums).await;
    }
    outlet.end(written)
}

/// The parts and sums that a member has already.
struct Held {
    /// Whether it has this node's part, for each of its own chunks.
    parts: Vec<bool>,
    /// Whether it has the sum, for each of this node's chunks.
    sums: Vec<bool>,
}

/// Hears from the member at `place` what it has, in any attempt but the first.
async fn hear_held(stream: &mut BulkStream, context: &Context, place: usize) -> Result<Held, ReduceError> {
    let (theirs, mine) = (context.owners.chunks(place).len(), context.owners.chunks(context.me).len());
    if !context.repairs() {
        return Ok(Held { parts: vec![false; theirs], sums: vec![false; mine] });
    }
    let said = async {
        let parts = held::read(stream, theirs).await?;
        let sums = held::read_sums(stream, mine, context.job.key.attempt).await?;
        Ok::<_, PeerFault>((parts, sums))
    };
    let (parts, sums) = context.hear((place, Way::Out), Awaited::Part, said).await?;
    context.heard(place, &parts);
    Ok(Held { parts, sums: context.there(&sums) })
}

/// Writes the sums that this node owns and the member lacks, as they are finished.
async fn write_sums(outlet: &mut Outlet<'_>, context: &Context, there: &[bool]) -> Result<(), ReduceError> {
    if context.repairs() {
        outlet.write_word(&word::encode(WordKind::There, there)).await?;
    }
    let mut payload = Vec::with_capacity(FRAME_PAYLOAD_BYTES_MAX);
    let chunks = context.owners.chunks(context.me).iter().copied().enumerate();
    for (index, chunk) in chunks.filter(|(index, _)| !there[*index]) {
        outlet.wait_for(context.is_finished(index), context.finished(index)).await?;
        if !context.sheet.copy(chunk, &mut payload) {
            return Err(ReduceError::Over);
        }
        outlet.write_frame(FrameKind::Reduced, chunk, &payload).await?;
    }
    outlet.finish().await
}

async fn read(
    links: Arc<dyn BulkLinks>,
    context: Arc<Context>,
    place: usize,
    arrived: mpsc::Sender<Arc<Vec<u8>>>,
) -> Result<(), ReduceError> {
    let mut inlet = Inlet::accept(&links, &context, place, Awaited::Part).await?;
    let answer = answer(&mut inlet.stream, &context, place).await?;
    inlet.read_parts(context.made().zip(answer.parts), arrived).await?;
    read_sums(&mut inlet, &context, &answer.sums).await?;
    inlet.end();
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
    if !context.repairs() {
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

/// Reads the sums that the member owns, but for those that are here. `told` are this node's bytes about them.
async fn read_sums(inlet: &mut Inlet<'_>, context: &Context, told: &[u8]) -> Result<(), ReduceError> {
    let Inlet { place, stream, .. } = inlet;
    let place = *place;
    let (mut desk, mut before) = (Desk::new(context), 0.0);
    let mut there = vec![false; told.len()];
    if context.repairs() {
        let said = word::read(stream, WordKind::There, told.len());
        there = context.hear((place, Way::In), Awaited::Sum, said).await?;
    }
    if there.iter().zip(told).any(|(there, told)| *there && *told == 0) {
        return Err(context.fault(place, PeerFault::Held));
    }
    let chunks = context.owners.chunks(place).iter().copied().enumerate();
    for (index, chunk) in chunks.filter(|(index, _)| !there[*index]) {
        let read = read_frame(stream, &context.scope, FrameKind::Reduced, chunk, &mut desk.payload);
        context.hear((place, Way::In), Awaited::Sum, read).await?;
        context.check_not_early(place, index, chunk).await?;
        if let Some(Excess { norm, most }) = desk.check_sum(context, (place, chunk), &mut before)? {
            return Err(context.fault(place, PeerFault::Sum { chunk, norm, most }));
        }
        context.progress.add(FRAME_HEADER_BYTES + desk.payload.len());
        context.sheet.arrive(chunk, &desk.payload, context.members[place].member);
    }
    Ok(())
}

#[cfg(test)]
#[path = "owners_test.rs"]
mod tests;
