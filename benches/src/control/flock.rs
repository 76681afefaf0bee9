//! Simulated flocks: the time that their rounds take, and what their tokens are worth.

use crate::rule::{CODECS, Known, Rule, STEPS, STEPS_MAX};
use starling_protocol::control::{Choice, Figures};
use starling_protocol::record::{Measured, OVERHEADS};
use starling_protocol::run::Codec;
use starling_protocol::update;

/// The part of a round's cost that neither bytes nor round trips explain, in microseconds.
const FIXED_US: f64 = 50_000.0;
/// The largest deviation of a measured time from its mean.
const NOISE: f64 = 0.3;
/// The loss falls with the tokens' power of this (`docs/learning.md`).
const LOSS_POWER: f64 = -0.126;
/// A drop of bandwidth: the share that is left, and the shares of the run between which it lasts.
const DROP: f64 = 0.05;
const DROP_BETWEEN: [f64; 2] = [0.4, 0.7];

/// The flocks that are played.
pub struct Grid {
    pub uplinks: [u32; 3],
    pub round_trips: [u32; 2],
    pub members: [u32; 4],
    /// Parameters, and microseconds of a step.
    models: [(u64, u32); 4],
}

pub const GRID: Grid = Grid {
    uplinks: [10, 100, 1000],
    round_trips: [20, 200],
    members: [2, 4, 8, 16],
    models: [(1 << 20, 20_000), (10 << 20, 500_000), (30 << 20, 50_000), (125 << 20, 300_000)],
};

impl Grid {
    /// All combinations, each without and with a drop of bandwidth.
    pub fn flocks(&self) -> Vec<Flock> {
        let mut flocks = Vec::new();
        for uplink_mbit in self.uplinks {
            for rtt_ms in self.round_trips {
                for members in self.members {
                    for (parameters, step_us) in self.models {
                        let flock = Flock { uplink_mbit, rtt_ms, members, parameters, step_us, drops: false };
                        flocks.extend([Flock { drops: true, ..flock }, flock]);
                    }
                }
            }
        }
        flocks
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Flock {
    pub uplink_mbit: u32,
    pub rtt_ms: u32,
    pub members: u32,
    pub parameters: u64,
    pub step_us: u32,
    /// Whether its lines drop to [`DROP`] for a while.
    pub drops: bool,
}

/// The result of a run.
#[derive(Clone, Copy, Debug)]
pub struct Played {
    /// Goodput, as a share of that of the best fixed number of steps and codec in each part of the run.
    pub score: f64,
    /// Rounds until the steps are those of ten rounds on, after the start and after each change of the lines; the most.
    pub settled_in: usize,
    /// Changes of the direction in which the steps go.
    pub turns: usize,
    pub last: Choice,
}

impl Flock {
    /// The mean cost of a round beyond its steps in a codec, on a ring or with owners, in microseconds.
    fn cost_us(&self, line: f64, codec: Codec) -> f64 {
        let members = f64::from(self.members);
        let bits = 2.0 * 8.0 * update::encoded_max(codec, self.parameters as usize) as f64 * (members - 1.0) / members;
        bits / (f64::from(self.uplink_mbit) * line) + 4000.0 * f64::from(self.rtt_ms) + FIXED_US
    }

    /// The share of the lines that is left after this share of the run.
    fn line(&self, progress: f64) -> f64 {
        if self.drops && (DROP_BETWEEN[0]..DROP_BETWEEN[1]).contains(&progress) { DROP } else { 1.0 }
    }

    fn figures(&self, cost_us: f64) -> Figures {
        Figures {
            step_us: self.step_us,
            overhead_us: cost_us.min(f64::from(u32::MAX)) as u32,
            wire_us: 0,
            members: self.members,
        }
    }

    /// The most goodput of any fixed number of steps and any codec.
    fn best(&self, line: f64) -> f64 {
        let figures = CODECS.map(|codec| self.figures(self.cost_us(line, codec)));
        figures.iter().flat_map(|f| (1..=STEPS_MAX).map(|steps| f.goodput(steps))).fold(0.0, f64::max)
    }

    /// Plays a run.
    pub fn play(&self, rule: Rule, rounds: usize, seed: u64) -> Played {
        let mut random = Random(seed);
        let mut now = Choice { inner_steps: STEPS, codec: CODECS[0], overheads: [0; OVERHEADS] };
        let (mut ideal, mut real, mut tokens) = (0.0, 0.0, 0.0);
        let mut course = Vec::with_capacity(rounds);
        for round in 0..rounds {
            let progress = round as f64 / rounds as f64;
            let line = self.line(progress);
            let (steps, cost) = (now.inner_steps, self.cost_us(line, now.codec));
            course.push(steps);
            let figures = self.figures(cost);
            // Parts of the run count by their rounds, so that a score does not depend on how long one lasts.
            ideal += self.best(line);
            real += figures.goodput(steps);
            tokens += f64::from(steps) * figures.worth(steps);
            let measured: Vec<Measured> = (0..self.members)
                .map(|_| Measured {
                    step_us: (f64::from(self.step_us) * random.around_one()) as u32,
                    overhead_us: (cost * random.around_one()).min(f64::from(u32::MAX)) as u32,
                    upload_kbps: (f64::from(self.uplink_mbit) * line * 1000.0 * random.around_one()) as u32,
                    ..Measured::default()
                })
                .collect();
            let loss = (tokens / f64::from(STEPS)).max(1.0).powf(LOSS_POWER);
            let elements = self.parameters as usize;
            now = rule.next(&Known { now, measured: &measured, elements, progress, loss, drawn: random.draw() });
        }
        let changes = if self.drops { DROP_BETWEEN.to_vec() } else { Vec::new() };
        let starts: Vec<usize> =
            std::iter::once(0).chain(changes.iter().map(|share| (share * rounds as f64).ceil() as usize)).collect();
        Played {
            score: real / ideal,
            settled_in: starts.iter().map(|start| settled(&course[*start..])).max().unwrap_or(0),
            turns: turns(&course),
            last: now,
        }
    }
}

/// Rounds until the steps stay as they are for ten rounds.
fn settled(course: &[u32]) -> usize {
    course.windows(10).position(|window| window.iter().all(|steps| *steps == window[0])).unwrap_or(course.len())
}

fn turns(course: &[u32]) -> usize {
    let moves: Vec<bool> = course.windows(2).filter(|pair| pair[0] != pair[1]).map(|pair| pair[1] > pair[0]).collect();
    moves.windows(2).filter(|pair| pair[0] != pair[1]).count()
}

/// A multiplicative congruential generator (Knuth, MMIX).
struct Random(u64);

impl Random {
    fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 >> 33
    }

    /// Between 1 - [`NOISE`] and 1 + [`NOISE`].
    fn around_one(&mut self) -> f64 {
        1.0 + NOISE * (self.draw() as f64 / f64::from(1u32 << 30) - 1.0)
    }
}
