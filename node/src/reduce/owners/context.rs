//! The state that all tasks of one reduction share.

use crate::reduce::ReduceJob;
use crate::reduce::error::{PeerFault, ReduceError};
use crate::reduce::feedback::{Share, Terms};
use crate::reduce::progress::Progress;
use crate::reduce::stream::fault;
use crate::reduce::sums::{Beginning, Sheet};
use crate::reduce::turns::Turns;
use starling_protocol::NodeId;
use starling_protocol::engine::io::Contribution;
use starling_protocol::frame::FrameScope;
use starling_protocol::update::{self, owners::Owners};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use tokio::sync::watch;

/// The job, its members and owners, and the progress of its parts and sums.
pub(super) struct Context {
    pub job: ReduceJob,
    pub scope: FrameScope,
    pub owners: Owners,
    /// Members in the order in which they are added, and their weights.
    pub members: Vec<Contribution>,
    pub weights: Vec<f32>,
    /// The greatest norm that sums may have, if it is known; sums that are kept from former attempts count, too.
    pub longest_sum: Option<f32>,
    pub me: usize,
    pub share: Share,
    pub sheet: Sheet,
    /// For each of this node's chunks, the number of those before it that are made in this attempt; none if its sum is
    /// kept from a former one.
    made_before: Vec<Option<usize>>,
    /// The number of this node's chunks that are finished, of those made in this attempt.
    pub finished: watch::Sender<usize>,
    /// For each member, the number of its chunks up to which this node's parts have left or are known to be there.
    pub sent: Vec<AtomicUsize>,
    /// Whether each member has said which parts it has, if it is to say so.
    pub told: Vec<watch::Sender<bool>>,
    pub turns: Turns,
    pub progress: Progress,
}

impl Context {
    pub fn new(job: ReduceJob, progress: Progress) -> Result<Self, ReduceError> {
        job.position()?;
        let mut by_id = job.members.clone();
        by_id.sort_unstable_by_key(|member| member.member);
        let me = by_id.iter().position(|member| member.member == job.me);
        let me = me.ok_or(ReduceError::Members("this node is not a member"))?;
        let elements = job.delta.len();
        let chunks = update::chunks(elements);
        let ids: Vec<_> = by_id.iter().map(|member| member.member).collect();
        let owners = Owners::among(&job.flock, &ids, chunks);
        let weights = Contribution::weights(&by_id);
        let stated: Vec<_> = by_id.iter().map(|member| member.stated).collect();
        let owned = owners.chunks(me).to_vec();
        job.parts.begin(&job.key, &by_id, &owned);
        let (key, codec, longest) = (job.key, job.codec, update::longest_sum(job.codec, &stated, &weights));
        let sheet = Sheet::begin(&job.sums, &Beginning { key, members: &by_id, codec, elements, longest });
        let (delta, norm) = (Arc::clone(&job.delta), by_id[me].stated.norm);
        let terms = Terms { codec, weight: weights[me], norm, scale: 1.0, owned, delta };
        let share = job.feedback.join(key, terms);
        Ok(Self {
            scope: FrameScope { run: job.run, key, codec, elements },
            made_before: kept(&sheet, &share, &job.me, owners.chunks(me)),
            me,
            share,
            longest_sum: sheet.longest(),
            sheet,
            finished: watch::Sender::new(0),
            sent: by_id.iter().map(|_| AtomicUsize::new(0)).collect(),
            told: by_id.iter().map(|_| watch::Sender::new(!repairs(&job))).collect(),
            turns: Turns::new(),
            progress: progress.of_links(by_id.iter().map(|member| member.member)),
            members: by_id,
            owners,
            weights,
            job,
        })
    }

    /// The error for a fault of the member at `place`.
    pub fn fault(&self, place: usize, what: PeerFault) -> ReduceError {
        fault(self.members[place].member, what)
    }

    /// Whether the sum of this node's chunk number `index` is kept from a former attempt.
    pub fn is_kept(&self, index: usize) -> bool {
        self.made_before.get(index).is_some_and(Option::is_none)
    }

    /// This node's chunks whose sums are made in this attempt, ascending.
    pub fn made(&self) -> impl Iterator<Item = usize> {
        let chunks = self.owners.chunks(self.me).iter().copied().enumerate();
        chunks.filter(|(index, _)| !self.is_kept(*index)).map(|(_, chunk)| chunk)
    }

    /// Whether the sum of this node's chunk number `index` is there.
    pub fn is_finished(&self, index: usize) -> bool {
        let before = self.made_before.get(index).copied().flatten();
        before.is_none_or(|before| *self.finished.borrow() > before)
    }

    /// Returns when the sum of this node's chunk number `index` is there.
    pub async fn finished(&self, index: usize) {
        let Some(before) = self.made_before.get(index).copied().flatten() else { return };
        // The sender is in `self`, so the channel cannot close during the wait.
        drop(self.finished.subscribe().wait_for(|finished| *finished > before).await);
    }

    /// For each of this node's chunks, whether a member needs its sum no more: the sum is kept, and the member has it
    /// from an attempt since it was made. `sums` are the member's bytes about them.
    pub fn there(&self, sums: &[u8]) -> Vec<bool> {
        let id = &self.job.me;
        let there = |(chunk, said): (&usize, &u8)| {
            let made = self.sheet.made_by(id, *chunk).filter(|made| made.attempt < self.job.key.attempt);
            made.is_some_and(|made| u32::from(*said) > made.attempt)
        };
        self.owners.chunks(self.me).iter().zip(sums).map(there).collect()
    }
}

/// Takes over what is kept of this node's own sums, with what their payloads left out. Returns for each chunk the
/// number of those before it that are to be made, or none if its sum is kept.
fn kept(sheet: &Sheet, share: &Share, me: &NodeId, chunks: &[usize]) -> Vec<Option<usize>> {
    let mut made = 0;
    let keep = |chunk: &usize| {
        if sheet.made_by(me, *chunk).is_some_and(|former| share.keep(*chunk, &former)) {
            return None;
        }
        sheet.lose(*chunk);
        made += 1;
        Some(made - 1)
    };
    chunks.iter().map(keep).collect()
}

/// Whether members first say which parts and sums they have: in every attempt at a record but the first.
pub(super) fn repairs(job: &ReduceJob) -> bool {
    job.key.attempt > 0
}
