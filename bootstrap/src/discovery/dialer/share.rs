//! The strangers' share of dials, and of the list of peers that wait for one.

use super::target::{State, Target};
use super::{DIALS_MAX, Dialer, Wish};
use libp2p::PeerId;

/// Dials to strangers among those under way. Strangers have all of them while no peer is known, since any may be of the
/// flock then.
pub(super) const STRANGERS_DIALED_MAX: usize = DIALS_MAX / 2;
/// Strangers that wait to be dialed: as many as eight dials a second reach in half a minute. A stranger that found no
/// place is found again.
pub(super) const CANDIDATES_MAX: usize = 256;

/// Dials under way.
#[derive(Clone, Copy, Default)]
pub(super) struct Busy {
    pub all: usize,
    pub strangers: usize,
}

impl Busy {
    pub fn count(&mut self, standing: Wish) {
        self.all += 1;
        self.strangers += usize::from(standing == Wish::Candidate);
    }
}

impl Dialer {
    /// How much a peer is preferred: a peer that the owner knows counts as a wanted one.
    pub(super) fn standing(&self, peer: &PeerId, target: &Target) -> Wish {
        if self.known.contains(peer) { target.wish.max(Wish::Wanted) } else { target.wish }
    }

    pub(super) fn has_slot(&self, standing: Wish, busy: Busy) -> bool {
        let of_strangers = DIALS_MAX - self.left_by(Wish::Candidate);
        busy.all < DIALS_MAX && (standing > Wish::Candidate || busy.strangers < of_strangers)
    }

    /// Dials that one for a peer of this rank must leave for others.
    pub(super) fn left_by(&self, standing: Wish) -> usize {
        match standing {
            Wish::Candidate if !self.known.is_empty() => DIALS_MAX - STRANGERS_DIALED_MAX,
            _ => 0,
        }
    }

    pub(super) fn dialing(&self) -> Busy {
        let mut busy = Busy::default();
        for (peer, target) in self.targets.iter().filter(|(_, t)| t.state == State::Dialing) {
            busy.count(self.standing(peer, target));
        }
        busy
    }

    /// Makes room for one more stranger. The one that has failed most often makes way. Strangers that were not dialed
    /// yet do not make way: a flood of new ones would drive them out before their turn.
    pub(super) fn make_room(&mut self) -> bool {
        let is_stranger = |(peer, t): &(&PeerId, &Target)| {
            matches!(t.state, State::Waiting(_)) && self.standing(peer, t) == Wish::Candidate
        };
        if self.targets.iter().filter(is_stranger).count() < CANDIDATES_MAX {
            return true;
        }
        let failures = |t: &Target| t.rounds.saturating_add(t.unpunched);
        let failed = self.targets.iter().filter(is_stranger).filter(|(_, t)| failures(t) > 0);
        let Some(worst) = failed.max_by_key(|(_, t)| failures(t)).map(|(peer, _)| *peer) else { return false };
        self.give_up(&worst);
        true
    }

    /// The peer is no target any more; it stays in the book while there is room.
    pub(super) fn give_up(&mut self, peer: &PeerId) {
        self.targets.remove(peer);
        self.book.pin(peer, false);
    }
}
