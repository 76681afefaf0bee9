//! As whom this process speaks: its start, and the incarnation that its votes name.

use super::clock::Moment;
use crate::NodeId;
use crate::message::Stamp;
use crate::mutation::{Mutation, mutated};
use std::collections::{BTreeMap, VecDeque};

/// Names that are drawn above the seat's differ by what the boots give below this: about a second of a wall clock.
const DRAWN_APART: u64 = 1 << 20;

/// As whom this process speaks.
#[derive(Debug)]
pub(super) struct Identity {
    /// Names this start of the process, or what is to count as one.
    pub boot: u64,
    /// The boot that this process began with.
    pub first_boot: u64,
    /// Boots that it has said in Hellos, newest last.
    pub boots: VecDeque<u64>,
    /// The newest later start of this key that this process has been shown.
    pub duplicate: u64,
    /// Names the vote state; raised when the vote state is lost, old, or left behind in another lineage.
    pub incarnation: u64,
    /// Goes on from a vote state of a former process: listens first whether it is the newest.
    pub resumed: bool,
    /// This process has stood on no record yet, nor made one.
    landless: bool,
    /// Since when voters that have borne witness are, with this node, a quorum.
    pub heard_since: Option<Moment>,
    /// The newest vote of this identity in certificates, and under which incarnation.
    pub own: Option<(u64, Stamp)>,
    /// Votes of others in certificates that this process did not see made: the newest place, by incarnation.
    pub certified: BTreeMap<NodeId, (u64, Stamp)>,
}

impl Identity {
    pub fn new(boot: u64) -> Self {
        Self {
            boot,
            first_boot: boot,
            boots: VecDeque::new(),
            duplicate: 0,
            incarnation: boot,
            resumed: false,
            landless: true,
            heard_since: None,
            own: None,
            certified: BTreeMap::new(),
        }
    }

    /// Counts as newly started.
    pub fn renew(&mut self) {
        self.boot = self.boot.saturating_add(1);
    }

    /// Speaks from a new vote state from now on.
    pub fn begin_incarnation(&mut self) {
        self.renew();
        self.incarnation = self.boot;
        (self.resumed, self.heard_since) = (false, None);
    }

    /// The first record that this process stands on is one that it makes itself.
    pub fn begin_lineage(&mut self) {
        self.landless = false;
    }

    /// Whether this process has to draw a new name, now that it stands on a record: that knows its identity under a name
    /// above its own, as after a disk was wiped where the clock is behind: what it asks for, and votes, under its own name
    /// nobody heeds. The very name of the seat is another's too, where this process has drawn it anew.
    pub fn heed_seat(&mut self, seat: Option<u64>) -> bool {
        let drawn = std::mem::replace(&mut self.landless, false) && !self.resumed;
        let above = |known: &u64| *known > self.incarnation || drawn && *known == self.incarnation;
        let Some(known) = seat.filter(above).filter(|_| !mutated!(Mutation::LowIncarnation)) else { return false };
        // Of two such processes that stood on one record neither may speak under the other's name.
        let apart = if mutated!(Mutation::DrawAlike) { 0 } else { self.boot % DRAWN_APART };
        self.boot = self.boot.max(known.saturating_add(apart));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_drawn_above_the_seats_when_that_is_later_or_drawn_by_another() {
        let drawn = |boot, seat| {
            let mut identity = Identity::new(boot);
            (identity.heed_seat(seat), identity.boot)
        };
        assert_eq!(drawn(7, None), (false, 7));
        assert_eq!(drawn(7, Some(6)), (false, 7));
        assert_eq!(drawn(7, Some(7)), (true, 14), "the same name, drawn anew");
        assert_eq!(drawn(7, Some(9)), (true, 16));
        let mut founder = Identity::new(7);
        founder.begin_lineage();
        assert!(!founder.heed_seat(Some(7)), "it has made the seat itself");
    }
}
