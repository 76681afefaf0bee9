//! Connections between nodes: ordered within one, lost with it, each end learning of changes in its own time.

use std::collections::{BTreeMap, BTreeSet};

/// One connection.
#[derive(Debug, Default)]
pub struct Conn {
    pub id: u64,
    /// Arrival of the last message in each direction, from the lower node first.
    last: [u64; 2],
}

#[derive(Debug, Default)]
pub struct Net {
    conns: BTreeMap<(usize, usize), Conn>,
    /// For each end: the connection that it believes to have.
    believed: BTreeMap<(usize, usize), u64>,
    /// Pairs that cannot connect, until the time given.
    cut: BTreeMap<(usize, usize), u64>,
    next: u64,
}

pub fn pair(a: usize, b: usize) -> (usize, usize) {
    (a.min(b), a.max(b))
}

impl Net {
    pub fn connect(&mut self, a: usize, b: usize, now: u64) -> Option<u64> {
        if self.conns.contains_key(&pair(a, b)) || self.cut.get(&pair(a, b)).is_some_and(|until| now < *until) {
            return None;
        }
        self.next += 1;
        self.conns.insert(pair(a, b), Conn { id: self.next, last: [0; 2] });
        Some(self.next)
    }

    /// Takes the connection down; messages on their way are lost.
    pub fn close(&mut self, a: usize, b: usize) -> Option<u64> {
        self.conns.remove(&pair(a, b)).map(|conn| conn.id)
    }

    pub fn cut(&mut self, a: usize, b: usize, until: u64) {
        self.cut.insert(pair(a, b), until);
    }

    pub fn heal(&mut self) {
        self.cut.clear();
    }

    pub fn is(&self, a: usize, b: usize, id: u64) -> bool {
        self.conns.get(&pair(a, b)).is_some_and(|conn| conn.id == id)
    }

    pub fn connected(&self, a: usize, b: usize) -> bool {
        self.conns.contains_key(&pair(a, b))
    }

    /// When a message of `from` to `to` arrives, over which connection; None if it is lost at once.
    pub fn post(&mut self, from: usize, to: usize, at: u64) -> Option<(u64, u64)> {
        let believed = *self.believed.get(&(from, to))?;
        let conn = self.conns.get_mut(&pair(from, to)).filter(|conn| conn.id == believed)?;
        let last = conn.last.get_mut(usize::from(from > to))?;
        *last = at.max(*last + 1);
        Some((conn.id, *last))
    }

    /// `at` learns of a connection to `other`; true if it has to hear of the end of another one first.
    pub fn learn_up(&mut self, at: usize, other: usize, id: u64) -> bool {
        self.believed.insert((at, other), id).is_some()
    }

    /// `at` learns of the end of a connection; false if it has since learnt of another.
    pub fn learn_down(&mut self, at: usize, other: usize, id: u64) -> bool {
        let same = self.believed.get(&(at, other)) == Some(&id);
        if same {
            self.believed.remove(&(at, other));
        }
        same
    }

    /// Forgets what a dead process believed.
    pub fn forget(&mut self, node: usize) {
        self.believed.retain(|(at, _), _| *at != node);
    }

    pub fn neighbours(&self, node: usize) -> BTreeSet<usize> {
        let other = |(a, b): &(usize, usize)| (*a == node).then_some(*b).or((*b == node).then_some(*a));
        self.conns.keys().filter_map(other).collect()
    }
}
