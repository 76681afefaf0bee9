//! The state that all tasks of one reduction over rows and columns share.

use super::post::Post;
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
use starling_protocol::update::lattice::{Cargo, Lattice};
use starling_protocol::update::{self, Stated};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use tokio::sync::watch;

/// The job, its members and their ways, and the progress of its parts and sums.
pub(super) struct Context {
    pub job: ReduceJob,
    pub scope: FrameScope,
    pub lattice: Lattice,
    /// Members in the order in which they are added, and their weights.
    pub members: Vec<Contribution>,
    pub weights: Vec<f32>,
    /// The greatest norm that sums may have, if it is known; sums that are kept from former attempts count, too.
    pub longest_sum: Option<f32>,
    /// By row, the norm by which its sums are judged.
    pub longest_rows: Vec<f32>,
    pub me: usize,
    pub row: usize,
    pub share: Share,
    pub sheet: Sheet,
    /// By chunk, whether this node owns it and keeps its sum from a former attempt.
    kept: Vec<bool>,
    /// All that goes to each member, and all that comes from it.
    pub leaving: Vec<Cargo>,
    pub arriving: Vec<Cargo>,
    /// The sums of rows that are here and have not gone on.
    pub post: Post,
    /// By chunk, whether the finished sum of this attempt is here.
    done: watch::Sender<Vec<bool>>,
    /// For each member, the number of parts up to which this node's have left or are known to be there.
    pub sent: Vec<AtomicUsize>,
    /// Whether each member has said what it has, if it is to say so.
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
        let ids: Vec<NodeId> = by_id.iter().map(|member| member.member).collect();
        let lattice = Lattice::new(&job.grid, &ids, chunks);
        let lattice = lattice.ok_or(ReduceError::Members("its rows have no column in common"))?;
        let row = lattice.row_of(me).ok_or(ReduceError::Members("this node has no cell"))?;
        let weights = Contribution::weights(&by_id);
        let stated: Vec<Stated> = by_id.iter().map(|member| member.stated).collect();
        let adds: Vec<usize> = (0..chunks).filter(|chunk| lattice.adder(*chunk, row) == Some(me)).collect();
        let owned: Vec<usize> = (0..chunks).filter(|chunk| lattice.owner(*chunk) == Some(me)).collect();
        job.parts.begin(&job.key, &by_id, &adds);
        let (key, codec, longest) = (job.key, job.codec, update::longest_sum(job.codec, &stated, &weights));
        let sheet = Sheet::begin(&job.sums, &Beginning { key, members: &by_id, codec, elements, longest });
        let (delta, norm) = (Arc::clone(&job.delta), by_id[me].stated.norm);
        let terms = Terms { codec, weight: weights[me], norm, scale: 1.0, owned: owned.clone(), delta };
        let share = job.feedback.join(key, terms);
        let mut kept = vec![false; chunks];
        for chunk in owned {
            kept[chunk] = sheet.made_by(&job.me, chunk).is_some_and(|former| share.keep(chunk, &former));
            if !kept[chunk] {
                sheet.lose(chunk);
            }
        }
        let members = by_id.len();
        let told = |_| watch::Sender::new(!repairs(&job));
        Ok(Self {
            scope: FrameScope { run: job.run, key, codec, elements },
            leaving: (0..members).map(|place| lattice.cargo(me, place)).collect(),
            arriving: (0..members).map(|place| lattice.cargo(place, me)).collect(),
            longest_rows: longest_rows(&lattice, job.grid.rows(), &stated, &weights),
            longest_sum: sheet.longest(),
            post: Post::default(),
            done: watch::Sender::new(kept.clone()),
            sent: (0..members).map(|_| AtomicUsize::new(0)).collect(),
            told: (0..members).map(told).collect(),
            turns: Turns::new(),
            progress: progress.of_links(ids.into_iter()),
            members: by_id,
            lattice,
            weights,
            me,
            row,
            share,
            sheet,
            kept,
            job,
        })
    }

    /// The error for a fault of the member at `place`.
    pub fn fault(&self, place: usize, what: PeerFault) -> ReduceError {
        fault(self.members[place].member, what)
    }

    pub fn elements_of(&self, chunk: usize) -> usize {
        update::chunk_elements(self.scope.elements, chunk).len()
    }

    /// Whether this node owns a chunk and keeps its sum.
    pub fn keeps(&self, chunk: usize) -> bool {
        self.kept.get(chunk).copied().unwrap_or(false)
    }

    /// The chunks of which this node adds up the parts of its row, ascending.
    pub fn added(&self) -> impl Iterator<Item = usize> + '_ {
        let adds = |chunk: &usize| self.lattice.adder(*chunk, self.row) == Some(self.me) && !self.keeps(*chunk);
        (0..self.kept.len()).filter(adds)
    }

    /// The chunks of which this node makes the finished sums, ascending.
    pub fn made(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.kept.len()).filter(|chunk| self.lattice.owner(*chunk) == Some(self.me) && !self.keeps(*chunk))
    }

    /// Whether the finished sum of a chunk is here.
    pub fn is_done(&self, chunk: usize) -> bool {
        self.done.borrow().get(chunk).copied().unwrap_or(false)
    }

    /// Notes that the finished sum of a chunk is here.
    pub fn finish(&self, chunk: usize) {
        self.done.send_modify(|done| {
            if let Some(done) = done.get_mut(chunk) {
                *done = true;
            }
        });
    }

    /// Returns when the finished sum of a chunk is here.
    pub async fn finished(&self, chunk: usize) {
        let is_done = |done: &Vec<bool>| done.get(chunk).copied().unwrap_or(false);
        // The sender is in `self`, so the channel cannot close during the wait.
        drop(self.done.subscribe().wait_for(is_done).await);
    }

    /// The member that has made, or makes, the sum of a chunk.
    pub fn owner_of(&self, chunk: usize) -> Option<NodeId> {
        let owner = self.lattice.owner(chunk)?;
        self.members.get(owner).map(|member| member.member)
    }
}

/// By row, the norm that the sum of its parts has at most.
fn longest_rows(lattice: &Lattice, rows: usize, stated: &[Stated], weights: &[f32]) -> Vec<f32> {
    let of_row = |row: usize| {
        let (stated, weights): (Vec<Stated>, Vec<f32>) =
            lattice.row(row).filter_map(|place| Some((*stated.get(place)?, *weights.get(place)?))).unzip();
        update::longest_row_sum(&stated, &weights)
    };
    (0..rows).map(of_row).collect()
}

/// Whether members first say what they have: in every attempt at a record but the first.
pub(super) fn repairs(job: &ReduceJob) -> bool {
    job.key.attempt > 0
}
