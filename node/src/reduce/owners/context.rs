//! The state that all tasks of one reduction share.

use crate::reduce::ReduceJob;
use crate::reduce::error::{PeerFault, ReduceError};
use crate::reduce::feedback::{Share, Terms};
use crate::reduce::progress::Progress;
use crate::reduce::sheet::Sheet;
use crate::reduce::stream::fault;
use crate::reduce::turns::Turns;
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
    /// The greatest norm that sums may have, if it is known.
    pub longest_sum: Option<f32>,
    pub me: usize,
    pub share: Share,
    pub sheet: Sheet,
    /// The number of this node's chunks that are finished.
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
        let (delta, norm) = (Arc::clone(&job.delta), by_id[me].stated.norm);
        let terms = Terms { codec: job.codec, weight: weights[me], norm, scale: 1.0, owned, delta };
        Ok(Self {
            scope: FrameScope { run: job.run, key: job.key, codec: job.codec, elements },
            me,
            share: job.feedback.join(job.key, terms),
            sheet: Sheet::new(job.codec, elements),
            finished: watch::Sender::new(0),
            sent: by_id.iter().map(|_| AtomicUsize::new(0)).collect(),
            told: by_id.iter().map(|_| watch::Sender::new(!repairs(&job))).collect(),
            turns: Turns::new(),
            progress: progress.of_links(by_id.iter().map(|member| member.member)),
            members: by_id,
            owners,
            longest_sum: update::longest_sum(job.codec, &stated, &weights),
            weights,
            job,
        })
    }

    /// The error for a fault of the member at `place`.
    pub fn fault(&self, place: usize, what: PeerFault) -> ReduceError {
        fault(self.members[place].member, what)
    }

    /// Returns when this node's chunk number `index` is finished.
    pub async fn finished(&self, index: usize) {
        // The sender is in `self`, so the channel cannot close during the wait.
        drop(self.finished.subscribe().wait_for(|finished| *finished > index).await);
    }
}

/// Whether owners first say which parts they have: in every attempt at a record but the first.
pub(super) fn repairs(job: &ReduceJob) -> bool {
    job.key.attempt > 0
}
