//! The state that all tasks of one reduction over rows and columns share.

use super::post::Post;
use crate::reduce::ReduceJob;
use crate::reduce::error::ReduceError;
use crate::reduce::group::{Group, Lineup};
use crate::reduce::progress::Progress;
use starling_protocol::NodeId;
use starling_protocol::update::lattice::{Cargo, Lattice};
use starling_protocol::update::{self, Stated};
use std::ops::Deref;
use tokio::sync::watch;

/// The attempt's group, the ways between its members, and the progress of sums.
pub(super) struct Context {
    group: Group,
    pub lattice: Lattice,
    /// By row, the norm by which its sums are judged.
    pub longest_rows: Vec<f32>,
    pub row: usize,
    /// By chunk, whether this node owns it and keeps its sum from a former attempt.
    kept: Vec<bool>,
    /// All that goes to each member, and all that comes from it.
    pub leaving: Vec<Cargo>,
    pub arriving: Vec<Cargo>,
    /// The sums of rows that are here and have not gone on.
    pub post: Post,
    /// By chunk, whether the finished sum of this attempt is here.
    done: watch::Sender<Vec<bool>>,
}

impl Deref for Context {
    type Target = Group;

    fn deref(&self) -> &Group {
        &self.group
    }
}

impl Context {
    pub fn new(job: ReduceJob, progress: Progress) -> Result<Self, ReduceError> {
        let lineup = Lineup::of(&job)?;
        let (me, chunks, members) = (lineup.me, lineup.chunks, lineup.members.len());
        let lattice = Lattice::new(&job.grid, &lineup.ids, chunks);
        let lattice = lattice.ok_or(ReduceError::Members("its rows have no column in common"))?;
        let row = lattice.row_of(me).ok_or(ReduceError::Members("this node has no cell"))?;
        let adds: Vec<usize> = (0..chunks).filter(|chunk| lattice.adder(*chunk, row) == Some(me)).collect();
        let owned: Vec<usize> = (0..chunks).filter(|chunk| lattice.owner(*chunk) == Some(me)).collect();
        let longest_rows = longest_rows(&lattice, job.grid.rows(), &lineup.stated, &lineup.weights);
        let group = Group::begin(job, progress, lineup, &adds, owned.clone());
        let mut kept = vec![false; chunks];
        for chunk in owned {
            kept[chunk] = group.keep_own(chunk);
        }
        Ok(Self {
            leaving: (0..members).map(|place| lattice.cargo(me, place)).collect(),
            arriving: (0..members).map(|place| lattice.cargo(place, me)).collect(),
            longest_rows,
            post: Post::default(),
            done: watch::Sender::new(kept.clone()),
            lattice,
            row,
            kept,
            group,
        })
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
