//! Estimates the disk that a node's folder takes, and checks that it is there, before anything is written.

use super::ledger::store_failure;
use crate::config::checkpoint_table::CheckpointTable;
use crate::config::node_file::{NodeFile, StoreTable};
use crate::exit::{Code, Failure};
use crate::watch::screen::bytes as human_bytes;
use starling_protocol::run::{RunSpec, SyncMode};
use starling_protocol::update::{Fragments, encoded_max};
use starling_store::{StoreOptions, folder_and_free};
use std::path::Path;

/// States on the disk: the newest snapshot and the one being written at least; at most also the snapshot before, and
/// one that was written between the two for newcomers.
const STATES: [u64; 2] = [2, 4];
/// Updates beside those of records: one of a candidate and one staged ahead at least, candidates of four attempts at
/// most.
const UPDATES_AHEAD: [u64; 2] = [2, 5];
/// Files of residuals: two of each fragment, and one being written.
const RESIDUAL_FILES: u64 = 3;
/// The database and small files in a new folder. Records take some ten kilobytes a round besides.
const DATABASE_BYTES: u64 = 16 << 20;

/// The bytes that a node of a run puts on its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskNeed {
    /// The canonical state, as one snapshot.
    pub state: u64,
    /// The encoded update of one round.
    pub update: u64,
    /// Rounds from one snapshot to the next.
    pub rounds: u64,
    /// The moments of this node's own optimizer.
    pub moments: u64,
    /// The residual of what this node contributes.
    pub residual: u64,
    /// The parameters alone.
    pub parameters: u64,
    /// The state with which the run begins, which stays where differences are measured from it; its moments are zeros.
    pub beginning: u64,
    /// Checkpoints that stay.
    pub checkpoints: u64,
}

impl DiskNeed {
    /// The disk of a node of a run, whose file says `snapshot_every`; a node that does not train keeps no moments.
    pub fn of(spec: &RunSpec, snapshot_every: u64, trains: bool) -> Self {
        let elements = spec.parameters();
        let parameters = elements.saturating_mul(4);
        let fragments = Fragments::of(&spec.sync, usize::try_from(elements).unwrap_or(usize::MAX));
        let largest = (0..fragments.count()).map(|index| fragments.range(index).len()).max().unwrap_or(0);
        let has_moments = trains && spec.sync.mode == SyncMode::Rounds;
        Self {
            state: parameters.saturating_mul(spec.sync.mode.vectors().into()),
            update: encoded_max(spec.sync.codec, largest) as u64,
            rounds: snapshot_every.max(1).min(rounds_at_most(spec)),
            moments: if has_moments { parameters.saturating_mul(2) } else { 0 },
            residual: if spec.sync.coarsest_codec().feeds_back() { parameters } else { 0 },
            parameters,
            beginning: if spec.beginning.is_some() && spec.sync.merges() { parameters } else { 0 },
            checkpoints: CheckpointTable::default().keep as u64,
        }
    }

    /// The least with which the node works: it keeps one snapshot while it writes the next.
    pub fn least(&self) -> u64 {
        let [states, _] = STATES;
        let [ahead, _] = UPDATES_AHEAD;
        sum([
            states.saturating_mul(self.state),
            self.rounds.saturating_add(ahead).saturating_mul(self.update),
            self.moments,
            RESIDUAL_FILES.saturating_mul(self.residual),
            self.beginning,
            DATABASE_BYTES,
        ])
    }

    /// The most that the node takes without a bound, with the checkpoints that stay, two that somebody has asked for,
    /// and one that is being written.
    pub fn most(&self) -> u64 {
        let [_, states] = STATES;
        let [_, ahead] = UPDATES_AHEAD;
        sum([
            self.checkpoints.saturating_add(states + 3).saturating_mul(self.state),
            self.rounds.saturating_mul(2).saturating_add(ahead).saturating_mul(self.update),
            // Those on the disk stay until new ones are written.
            self.moments.saturating_mul(2),
            // Residuals of contributions, and of sums.
            RESIDUAL_FILES.saturating_mul(2).saturating_mul(self.residual),
            // The base of a lineage, and the difference of one that gave way.
            self.parameters.saturating_mul(2),
            self.beginning,
            DATABASE_BYTES,
            StoreOptions::default().ballast_bytes,
        ])
    }

    /// Refuses a bound or a disk that the least does not fit into. Returns a warning if the disk is used up before old
    /// data goes. `there` are the bytes of the folder and those that are free beside it.
    fn judge(&self, node: &NodeFile, home: &Path, there: u64) -> Result<Option<String>, Failure> {
        let (bound, every, home) = (node.store.max_bytes(), node.snapshot_every, home.display());
        let least = self.least();
        let of_snapshots = sum([self.state.saturating_mul(2), self.rounds.saturating_mul(self.update)]);
        let parts = format!(
            "two states of {}, {} updates of {} from one snapshot to the next, {} besides",
            human_bytes(self.state),
            self.rounds,
            human_bytes(self.update),
            human_bytes(least.saturating_sub(of_snapshots)),
        );
        let in_bound = least.saturating_add(StoreOptions::default().ballast_bytes);
        if bound > 0 && bound < in_bound {
            let why = format!(
                "store.max_gib = {} allows {bound} bytes ({}) in {home}, where this run needs {in_bound} bytes ({}: \
                 {parts}): set store.max_gib to {} or more in the node file, or snapshot_every below {every}",
                node.store.max_gib,
                human_bytes(bound),
                human_bytes(in_bound),
                StoreTable::gib_for(in_bound),
            );
            return Err(Failure::message(Code::Usage, why));
        }
        if there < least {
            let why = format!(
                "the disk of {home} is too small for this run: {least} bytes are needed ({}: {parts}), and {there} are \
                 free or the folder's already ({}): free some space, name a folder on a larger disk with --home, or \
                 set snapshot_every below {every} in the node file",
                human_bytes(least),
                human_bytes(there),
            );
            return Err(Failure::message(Code::DiskFull, why));
        }
        let most = if bound > 0 { bound.min(self.most()) } else { self.most() };
        Ok((there < most).then(|| {
            format!(
                "the folder {home} may come to take {most} bytes ({}, {} checkpoints of {} among it), and {there} are free \
                 or the folder's already ({}): set store.max_gib to {:.1} or less in the node file, and older snapshots go \
                 in time, or set a lower checkpoint.keep",
                human_bytes(most),
                self.checkpoints.saturating_add(3),
                human_bytes(self.state),
                human_bytes(there),
                // Never less than what the next start asks for.
                StoreTable::gib_for(in_bound.max(there - there / 10)),
            )
        }))
    }
}

/// The rounds that the budget allows: all that there are if it sets no bound. A bound on tokens takes longest if one
/// member alone reaches it.
fn rounds_at_most(spec: &RunSpec) -> u64 {
    let of_round = spec.inner.samples(spec.steps_least()).saturating_mul(spec.sample_weight().into()).max(1);
    let by_rounds = if spec.budget.rounds > 0 { spec.budget.rounds } else { u64::MAX };
    let by_tokens = if spec.budget.tokens > 0 { spec.budget.tokens.div_ceil(of_round) } else { u64::MAX };
    by_rounds.min(by_tokens)
}

fn sum<const N: usize>(parts: [u64; N]) -> u64 {
    parts.into_iter().fold(0, u64::saturating_add)
}

/// Refuses a node whose folder would not fit into its bound, or on its disk; warns of a disk that may be used up.
/// Returns the bytes that the folder comes to take at most.
pub fn check(spec: &RunSpec, node: &NodeFile, home: &Path, trains: bool) -> Result<u64, Failure> {
    let (most, warning) = room(spec, node, home, trains)?;
    if let Some(warning) = warning {
        tracing::warn!("{warning}");
    }
    Ok(most)
}

/// The same without a log: the bytes that the folder comes to take at most, and the warning.
pub fn room(spec: &RunSpec, node: &NodeFile, home: &Path, trains: bool) -> Result<(u64, Option<String>), Failure> {
    let checkpoints = node.checkpoint.keep as u64;
    let need = DiskNeed { checkpoints, ..DiskNeed::of(spec, node.snapshot_every, trains) };
    let (taken, free) = folder_and_free(home).map_err(store_failure)?;
    let warning = need.judge(node, home, taken.saturating_add(free))?;
    let most = match node.store.max_bytes() {
        0 => need.most(),
        bound => bound.min(need.most()),
    };
    Ok((most, warning))
}

#[cfg(test)]
#[path = "disk_test.rs"]
mod tests;
