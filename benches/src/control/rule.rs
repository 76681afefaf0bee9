//! Rules that choose the inner steps of the next round.

use starling_protocol::control::{self, Figures};
use starling_protocol::record::{Measured, OVERHEADS};

/// The steps of the first round, and of a rule that never changes them: the default of run files.
pub const STEPS: u32 = 30;
/// The most steps that any rule may choose: the default of run files.
pub const STEPS_MAX: u32 = 512;
/// The share of the peak learning rate with which a run ends.
const RATE_AT_THE_END: f64 = 0.05;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The flock's own ([`starling_protocol::control`]).
    Goodput,
    Fixed,
    /// Wang and Joshi, arXiv 1810.08313: fewer steps as the loss falls.
    AdaComm,
    /// Gu et al., arXiv 2310.14423: more steps as the learning rate falls.
    Qsr,
    /// Doubles, halves or stays, at random.
    RandomWalk,
}

/// The knowledge of a rule at the end of a round.
pub struct Known<'a> {
    /// The steps of the round, and what its members measured.
    pub steps: u32,
    pub measured: &'a [Measured],
    pub overheads: [u32; OVERHEADS],
    /// The share of the run that is over, and the loss by that of the first round.
    pub progress: f64,
    pub loss: f64,
    /// A number that nobody knew before.
    pub drawn: u64,
}

impl Rule {
    pub const ALL: [Self; 5] = [Self::Goodput, Self::Fixed, Self::AdaComm, Self::Qsr, Self::RandomWalk];

    pub fn name(self) -> &'static str {
        match self {
            Self::Goodput => "the flock's",
            Self::Fixed => "30 steps",
            Self::AdaComm => "AdaComm",
            Self::Qsr => "QSR",
            Self::RandomWalk => "random walk",
        }
    }

    /// The steps of the next round, and the costs to remember.
    pub fn next(self, known: &Known<'_>) -> (u32, [u32; OVERHEADS]) {
        let overheads = control::overheads(&known.overheads, known.measured);
        let steps = match self {
            Self::Goodput => Figures::of(known.measured, &overheads, known.measured.len())
                .map_or(known.steps, |figures| figures.steps_after(known.steps, STEPS_MAX)),
            Self::Fixed => STEPS,
            Self::AdaComm => (f64::from(STEPS) * known.loss.sqrt()).ceil() as u32,
            // Scaled so that the run begins with the default.
            Self::Qsr => {
                let cosine = 0.5 * (1.0 + (std::f64::consts::PI * known.progress).cos());
                let rate = RATE_AT_THE_END + (1.0 - RATE_AT_THE_END) * cosine;
                (f64::from(STEPS) / (rate * rate)) as u32
            }
            Self::RandomWalk => match known.drawn % 3 {
                0 => known.steps * 2,
                1 => known.steps / 2,
                _ => known.steps,
            },
        };
        (steps.clamp(1, STEPS_MAX), overheads)
    }
}
