//! The members of an attempt, and the state that its tasks share.

use crate::reduce::ReduceJob;
use crate::reduce::error::{PeerFault, ReduceError};
use crate::reduce::feedback::{Share, Terms};
use crate::reduce::progress::{Progress, Way};
use crate::reduce::stream::fault;
use crate::reduce::sums::{Beginning, Sheet};
use crate::reduce::turns::Turns;
use starling_protocol::NodeId;
use starling_protocol::engine::io::Contribution;
use starling_protocol::frame::FrameScope;
use starling_protocol::message::Awaited;
use starling_protocol::update::{self, Stated};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::watch;

/// The members of an attempt, and all that its tasks share.
pub(in crate::reduce) struct Group {
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
    pub(super) sent: Vec<AtomicUsize>,
    /// Whether each member has said what it has, if it is to say so.
    told: Vec<watch::Sender<bool>>,
    pub turns: Turns,
    pub progress: Progress,
}

/// The members of an attempt in the order in which they are added, before it begins.
pub(in crate::reduce) struct Lineup {
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
}

fn repairs(job: &ReduceJob) -> bool {
    job.key.attempt > 0
}

/// The index of the first part at or after `from` that the member does not hold.
pub(super) fn all_there(held: &[bool], from: usize) -> usize {
    held.iter().skip(from).position(|held| !held).map_or(held.len(), |more| from + more)
}
