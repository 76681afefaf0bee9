//! Reports of members that sent bytes in a reduction that no honest program sends. The member that received the bytes
//! knows it for sure, since the connection is authenticated, and goes on without the sender. It tells the others in its
//! Heads, or they would offer the same set again and again. The others cannot know which of the two lies, so a report
//! counts once.

use super::conduct::Conduct;
use super::ctx::Ctx;
use super::round::Round;
use crate::NodeId;
use crate::message::{Awaited, Awaits, Head};
use crate::mutation::{Mutation, mutated};

impl Round {
    /// Notes that this node has refused a member's bytes in the attempt under way.
    pub fn report_refusal(&mut self, id: NodeId, conduct: &mut Conduct) {
        if self.task.members.contains(&id) {
            self.distrust.ruled_out.insert(id);
            self.distrust.refused = Some(id);
            conduct.exclude(id, self.task.number);
        }
    }

    /// This node's report for its Heads, while it is in no reduction.
    pub fn refusal_report(&self) -> Option<Awaits> {
        Some(Awaits { what: Awaited::Refused, from: self.distrust.refused? })
    }

    /// Hears a member's report that it has refused bytes of another. The reported member is left out of this round's
    /// attempts. A member that has reported another before is left out itself: honest members meet one liar at a time,
    /// and a lying reporter would have them all removed, one after the other. A node does not believe a report of
    /// itself. No learner is believed about a voter, because a voter that is left out of a round is as good as removed.
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
    /// Whether the word of one member does not count against another: a learner's against a voter.
    pub fn is_outvoted(&self, by: &NodeId, of: &NodeId) -> bool {
        !self.is_voter(by) && self.is_voter(of) && !mutated!(Mutation::LearnersReport)
    }
}
