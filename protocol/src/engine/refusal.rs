//! Members that sent in a reduction what no program sends. Whoever has seen it knows for sure, since the connection is
//! authenticated, and goes on without them; the others are told in its Heads, or they would offer the same set again and
//! again. They cannot know which of the two lies, so that an accusation counts once.

use super::Engine;
use crate::NodeId;
use crate::message::{Awaited, Awaits, Head};
use crate::plant::{Plant, planted};

/// For so many COMMITs a node does not vouch for somebody of whom it has refused something: it may have been a broken
/// machine, and be mended.
const SHUNNED_ROUNDS: u64 = 8;

impl Engine {
    /// In the attempt under way this node has refused what a member sent.
    pub(super) fn accuse(&mut self, id: NodeId) {
        let Some(round) = self.round.as_mut().filter(|round| round.members.contains(&id)) else { return };
        round.ruled_out.insert(id);
        round.refused = Some(id);
        self.shunned.insert(id, round.number.saturating_add(SHUNNED_ROUNDS));
    }

    /// What this node tells about it, while it is in no reduction.
    pub(super) fn accusation(&self) -> Option<Awaits> {
        let from = self.round.as_ref()?.refused?;
        Some(Awaits { what: Awaited::Refused, from })
    }

    /// A member says that it has refused what another one sent. Of the two the accused is left out of this round's
    /// attempts. But who has accused another before is left out itself: honest members meet one liar at a time, and a lying
    /// accuser would have them all removed, one after the other. Nobody believes it of itself, and no learner is believed
    /// about a voter: who is left out of a round is as good as removed.
    pub(super) fn hear_accusation(&mut self, from: NodeId, head: &Head) {
        let Some(Awaits { what: Awaited::Refused, from: accused }) = head.awaits else { return };
        let outvoted = self.is_outvoted(&from, &accused);
        let Some(round) = self.round.as_mut().filter(|round| round.parent == head.record) else { return };
        let members = round.members.contains(&from) && round.members.contains(&accused);
        if !members || accused == from || !round.accusers.insert(from) {
            return;
        }
        let before = *self.accused.entry(from).or_insert(accused);
        let culprit = if accused == self.me || before != accused || outvoted { from } else { accused };
        round.ruled_out.insert(culprit);
    }

    /// Whether the word of one member counts for nothing against another: that of a learner against a voter.
    pub(super) fn is_outvoted(&self, by: &NodeId, of: &NodeId) -> bool {
        !self.is_voter(by) && self.is_voter(of) && !planted!(Plant::LearnersAccuse)
    }

    /// Whether this node does not vouch for somebody.
    pub(super) fn shuns(&self, id: &NodeId) -> bool {
        self.shunned.contains_key(id)
    }
}
