//! The identity under which this process speaks: its start, and the incarnation that its votes name.

use super::clock::Moment;
use crate::NodeId;
use crate::message::Stamp;
use crate::mutation::{Mutation, mutated};
use std::collections::{BTreeMap, VecDeque};

/// Incarnations drawn above the seat's differ by their boots modulo this number: about a second of a wall clock.
const DRAWN_APART: u64 = 1 << 20;

/// The identity under which this process speaks.
#[derive(Debug)]
pub(super) struct Identity {
    /// The name of this start of the process, or of an event that counts as a start.
    pub boot: u64,
    /// The boot that this process began with.
    pub first_boot: u64,
    /// Boots that this process has said in Hellos, newest last.
    pub boots: VecDeque<u64>,
    /// The newest later start of this key that this process has been shown.
    pub duplicate: u64,
    /// The name of the vote state. A new one is drawn when the vote state is lost, old, or left behind in another
    /// lineage.
    pub incarnation: u64,
    /// This process goes on from the vote state of a former one. It first asks whether that vote state is the newest.
    pub resumed: bool,
    /// This process has had no head yet, and has made no record.
    landless: bool,
    /// The time since when this node and the voters that have answered with a Witness are a quorum.
    pub heard_since: Option<Moment>,
    /// The newest vote of this identity in certificates, with its incarnation.
    pub own: Option<(u64, Stamp)>,
    /// Votes of others in certificates that this process did not see made: the newest place with its incarnation.
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

    /// Notes that the first head of this process is a record that it makes itself.
    pub fn begin_lineage(&mut self) {
        self.landless = false;
    }

    /// Whether this process has to draw a new incarnation, now that it has a head. It has to if the record knows its
    /// identity under an incarnation above its own, as after a disk was wiped where the clock is behind: other nodes
    /// heed neither requests nor votes under the lower one. If this process has drawn its incarnation itself, an equal
    /// one of the seat belongs to another process.
    pub fn heed_seat(&mut self, seat: Option<u64>) -> bool {
        let drawn = std::mem::replace(&mut self.landless, false) && !self.resumed;
        let above = |known: &u64| *known > self.incarnation || drawn && *known == self.incarnation;
        let Some(known) = seat.filter(above).filter(|_| !mutated!(Mutation::LowIncarnation)) else { return false };
        // Two such processes may have had the same head. Neither may speak under the other's incarnation.
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
