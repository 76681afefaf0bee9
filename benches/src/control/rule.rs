//! Rules that choose the inner steps of the next round, and one that also chooses its codec.

use starling_protocol::control::{self, Choice, Room};
use starling_protocol::record::Measured;
use starling_protocol::run::Codec;

/// The steps of the first round, and of a rule that never changes them: the default of run files.
pub const STEPS: u32 = 30;
/// The most steps that any rule may choose: the default of run files.
pub const STEPS_MAX: u32 = 512;
/// The codecs of a run file that names none, the first round's in front.
pub const CODECS: [Codec; 2] = [Codec::Int8, Codec::Int4];
/// The share of the peak learning rate with which a run ends.
const RATE_AT_THE_END: f64 = 0.05;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The flock's own ([`starling_protocol::control`]).
    Goodput,
    /// The same where the run file names int8.
    Steps,
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
    /// The choice for the round, and what its members measured.
    pub now: Choice,
    pub measured: &'a [Measured],
    /// Parameters of the model.
    pub elements: usize,
    /// The share of the run that is over, and the loss by that of the first round.
    pub progress: f64,
    pub loss: f64,
    /// A number that nobody knew before.
    pub drawn: u64,
}

impl Rule {
    pub const ALL: [Self; 6] = [Self::Goodput, Self::Steps, Self::Fixed, Self::AdaComm, Self::Qsr, Self::RandomWalk];

    pub fn name(self) -> &'static str {
        match self {
            Self::Goodput => "the flock's",
            Self::Steps => "the flock's, int8",
            Self::Fixed => "30 steps",
            Self::AdaComm => "AdaComm",
            Self::Qsr => "QSR",
            Self::RandomWalk => "random walk",
        }
    }

    /// The choice for the next round.
    pub fn next(self, known: &Known<'_>) -> Choice {
        let now = known.now;
        let costs = Choice { overheads: control::overheads(&now.overheads, known.measured), ..now };
        let own = |rungs: &[Codec]| {
            let room = Room { steps: STEPS_MAX, rungs: rungs.to_vec(), elements: known.elements };
            costs.moved(&room, known.measured, known.measured.len())
        };
        let steps = match self {
            Self::Goodput => return own(&CODECS),
            Self::Steps => return own(&CODECS[..1]),
            Self::Fixed => STEPS,
            Self::AdaComm => (f64::from(STEPS) * known.loss.sqrt()).ceil() as u32,
            // Scaled so that the run begins with the default.
            Self::Qsr => {
                let cosine = 0.5 * (1.0 + (std::f64::consts::PI * known.progress).cos());
                let rate = RATE_AT_THE_END + (1.0 - RATE_AT_THE_END) * cosine;
                (f64::from(STEPS) / (rate * rate)) as u32
            }
            Self::RandomWalk => match known.drawn % 3 {
                0 => now.inner_steps * 2,
                1 => now.inner_steps / 2,
                _ => now.inner_steps,
            },
        };
        Choice { inner_steps: steps.clamp(1, STEPS_MAX), ..costs }
    }
}
