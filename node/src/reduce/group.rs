//! The parts of a reduction that owners, and rows and columns, have in common: members add up encoded parts, and then
//! send each other finished sums. Which member adds up what, and who sends what to whom, are theirs ([`owners`], [`lattice`]).
//!
//! [`owners`]: super::owners
//! [`lattice`]: super::lattice

mod desk;
mod inlet;
mod outlet;

pub(super) use desk::{Desk, Excess};
pub(super) use inlet::Inlet;
pub(super) use outlet::Outlet;

use super::error::{PeerFault, ReduceError};
use super::feedback::{Share, Terms};
use super::linger::linger;
use super::progress::{Progress, Way};
use super::stream::fault;
use super::sums::{Beginning, Sheet};
use super::turns::Turns;
use super::{Attempt, ReduceJob};
use starling_protocol::NodeId;
use starling_protocol::engine::io::Contribution;
use starling_protocol::frame::FrameScope;
use starling_protocol::message::Awaited;
use starling_protocol::update::{self, Stated};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

/// The parts of one member that have come, in the order of their chunks.
pub(super) type Arriving = Option<mpsc::Receiver<Arc<Vec<u8>>>>;

/// The members of an attempt, and all that its tasks share.
pub(super) struct Group {
    pub job: ReduceJob,
    pub scope: FrameScope,
    /// Members in the order in which they are added, and their weights.
    pub members: Vec<Contribution>,
    pub weights: Vec<f32>,
    /// The greatest norm that sums may have, if it is known; sums that are kept from former attempts count, too.
    pub longest_sum: Option<f32>,
    pub me: usize,
    pub share: Share,
    pub sheet: Sheet,
    /// For each member, the number of parts up to which this node's have left or are known to be there.
    sent: Vec<AtomicUsize>,
    /// Whether each member has said what it has, if it is to say so.
    told: Vec<watch::Sender<bool>>,
    pub turns: Turns,
    pub progress: Progress,
}

/// The members of an attempt in the order in which they are added, before it begins.
pub(super) struct Lineup {
    pub members: Vec<Contribution>,
    pub ids: Vec<NodeId>,
    pub stated: Vec<Stated>,
    pub weights: Vec<f32>,
    pub me: usize,
    pub chunks: usize,
}

impl Lineup {
    /// # Errors
    /// [`ReduceError::Members`] unless this node is listed exactly once and no member twice.
    pub fn of(job: &ReduceJob) -> Result<Self, ReduceError> {
        job.position()?;
        let mut members = job.members.clone();
        members.sort_unstable_by_key(|member| member.member);
        let me = members.iter().position(|member| member.member == job.me);
        Ok(Self {
            me: me.ok_or(ReduceError::Members("this node is not a member"))?,
            ids: members.iter().map(|member| member.member).collect(),
            stated: members.iter().map(|member| member.stated).collect(),
            weights: Contribution::weights(&members),
            chunks: update::chunks(job.delta.len()),
            members,
        })
    }
}

impl Group {
    /// Begins the attempt. `adds` are the chunks of which this node adds up parts, `owned` those whose sums it finishes.
    pub fn begin(job: ReduceJob, progress: Progress, lineup: Lineup, adds: &[usize], owned: Vec<usize>) -> Self {
        let Lineup { members, ids, stated, weights, me, .. } = lineup;
        job.parts.begin(&job.key, &members, adds);
        let (key, codec, elements) = (job.key, job.codec, job.delta.len());
        let longest = update::longest_sum(codec, &stated, &weights);
        let sheet = Sheet::begin(&job.sums, &Beginning { key, members: &members, codec, elements, longest });
        let (delta, norm) = (Arc::clone(&job.delta), members[me].stated.norm);
        let share = job.feedback.join(key, Terms { codec, weight: weights[me], norm, scale: 1.0, owned, delta });
        Self {
            scope: FrameScope { run: job.run, key, codec, elements },
            longest_sum: sheet.longest(),
            sheet,
            share,
            sent: members.iter().map(|_| AtomicUsize::new(0)).collect(),
            told: members.iter().map(|_| watch::Sender::new(!repairs(&job))).collect(),
            turns: Turns::new(),
            progress: progress.of_links(ids.into_iter()),
            members,
            weights,
            me,
            job,
        }
    }

    /// Whether members first say what they have: in every attempt at a record but the first.
    pub fn repairs(&self) -> bool {
        repairs(&self.job)
    }

    /// The error for a fault of the member at `place`.
    pub fn fault(&self, place: usize, what: PeerFault) -> ReduceError {
        fault(self.members[place].member, what)
    }

    /// Waits for something that the member at a place is to say on one of the two streams.
    pub async fn hear<T>(
        &self,
        (place, way): (usize, Way),
        what: Awaited,
        said: impl Future<Output = Result<T, PeerFault>>,
    ) -> Result<T, ReduceError> {
        let heard = self.progress.wait(place, way, what, said).await;
        heard.map_err(|what| self.fault(place, what))
    }

    pub fn elements_of(&self, chunk: usize) -> usize {
        update::chunk_elements(self.scope.elements, chunk).len()
    }

    /// Takes over the sum of a chunk that this node owns, if it is kept from a former attempt, with what its payload left
    /// out. Returns whether it is kept.
    pub fn keep_own(&self, chunk: usize) -> bool {
        let former = self.sheet.made_by(&self.job.me, chunk);
        let kept = former.is_some_and(|former| self.share.keep(chunk, &former));
        if !kept {
            self.sheet.lose(chunk);
        }
        kept
    }

    /// Notes which of this node's parts the member at `place` has, as it has said.
    pub fn heard(&self, place: usize, held: &[bool]) {
        self.sent[place].store(all_there(held, 0), Ordering::Release);
        self.told[place].send_replace(true);
    }

    /// Checks that the member at `place` has this node's part number `index`, without which it cannot know the sum of
    /// `chunk`. Waits until it has said which parts it has.
    pub async fn check_not_early(&self, place: usize, index: usize, chunk: usize) -> Result<(), ReduceError> {
        // The sender is in `self`, so the channel cannot close during the wait.
        drop(self.told[place].subscribe().wait_for(|told| *told).await);
        let has_it = self.sent[place].load(Ordering::Acquire) > index;
        if has_it { Ok(()) } else { Err(self.fault(place, PeerFault::Early { chunk })) }
    }

    /// Adds up the parts of a chunk by the members at these places, in their order, as they come. False if a part does not
    /// come: its reader has reported why. `before` holds the squares of each member's earlier parts.
    pub async fn add_up(
        &self,
        desk: &mut Desk,
        (chunk, places): (usize, &[usize]),
        (arriving, before): (&mut [Arriving], &mut [f64]),
        sum: &mut Vec<f32>,
    ) -> Result<bool, ReduceError> {
        if !self.sheet.is_current() {
            return Err(ReduceError::Over);
        }
        sum.clear();
        sum.resize(self.elements_of(chunk), 0.0);
        for place in places.iter().copied() {
            if place == self.me {
                desk.encode_own(self, chunk)?;
            } else {
                let Some(parts) = arriving[place].as_mut() else { return Ok(false) };
                let Some(part) = parts.recv().await else { return Ok(false) };
                desk.payload.clear();
                desk.payload.extend_from_slice(&part);
            }
            desk.add(self, chunk, (place, &mut before[place]), sum)?;
        }
        Ok(true)
    }
}

fn repairs(job: &ReduceJob) -> bool {
    job.key.attempt > 0
}

/// The index of the first part at or after `from` that the member does not hold.
fn all_there(held: &[bool], from: usize) -> usize {
    held.iter().skip(from).position(|held| !held).map_or(held.len(), |more| from + more)
}

/// Begins an attempt, on a thread that may block: the norm of the offer takes as long to compute as settling takes.
pub(super) async fn begin<C: Send + 'static>(
    job: ReduceJob,
    progress: Progress,
    context: fn(ReduceJob, Progress) -> Result<C, ReduceError>,
) -> Result<Arc<C>, ReduceError> {
    let beginning = move || {
        job.feedback.settle();
        context(job, progress)
    };
    let context = tokio::task::spawn_blocking(beginning).await;
    Ok(Arc::new(context.map_err(|error| ReduceError::Task(error.to_string()))??))
}

/// Waits until all tasks of an attempt have ended, and returns the update. After a failure the others go on for a while:
/// parts and sums that still arrive are kept for the next attempt.
pub(super) async fn end(
    mut tasks: JoinSet<Result<(), ReduceError>>,
    attempt: Attempt,
    group: &Group,
) -> Result<Vec<u8>, ReduceError> {
    while let Some(ended) = tasks.join_next().await {
        let result = ended.unwrap_or_else(|error| Err(ReduceError::Task(error.to_string())));
        if let Err(error) = result {
            tokio::spawn(linger(tasks, attempt, Arc::clone(&group.job.sums)));
            return Err(error);
        }
    }
    group.progress.finish();
    group.sheet.take().ok_or(ReduceError::Over)
}
