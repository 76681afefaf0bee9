//! Reduces a failure to few faults and nodes: drops them as long as the same invariant still fails.

use super::history::{Outcome, Settings, plan};
use std::collections::BTreeSet;

/// The most histories that are tried.
const TRIES: usize = 200;

/// A failure with the fewest faults and nodes that were found.
#[derive(Clone, Debug)]
pub struct Minimal {
    pub nodes: usize,
    pub keep: BTreeSet<usize>,
    pub outcome: Outcome,
}

/// Shrinks the failure of a seed. `run` plays it under some settings, and so supplies all else that the failure needs,
/// such as a mutation.
pub fn minimise(seed: u64, failed: &Outcome, settings: &Settings, run: &dyn Fn(&Settings) -> Outcome) -> Minimal {
    let invariant = failed.violation.as_ref().map(|violation| violation.invariant);
    let (options, schedule) = plan(seed, settings);
    let mut best = Minimal { nodes: options.nodes, keep: (0..schedule.len()).collect(), outcome: failed.clone() };
    let mut tries = 0;
    let mut attempt = |best: &mut Minimal, nodes: usize, keep: BTreeSet<usize>| {
        tries += 1;
        if tries > TRIES {
            return false;
        }
        let outcome = run(&Settings { nodes: Some(nodes), keep: Some(keep.clone()), ..settings.clone() });
        let same = outcome.violation.as_ref().map(|violation| violation.invariant) == invariant;
        if same {
            *best = Minimal { nodes, keep, outcome };
        }
        same
    };
    for nodes in 1..options.nodes {
        let keep = best.keep.clone();
        if attempt(&mut best, nodes, keep) {
            break;
        }
    }
    // Delta debugging (Zeller and Hildebrandt, 2002): ever smaller parts are left out.
    let mut part = best.keep.len().div_ceil(2);
    while part > 0 {
        let all: Vec<usize> = best.keep.iter().copied().collect();
        let shorter = all.chunks(part).any(|out| {
            let keep = best.keep.iter().copied().filter(|index| !out.contains(index)).collect();
            let nodes = best.nodes;
            attempt(&mut best, nodes, keep)
        });
        part = if shorter { part.min(best.keep.len()) } else { part / 2 };
    }
    best
}

impl Minimal {
    /// The command that reproduces it.
    pub fn command(&self, seed: u64) -> String {
        let keep: Vec<String> = self.keep.iter().map(usize::to_string).collect();
        let keep = if keep.is_empty() { "none".to_owned() } else { keep.join(",") };
        format!("starling-sim --seed {seed} --nodes {} --faults {keep}", self.nodes)
    }
}
