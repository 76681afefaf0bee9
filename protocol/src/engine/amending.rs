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
        let record = &self.head.as_ref()?.record;
        self.amendment_after(record.round, record.tokens)
    }

    /// The amendment that this node states after `rounds` rounds and `tokens` tokens: of those that are due the one with
    /// the smallest name. After the run's end only those count by which the budget is not spent. Another one would come
    /// into no record, since nobody contributes with it, and would hold up the longer ones.
    fn amendment_after(&self, rounds: u64, tokens: u64) -> Option<&Amendment> {
        let ended = is_over(&self.rules.budget, rounds, tokens) && !mutated!(Mutation::AmendInVain);
        let longer = |amendment: &Amendment| !is_over(&amendment.changes.apply(&self.rules).budget, rounds, tokens);
        let mut due = self.amendments.due(self.spec.creator.is_some(), rounds.saturating_add(1));
        due.find(|amendment| !ended || longer(amendment))
    }

    /// Whether the run's budget is spent after `rounds` rounds and `tokens` tokens. It is not if this node states an
    /// amendment by which it is not: the round in which a record takes it up comes after the end. A node without a seat
    /// states nothing, and others may never hear of what it knows.
    pub fn is_spent(&self, rounds: u64, tokens: u64) -> bool {
        let longer = |amendment: &Amendment| !is_over(&amendment.changes.apply(&self.rules).budget, rounds, tokens);
        let lengthened = self.is_member(&self.me) && self.amendment_after(rounds, tokens).is_some_and(longer);
        is_over(&self.rules.budget, rounds, tokens) && !lengthened
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
        let heard = if self.spec.creator.is_some() { self.may_amend(&self.me) } else { self.votes() };
        if !heard {
            return Err(NotAmended::NoSeat);
        }
        // One that waits for a later round gives way.
        let others = self.amendment().is_some_and(|known| known.name(&self.run) != amendment.name(&self.run));
        if others && self.spec.creator.is_some() { Err(NotAmended::OneAtATime) } else { Ok(()) }
    }

    /// Whether members hear an amendment from this node: from members, and from the run's creator without a seat, too.
    pub fn may_amend(&self, id: &NodeId) -> bool {
        self.is_member(id) || self.spec.creator == Some(*id)
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

/// Whether a budget is spent after `rounds` rounds and `tokens` tokens.
fn is_over(budget: &Budget, rounds: u64, tokens: u64) -> bool {
    let spent = |limit: u64, used: u64| limit != 0 && used >= limit;
    spent(budget.rounds, rounds) || spent(budget.tokens, tokens)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amendment::Changes;
    use crate::engine::chain::ChainHead;
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

    /// After the end nobody contributes with an amendment that lengthens nothing. If such a one came first, by its name
    /// or because the operator may hand in one at a time, a run that is over could never be lengthened.
    #[test]
    fn after_the_end_an_amendment_that_lengthens_nothing_holds_up_none_that_does() {
        let (mut ctx, mut out) = (Ctx::sample(), Out::default());
        let mut record = ctx.head.as_ref().expect("a head").record.clone();
        record.tokens = 1 << 40;
        ctx.spec.budget.tokens = 1 << 40;
        ctx.rules = ctx.spec.clone();
        ctx.stand_on(ChainHead::new(record, None));
        let (rounds, tokens) = (ctx.head.as_ref().expect("a head").record.round, 1 << 40);
        let signed =
            |ctx: &Ctx, changes| Amendment::next(&ctx.settings(), 0, changes).sign(&sample::signer(), &ctx.run);
        let longer = signed(&ctx, Changes { tokens: Some(1 << 41), ..Changes::default() });
        let first = |share: &u32| {
            let other = signed(&ctx, Changes { share: Some(*share), ..Changes::default() });
            other.name(&ctx.run) < longer.name(&ctx.run)
        };
        let share = (1..=50).find(first).expect("half of all names come before");
        let vain = signed(&ctx, Changes { share: Some(share), ..Changes::default() });
        ctx.propose(vain.clone(), &mut out);
        assert!(ctx.is_spent(rounds, tokens) && ctx.amendment().is_none() && ctx.proposals().len() == 1);
        assert_eq!(ctx.check_amendment(&longer), Ok(()), "the operator may hand in a longer one");
        assert_eq!(ctx.hear_amendment(sample::node(16), longer.clone(), &mut out), Ok(()));
        assert_eq!(ctx.amendment(), Some(&longer), "although its name comes later");
        assert!(!ctx.is_spent(rounds, tokens));
    }

    /// Members hear the creator without a seat, and nobody else: a run is lengthened whatever has become of its node.
    #[test]
    fn the_creator_amends_without_a_seat_and_waits_for_the_members() {
        let (mut ctx, mut out) = (Ctx::sample(), Out::default());
        let longer = rounds(&ctx, 200);
        let (creator, stranger) = (ctx.spec.creator.expect("the sample has one"), sample::node(0xee));
        let mut record = ctx.head.as_ref().expect("a head").record.clone();
        record.next.members.retain(|member| member.id != creator);
        ctx.stand_on(ChainHead::new(record, None));
        assert!(!ctx.is_member(&creator) && ctx.may_amend(&creator) && !ctx.may_amend(&stranger));
        ctx.me = stranger;
        assert_eq!(ctx.check_amendment(&longer), Err(NotAmended::NoSeat));
        ctx.me = creator;
        ctx.propose(longer.clone(), &mut out);
        assert_eq!(ctx.amendment(), Some(&longer));
        assert!(ctx.is_spent(100, 0), "others may never hear of it");
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
