//! Members that sent in a reduction what no program sends. Whoever has seen it knows for sure, since the connection is
//! authenticated, and goes on without them; the others are told in its Heads, or they would offer the same set again and
//! again. They cannot know which of the two lies, so that a report counts once.

use super::conduct::Conduct;
use super::ctx::Ctx;
use super::round::Round;
use crate::NodeId;
use crate::message::{Awaited, Awaits, Head};
use crate::mutation::{Mutation, mutated};

impl Round {
    /// In the attempt under way this node has refused what a member sent.
    pub fn report_refusal(&mut self, id: NodeId, conduct: &mut Conduct) {
        if self.task.members.contains(&id) {
            self.distrust.ruled_out.insert(id);
            self.distrust.refused = Some(id);
            conduct.exclude(id, self.task.number);
        }
    }

    /// What this node tells about it, while it is in no reduction.
    pub fn refusal_report(&self) -> Option<Awaits> {
        Some(Awaits { what: Awaited::Refused, from: self.distrust.refused? })
    }

    /// A member says that it has refused what another one sent. Of the two the reported is left out of this round's
    /// attempts. But who has reported another before is left out itself: honest members meet one liar at a time, and a lying
    /// reporter would have them all removed, one after the other. Nobody believes it of itself, and no learner is believed
    /// about a voter: who is left out of a round is as good as removed.
    pub fn hear_report(&mut self, from: NodeId, head: &Head, conduct: &mut Conduct, ctx: &Ctx) {
        let Some(Awaits { what: Awaited::Refused, from: reported }) = head.awaits else { return };
        let members = self.task.members.contains(&from) && self.task.members.contains(&reported);
        if self.head.digest != head.record || !members || reported == from || !self.distrust.reporters.insert(from) {
            return;
        }
        let before = conduct.first_reported(from, reported);
        let lies = reported == ctx.me || before != reported || ctx.is_outvoted(&from, &reported);
        self.distrust.ruled_out.insert(if lies { from } else { reported });
    }
}

impl Ctx {
    /// Whether the word of one member counts for nothing against another: that of a learner against a voter.
    pub fn is_outvoted(&self, by: &NodeId, of: &NodeId) -> bool {
        !self.is_voter(by) && self.is_voter(of) && !mutated!(Mutation::LearnersAccuse)
    }
}
