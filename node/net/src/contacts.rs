//! The members with whom a node of a large flock is to be connected, apart from those that may connect with it.

use starling_protocol::NodeId;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;

/// See the module's documentation. `NetHandle::set_standing` says who is a member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contacts {
    /// Members to be connected with at all times. At most [`starling_protocol::limits::MEMBERS_MAX`] count.
    pub near: BTreeSet<NodeId>,
    /// The time after which a connection with another member ends; `None`: not for this reason.
    pub parts_after: Option<Duration>,
    /// Whether strangers that are found are dialed. Strangers dial in any case.
    pub meets_strangers: bool,
}

/// Connected members that are no contacts, and when their connections end. As many as there are connections.
#[derive(Default)]
pub(super) struct Partings {
    due: BTreeMap<NodeId, Instant>,
}

impl Partings {
    /// Notes that a connected node is no contact, and after how long its connections end; `None` if it is one.
    pub fn note(&mut self, node: NodeId, after: Option<Duration>, now: Instant) {
        match after {
            Some(after) => drop(self.due.entry(node).or_insert(now + after)),
            None => self.drop(&node),
        }
    }

    /// The node is not connected any more, or not to be parted from.
    pub fn drop(&mut self, node: &NodeId) {
        self.due.remove(node);
    }

    /// The nodes whose connections end now.
    pub fn overdue(&mut self, now: Instant) -> Vec<NodeId> {
        let over: Vec<NodeId> = self.due.iter().filter(|(_, due)| **due <= now).map(|(node, _)| *node).collect();
        over.iter().for_each(|node| self.drop(node));
        over
    }

    pub fn wake_at(&self) -> Option<Instant> {
        self.due.values().min().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_former_neighbour_is_left_for_a_while_and_kept_if_it_is_one_again() {
        const PAUSE: Duration = Duration::from_secs(60);
        let (mut partings, start) = (Partings::default(), Instant::now());
        let [former, back, gone] = [1, 2, 3].map(|n| NodeId([n; 32]));
        assert_eq!(partings.wake_at(), None);
        for node in [former, back, gone] {
            partings.note(node, Some(PAUSE), start);
        }
        partings.note(former, Some(PAUSE), start + PAUSE / 2);
        partings.note(back, None, start + PAUSE / 2);
        partings.drop(&gone);
        assert_eq!(partings.wake_at(), Some(start + PAUSE));
        assert_eq!(partings.overdue(start + PAUSE - Duration::from_millis(1)), []);
        assert_eq!(partings.overdue(start + PAUSE), [former]);
        assert_eq!(partings.overdue(start + 2 * PAUSE), [], "once, unless it connects again");
        assert_eq!(partings.wake_at(), None);
    }
}
