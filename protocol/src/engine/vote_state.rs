//! The votes of this identity: what it has signed, under which incarnation, and whether it may speak
//! (`docs/protocol/4-agreement.md` §4.5.8, §4.9).

use super::config::VoteState;
use super::ctx::Ctx;
use super::identity::Identity;
use super::io::{Output, PersistToken};
use super::outbox::Out;
use super::{PEERS_MAX, succession};
use crate::message::{Certificate, Message, Stamp, Vote, Witness};
use crate::mutation::{Mutation, mutated};
use crate::record::{Record, RecordKind};
use crate::{Digest, NodeId, wire};

/// This identity's signed votes, as last written.
#[derive(Debug, Default)]
pub(super) struct OwnVotes {
    pub vote_state: Option<VoteState>,
    /// The newest write that was asked for, until it is on disk.
    writing: Option<PersistToken>,
}

impl OwnVotes {
    /// Whether the vote state is on the disk.
    pub fn is_written(&self) -> bool {
        self.writing.is_none()
    }

    /// Notes that a write is on the disk.
    pub fn written(&mut self, token: PersistToken) {
        self.writing.take_if(|awaited| *awaited == token);
    }

    fn stamp(&self) -> Stamp {
        self.vote_state.as_ref().map_or(Stamp::default(), |vote_state| vote_state.stamp)
    }

    /// Whether a statement of this place may still be signed. A place is signed once, and never one before it.
    pub fn may_sign(&self, stamp: &Stamp) -> bool {
        *stamp > self.stamp() || mutated!(Mutation::SignAgain)
    }

    /// Writes the statement that is about to be signed.
    pub fn persist(
        &mut self,
        vote_state: VoteState,
        candidate: Option<super::Candidate>,
        out: &mut Out,
    ) -> PersistToken {
        let token = out.next_token();
        self.vote_state = Some(vote_state.clone());
        if !mutated!(Mutation::SkipPersist) {
            self.writing = Some(token);
            out.push(Output::Persist { token, vote_state, candidate });
        }
        token
    }
}

/// The later of two places; a higher incarnation counts as later.
fn newer(before: Option<(u64, Stamp)>, now: (u64, Stamp)) -> (u64, Stamp) {
    before.map_or(now, |before| before.max(now))
}

impl OwnVotes {
    /// Resumes from the vote state on the disk. Returns the reason if this process speaks from a new one instead.
    pub fn resume(
        &mut self,
        vote_state: Option<VoteState>,
        copied: bool,
        identity: &mut Identity,
    ) -> Option<&'static str> {
        let copied = copied && !mutated!(Mutation::TakeCopied);
        let Some(vote_state) = vote_state.filter(|vote_state| vote_state.incarnation <= identity.boot && !copied)
        else {
            return Some(if copied {
                "its folder is a copy or a backup, and what it was made from may have voted since (if no voter is left, \
                 start it once with --force-lineage)"
            } else {
                "the disk holds no vote state"
            });
        };
        identity.incarnation = vote_state.incarnation;
        if !mutated!(Mutation::ForgetVoteState) {
            self.vote_state = Some(vote_state);
            identity.resumed = true;
        }
        None
    }

    /// Writes that this incarnation has signed nothing yet in the lineage of the head.
    pub fn write_empty(&mut self, ctx: &Ctx, out: &mut Out) {
        let (lineage, parent) = ctx.head.as_ref().map_or_else(Default::default, |h| (h.record.lineage, h.digest));
        self.write(lineage, parent, Stamp::default(), ctx, out);
    }

    /// Goes along into a fork: the vote state speaks of the new lineage from now on, and never again of the parent's.
    pub fn take_along(&mut self, lineage: Digest, parent: Digest, ctx: &Ctx, out: &mut Out) {
        self.write(lineage, parent, self.stamp(), ctx, out);
    }

    fn write(&mut self, lineage: Digest, parent: Digest, stamp: Stamp, ctx: &Ctx, out: &mut Out) {
        let incarnation = ctx.identity.incarnation;
        self.persist(VoteState { incarnation, lineage, parent, stamp, estimate: None, vote: None }, None, out);
    }

    /// Whether the vote state speaks in the parent lineage of this FORK, and this identity has gone along.
    pub fn went_along(&self, record: &Record, me: &NodeId) -> bool {
        let Some(vote_state) = &self.vote_state else { return false };
        let seat = record.member(me).filter(|seat| seat.incarnation == vote_state.incarnation);
        // The fork's lineage follows from the lineage that it left and its members.
        let left = succession::fork_lineage(&vote_state.lineage, &record.parent, &record.next.members);
        record.kind == RecordKind::Fork && seat.is_some() && left == record.lineage
    }

    /// Whether votes of this incarnation are in another lineage, where they stay.
    pub fn is_elsewhere(&self, lineage: &Digest) -> bool {
        let elsewhere =
            |vote_state: &VoteState| vote_state.lineage != *lineage && vote_state.lineage != Digest::default();
        self.vote_state.as_ref().is_some_and(elsewhere) && !mutated!(Mutation::ForkAndVote)
    }

    /// Whether a voter, or a certificate, has seen this identity sign something that its disk does not know. Only
    /// voters are believed: votes are sent to them alone, and no stranger may talk a restarted voter out of its vote.
    pub fn is_outdated(&self, ctx: &Ctx) -> bool {
        let Some(head) = ctx.head.as_ref().filter(|_| ctx.identity.resumed) else { return false };
        let own = ctx.identity.own.filter(|(of, _)| *of == ctx.identity.incarnation).map(|(_, stamp)| stamp);
        let voters = head.quorum.voters().iter().map(|(id, _)| id);
        let strangers = ctx.peers.keys().filter(|_| mutated!(Mutation::HeedStrangers));
        let seen = voters.chain(strangers).filter_map(|id| ctx.witness_of(id));
        let old = seen.chain(own).max().is_some_and(|newest| newest > self.stamp());
        old && !mutated!(Mutation::KeepOldIncarnation)
    }
}

impl Ctx {
    /// Whether this node votes on the record after its head.
    pub fn votes(&self) -> bool {
        self.head.as_ref().is_some_and(|head| head.quorum.has(&self.me, self.identity.incarnation))
    }

    /// Whether this node may speak in votes. A restarted one first asks the voters whether its vote state is the newest
    /// that they have seen. A quorum has to have answered. The others may still know a newer one, so the node waits for
    /// them for a while.
    pub fn may_speak(&self) -> bool {
        let sound = self.votes() && !self.distrusted;
        sound && (!self.identity.resumed || self.identity.heard_since.is_some() && !self.waits_for_witnesses())
    }

    /// The newest place at which a peer has seen this incarnation sign something, by the peer's own word since this
    /// process started.
    fn witness_of(&self, id: &NodeId) -> Option<Stamp> {
        let witness = self.peers.get(id)?.vote_state.witness.filter(|(of, _)| *of == self.identity.incarnation);
        witness.map(|(_, stamp)| stamp)
    }

    /// Whether this node and the voters that have answered with a Witness are a quorum, and whether all have answered.
    /// If there are other voters, at least one of them has to be among those. The reason: a disk restored from a backup
    /// does not know the votes made since.
    fn witnessed(&self) -> (bool, bool) {
        let Some(head) = &self.head else { return (false, false) };
        let answered = |id: &NodeId| *id == self.me || self.witness_of(id).is_some();
        let all = head.quorum.voters().iter().all(|(id, _)| answered(id));
        (head.quorum.met_by(|id| answered(id) || mutated!(Mutation::OneWitness)) && !self.lacks_word(), all)
    }

    /// Whether this process goes on from a vote state, and no other voter has yet said what it has seen of it.
    pub fn lacks_word(&self) -> bool {
        let Some(head) = self.head.as_ref().filter(|_| self.identity.resumed && !mutated!(Mutation::VoteUnheard))
        else {
            return false;
        };
        let voters = head.quorum.voters();
        let others = || voters.iter().filter(|(id, _)| *id != self.me);
        self.votes() && others().count() > 0 && !others().any(|(id, _)| self.witness_of(id).is_some())
    }

    /// Notes the time at which enough voters have answered.
    pub fn hear_quorum(&mut self) {
        if self.identity.resumed {
            let since = self.identity.heard_since.unwrap_or(self.now);
            self.identity.heard_since = self.witnessed().0.then_some(since);
        }
    }

    /// Whether a restarted node waits for the voters that have not answered, though a quorum has.
    fn waits_for_witnesses(&self) -> bool {
        let since = self.identity.heard_since.filter(|_| self.identity.resumed);
        since.is_some_and(|since| !self.witnessed().1 && self.waits_for_answers(since))
    }

    /// Remembers what a certificate shows to have been signed, also by this identity itself. A node that reads a vote
    /// of its own that its vote state does not know has an old disk.
    pub fn learn_signed(&mut self, certificate: &Certificate) {
        for bytes in certificate.votes.iter().filter(|_| !mutated!(Mutation::ForgetCertified)) {
            let Ok(opened) = wire::open(self.verifier.as_ref(), &self.run, bytes) else { continue };
            let Message::Vote(Vote { question, incarnation, ballot, .. }) = opened.message else { continue };
            let stamp = Stamp { seq: question.seq, instance: question.instance, ballot, phase: 2 };
            let (id, certified) = (opened.sender, &mut self.identity.certified);
            if id == self.me {
                self.identity.own = Some(newer(self.identity.own, (incarnation, stamp)));
            } else if certified.len() < PEERS_MAX || certified.contains_key(&id) {
                certified.insert(id, newer(certified.get(&id).copied(), (incarnation, stamp)));
            }
        }
    }

    /// Tells a peer what this node has seen its identity sign: at once after its `Hello`, even if that is nothing.
    pub fn bear_witness(&mut self, to: NodeId, out: &mut Out) {
        let Some(peer) = self.peers.get_mut(&to) else { return };
        let incarnation = peer.vote_state.incarnation;
        let seen = [peer.vote_state.signed, self.identity.certified.get(&to).copied()].into_iter().flatten();
        let stamp = seen.filter(|(of, _)| *of == incarnation).map(|(_, stamp)| stamp).max().unwrap_or_default();
        peer.vote_state.told = Some((self.now, stamp));
        out.send_to(self, &[to], &Message::Witness(Witness { incarnation, stamp }));
    }

    /// Remembers the newest place that a peer has signed. Messages of a former process may still have been on their way
    /// when the present one was told what is known of it. In that case it is told again.
    pub fn note_signed(&mut self, from: NodeId, incarnation: u64, stamp: Stamp, out: &mut Out) {
        let Some(peer) = self.peers.get_mut(&from) else { return };
        peer.vote_state.signed = Some(newer(peer.vote_state.signed, (incarnation, stamp)));
        let (same, told) = (incarnation == peer.vote_state.incarnation, peer.vote_state.told);
        if same && told.is_some_and(|(at, told)| stamp > told && self.waits_for_answers(at)) {
            self.bear_witness(from, out);
        }
    }

    /// The same for a message that this node does not heed. Without a head it knows no voters, and may be one whose disk
    /// was wiped: the process that comes after the peer's hears of these votes from it, or from nobody.
    pub fn note_unknown(&mut self, from: NodeId, message: &Message, out: &mut Out) {
        let (question, incarnation, ballot, phase) = match message {
            Message::Estimate(said) => (&said.question, said.incarnation, said.ballot, 1),
            Message::Vote(said) => (&said.question, said.incarnation, said.ballot, 2),
            _ => return,
        };
        if self.head.is_none() {
            let stamp = Stamp { seq: question.seq, instance: question.instance, ballot, phase };
            self.note_signed(from, incarnation, stamp, out);
        }
    }

    /// Hears what a peer has seen this identity sign. Returns false if that was another incarnation.
    pub fn hear_witness(&mut self, from: &NodeId, witness: &Witness) -> bool {
        if witness.incarnation != self.identity.incarnation && !mutated!(Mutation::WitnessOfAnother) {
            return false;
        }
        if let Some(peer) = self.peers.get_mut(from) {
            peer.vote_state.witness = Some(newer(peer.vote_state.witness, (witness.incarnation, witness.stamp)));
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::sample;

    #[test]
    fn nothing_is_signed_twice_and_nothing_is_said_before_it_is_written() {
        let (ctx, mut out, mut own_votes) = (Ctx::sample(), Out::default(), OwnVotes::default());
        let vote_state = sample::vote_state();
        let (stamp, next) = (vote_state.stamp, Stamp { ballot: vote_state.stamp.ballot + 1, ..vote_state.stamp });
        assert!(own_votes.may_sign(&stamp) && own_votes.is_written());
        let token = own_votes.persist(vote_state, None, &mut out);
        assert!(!own_votes.may_sign(&stamp) && own_votes.may_sign(&next) && !own_votes.is_written());
        own_votes.written(PersistToken(token.0 + 1));
        assert!(!own_votes.is_written());
        own_votes.written(token);
        assert!(own_votes.is_written());
        assert!(own_votes.is_elsewhere(&sample::digest(9)) && !own_votes.is_elsewhere(&sample::digest(2)));
        own_votes.write_empty(&ctx, &mut out);
        assert!(own_votes.may_sign(&stamp), "another incarnation's vote_state is empty");
    }
}
