//! The simulator: many engines, a network, disks and trainers in virtual time, with all faults drawn from one seed.
//!
//! A history has two phases (after TigerBeetle's VOPR and openraft's turmoil tests). In the first, faults happen and
//! every [`invariant`] is checked after every step. In the second, a core that can go on is healed and all other nodes
//! are dead for good: the core must commit new rounds on one head in bounded virtual time.
//!
//! Bytes cross between nodes, not structs; the arithmetic is the real one on a few numbers. Nothing here reads a clock,
//! the environment or a file: a caller that runs many seeds does so outside.

mod ambush;
mod amending;
mod averaging;
pub mod churn;
pub mod circuit;
mod clocks;
pub mod cost;
mod course;
mod crowd;
pub mod disk;
mod driver;
pub mod gate;
pub mod history;
pub mod invariant;
pub mod keys;
mod large;
pub mod lattice;
mod liar;
mod life;
pub mod mark;
pub mod measure;
pub mod merging;
pub mod minimise;
pub mod network;
pub mod options;
pub mod process;
mod proof;
pub mod random;
pub mod recovery;
pub mod reduction;
#[cfg(test)]
mod scenario_test;
pub mod schedule;
mod sleep;
mod stranger;
mod streaming;
pub mod sums;
mod swarm;
mod traffic;
pub mod trainer;
mod transfer;
mod welcome;
pub mod world;
mod writes;

use crate::run::{
    AdmissionMode, AdmissionSpec, Budget, Codec, DataSpec, EngineKind, InnerSpec, JoinSpec, ModelSpec, OuterSpec,
    PartitionSpec, RunSpec, SyncMode, SyncSpec,
};
use crate::sample;
use options::Options;

pub use options::{MS, SECOND};

/// Inner steps of a round, except in runs that average each step.
pub const STEPS: u32 = 4;

/// The patience of a run with newcomers: a few rounds. Histories are too short for that of a real run to end.
const JOIN: JoinSpec = JoinSpec { patience_ms: 5_000, share: 25 };

/// A run whose rounds are short.
pub fn specification(options: &Options) -> RunSpec {
    let (steps, outer) = match options.mode {
        // The choice of steps has no rule for more momentum.
        SyncMode::Rounds if options.adapts => (STEPS, OuterSpec { lr: vec![(1, 1.0)], momentum: 0.3 }),
        SyncMode::Rounds => (STEPS, OuterSpec { lr: vec![(1, 0.9), (2, 0.8), (4, 0.7)], momentum: 0.9 }),
        SyncMode::EveryStep => (1, OuterSpec::unused()),
    };
    let small = sample::small();
    RunSpec {
        name: "sim".to_owned(),
        inner: InnerSpec { steps, ..small.inner },
        outer,
        sync: SyncSpec {
            fragments: options.fragments,
            overlap: options.overlap,
            mixing: options.mixing,
            gap_max: if options.adapts { 4 * STEPS } else { 0 },
            coarsest: options.adapts.then_some(Codec::Int8),
            ..SyncSpec::whole(options.mode, options.codec, EngineKind::Ring)
        },
        partition: PartitionSpec { minority: options.policy, grace_ms: (options.grace / MS) as u32 },
        admission: AdmissionSpec { mode: AdmissionMode::Open, allow: Vec::new(), probation: options.probation },
        join: JOIN,
        budget: Budget { rounds: options.rounds, tokens: 0 },
        model: if options.external { ModelSpec::of_external() } else { small.model },
        data: if options.external { DataSpec::of_external() } else { small.data },
        beginning: (options.from_weights || options.external).then(|| trainer::State::initial(options.mode).root),
        task: options.external.then(trainer::task),
        ..small
    }
}
