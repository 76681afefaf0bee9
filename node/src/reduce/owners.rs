//! Owners: each chunk is added up by one member, which then sends the encoded sum to all. Two hops, however many members
//! there are, and each contribution is encoded once.
//!
//! A reduction has a *writer* and a *reader* for each other member, and a task for this node's own part. A writer sends
//! this node's parts of the chunks that the member owns, then the sums that this node has finished. A reader takes the
//! member's parts of this node's chunks, adds each in its turn ([`Sums`]), then the sums that the member owns. All members
//! are written to at once, beginning with the one after this node, so that no owner gets everybody's parts first and
//! alone; a slow one holds up nothing but its own stream until sums need its part.
//!
//! Parts never wait for anything of others, and who waits for its turn waits for parts only: there is no circle. Nothing
//! waits for a timer; an attempt that makes no progress is ended from outside by dropping it.
//!
//! Repair: what an owner has been sent is kept until the record is decided ([`Parts`](super::Parts)), also by what goes on
//! after a failure. In a later attempt it says first which parts it has ([`held`]), and only the others are sent.

use super::error::{PeerFault, ReduceError, own_fault};
use super::feedback::{Share, Terms};
use super::held;
use super::links::BulkLinks;
use super::opening;
use super::progress::{Progress, ProgressFn, Way};
use super::stream::{self, close, expect_end, fault, fill_frame, read_frame};
use super::sums::Sums;
use super::{Attempt, ReduceEngine, ReduceJob, count_refusal};
use crate::coding::Coder;
use crate::net::BulkStream;
use futures::future::BoxFuture;
use starling_protocol::engine::io::Contribution;
use starling_protocol::frame::{FRAME_HEADER_BYTES, FRAME_PAYLOAD_BYTES_MAX, FrameKind, FrameScope};
use starling_protocol::message::Awaited;
use starling_protocol::update::{self, owners::Owners};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// How long a node whose reduction has failed goes on serving the others. Who closed its streams at once would be taken
/// for the cause by members that have not yet seen the real one; and some of them may still end with the update.
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

/// What all tasks of one reduction know.
struct Context {
    job: ReduceJob,
    scope: FrameScope,
    owners: Owners,
    /// Members in the order in which they are added, and their weights.
    members: Vec<Contribution>,
    weights: Vec<f32>,
    me: usize,
    share: Share,
    sums: Sums,
    /// Finished payloads by chunk.
    payloads: Mutex<Vec<Arc<Vec<u8>>>>,
    /// How many of my chunks are finished.
    finished: watch::Sender<usize>,
    /// How many parts have left for each member, or are known to be there.
    sent: Vec<AtomicUsize>,
    /// Whether each member has said what it has, if it is to say so.
    told: Vec<watch::Sender<bool>>,
    progress: Progress,
}

impl Context {
    fn new(job: ReduceJob, progress: Progress) -> Result<Self, ReduceError> {
        job.position()?;
        let mut by_id = job.members.clone();
        by_id.sort_unstable_by_key(|member| member.member);
        let me = by_id.iter().position(|member| member.member == job.me);
        let me = me.ok_or(ReduceError::Members("this node is not a member"))?;
        let elements = job.delta.len();
        let chunks = update::chunks(elements);
        // No record tells what a member's link can do by itself: what the last reduction sent in its time depends on
        // the slowest of all.
        let flock: Vec<_> = job.flock.iter().map(|member| (*member, 0)).collect();
        let ids: Vec<_> = by_id.iter().map(|member| member.member).collect();
        let owners = Owners::among(&flock, &ids, chunks);
        let total = by_id.iter().map(|member| member.tokens).fold(0, u64::saturating_add);
        let weights: Vec<f32> = by_id.iter().map(|member| update::weight(member.tokens, total)).collect();
        let owned = owners.chunks(me).to_vec();
        job.parts.begin(&job.key, &by_id, &owned);
        let terms =
            Terms { codec: job.codec, weight: weights[me], owned: owned.clone(), delta: Arc::clone(&job.delta) };
        Ok(Self {
            scope: FrameScope { run: job.run, key: job.key, codec: job.codec, elements },
            me,
            share: job.feedback.join(job.key, terms),
            sums: Sums::new(by_id.len(), owned, elements),
            payloads: Mutex::new(vec![Arc::default(); chunks]),
            finished: watch::Sender::new(0),
            sent: by_id.iter().map(|_| AtomicUsize::new(0)).collect(),
            told: by_id.iter().map(|_| watch::Sender::new(!repairs(&job))).collect(),
            progress: progress.of_links(by_id.iter().map(|member| member.member)),
            members: by_id,
            owners,
            weights,
            job,
        })
    }

    /// The other end of a stream did this.
    fn fault(&self, place: usize, what: PeerFault) -> ReduceError {
        fault(self.members[place].member, what)
    }

    /// The bytes are plain data: whatever a panicking holder left is still only bytes.
    fn payloads(&self) -> MutexGuard<'_, Vec<Arc<Vec<u8>>>> {
        self.payloads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, chunk: usize, payload: Vec<u8>) {
        if let Some(slot) = self.payloads().get_mut(chunk) {
            *slot = Arc::new(payload);
        }
    }

    /// Encodes a complete sum for all.
    fn finish(&self, chunk: usize, mut sum: Vec<f32>, coder: &mut Coder) -> Result<(), ReduceError> {
        self.share.mend(chunk, &mut sum);
        let mut payload = Vec::new();
        coder.encode(&sum, &mut payload).map_err(|source| ReduceError::Sum { chunk, source })?;
        self.share.stage(chunk, &sum, &payload, coder);
        self.sums.recycle(sum);
        self.put(chunk, payload);
        self.finished.send_modify(|count| *count += 1);
        Ok(())
    }

    /// The finished payload of my chunk number `index`, when it is there.
    async fn finished(&self, index: usize, chunk: usize) -> Arc<Vec<u8>> {
        // The sender is in `self`, so the channel cannot close while we wait.
        drop(self.finished.subscribe().wait_for(|finished| *finished > index).await);
        self.payloads().get(chunk).cloned().unwrap_or_default()
    }
}

/// Whether owners say first what they have: in every attempt at a record but the first.
fn repairs(job: &ReduceJob) -> bool {
    job.key.attempt > 0
}

/// A codec and room for one chunk, of one task.
struct Desk {
    coder: Coder,
    values: Vec<f32>,
    payload: Vec<u8>,
}

impl Desk {
    fn new(context: &Context) -> Self {
        let payload = Vec::with_capacity(FRAME_PAYLOAD_BYTES_MAX);
        Self { coder: Coder::new(context.job.codec), values: Vec::new(), payload }
    }

    /// Puts the payload of my part of `chunk` into place.
    fn encode_own(&mut self, context: &Context, chunk: usize) -> Result<(), ReduceError> {
        context.share.offer(chunk, &mut self.values);
        self.coder.encode(&self.values, &mut self.payload).map_err(|source| own_fault(chunk, source))
    }

    /// Reads the payload at hand as a part of `chunk`, keeps it, and adds it in its turn.
    async fn add(&mut self, context: &Context, chunk: usize, place: usize) -> Result<(), ReduceError> {
        self.values.resize(update::chunk_elements(context.scope.elements, chunk).len(), 0.0);
        let refused = |source| context.fault(place, PeerFault::Payload { chunk, source });
        self.coder.decode(&self.payload, &mut self.values).map_err(refused)?;
        if place != context.me {
            context.job.parts.keep(&context.job.key, &context.members[place], chunk, &self.payload);
        }
        match context.sums.add(chunk, place, context.weights[place], &self.values).await {
            Some(sum) => context.finish(chunk, sum, &mut self.coder),
            None => Ok(()),
        }
    }
}

async fn reduce(
    links: Arc<dyn BulkLinks>,
    attempt: Attempt,
    job: ReduceJob,
    progress: Progress,
) -> Result<Vec<u8>, ReduceError> {
    let feedback = Arc::clone(&job.feedback);
    let settled = tokio::task::spawn_blocking(move || feedback.settle()).await;
    settled.map_err(|error| ReduceError::Task(error.to_string()))?;
    let context = Arc::new(Context::new(job, progress)?);
    let mut tasks = JoinSet::new();
    tasks.spawn(add_own(Arc::clone(&context)));
    let members = context.members.len();
    for place in (1..members).map(|step| (context.me + step) % members) {
        tasks.spawn(write(Arc::clone(&links), Arc::clone(&context), place));
        tasks.spawn(read(Arc::clone(&links), Arc::clone(&context), place));
    }
    while let Some(ended) = tasks.join_next().await {
        let result = ended.unwrap_or_else(|error| Err(ReduceError::Task(error.to_string())));
        if let Err(error) = result {
            // Parts that still come are kept for the next attempt, and wait for nobody.
            context.sums.give_up();
            tokio::spawn(linger(tasks, attempt));
            return Err(error);
        }
    }
    context.progress.finish();
    let payloads = std::mem::take(&mut *context.payloads());
    Ok(update::assemble(context.job.codec, payloads.iter().map(|payload| payload.as_slice())))
}

/// Goes on with what can still be done for others, for a while.
async fn linger(mut tasks: JoinSet<Result<(), ReduceError>>, attempt: Attempt) {
    let rest = async { while tasks.join_next().await.is_some() {} };
    drop(tokio::time::timeout(LINGER, rest).await);
    tasks.shutdown().await;
    drop(attempt);
}

/// This node's own part, encoded and decoded as everybody else's is.
async fn add_own(context: Arc<Context>) -> Result<(), ReduceError> {
    let mut desk = Desk::new(&context);
    for chunk in context.owners.chunks(context.me).iter().copied() {
        desk.encode_own(&context, chunk)?;
        desk.add(&context, chunk, context.me).await?;
        // Between chunks others have their turn: with one member nothing here ever waits.
        tokio::task::yield_now().await;
    }
    Ok(())
}

async fn write(links: Arc<dyn BulkLinks>, context: Arc<Context>, place: usize) -> Result<(), ReduceError> {
    let stream = links.open(context.members[place].member).await;
    let mut stream = stream.map_err(|e| context.fault(place, PeerFault::Unreachable(e.to_string())))?;
    write_parts(&mut stream, &context, place).await?;
    write_sums(&mut stream, &context, place).await?;
    tokio::spawn(close(stream));
    Ok(())
}

/// This node's parts of what the member at `place` owns.
async fn write_parts(stream: &mut BulkStream, context: &Context, place: usize) -> Result<(), ReduceError> {
    let lost = |error| context.fault(place, PeerFault::Lost(error));
    stream.write_all(&opening::encode(&context.job.run, &context.job.key)).await.map_err(lost)?;
    let chunks = context.owners.chunks(place);
    let mut held = vec![false; chunks.len()];
    if repairs(&context.job) {
        stream.flush().await.map_err(lost)?;
        let said = held::read(stream, chunks.len());
        let said = context.progress.wait(place, Way::Out, Awaited::Part, said).await;
        held = said.map_err(|what| context.fault(place, what))?;
        context.told[place].send_replace(true);
    }
    let mut desk = Desk::new(context);
    let mut frame = Vec::with_capacity(FRAME_HEADER_BYTES + FRAME_PAYLOAD_BYTES_MAX);
    for (chunk, held) in chunks.iter().copied().zip(held) {
        // Counted before it leaves: the sum may be back before we are.
        context.sent[place].fetch_add(1, Ordering::AcqRel);
        if held {
            continue;
        }
        desk.encode_own(context, chunk)?;
        fill_frame(&mut frame, &context.scope, FrameKind::Contrib, chunk, &desk.payload);
        let written = context.progress.wait(place, Way::Out, Awaited::Room, stream.write_all(&frame)).await;
        written.map_err(lost)?;
        context.progress.add(frame.len());
    }
    Ok(())
}

/// The sums that this node owns, as they are finished.
async fn write_sums(stream: &mut BulkStream, context: &Context, place: usize) -> Result<(), ReduceError> {
    let lost = |error| context.fault(place, PeerFault::Lost(error));
    let mut frame = Vec::with_capacity(FRAME_HEADER_BYTES + FRAME_PAYLOAD_BYTES_MAX);
    for (index, chunk) in context.owners.chunks(context.me).iter().copied().enumerate() {
        if *context.finished.borrow() <= index {
            // The member shall have all that there is while we wait.
            context.progress.wait(place, Way::Out, Awaited::Room, stream.flush()).await.map_err(lost)?;
        }
        let mut nothing = [0];
        let payload = tokio::select! {
            biased;
            payload = context.finished(index, chunk) => payload,
            // The member writes nothing here: this returns when it has let go, which writing would show too late.
            _ = stream.read(&mut nothing) => return Err(lost(std::io::ErrorKind::BrokenPipe.into())),
        };
        fill_frame(&mut frame, &context.scope, FrameKind::Reduced, chunk, &payload);
        let written = context.progress.wait(place, Way::Out, Awaited::Room, stream.write_all(&frame)).await;
        written.map_err(lost)?;
        context.progress.add(frame.len());
    }
    context.progress.wait(place, Way::Out, Awaited::Room, stream.flush()).await.map_err(lost)
}

async fn read(links: Arc<dyn BulkLinks>, context: Arc<Context>, place: usize) -> Result<(), ReduceError> {
    let from = context.members[place].member;
    let stream = context.progress.wait(place, Way::In, Awaited::Part, links.accept(context.job.key, from)).await;
    let mut stream = stream::reader(stream.map_err(|error| fault(from, PeerFault::Silent(error)))?);
    read_parts(&mut stream, &context, place).await?;
    read_sums(&mut stream, &context, place).await?;
    tokio::spawn(expect_end(stream, from));
    Ok(())
}

/// The member's parts of this node's chunks: those that are here from an earlier attempt, and the others.
async fn read_parts(stream: &mut BufReader<BulkStream>, context: &Context, place: usize) -> Result<(), ReduceError> {
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
        if let Some(kept) = kept {
            desk.payload.clear();
            desk.payload.extend_from_slice(&kept);
        } else {
            let read = read_frame(stream, &context.scope, FrameKind::Contrib, chunk, &mut desk.payload);
            let read = context.progress.wait(place, Way::In, Awaited::Part, read).await;
            read.map_err(|what| context.fault(place, what))?;
            context.progress.add(FRAME_HEADER_BYTES + desk.payload.len());
        }
        desk.add(context, chunk, place).await?;
    }
    Ok(())
}

/// The sums that the member owns.
async fn read_sums(stream: &mut BufReader<BulkStream>, context: &Context, place: usize) -> Result<(), ReduceError> {
    let mut desk = Desk::new(context);
    for (index, chunk) in context.owners.chunks(place).iter().copied().enumerate() {
        let read = read_frame(stream, &context.scope, FrameKind::Reduced, chunk, &mut desk.payload);
        let read = context.progress.wait(place, Way::In, Awaited::Sum, read).await;
        read.map_err(|what| context.fault(place, what))?;
        // The sender is in the context, so the channel cannot close while we wait.
        drop(context.told[place].subscribe().wait_for(|told| *told).await);
        if context.sent[place].load(Ordering::Acquire) <= index {
            return Err(context.fault(place, PeerFault::Early { chunk }));
        }
        let elements = update::chunk_elements(context.scope.elements, chunk).len();
        let refused = |source| context.fault(place, PeerFault::Payload { chunk, source });
        desk.coder.check(&desk.payload, elements).map_err(refused)?;
        context.progress.add(FRAME_HEADER_BYTES + desk.payload.len());
        context.put(chunk, desk.payload.clone());
    }
    Ok(())
}

#[cfg(test)]
#[path = "owners_test.rs"]
mod tests;
