//! Nodes that this node has met and dials again when they are away: a bounded number, for a bounded time.
//!
//! Strangers are not among them; otherwise anybody could have itself dialed for ever. Only a node that has met no flock
//! yet keeps in touch with all, since any peer may be a member. It forgets the strangers as soon as it knows the flock.

use libp2p::Multiaddr;
use starling_bootstrap::discovery::reason::Reason;
use starling_bootstrap::source::Source;
use starling_protocol::NodeId;
use starling_protocol::limits::MEMBERS_MAX;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// A full flock, and as many nodes that were in it a while ago.
const CAP: usize = 2 * MEMBERS_MAX;
/// A node that has been away for this long is left to come back by itself, or to be found anew.
const AWAY_MAX: Duration = Duration::from_secs(15 * 60);

/// The nodes that this node keeps in touch with.
#[derive(Default)]
pub(super) struct Acquaintances {
    met: BTreeMap<NodeId, Acquaintance>,
}

#[derive(Clone, Copy)]
struct Acquaintance {
    /// Since when it is away.
    away: Option<Instant>,
    /// Where its last connection led, while it is away.
    source: Option<Source>,
    /// It is or was a member, an admitted joiner, or named by the user.
    is_known: bool,
}

impl Acquaintances {
    /// Notes that a node is here. Returns whether to keep in touch with it, and the node to forget in its place.
    pub fn met(&mut self, node: NodeId, is_known: bool) -> (bool, Option<NodeId>) {
        let before = self.met.get(&node).copied();
        let mut forgotten = None;
        if self.met.len() >= CAP && before.is_none() {
            let absent = self.met.iter().filter_map(|(node, met)| Some((met.away?, node)));
            let Some((_, longest)) = absent.min() else { return (false, None) };
            forgotten = Some(*longest);
        }
        if let Some(longest) = &forgotten {
            self.met.remove(longest);
        }
        let is_known = is_known || before.is_some_and(|before| before.is_known);
        self.met.insert(node, Acquaintance { away: None, source: None, is_known });
        (true, forgotten)
    }

    /// Forgets the nodes that are strangers and never were anything else. A member behind a network partition is
    /// still looked for.
    pub fn part(&mut self, is_known: impl Fn(&NodeId) -> bool) -> Vec<NodeId> {
        for (node, met) in &mut self.met {
            met.is_known |= is_known(node);
        }
        let strangers: Vec<NodeId> = self.met.iter().filter(|(_, met)| !met.is_known).map(|(node, _)| *node).collect();
        strangers.iter().for_each(|node| self.drop(node));
        strangers
    }

    /// Whether this node keeps in touch with it.
    pub fn holds(&self, node: &NodeId) -> bool {
        self.met.contains_key(node)
    }

    /// Forgets the nodes that are far, and returns them.
    pub fn part_from(&mut self, is_far: impl Fn(&NodeId) -> bool) -> Vec<NodeId> {
        let far: Vec<NodeId> = self.met.keys().filter(|node| is_far(node)).copied().collect();
        far.iter().for_each(|node| self.drop(node));
        far
    }

    /// The node's last connection is gone.
    pub fn left(&mut self, node: &NodeId, source: Source, now: Instant) {
        if let Some(met) = self.met.get_mut(node) {
            met.away.get_or_insert(now);
            met.source = Some(source);
        }
    }

    /// Where the last connection of a node that is away led.
    pub fn last_source(&self, node: &NodeId) -> Option<Source> {
        self.met.get(node)?.source
    }

    /// Whether the machine at which a peer was last connected says that nothing listens there any more.
    pub fn is_gone(&self, peer: &NodeId, failures: &[(Option<Multiaddr>, Reason)]) -> bool {
        let last = self.last_source(peer);
        let refused = |(address, reason): &(Option<Multiaddr>, Reason)| {
            *reason == Reason::Refused && address.as_ref().map(Source::of) == last
        };
        last.is_some_and(|last| matches!(last, Source::Here | Source::Address(_))) && failures.iter().any(refused)
    }

    /// The node is not wanted any more.
    pub fn drop(&mut self, node: &NodeId) {
        self.met.remove(node);
    }

    /// Forgets the nodes that have been away for too long.
    pub fn overdue(&mut self, now: Instant) -> Vec<NodeId> {
        let is_overdue = |met: &Acquaintance| met.away.is_some_and(|since| now - since >= AWAY_MAX);
        let overdue: Vec<NodeId> = self.met.iter().filter(|(_, met)| is_overdue(met)).map(|(n, _)| *n).collect();
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
            assert_eq!(known.met(id(n), true), (true, None));
        }
        assert_eq!(known.met(id(CAP), true), (false, None), "all are here");
        assert_eq!(known.met(id(3), true), (true, None), "known already");
        known.left(&id(7), Source::Here, start + Duration::from_secs(1));
        known.left(&id(9), Source::Here, start);
        known.left(&id(9), Source::Here, start + Duration::from_secs(5));
        assert_eq!(known.met(id(CAP), true), (true, Some(id(9))));
        assert_eq!(known.met(id(CAP + 1), true), (true, Some(id(7))));
        assert_eq!(known.met(id(CAP + 2), true), (false, None));
    }

    #[test]
    fn a_peer_that_stays_away_is_forgotten() {
        let mut known = Acquaintances::default();
        let start = Instant::now();
        for n in 0..3 {
            known.met(id(n), true);
        }
        known.left(&id(0), Source::Here, start);
        known.left(&id(1), Source::Here, start);
        known.met(id(1), true);
        assert_eq!(known.overdue(start + AWAY_MAX / 2), []);
        assert_eq!(known.overdue(start + AWAY_MAX), [id(0)]);
        assert_eq!(known.overdue(start + AWAY_MAX), []);
    }

    #[test]
    fn strangers_are_let_go_and_former_members_are_not() {
        let mut known = Acquaintances::default();
        for n in 0..3 {
            known.met(id(n), n == 0);
        }
        assert_eq!(known.part(|node| *node == id(1)), [id(2)]);
        assert_eq!(known.part(|_| false), [], "who was a member is looked for");
        known.met(id(0), false);
        assert_eq!(known.part(|_| false), []);
        assert_eq!(known.part_from(|node| *node == id(0)), [id(0)]);
        assert_eq!(known.part_from(|_| true), [id(1)], "each is forgotten once");
    }
}
