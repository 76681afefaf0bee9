//! The invariants, which must hold at every step: one file for each of the list that this project keeps.
//!
//! | | invariant | file |
//! |---|---|---|
//! | S1 | agreement: one record at each place of a lineage | `agreement` |
//! | S2 | no fork: every certificate on any disk is a quorum's, and for one record | `certificates` |
//! | S3 | parity: one state for one record | `parity` |
//! | S4 | lineage: every chain is linked, from its genesis on | `lineage` |
//! | S5 | vote states rise, and are on the disk before they are heard | `vote_states` |
//! | S6 | every sample is counted once, and none is lost | `samples` |
//! | S7 | mass conservation: a contribution is taken in once or still held, a lineage merged once | `mass`, `merged` |
//! | S8 | exact result: the reference reduction of the contributions | `result` |
//! | S9 | membership changes by the rules, at records only | `membership` |
//! | S10 | attempts are isolated (also checked where reductions run) | `attempts` |
//! | S11 | bounded influence, also of differences; all values are finite | `bounds` |
//! | S14 | recovery goes on from the newest decided record | `recovery` |
//! | S15 | each outer step is applied once | `steps` |
//! | S16 | lies and stale messages change nothing, and are counted | `refusals` |
//! | S17 | settings of a round are agreed | `settings` |
//! | S18 | no honest node is blamed | `blame` |
//! | S19 | memory and messages are bounded | `resources` |
//! | S22 | evidence is true, and against liars only | `evidence` |
//! | S23 | forks are made only where they are allowed | `forks` |
//! | S24 | a COMMIT's contributors hold a quorum | `contributors` |
//! | S26 | strangers move, store and delay nothing | `strangers` |
//! | S25 | a result that a vote names is on the disk, and a decided one on a quorum's disks | `estimates` |
//! | S27 | no member votes before its probation is over, and newcomers hold no third of the votes | `probation` |
//! | S28 | between two inputs nothing happens before the moment for which a node asks to be woken | `sleep` |
//! | S29 | a node keeps its READY back for newcomers within its patience | `patience` |
//! | S30 | a round's terms follow from the amendments on its chain | `amendments` |
//! | S31 | in rows, members and their reductions need connections of the grid only | `degree` |
//!
//! The caller that runs a history checks S20 (no panic) and S21 (determinism); [`super::history`] checks L1 to L5. S12,
//! S13 (checkpoints), L6 (their lag) and L7 (the controller) belong to parts that do not exist yet.

mod agreement;
mod amendments;
mod attempts;
mod blame;
mod bounds;
mod certificates;
mod contributors;
mod degree;
mod estimates;
mod evidence;
mod forks;
mod lineage;
mod mass;
mod membership;
mod merged;
mod parity;
mod patience;
mod probation;
mod recovery;
mod refusals;
mod resources;
mod result;
mod samples;
mod settings;
mod sleep;
mod steps;
mod strangers;
mod vote_states;

pub use super::world::{Invariant, Observed};

use super::world::require;

/// Names of all checked invariants, also of those without a file here.
pub const NAMES: &[&str] = &[
    "S1 agreement",
    "S2 no fork",
    "S3 parity",
    "S4 lineage",
    "S5 monotone vote states",
    "S6 sample accounting",
    "S7 mass conservation",
    "S8 exact result",
    "S9 membership",
    "S10 attempt isolation",
    "S11 bounded influence",
    "S14 recovery choice",
    "S15 exactly-once apply",
    "S16 stale rejection",
    "S17 agreed settings",
    "S18 accuracy of blame",
    "S19 resources",
    "S20 no panic",
    "S21 determinism",
    "S22 evidence",
    "S23 forks allowed",
    "S24 contributors' quorum",
    "S25 estimates on disk",
    "S26 strangers",
    "S27 probation",
    "S28 nothing between wakes",
    "S29 patience",
    "S30 amended terms",
    "S31 bounded degree",
    "L1 commits",
    "L3 roster",
    "L4 one head",
    "L5 few attempts",
];

/// All invariants, with nothing remembered.
pub fn all() -> Vec<Box<dyn Invariant>> {
    vec![
        Box::new(agreement::Agreement::default()),
        Box::new(certificates::Certificates::default()),
        Box::new(parity::Parity::default()),
        Box::new(lineage::Lineage),
        Box::new(vote_states::VoteStates::default()),
        Box::new(samples::Samples::default()),
        Box::new(mass::Mass::default()),
        Box::new(merged::Merged::default()),
        Box::new(result::Exact::default()),
        Box::new(membership::Membership::default()),
        Box::new(attempts::Attempts::default()),
        Box::new(bounds::Bounds::default()),
        Box::new(recovery::Recovery::default()),
        Box::new(steps::Steps),
        Box::new(refusals::Refusals::default()),
        Box::new(settings::Settings::default()),
        Box::new(blame::Blame::default()),
        Box::new(resources::Resources),
        Box::new(evidence::Evidence),
        Box::new(forks::Forks::default()),
        Box::new(contributors::Contributors),
        Box::new(estimates::Estimates::default()),
        Box::new(strangers::Strangers::default()),
        Box::new(probation::Probation::default()),
        Box::new(sleep::Sleep),
        Box::new(patience::Patience::default()),
        Box::new(amendments::Amendments::default()),
        Box::new(degree::Degree::default()),
    ]
}
