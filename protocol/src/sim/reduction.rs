//! All-reduces as the network sees them. Each is complete for each member at a time of its own. A death breaks it, and
//! it may break at any stage for some of the members only.

use super::circuit::{self, Course, Got, Stock};
use super::lattice::{self, Party, RowSums, Store};
use super::random::Random;
use super::{MS, trainer};
use crate::engine::io::{AttemptKey, Contribution};
use crate::grid::Grid;
use crate::ring::Ring;
use crate::run::Codec;
use crate::update::lattice::Lattice;
use crate::{Digest, NodeId, update};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

/// The time in which frames come to a member, and their number at the end.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    began: u64,
    lasts: u64,
    frames: usize,
}

impl Stretch {
    /// The frames that have come by then.
    fn frames_at(&self, at: u64) -> usize {
        let passed = at.saturating_sub(self.began).min(self.lasts);
        (self.frames as u64 * passed).checked_div(self.lasts).map_or(self.frames, |frames| frames as usize)
    }
}

/// The members of one attempt: a ring, or in a flock of several rows those of its rows and columns.
#[derive(Debug)]
pub struct Group {
    /// In ring order.
    pub contributions: Vec<Contribution>,
    /// The members that the head expects, and their uplinks: by them, all nodes deal the chunks to the same owners.
    flock: Vec<(NodeId, u32)>,
    /// The grid of the head, and the ways in it if it has several rows.
    grid: Arc<Grid>,
    codec: Codec,
    lattice: Option<Lattice>,
    row_sums: RowSums,
    pub members: Vec<usize>,
    vectors: BTreeMap<usize, Rc<Vec<f32>>>,
    pub joined: BTreeSet<usize>,
    pub done: BTreeSet<usize>,
    /// Those that hear, or will hear, that it fails.
    told: BTreeSet<usize>,
    /// When it broke.
    broken_at: Option<u64>,
    /// What comes to each member, and when. None of it counts if a member was not there.
    courses: BTreeMap<usize, Course>,
    stretches: BTreeMap<usize, Stretch>,
    /// The update of each member, and its digest; all are the same, unless a rule is broken.
    pub results: BTreeMap<usize, (Rc<Vec<u8>>, Digest)>,
    /// The same sum unencoded.
    pub unencoded: Vec<f32>,
}

impl Group {
    pub fn is_broken(&self) -> bool {
        self.broken_at.is_some()
    }

    /// What has come to a member by now, or by the moment at which the reduction broke.
    pub fn got(&self, node: usize, now: u64) -> &[Got] {
        let (Some(course), Some(stretch)) = (self.courses.get(&node), self.stretches.get(&node)) else { return &[] };
        let until = self.broken_at.map_or(now, |at| at.min(now));
        course.got.get(..stretch.frames_at(until)).unwrap_or_default()
    }

    /// Whether a member passes on the sum of a row.
    pub fn passes_on(&self) -> bool {
        self.lattice.as_ref().is_some_and(Lattice::passes_on)
    }

    /// The places of the members in their list, by ascending id.
    fn by_id(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.contributions.len()).collect();
        order.sort_by_key(|index| self.contributions[*index].member);
        order
    }

    /// The frames that come to a member if no sum is kept.
    fn usual(&self, node: usize) -> usize {
        let elements = self.vectors.get(&node).map_or(0, |vector| vector.len());
        if let Some(lattice) = &self.lattice {
            let place = self.by_id().iter().position(|index| self.members[*index] == node).unwrap_or(0);
            return lattice::usual(lattice, self.members.len(), trainer::chunks(elements), place);
        }
        let ring = Ring::new(self.members.len(), trainer::chunks(elements));
        let position = self.members.iter().position(|member| *member == node).unwrap_or(0);
        ring.hops(position).map(|hop| ring.segment(hop.receive).len()).sum()
    }
}

impl Group {
    /// Notes the updates with which members end. With `counts` also what they have on the way there.
    fn conclude(
        &mut self,
        key: &AttemptKey,
        courses: impl Iterator<Item = (usize, Course)>,
        counts: bool,
    ) -> Result<(), String> {
        let mut made: Option<(Rc<Vec<u8>>, Digest)> = None;
        for (member, course) in courses {
            let bytes: Vec<u8> = course.held.iter().flatten().flat_map(|payload| payload.iter().copied()).collect();
            let (update, digest) = made.get_or_insert_with(|| {
                let digest = update::digest(&bytes);
                (Rc::new(bytes.clone()), digest)
            });
            if **update != bytes {
                return Err(format!("two members of {key:?} end with different updates"));
            }
            self.results.insert(member, (Rc::clone(update), *digest));
            if counts {
                self.courses.insert(member, course);
            }
        }
        Ok(())
    }
}

/// Reductions that a node has left or broken, with the members that are to hear of it.
#[derive(Debug)]
pub struct Hit {
    pub key: AttemptKey,
    pub hanging: Vec<usize>,
    /// It was broken before.
    pub again: bool,
}

/// All reductions, by attempt.
#[derive(Debug)]
pub struct Reductions {
    pub groups: BTreeMap<AttemptKey, Group>,
    /// Whether all fail, and how far they come.
    random: Random,
}

impl Reductions {
    pub fn new(random: Random) -> Self {
        Self { groups: BTreeMap::new(), random }
    }

    /// Adds a node with its contribution; true once all members take part.
    ///
    /// # Errors
    /// When two members of one attempt disagree about it.
    pub fn join(
        &mut self,
        key: AttemptKey,
        (node, vector): (usize, Rc<Vec<f32>>),
        members: Vec<usize>,
        (contributions, flock, grid, codec): (Vec<Contribution>, Vec<(NodeId, u32)>, Arc<Grid>, Codec),
    ) -> Result<bool, String> {
        let lattice = || {
            let mut ids: Vec<NodeId> = contributions.iter().map(|c| c.member).collect();
            ids.sort_unstable();
            Lattice::new(&grid, &ids, trainer::chunks(vector.len()))
        };
        let fresh = || Group {
            contributions: contributions.clone(),
            flock: flock.clone(),
            lattice: if grid.is_one_row() { None } else { lattice() },
            grid: Arc::clone(&grid),
            codec,
            row_sums: RowSums::new(),
            members,
            vectors: BTreeMap::new(),
            joined: BTreeSet::new(),
            done: BTreeSet::new(),
            told: BTreeSet::new(),
            broken_at: None,
            courses: BTreeMap::new(),
            stretches: BTreeMap::new(),
            results: BTreeMap::new(),
            unencoded: Vec::new(),
        };
        let group = self.groups.entry(key).or_insert_with(fresh);
        if group.contributions != contributions {
            return Err(format!("one attempt {key:?}, two lists of contributions"));
        }
        if group.flock != flock {
            return Err(format!("one attempt {key:?}, two maps of owners: {:?}, {flock:?}", group.flock));
        }
        if group.codec != codec {
            return Err(format!("one attempt {key:?}, two codecs: {} and {codec}", group.codec));
        }
        if group.grid != grid || !grid.is_one_row() && group.lattice.is_none() {
            return Err(format!("one attempt {key:?}, two grids, or no way from one row to another"));
        }
        group.joined.insert(node);
        group.vectors.insert(node, vector);
        Ok(!group.is_broken() && group.joined.len() >= group.members.len())
    }

    /// Lets all frames travel, with the sums that members have kept. With none of these, a member is gone: nothing is
    /// kept of this attempt either.
    ///
    /// # Errors
    /// When members wait for ever, or end with different updates.
    pub fn circulate(&mut self, key: &AttemptKey, stock: Option<Stock>) -> Result<(), String> {
        let Some(group) = self.groups.get_mut(key) else { return Ok(()) };
        let vectors: Vec<Rc<Vec<f32>>> = group.members.iter().filter_map(|m| group.vectors.get(m)).cloned().collect();
        group.unencoded = trainer::sum(&group.contributions, &vectors);
        let weighted = trainer::weighted(&group.contributions, &vectors);
        let counts = stock.is_some();
        let stock = stock.unwrap_or_else(|| Stock::empty(weighted.len()));
        let Some(courses) = circuit::run(group.codec, &weighted, stock)? else { return Ok(()) };
        let members = group.members.clone();
        group.conclude(key, members.into_iter().zip(courses), counts)
    }

    /// The same in a flock of several rows, with what members have kept.
    ///
    /// # Errors
    /// When members wait for ever, or end with different updates.
    pub fn cross(&mut self, key: &AttemptKey, stores: Option<Vec<Store>>) -> Result<(), String> {
        let before = |(other, _): &(&AttemptKey, &Group)| (other.lineage, other.seq) == (key.lineage, key.seq);
        let former: RowSums = self.groups.iter().filter(before).flat_map(|(_, group)| group.row_sums.clone()).collect();
        let Some(group) = self.groups.get_mut(key) else { return Ok(()) };
        let Some(lattice) = group.lattice.clone() else { return Ok(()) };
        let order = group.by_id();
        let contributions: Vec<Contribution> = order.iter().map(|index| group.contributions[*index].clone()).collect();
        let members: Vec<usize> = order.iter().map(|index| group.members[*index]).collect();
        let vectors: Vec<Rc<Vec<f32>>> = members.iter().filter_map(|m| group.vectors.get(m)).cloned().collect();
        group.unencoded = trainer::sum(&contributions, &vectors);
        let ids: Vec<NodeId> = contributions.iter().map(|c| c.member).collect();
        let weights = Contribution::weights(&contributions);
        let (ids, vectors, weights) = (&ids[..], &vectors[..], &weights[..]);
        let party = Party { lattice: &lattice, codec: group.codec, ids, vectors, weights, former };
        let counts = stores.is_some();
        let stores = match stores {
            Some(stores) => order.iter().filter_map(|index| stores.get(*index)).cloned().collect(),
            None => vec![Store::default(); members.len()],
        };
        let Some(run) = lattice::run(&party, stores)? else { return Ok(()) };
        group.row_sums = run.row_sums;
        group.conclude(key, members.into_iter().zip(run.courses), counts)
    }

    /// Gives a member its time, of the time that it takes if no sum is kept: fewer frames take less. A member that
    /// fails comes to any of its frames. Returns the time.
    pub fn stretch(&mut self, key: &AttemptKey, node: usize, (now, whole): (u64, u64), fails: bool) -> u64 {
        let Some(group) = self.groups.get_mut(key) else { return whole };
        let Some(course) = group.courses.get(&node) else { return whole };
        let (all, usual) = (course.got.len(), group.usual(node));
        let lasts = if all < usual { (whole * all as u64 / usual as u64).max(MS) } else { whole };
        let frames = if fails { self.random.between(0, all as u64) as usize } else { all };
        group.stretches.insert(node, Stretch { began: now, lasts, frames });
        lasts
    }

    /// Whether a reduction that fails does so for all members: then another attempt goes on with what they have.
    pub fn fails_for_all(&mut self) -> bool {
        self.random.chance(30)
    }

    /// Notes that a member hears that the attempt fails.
    pub fn tell(&mut self, key: &AttemptKey, node: usize) {
        if let Some(group) = self.groups.get_mut(key) {
            group.told.insert(node);
        }
    }

    /// Breaks the reductions of `node` that are concerned. Of those that are broken already, `node` closes its streams.
    pub fn hit(
        &mut self,
        node: usize,
        concerns: impl Fn(&AttemptKey, &[usize]) -> bool,
        spare_done: bool,
        now: u64,
    ) -> Vec<Hit> {
        let mut hit = Vec::new();
        for (key, group) in &mut self.groups {
            let concerns = group.members.contains(&node) && concerns(key, &group.members);
            let over = group.done.len() == group.members.len() || (spare_done && group.done.contains(&node));
            if concerns && !over {
                let again = group.is_broken();
                group.broken_at.get_or_insert(now);
                let hanging = group.joined.difference(&group.done).copied();
                let hanging = hanging.filter(|n| *n != node && !(again && group.told.contains(n))).collect();
                hit.push(Hit { key: *key, hanging, again });
            }
        }
        hit
    }

    /// Forgets attempts of rounds long over.
    pub fn prune(&mut self, seq: u64) {
        self.groups.retain(|key, _| key.seq + 6 > seq);
    }
}
