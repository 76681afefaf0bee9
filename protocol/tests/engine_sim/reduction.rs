//! Reductions as the network sees them: complete for each member at a time of its own, broken by any death.

use starling_protocol::engine::io::{AttemptKey, Contribution};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug)]
pub struct Group {
    pub contributions: Vec<Contribution>,
    pub members: Vec<usize>,
    pub joined: BTreeSet<usize>,
    pub done: BTreeSet<usize>,
    pub broken: bool,
}

#[derive(Debug, Default)]
pub struct Reductions(pub BTreeMap<AttemptKey, Group>);

impl Reductions {
    /// A node takes part; true once everybody does.
    pub fn join(
        &mut self,
        key: AttemptKey,
        node: usize,
        members: Vec<usize>,
        contributions: Vec<Contribution>,
    ) -> bool {
        let fresh = || Group {
            contributions: contributions.clone(),
            members,
            joined: BTreeSet::new(),
            done: BTreeSet::new(),
            broken: false,
        };
        let group = self.0.entry(key).or_insert_with(fresh);
        assert_eq!(group.contributions, contributions, "one attempt, two lists of contributions");
        group.joined.insert(node);
        !group.broken && group.joined.len() == group.members.len()
    }

    /// Breaks what depends on `node`, or on the link between it and `other`: `(key, members left hanging)`.
    pub fn hit(&mut self, node: usize, other: Option<usize>, spare_done: bool) -> Vec<(AttemptKey, Vec<usize>)> {
        let mut hit = Vec::new();
        for (key, group) in &mut self.0 {
            let concerns = group.members.contains(&node) && other.is_none_or(|other| group.members.contains(&other));
            let over = group.done.len() == group.members.len() || (spare_done && group.done.contains(&node));
            if concerns && !over && !group.broken {
                group.broken = true;
                let hanging = group.joined.difference(&group.done).copied().filter(|n| *n != node);
                hit.push((*key, hanging.collect()));
            }
        }
        hit
    }

    /// One member leaves one reduction: the members left hanging.
    pub fn leave(&mut self, key: &AttemptKey, node: usize) -> Vec<usize> {
        let Some(group) = self.0.get_mut(key).filter(|group| !group.broken && !group.done.contains(&node)) else {
            return Vec::new();
        };
        group.broken = true;
        group.joined.difference(&group.done).copied().filter(|n| *n != node).collect()
    }

    /// Forgets groups of rounds long over.
    pub fn prune(&mut self, seq: u64) {
        self.0.retain(|key, _| key.seq + 3 > seq);
    }
}
