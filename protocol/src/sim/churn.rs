//! Nodes that come and go faster than rounds are long: how long such a flock goes without a commit.

use super::options::Options;
use super::random::Random;
use super::world::{Event, World};
use super::{MS, SECOND, specification};
use crate::record::RecordKind;

/// The time until all first nodes are in.
const GATHERING: u64 = 30 * SECOND;

/// The settings of a churn.
#[derive(Clone, Copy, Debug)]
pub struct Churn {
    pub nodes: usize,
    /// The least number of nodes that live.
    pub least: usize,
    /// Time between two kills or starts, in microseconds, on average: each is half to one and a half times that.
    pub every: u64,
    pub lasting: u64,
    /// The time without a quorum after which a node forks.
    pub grace: u64,
}

/// The outcome of a churn.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Longest time without a commit, in microseconds, and the time when it began.
    pub gap: u64,
    pub at: u64,
    pub commits: usize,
    pub forks: usize,
    /// The rule that was broken, if one was.
    pub violation: Option<String>,
}

impl Churn {
    /// Plays the churn for one seed. As in the lab, six of ten moves are starts, so that there is a node to kill.
    pub fn play(&self, seed: u64) -> Outcome {
        let options = Options { grace: self.grace, delay: 5 * MS, ..Options::calm(self.nodes) };
        let spec = specification(&options);
        let mut world = World::new(seed, options, spec, Vec::new());
        world.populate();
        world.run_until(GATHERING, |_| false);
        let mut random = Random::new(seed, "churn");
        let end = GATHERING + self.lasting;
        while world.now < end && world.violation.is_none() {
            let next = world.now + random.between(self.every / 2, self.every * 3 / 2);
            world.run_until(next.min(end), |_| false);
            self.stir(&mut world, &mut random);
        }
        let of = |kind: RecordKind| world.decided.values().filter(move |(k, _)| *k == kind).map(|(_, at)| *at);
        let mut times: Vec<u64> = of(RecordKind::Commit).filter(|at| *at >= GATHERING).collect();
        let commits = times.len();
        times.extend([GATHERING, end]);
        times.sort_unstable();
        let (gap, at) = times.windows(2).map(|w| (w[1] - w[0], w[0])).max().unwrap_or_default();
        let violation = world.violation.as_ref().map(|v| format!("{v:?}"));
        Outcome { gap, at, commits, forks: of(RecordKind::Fork).count(), violation }
    }

    fn stir(&self, world: &mut World, random: &mut Random) {
        let (up, down): (Vec<usize>, Vec<usize>) = (0..self.nodes).partition(|n| world.nodes[*n].alive());
        let start = (random.chance(60) && !down.is_empty()) || up.len() <= self.least;
        match random.pick(if start { &down } else { &up }) {
            // A process takes so long to start.
            Some(node) if start => world.schedule(100 * MS, node, 0, Event::Start),
            Some(node) => world.crash(node, false),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Far shorter than the hour for which it has to hold: a minute in which nothing may break, and the flock goes on.
    #[test]
    fn a_flock_flies_on_while_its_members_come_and_go() {
        let churn = Churn { nodes: 6, least: 3, every: 1_250 * MS, lasting: 60 * SECOND, grace: 8 * SECOND };
        let outcome = churn.play(1);
        assert_eq!(outcome.violation, None);
        assert!(outcome.commits > 10 && outcome.gap < 60 * SECOND, "{outcome:?}");
    }
}
