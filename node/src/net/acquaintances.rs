//! Nodes met before, to be dialed when they are away: so many, and not for ever.

use starling_protocol::NodeId;
use starling_protocol::limits::MEMBERS_MAX;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// A full flock, and as many that were in it a while ago.
const CAP: usize = 2 * MEMBERS_MAX;
/// A node that has been away for this long is left to come back by itself, or to be found anew.
const AWAY_MAX: Duration = Duration::from_secs(15 * 60);

/// Who is kept in touch with.
#[derive(Default)]
pub(super) struct Acquaintances {
    /// Since when it is away.
    away: BTreeMap<NodeId, Option<Instant>>,
}

impl Acquaintances {
    /// A node is here. Whether to keep in touch with it, and whom to forget for that.
    pub fn met(&mut self, node: NodeId) -> (bool, Option<NodeId>) {
        let mut forgotten = None;
        if self.away.len() >= CAP && !self.away.contains_key(&node) {
            let absent = self.away.iter().filter_map(|(node, since)| Some((since.as_ref()?, node)));
            let Some((_, longest)) = absent.min() else { return (false, None) };
            forgotten = Some(*longest);
        }
        if let Some(longest) = &forgotten {
            self.away.remove(longest);
        }
        self.away.insert(node, None);
        (true, forgotten)
    }

    /// Its last connection is gone.
    pub fn left(&mut self, node: &NodeId, now: Instant) {
        if let Some(since) = self.away.get_mut(node) {
            since.get_or_insert(now);
        }
    }

    /// It is not wanted any more.
    pub fn drop(&mut self, node: &NodeId) {
        self.away.remove(node);
    }

    /// Forgets those that have been away for too long.
    pub fn overdue(&mut self, now: Instant) -> Vec<NodeId> {
        let is_overdue = |since: &Option<Instant>| since.is_some_and(|since| now - since >= AWAY_MAX);
        let overdue: Vec<NodeId> = self.away.iter().filter(|(_, since)| is_overdue(since)).map(|(n, _)| *n).collect();
        overdue.iter().for_each(|node| self.drop(node));
        overdue
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: usize) -> NodeId {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&n.to_le_bytes());
        NodeId(bytes)
    }

    #[test]
    fn the_longest_absent_makes_room() {
        let mut known = Acquaintances::default();
        let start = Instant::now();
        for n in 0..CAP {
            assert_eq!(known.met(id(n)), (true, None));
        }
        assert_eq!(known.met(id(CAP)), (false, None), "all are here");
        assert_eq!(known.met(id(3)), (true, None), "known already");
        known.left(&id(7), start + Duration::from_secs(1));
        known.left(&id(9), start);
        known.left(&id(9), start + Duration::from_secs(5));
        assert_eq!(known.met(id(CAP)), (true, Some(id(9))));
        assert_eq!(known.met(id(CAP + 1)), (true, Some(id(7))));
        assert_eq!(known.met(id(CAP + 2)), (false, None));
    }

    #[test]
    fn who_stays_away_is_forgotten() {
        let mut known = Acquaintances::default();
        let start = Instant::now();
        for n in 0..3 {
            known.met(id(n));
        }
        known.left(&id(0), start);
        known.left(&id(1), start);
        known.met(id(1));
        assert_eq!(known.overdue(start + AWAY_MAX / 2), []);
        assert_eq!(known.overdue(start + AWAY_MAX), [id(0)]);
        assert_eq!(known.overdue(start + AWAY_MAX), []);
    }
}
