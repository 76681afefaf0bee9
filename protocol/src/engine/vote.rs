//! One vote, on a set or on the record: the signed statements in it. A voter's statement is on the disk before it is
//! sent. It is sent once to every voter, and again only to voters that may have missed it.

use super::chain::ChainHead;
use super::clock::Moment;
use super::config::VoteState;
use super::ctx::Ctx;
use super::io::Refusal;
use super::outbox::Out;
use super::vote_state::OwnVotes;
use crate::NodeId;
use crate::ballot::{Ballot, Choice, Said};
use crate::message::{Estimate, Message, Question, Stamp, Value, ValueKind, Vote};
use crate::mutation::{Mutation, mutated};
use std::collections::BTreeMap;

impl Choice for Value {
    type Rank = (std::cmp::Reverse<ValueKind>, u64, u32, std::cmp::Reverse<crate::Digest>);

    fn rank(&self) -> Self::Rank {
        let kind = std::cmp::Reverse(self.kind);
        (kind, self.tokens, self.contributors, std::cmp::Reverse(self.digest))
    }

    // The READYs of a set are looked for when the set is decided.
    fn needs_bytes(&self) -> bool {
        self.kind == ValueKind::Commit
    }
}

/// A vote under way.
#[derive(Debug)]
pub(super) struct Instance {
    /// The question that the vote answers.
    pub question: Question,
    /// None before any voter has said anything.
    pub ballot: Option<Ballot<Value>>,
    /// Newest signed votes by sender, for the certificate.
    pub votes: BTreeMap<NodeId, (Vote, Vec<u8>)>,
    /// Newest signed estimates by sender: one half of the evidence, should another estimate contradict it.
    estimates: BTreeMap<NodeId, Vec<u8>>,
    /// When this node last said something new, and when it last repeated it.
    pub said_at: Moment,
    pub repeated_at: Moment,
}

/// The reason why a statement does not count, and the earlier signed statement that it contradicts.
#[derive(Debug)]
pub(super) struct Objection {
    pub refusal: Refusal,
    pub first: Option<Vec<u8>>,
}

impl From<Refusal> for Objection {
    fn from(refusal: Refusal) -> Self {
        Self { refusal, first: None }
    }
}

/// The message for a statement on a question.
fn message(question: &Question, incarnation: u64, said: &Said<Value>) -> Message {
    let (question, ballot, value) = (question.clone(), said.ballot, said.value.clone());
    match said.voted {
        None => Message::Estimate(Estimate { question, incarnation, ballot, value }),
        Some(voted) => Message::Vote(Vote { question, incarnation, ballot, value, voted }),
    }
}

impl Instance {
    pub fn new(question: Question) -> Self {
        let (votes, estimates, never) = (BTreeMap::new(), BTreeMap::new(), Moment::default());
        Self { question, ballot: None, votes, estimates, said_at: never, repeated_at: never }
    }

    /// Resumes from the vote state; None if that holds nothing about this question's record.
    pub fn resume(vote_state: &VoteState, seq: u64, ctx: &Ctx) -> Option<Self> {
        let (ballot, value) = vote_state.estimate.clone().filter(|_| vote_state.stamp.seq == seq)?;
        let estimate = Said { ballot, value, voted: None };
        let vote = vote_state.vote.clone().map(|(ballot, value, voted)| Said { ballot, value, voted: Some(voted) });
        let mut resumed = Self::new(Question { seq, parent: vote_state.parent, instance: vote_state.stamp.instance });
        if let Some(said) = &vote {
            let message = message(&resumed.question, vote_state.incarnation, said);
            if let Some(bytes) = ctx.seal(&message) {
                resumed.keep(ctx.me, message, bytes);
            }
        }
        resumed.ballot = Some(Ballot::resume(ctx.me, estimate, vote));
        Some(resumed)
    }

    pub fn ballot(&mut self, me: NodeId) -> &mut Ballot<Value> {
        self.ballot.get_or_insert_with(|| Ballot::new(me))
    }

    /// Whether this node has made a statement in the vote.
    pub fn entered(&self) -> bool {
        self.ballot.as_ref().is_some_and(|ballot| ballot.said().is_some())
    }

    /// Values that others have named.
    pub fn heard(&self) -> impl Iterator<Item = &Value> {
        self.ballot.iter().flat_map(|ballot| ballot.heard())
    }

    /// Values that one voter has named.
    pub fn names<'a>(&'a self, id: &'a NodeId) -> impl Iterator<Item = &'a Value> {
        self.ballot.iter().flat_map(|ballot| ballot.names(id))
    }

    fn keep(&mut self, from: NodeId, message: Message, bytes: Vec<u8>) {
        match message {
            Message::Vote(vote) => drop(self.votes.insert(from, (vote, bytes))),
            _ => drop(self.estimates.insert(from, bytes)),
        }
    }

    /// The newest vote of a voter, or its newest estimate, as signed.
    fn envelope(&self, from: &NodeId, vote: bool) -> Option<&Vec<u8>> {
        if vote { self.votes.get(from).map(|(_, bytes)| bytes) } else { self.estimates.get(from) }
    }

    /// Hears a statement of another voter under an incarnation that counts.
    ///
    /// # Errors
    /// The statement contradicts an earlier one of that voter, or is older.
    pub fn hear(
        &mut self,
        from: NodeId,
        incarnation: u64,
        said: Said<Value>,
        bytes: &[u8],
        ctx: &Ctx,
    ) -> Result<(), Objection> {
        let first = self.envelope(&from, said.voted.is_some()).cloned();
        let resigned = mutated!(Mutation::BlameSignatures) && first.as_ref().is_some_and(|f| ctx.contradict(f, bytes));
        if self.ballot(ctx.me).contradicts(&from, &said) || resigned {
            return Err(Objection {
                refusal: Refusal::Equivocation { what: "two different votes in one ballot" },
                first,
            });
        }
        let message = message(&self.question, incarnation, &said);
        if !self.ballot(ctx.me).hear(from, said) {
            return Err(Refusal::Stale.into());
        }
        self.keep(from, message, bytes.to_vec());
        Ok(())
    }

    /// The value of this node's next statement, and its vote state once that is made.
    pub fn next(&self, head: &ChainHead, ctx: &Ctx) -> Option<(Value, VoteState)> {
        let ballot = self.ballot.as_ref()?;
        let (said, _) = ballot.pending()?;
        let (mut estimate, mut vote) = (None, None);
        for Said { ballot, value, voted } in ballot.own().chain([said]) {
            match voted {
                None => estimate = Some((*ballot, value.clone())),
                Some(voted) => vote = Some((*ballot, value.clone(), *voted)),
            }
        }
        let (seq, instance, (ballot, phase)) = (self.question.seq, self.question.instance, said.place());
        let stamp = Stamp { seq, instance, ballot, phase };
        let (incarnation, lineage, parent) = (ctx.identity.incarnation, head.record.lineage, self.question.parent);
        Some((said.value.clone(), VoteState { incarnation, lineage, parent, stamp, estimate, vote }))
    }

    /// Makes the next statement; returns it as signed.
    pub fn say(&mut self, ctx: &Ctx) -> Option<Vec<u8>> {
        let (said, _) = self.ballot.as_ref()?.pending()?;
        let message = message(&self.question, ctx.identity.incarnation, said);
        let bytes = ctx.seal(&message)?;
        self.ballot(ctx.me).say();
        self.said_at = ctx.mark();
        self.keep(ctx.me, message, bytes.clone());
        Some(bytes)
    }

    /// Repeats this node's newest statements to the targets that need them. A statement that is not on the disk yet was
    /// not sent either: its write sends it.
    pub fn repeat(
        &self,
        targets: &[NodeId],
        needs: impl Fn(&NodeId, &Said<Value>) -> bool,
        own_votes: &OwnVotes,
        (ctx, out): (&Ctx, &mut Out),
    ) {
        if !ctx.may_speak() || !own_votes.is_written() {
            return;
        }
        for said in self.ballot.iter().flat_map(Ballot::own) {
            let targets: Vec<NodeId> = targets.iter().filter(|id| needs(id, said)).copied().collect();
            out.send_to(ctx, &targets, &message(&self.question, ctx.identity.incarnation, said));
        }
    }

    /// Repeats them, if they were made a while ago, to voters that wait for them and have not shown that they need them
    /// no more. A message over a connection arrives as long as the connection holds, so no voter is told twice when all
    /// is well.
    pub fn repeat_late(&mut self, waits: impl Fn(&NodeId) -> bool, own_votes: &OwnVotes, (ctx, out): (&Ctx, &mut Out)) {
        if self.ballot.is_none() || !ctx.may_repeat(self.said_at.max(self.repeated_at)) {
            return;
        }
        self.repeated_at = ctx.now;
        let mut waiting = ctx.reachable_voters();
        waiting.retain(waits);
        let place = |id: &NodeId| self.ballot.as_ref().and_then(|ballot| ballot.place_of(id));
        let later = |id: &NodeId, said: &Said<Value>| place(id).is_some_and(|place| place > said.place());
        self.repeat(&waiting, |id, said| !later(id, said), own_votes, (ctx, out));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::sample::{self, node};

    fn estimate(fill: u8) -> Said<Value> {
        Said { ballot: 0, value: Value { digest: sample::digest(fill), ..sample::value() }, voted: None }
    }

    fn sends(out: &Out) -> Vec<Vec<u8>> {
        let sent = |output: &super::super::io::Output| match output {
            super::super::io::Output::Send { bytes, .. } => Some(bytes.clone()),
            _ => None,
        };
        out.outputs.iter().filter_map(sent).collect()
    }

    #[test]
    fn a_vote_is_repeated_to_the_nodes_that_may_have_missed_it() {
        let (ctx, mut out, own_votes) = (Ctx::sample(), Out::default(), OwnVotes::default());
        let mut vote = ctx.sample_round().record_vote;
        assert!(vote.next(ctx.head.as_ref().unwrap(), &ctx).is_none(), "nothing to say");
        vote.ballot(ctx.me).propose(estimate(1).value);
        let (value, vote_state) = vote.next(ctx.head.as_ref().unwrap(), &ctx).unwrap();
        assert_eq!((value, vote_state.stamp.ballot, vote_state.stamp.phase), (estimate(1).value, 0, 1));
        let said = vote.say(&ctx).unwrap();
        assert!(vote.entered() && vote.next(ctx.head.as_ref().unwrap(), &ctx).is_none());
        vote.repeat(&[node(16), node(32)], |id, _| *id == node(32), &own_votes, (&ctx, &mut out));
        assert_eq!(sends(&out), [said], "to the one that needs it");
    }

    /// Takes every signature as valid, so that one body has many.
    struct Trusting;

    impl crate::identity::Verifier for Trusting {
        fn verify(&self, _: &NodeId, _: &[u8], _: &crate::Signature) -> bool {
            true
        }
    }

    #[test]
    fn a_word_that_is_signed_anew_is_the_same_word() {
        let ctx = Ctx { verifier: Box::new(Trusting), ..Ctx::sample() };
        let voter = crate::identity::Ed25519Signer::from_secret(&[9; 32]);
        let id = crate::identity::Signer::id(&voter);
        let mut vote = ctx.sample_round().record_vote;
        for said in [estimate(1), Said { voted: Some(true), ..estimate(1) }] {
            let first = crate::wire::seal(&voter, &ctx.run, &message(&vote.question, 7, &said)).unwrap();
            let mut anew = first.clone();
            *anew.last_mut().unwrap() ^= 1;
            for bytes in [&first, &anew] {
                vote.hear(id, 7, said.clone(), bytes, &ctx).unwrap();
                assert_eq!(vote.envelope(&id, said.voted.is_some()), Some(bytes), "the newest is kept");
            }
        }
    }

    #[test]
    fn a_second_word_at_one_place_is_refused_and_the_first_is_shown() {
        let ctx = Ctx::sample();
        let mut vote = ctx.sample_round().record_vote;
        vote.hear(node(16), 7, estimate(1), b"first", &ctx).unwrap();
        vote.hear(node(16), 7, estimate(1), b"again", &ctx).unwrap();
        let objection = vote.hear(node(16), 7, estimate(2), b"second", &ctx).unwrap_err();
        assert!(matches!(objection.refusal, Refusal::Equivocation { .. }));
        assert_eq!(objection.first.as_deref(), Some(&b"again"[..]));
        assert_eq!(vote.names(&node(16)).collect::<Vec<_>>(), [&estimate(1).value]);
    }
}
