//! The voice of this identity: what it has signed in votes, under which incarnation, and whether it may speak
//! (`docs/protocol/4-agreement.md` §4.5.8, §4.9).

use super::config::Register;
use super::ctx::Ctx;
use super::identity::Identity;
use super::io::{Output, PersistToken};
use super::outbox::Out;
use super::{PEERS_MAX, succession};
use crate::message::{Certificate, Message, Stamp, Vote, Witness};
use crate::plant::{Plant, planted};
use crate::record::{Record, RecordKind};
use crate::{Digest, NodeId, wire};

/// What this identity has signed in votes, as last written.
#[derive(Debug, Default)]
pub(super) struct Voice {
    pub register: Option<Register>,
    /// The newest write that was asked for, until it is on disk.
    writing: Option<PersistToken>,
}

impl Voice {
    /// Whether what the register says is on the disk.
    pub fn is_written(&self) -> bool {
        self.writing.is_none()
    }

    /// A write is on the disk.
    pub fn written(&mut self, token: PersistToken) {
        self.writing.take_if(|awaited| *awaited == token);
    }

    fn stamp(&self) -> Stamp {
        self.register.as_ref().map_or(Stamp::default(), |register| register.stamp)
    }

    /// Whether a statement of this place may still be signed: none is signed twice, none taken back.
    pub fn may_sign(&self, stamp: &Stamp) -> bool {
        *stamp > self.stamp() || planted!(Plant::SignAgain)
    }

    /// Writes what is about to be signed.
    pub fn persist(&mut self, register: Register, candidate: Option<super::Candidate>, out: &mut Out) -> PersistToken {
        let token = out.next_token();
        self.register = Some(register.clone());
        if !planted!(Plant::SkipPersist) {
            self.writing = Some(token);
            out.push(Output::Persist { token, register, candidate });
        }
        token
    }
}

/// The later of two places: of two incarnations the higher one counts.
fn newer(before: Option<(u64, Stamp)>, now: (u64, Stamp)) -> (u64, Stamp) {
    before.map_or(now, |before| before.max(now))
}

impl Voice {
    /// Takes up the register that the disk holds; why this process speaks from a new one instead.
    pub fn resume(
        &mut self,
        register: Option<Register>,
        copied: bool,
        identity: &mut Identity,
    ) -> Option<&'static str> {
        let copied = copied && !planted!(Plant::TakeCopied);
        let Some(register) = register.filter(|register| register.incarnation <= identity.boot && !copied) else {
            return Some(if copied {
                "its folder is a copy or a backup, and what it was made from may have voted since (if no voter is left, \
                 start it once with --force-lineage)"
            } else {
                "the disk holds no vote register"
            });
        };
        identity.incarnation = register.incarnation;
        if !planted!(Plant::ForgetRegister) {
            self.register = Some(register);
            identity.resumed = true;
        }
        None
    }

    /// Writes that this incarnation has signed nothing yet in the lineage of the head.
    pub fn write_empty(&mut self, ctx: &Ctx, out: &mut Out) {
        let (lineage, parent) = ctx.head.as_ref().map_or_else(Default::default, |h| (h.record.lineage, h.digest));
        self.write(lineage, parent, Stamp::default(), ctx, out);
    }

    /// Goes along into a fork: the register speaks of the new lineage from now on, and never again of the parent's.
    pub fn take_along(&mut self, lineage: Digest, parent: Digest, ctx: &Ctx, out: &mut Out) {
        self.write(lineage, parent, self.stamp(), ctx, out);
    }

    fn write(&mut self, lineage: Digest, parent: Digest, stamp: Stamp, ctx: &Ctx, out: &mut Out) {
        let incarnation = ctx.identity.incarnation;
        self.persist(Register { incarnation, lineage, parent, stamp, estimate: None, vote: None }, None, out);
    }

    /// Whether the register speaks in a fork's record's parent lineage, and this identity has gone along.
    pub fn went_along(&self, record: &Record, me: &NodeId) -> bool {
        let Some(register) = &self.register else { return false };
        let seat = record.member(me).filter(|seat| seat.incarnation == register.incarnation);
        // The name tells which lineage it has left, and for whom.
        let left = succession::fork_lineage(&register.lineage, &record.parent, &record.next.members);
        record.kind == RecordKind::Fork && seat.is_some() && left == record.lineage
    }

    /// Whether votes of this incarnation are in another lineage: there they stay.
    pub fn is_elsewhere(&self, lineage: &Digest) -> bool {
        let elsewhere = |register: &Register| register.lineage != *lineage && register.lineage != Digest::default();
        self.register.as_ref().is_some_and(elsewhere) && !planted!(Plant::ForkAndVote)
    }

    /// Whether a voter has seen this identity sign what its disk does not know of, or a certificate shows it. Only voters
    /// are believed: votes are for them alone, and no stranger may talk a restarted voter out of its vote.
    pub fn is_outdated(&self, ctx: &Ctx) -> bool {
        let Some(head) = ctx.head.as_ref().filter(|_| ctx.identity.resumed) else { return false };
        let own = ctx.identity.own.filter(|(of, _)| *of == ctx.identity.incarnation).map(|(_, stamp)| stamp);
        let voters = head.quorum.voters().iter().map(|(id, _)| id);
        let strangers = ctx.peers.keys().filter(|_| planted!(Plant::HeedStrangers));
        let seen = voters.chain(strangers).filter_map(|id| ctx.witness_of(id));
        let old = seen.chain(own).max().is_some_and(|newest| newest > self.stamp());
        old && !planted!(Plant::KeepOldIncarnation)
    }
}

impl Ctx {
    /// Whether this node votes on the record after its head.
    pub fn votes(&self) -> bool {
        self.head.as_ref().is_some_and(|head| head.quorum.has(&self.me, self.identity.incarnation))
    }

    /// Whether this node may speak in votes: a restarted one first asks the voters whether its register is the newest that
    /// they have seen. A quorum has to have answered; the others may still know better, so they are waited for, for a
    /// while.
    pub fn may_speak(&self) -> bool {
        let sound = self.votes() && !self.distrusted;
        sound && (!self.identity.resumed || self.identity.heard_since.is_some() && !self.waits_for_witnesses())
    }

    /// The newest place at which a peer has seen this incarnation sign something, as it has said since this process
    /// started.
    fn witness_of(&self, id: &NodeId) -> Option<Stamp> {
        let witness = self.peers.get(id)?.register.witness.filter(|(of, _)| *of == self.identity.incarnation);
        witness.map(|(_, stamp)| stamp)
    }

    /// Whether voters that have borne witness are a quorum with this node, and whether all have. One of the others has to
    /// be among them, where there are any: a disk that was restored from a backup knows nothing of its own votes since.
    fn witnessed(&self) -> (bool, bool) {
        let Some(head) = &self.head else { return (false, false) };
        let answered = |id: &NodeId| *id == self.me || self.witness_of(id).is_some();
        let all = head.quorum.voters().iter().all(|(id, _)| answered(id));
        (head.quorum.met_by(|id| answered(id) || planted!(Plant::OneWitness)) && !self.lacks_word(), all)
    }

    /// Whether this process goes on from a register, and no other voter has said yet what it has seen of it.
    pub fn lacks_word(&self) -> bool {
        let Some(head) = self.head.as_ref().filter(|_| self.identity.resumed && !planted!(Plant::VoteUnheard)) else {
            return false;
        };
        let voters = head.quorum.voters();
        let others = || voters.iter().filter(|(id, _)| *id != self.me);
        self.votes() && others().count() > 0 && !others().any(|(id, _)| self.witness_of(id).is_some())
    }

    /// Notes when enough have answered.
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

    /// Remembers what a certificate shows to have been signed, also by this identity itself: who reads a vote of its own
    /// that its register does not know has an old disk.
    pub fn learn_signed(&mut self, certificate: &Certificate) {
        for bytes in certificate.votes.iter().filter(|_| !planted!(Plant::ForgetCertified)) {
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

    /// Tells a peer what this node has seen its identity sign: at once after its `Hello`, also if that is nothing.
    pub fn bear_witness(&mut self, to: NodeId, out: &mut Out) {
        let Some(peer) = self.peers.get_mut(&to) else { return };
        let incarnation = peer.register.incarnation;
        let seen = [peer.register.signed, self.identity.certified.get(&to).copied()].into_iter().flatten();
        let stamp = seen.filter(|(of, _)| *of == incarnation).map(|(_, stamp)| stamp).max().unwrap_or_default();
        peer.register.told = Some((self.now, stamp));
        out.send_to(self, &[to], &Message::Witness(Witness { incarnation, stamp }));
    }

    /// Remembers the newest place that a peer has signed. Words of a former process may still have been on their way when
    /// the present one was told what is known of it: then it is told again.
    pub fn note_signed(&mut self, from: NodeId, incarnation: u64, stamp: Stamp, out: &mut Out) {
        let Some(peer) = self.peers.get_mut(&from) else { return };
        peer.register.signed = Some(newer(peer.register.signed, (incarnation, stamp)));
        let (same, told) = (incarnation == peer.register.incarnation, peer.register.told);
        if same && told.is_some_and(|(at, told)| stamp > told && self.waits_for_answers(at)) {
            self.bear_witness(from, out);
        }
    }

    /// A peer says what it has seen this identity sign; false if that was another incarnation.
    pub fn hear_witness(&mut self, from: &NodeId, witness: &Witness) -> bool {
        if witness.incarnation != self.identity.incarnation && !planted!(Plant::WitnessOfAnother) {
            return false;
        }
        if let Some(peer) = self.peers.get_mut(from) {
            peer.register.witness = Some(newer(peer.register.witness, (witness.incarnation, witness.stamp)));
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
        let (ctx, mut out, mut voice) = (Ctx::sample(), Out::default(), Voice::default());
        let register = sample::register();
        let (stamp, next) = (register.stamp, Stamp { ballot: register.stamp.ballot + 1, ..register.stamp });
        assert!(voice.may_sign(&stamp) && voice.is_written());
        let token = voice.persist(register, None, &mut out);
        assert!(!voice.may_sign(&stamp) && voice.may_sign(&next) && !voice.is_written());
        voice.written(PersistToken(token.0 + 1));
        assert!(!voice.is_written());
        voice.written(token);
        assert!(voice.is_written());
        assert!(voice.is_elsewhere(&sample::digest(9)) && !voice.is_elsewhere(&sample::digest(2)));
        voice.write_empty(&ctx, &mut out);
        assert!(voice.may_sign(&stamp), "another incarnation's register is empty");
    }
}
