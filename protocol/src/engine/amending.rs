//! How a node comes to know an amendment, passes it on and takes it over (`docs/protocol/5-membership.md` §5.8).

use super::ctx::Ctx;
use super::io::Refusal;
use super::outbox::Out;
use crate::amendment::{Amendment, NotAmended, Settings};
use crate::message::Message;
use crate::mutation::{Mutation, mutated};
use crate::run::Budget;
use crate::{Digest, NodeId};

impl Ctx {
    /// The settings of the head.
    pub fn settings(&self) -> Settings {
        self.head.as_ref().map_or(Settings::default(), |head| head.record.next.settings)
    }

    /// The amendment that this node states in a READY of the round after the head.
    pub fn amendment(&self) -> Option<&Amendment> {
        let round = self.head.as_ref()?.record.round.saturating_add(1);
        self.amendments.stated(self.spec.creator.is_some(), round)
    }

    /// Whether the run's budget is spent after `rounds` rounds and `tokens` tokens. It is not if this node states an
    /// amendment by which it is not: the round in which a record takes it up comes after the end.
    pub fn is_spent(&self, rounds: u64, tokens: u64) -> bool {
        let spent = |limit: u64, used: u64| limit != 0 && used >= limit;
        let is_over = |budget: &Budget| spent(budget.rounds, rounds) || spent(budget.tokens, tokens);
        let longer = |amendment: &Amendment| !is_over(&amendment.changes.apply(&self.rules).budget);
        is_over(&self.rules.budget) && !self.amendment().is_some_and(longer)
    }

    /// Takes over the terms that are in force after the head.
    pub fn follow_settings(&mut self) {
        let settings = self.settings();
        self.amendments.follow(&settings);
        let early = self.amendment().filter(|_| mutated!(Mutation::AmendEarly)).map(|early| early.changes);
        let changes = early.map_or(settings.changes, |early| settings.changes.then(&early));
        if self.changes != changes {
            (self.rules, self.changes) = (changes.apply(&self.spec), changes);
        }
    }

    /// Checks an amendment that the operator hands in.
    ///
    /// # Errors
    /// The reason why it would not count.
    pub fn check_amendment(&self, amendment: &Amendment) -> Result<(), NotAmended> {
        let head = self.head.as_ref().ok_or(NotAmended::NoRecord)?;
        if self.frozen {
            return Err(NotAmended::Frozen);
        }
        amendment.check(&self.spec, &head.record.next.settings)?;
        if !amendment.is_authorised(self.verifier.as_ref(), &self.spec, &self.run) {
            let creator = self.spec.creator.is_some();
            return Err(if creator { NotAmended::NotCreators } else { NotAmended::NoCreator });
        }
        let heard = if self.spec.creator.is_some() { self.is_member(&self.me) } else { self.votes() };
        if !heard {
            return Err(NotAmended::NoSeat);
        }
        // One that waits for a later round gives way.
        let others = self.amendment().is_some_and(|known| known.name(&self.run) != amendment.name(&self.run));
        if others && self.spec.creator.is_some() { Err(NotAmended::OneAtATime) } else { Ok(()) }
    }

    /// Takes an amendment that the operator hands in, and tells the members; one that would not count is dropped.
    pub fn propose(&mut self, amendment: Amendment, out: &mut Out) {
        if self.check_amendment(&amendment).is_err() {
            return;
        }
        if mutated!(Mutation::AmendAlone) {
            self.rules = amendment.changes.apply(&self.rules);
        }
        self.amendments.take(amendment.name(&self.run), amendment.clone(), true);
        self.follow_settings();
        self.tell_amendment(&amendment, out);
    }

    /// Hears of an amendment from a member. In a run without a creator only voters' count: learners may lie, and there
    /// is room for a few.
    ///
    /// # Errors
    /// It is not the next one here, or nobody with a right to it says so.
    pub fn hear_amendment(&mut self, from: NodeId, amendment: Amendment, out: &mut Out) -> Result<(), Refusal> {
        let name = amendment.name(&self.run);
        let known = self.amendments.known().any(|(known, ..)| *known == name);
        let heeded = self.spec.creator.is_some() || self.is_voter(&from);
        if known || !heeded || self.frozen || !amendment.follows(&self.settings()) {
            return if known { Ok(()) } else { Err(Refusal::Stale) };
        }
        if !amendment.is_authorised(self.verifier.as_ref(), &self.spec, &self.run) {
            return Err(Refusal::Malformed { what: "amendment by nobody with a right to it" });
        }
        if amendment.check(&self.spec, &self.settings()).is_err() {
            return Err(Refusal::Malformed { what: "amendment to terms that the run cannot have" });
        }
        if self.amendments.take(name, amendment.clone(), false) {
            self.follow_settings();
            // A learner's word would reach nobody that has not heard the sender.
            if self.votes() {
                self.tell_amendment(&amendment, out);
            }
        }
        Ok(())
    }

    fn tell_amendment(&self, amendment: &Amendment, out: &mut Out) {
        let mut members = self.reachable_members();
        members.retain(|id| self.peers.get(id).is_some_and(|peer| peer.link.greeted));
        out.send_to(self, &members, &Message::Amend(amendment.clone()));
    }

    /// Tells a member that has just come, or come to this node's head, the amendments that no record holds yet.
    pub fn pass_amendments_on(&self, to: NodeId, out: &mut Out) {
        if self.frozen || !self.is_member(&to) {
            return;
        }
        for (_, amendment, _) in self.amendments.known() {
            out.send_to(self, &[to], &Message::Amend(amendment.clone()));
        }
    }

    /// Amendments that wait for a record: name, content, and whether this node's operator agrees.
    pub fn proposals(&self) -> Vec<(Digest, Amendment, bool)> {
        self.amendments.known().map(|(name, amendment, agreed)| (*name, amendment.clone(), agreed)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amendment::Changes;
    use crate::wire::sample;

    fn rounds(ctx: &Ctx, rounds: u64) -> Amendment {
        let changes = Changes { rounds: Some(rounds), ..Changes::default() };
        Amendment::next(&ctx.settings(), 0, changes).sign(&sample::signer(), &ctx.run)
    }

    #[test]
    fn a_known_amendment_lengthens_a_run_that_is_over() {
        let (mut ctx, mut out) = (Ctx::sample(), Out::default());
        let longer = rounds(&ctx, 200);
        assert!(ctx.is_spent(100, 0) && !ctx.is_spent(99, 0));
        ctx.propose(longer.clone(), &mut out);
        assert!(!ctx.is_spent(100, 0) && ctx.is_spent(200, 0));
        assert_eq!(ctx.rules.budget.rounds, 100, "it is in force with the record that holds it");
        let other = rounds(&ctx, 300);
        assert_eq!(ctx.check_amendment(&other), Err(NotAmended::OneAtATime));
        assert_eq!(ctx.check_amendment(&longer), Ok(()));
        ctx.frozen = true;
        assert_eq!(ctx.check_amendment(&longer), Err(NotAmended::Frozen));
    }

    #[test]
    fn an_amendment_for_a_later_round_holds_up_no_other() {
        let (mut ctx, mut out) = (Ctx::sample(), Out::default());
        let late = Amendment { from: 90, ..rounds(&ctx, 200) }.sign(&sample::signer(), &ctx.run);
        ctx.propose(late, &mut out);
        assert!(ctx.amendment().is_none() && ctx.proposals().len() == 1, "it waits for its round");
        let other = rounds(&ctx, 300);
        assert_eq!(ctx.check_amendment(&other), Ok(()));
        ctx.propose(other.clone(), &mut out);
        assert_eq!(ctx.amendment(), Some(&other));
    }

    #[test]
    fn members_pass_on_what_the_creator_has_signed_and_refuse_the_rest() {
        let (mut ctx, mut out) = (Ctx::sample(), Out::default());
        let good = rounds(&ctx, 200);
        let unsigned = Amendment { signature: None, ..good.clone() };
        let past = Amendment { number: 2, ..good.clone() };
        let from = sample::node(16);
        assert!(matches!(ctx.hear_amendment(from, unsigned, &mut out), Err(Refusal::Malformed { .. })));
        assert_eq!(ctx.hear_amendment(from, past, &mut out), Err(Refusal::Stale));
        let values = Changes { share: Some(99), ..Changes::default() };
        let values = Amendment::next(&ctx.settings(), 0, values).sign(&sample::signer(), &ctx.run);
        assert!(matches!(ctx.hear_amendment(from, values, &mut out), Err(Refusal::Malformed { .. })));
        assert!(ctx.amendment().is_none());
        for _ in 0..2 {
            assert_eq!(ctx.hear_amendment(from, good.clone(), &mut out), Ok(()));
        }
        assert_eq!(ctx.amendment(), Some(&good));
    }
}
