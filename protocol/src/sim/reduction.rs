//! All-reduces as the network sees them. Each is complete for each member at a time of its own. A death breaks it, and
//! it may break at any stage for some of the members only.

use super::trainer;
use crate::engine::io::{AttemptKey, Contribution};
use crate::run::Codec;
use crate::{Digest, NodeId, update};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// The ring of one attempt.
#[derive(Debug)]
pub struct Group {
    /// In ring order.
    pub contributions: Vec<Contribution>,
    /// The members that the head expects, and their uplinks: by them, all nodes deal the chunks to the same owners.
    flock: Vec<(NodeId, u32)>,
    pub members: Vec<usize>,
    vectors: BTreeMap<usize, Rc<Vec<f32>>>,
    pub joined: BTreeSet<usize>,
    pub done: BTreeSet<usize>,
    pub broken: bool,
    /// The result: encoded, its digest, and the same sum unencoded.
    pub result: Option<(Rc<Vec<u8>>, Digest)>,
    pub unencoded: Vec<f32>,
}

/// All reductions, by attempt.
#[derive(Debug, Default)]
pub struct Reductions(pub BTreeMap<AttemptKey, Group>);

impl Reductions {
    /// Adds a node with its contribution; true once all members take part, and the result is known.
    ///
    /// # Errors
    /// When two members of one attempt disagree about it.
    pub fn join(
        &mut self,
        key: AttemptKey,
        (node, vector): (usize, Rc<Vec<f32>>),
        (members, contributions, flock): (Vec<usize>, Vec<Contribution>, Vec<(NodeId, u32)>),
        codec: Codec,
    ) -> Result<bool, String> {
        let fresh = || Group {
            contributions: contributions.clone(),
            flock: flock.clone(),
            members,
            vectors: BTreeMap::new(),
            joined: BTreeSet::new(),
            done: BTreeSet::new(),
            broken: false,
            result: None,
            unencoded: Vec::new(),
        };
        let group = self.0.entry(key).or_insert_with(fresh);
        if group.contributions != contributions {
            return Err(format!("one attempt {key:?}, two lists of contributions"));
        }
        if group.flock != flock {
            return Err(format!("one attempt {key:?}, two maps of owners: {:?}, {flock:?}", group.flock));
        }
        group.joined.insert(node);
        group.vectors.insert(node, vector);
        if group.broken || group.joined.len() < group.members.len() {
            return Ok(false);
        }
        let vectors: Vec<Rc<Vec<f32>>> = group.members.iter().filter_map(|m| group.vectors.get(m)).cloned().collect();
        let result = trainer::reduce(codec, &group.contributions, &vectors).map(Rc::new);
        group.unencoded = trainer::sum(&group.contributions, &vectors);
        group.result = result.map(|bytes| (Rc::clone(&bytes), update::digest(&bytes)));
        Ok(true)
    }

    /// Breaks the reductions of `node` that are concerned; returns `(key, members left hanging)`.
    pub fn hit(
        &mut self,
        node: usize,
        concerns: impl Fn(&AttemptKey, &[usize]) -> bool,
        spare_done: bool,
    ) -> Vec<(AttemptKey, Vec<usize>)> {
        let mut hit = Vec::new();
        for (key, group) in &mut self.0 {
            let concerns = group.members.contains(&node) && concerns(key, &group.members);
            let over = group.done.len() == group.members.len() || (spare_done && group.done.contains(&node));
            if concerns && !over && !group.broken {
                group.broken = true;
                let hanging = group.joined.difference(&group.done).copied().filter(|n| *n != node);
                hit.push((*key, hanging.collect()));
            }
        }
        hit
    }

    /// Forgets attempts of rounds long over.
    pub fn prune(&mut self, seq: u64) {
        self.0.retain(|key, _| key.seq + 6 > seq);
    }
}
