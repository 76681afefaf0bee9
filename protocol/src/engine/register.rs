//! The voice of this identity: what it has signed in votes, under which incarnation, and whether it may speak
//! (`docs/protocol/4-agreement.md` §4.5.8, §4.9).

use super::clock::Moment;
use super::config::Register;
use super::io::{Notice, Output, PersistToken};
use super::{Engine, PEERS_MAX, succession};
use crate::message::{Certificate, Message, Stamp, Vote, Witness};
use crate::plant::{Plant, planted};
use crate::record::RecordKind;
use crate::{Digest, NodeId, wire};
use std::collections::BTreeMap;

/// Names that are drawn above the seat's differ by what the boots give below this: about a second of a wall clock.
const DRAWN_APART: u64 = 1 << 20;

/// What this identity may say in votes.
#[derive(Debug)]
pub(super) struct Voice {
    /// Names the register; raised when the register is lost, old, or left behind in another lineage.
    pub incarnation: u64,
    /// As last written.
    pub register: Option<Register>,
    /// Goes on from a register of a former process: listens first whether it is the newest.
    resumed: bool,
    /// The newest write that was asked for, until it is on disk.
    writing: Option<PersistToken>,
    /// This process has stood on no record yet, nor made one.
    landless: bool,
    /// Since when voters that have borne witness are, with this node, a quorum.
    heard_since: Option<Moment>,
    /// The newest vote of this identity in certificates, and under which incarnation.
    own: Option<(u64, Stamp)>,
    /// Votes of others in certificates that this process did not see made: the newest place, by incarnation.
    certified: BTreeMap<NodeId, (u64, Stamp)>,
}

impl Voice {
    pub fn new(boot: u64) -> Self {
        Self {
            incarnation: boot,
            register: None,
            resumed: false,
            writing: None,
            landless: true,
            heard_since: None,
            own: None,
            certified: BTreeMap::new(),
        }
    }

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
}

/// The later of two places: of two incarnations the higher one counts.
fn newer(before: Option<(u64, Stamp)>, now: (u64, Stamp)) -> (u64, Stamp) {
    before.map_or(now, |before| before.max(now))
}

impl Engine {
    /// Takes up the register that the disk holds.
    pub(super) fn resume_voice(&mut self, register: Option<Register>) {
        let copied = self.copied && !planted!(Plant::TakeCopied);
        let Some(register) = register.filter(|register| register.incarnation <= self.boot && !copied) else {
            let why = if copied {
                "its folder is a copy or a backup, and what it was made from may have voted since (if no voter is left, \
                 start it once with --force-lineage)"
            } else {
                "the disk holds no vote register"
            };
            return self.notice(Notice::NewIncarnation { incarnation: self.voice.incarnation, why });
        };
        self.voice.incarnation = register.incarnation;
        if !planted!(Plant::ForgetRegister) {
            self.voice.register = Some(register);
            self.voice.resumed = true;
        }
    }

    /// A process that was killed between taking the head of another lineage and writing its register finds one that speaks
    /// in the lineage before. Into a fork that it is itself in it takes the register along, as if it had not been killed.
    pub(super) fn resume_lineage(&mut self) {
        let Some((head, register)) = self.head.as_ref().zip(self.voice.register.as_ref()) else { return };
        let (record, digest) = (&head.record, head.digest);
        let seat = record.member(&self.me).filter(|seat| seat.incarnation == register.incarnation);
        // The name tells which lineage it has left, and for whom.
        let left = succession::fork_lineage(&register.lineage, &record.parent, &record.next.members);
        if record.kind == RecordKind::Fork && seat.is_some() && left == record.lineage {
            if !planted!(Plant::LoseForksRegister) {
                self.take_along(record.lineage, digest);
            }
        } else if !planted!(Plant::ResumeAnyLineage) {
            let lineage = record.lineage;
            self.speak_in(&lineage);
        }
    }

    /// The head knows this identity under a name above its own, as after a disk was wiped where the clock is behind: what
    /// it asks for, and votes, under its own name nobody heeds. The very name of the seat is another's too, where this
    /// process has drawn it anew.
    pub(super) fn heed_seat(&mut self) {
        let drawn = std::mem::replace(&mut self.voice.landless, false) && !self.voice.resumed;
        let seat = self.head.as_ref().and_then(|head| head.record.member(&self.me));
        let Some(known) = seat.map(|seat| seat.incarnation) else { return };
        let own = self.voice.incarnation;
        if (known > own || drawn && known == own) && !planted!(Plant::LowIncarnation) {
            // Of two such processes that stood on one record neither may speak under the other's name.
            let apart = if planted!(Plant::DrawAlike) { 0 } else { self.boot % DRAWN_APART };
            self.boot = self.boot.max(known.saturating_add(apart));
            self.new_incarnation("the flock knows this node under a later name than its disk and its clock give");
        }
    }

    /// The first record that this process stands on is one that it makes itself.
    pub(super) fn begin_lineage(&mut self) {
        self.voice.landless = false;
        // First the register: who finds a head on its disk without one has lost its voice.
        self.write_empty_register();
    }

    /// Whether this node votes on the record after its head.
    pub(super) fn votes(&self) -> bool {
        self.head.as_ref().is_some_and(|head| head.quorum.has(&self.me, self.voice.incarnation))
    }

    /// Whether this node may speak in votes: a restarted one first asks the voters whether its register is the newest that
    /// they have seen. A quorum has to have answered; the others may still know better, so they are waited for, for a
    /// while.
    pub(super) fn may_speak(&self) -> bool {
        let sound = self.votes() && !self.catch_up.distrusts();
        sound && (!self.voice.resumed || self.voice.heard_since.is_some() && self.waits_for_witnesses().is_none())
    }

    /// The newest place at which a peer has seen this incarnation sign something, as it has said since this process
    /// started.
    fn witness_of(&self, id: &NodeId) -> Option<Stamp> {
        let witness = self.peers.get(id)?.witness.filter(|(of, _)| *of == self.voice.incarnation);
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
    pub(super) fn lacks_word(&self) -> bool {
        let Some(head) = self.head.as_ref().filter(|_| self.voice.resumed && !planted!(Plant::VoteUnheard)) else {
            return false;
        };
        let voters = head.quorum.voters();
        let others = || voters.iter().filter(|(id, _)| *id != self.me);
        self.votes() && others().count() > 0 && !others().any(|(id, _)| self.witness_of(id).is_some())
    }

    /// Notes when enough have answered.
    pub(super) fn hear_quorum(&mut self) {
        if self.voice.resumed {
            let since = self.voice.heard_since.unwrap_or(self.now);
            self.voice.heard_since = self.witnessed().0.then_some(since);
        }
    }

    /// Until when a restarted node waits for the voters that have not answered, though a quorum has.
    pub(super) fn waits_for_witnesses(&self) -> Option<Moment> {
        let until = self.voice.heard_since.filter(|_| self.voice.resumed)?.plus(self.witness_patience());
        (!until.passed(self.now) && !self.witnessed().1).then_some(until)
    }

    /// Whether a statement of this place may still be signed: none is signed twice, none taken back.
    pub(super) fn may_sign(&self, stamp: &Stamp) -> bool {
        *stamp > self.voice.stamp() || planted!(Plant::SignAgain)
    }

    /// Writes what is about to be signed.
    pub(super) fn persist(&mut self, register: Register, candidate: Option<super::Candidate>) -> PersistToken {
        let token = self.next_token();
        self.voice.register = Some(register.clone());
        if !planted!(Plant::SkipPersist) {
            self.voice.writing = Some(token);
            self.out.push(Output::Persist { token, register, candidate });
        }
        token
    }

    /// From now on this identity speaks from a new register, as a learner until a record has made it a voter.
    pub(super) fn new_incarnation(&mut self, why: &'static str) {
        self.boot = self.boot.saturating_add(1);
        self.offered.clear();
        self.voice.incarnation = self.boot;
        (self.voice.resumed, self.voice.heard_since) = (false, None);
        self.beat.forget_join();
        self.notice(Notice::NewIncarnation { incarnation: self.voice.incarnation, why });
        self.write_empty_register();
        let all = self.reachable();
        self.send_hello(&all);
        self.offer_anew();
    }

    /// Writes that this incarnation has signed nothing yet in the lineage of the head.
    pub(super) fn write_empty_register(&mut self) {
        let (lineage, parent) = self.head.as_ref().map_or_else(Default::default, |h| (h.record.lineage, h.digest));
        let incarnation = self.voice.incarnation;
        let stamp = Stamp::default();
        self.persist(Register { incarnation, lineage, parent, stamp, estimate: None, vote: None }, None);
    }

    /// Tells a peer what this node has seen its identity sign: at once after its `Hello`, also if that is nothing.
    pub(super) fn bear_witness(&mut self, to: NodeId) {
        let Some(peer) = self.peers.get(&to) else { return };
        let incarnation = peer.incarnation;
        let seen = [peer.signed, self.voice.certified.get(&to).copied()].into_iter().flatten();
        let stamp = seen.filter(|(of, _)| *of == incarnation).map(|(_, stamp)| stamp).max().unwrap_or_default();
        let now = self.now;
        if let Some(peer) = self.peers.get_mut(&to) {
            peer.told = Some((now, stamp));
        }
        self.send_to(&[to], &Message::Witness(Witness { incarnation, stamp }));
    }

    /// Remembers the newest place that a peer has signed. Words of a former process may still have been on their way when
    /// the present one was told what is known of it: then it is told again.
    pub(super) fn note_signed(&mut self, from: NodeId, incarnation: u64, stamp: Stamp) {
        let (now, patience) = (self.now, self.witness_patience());
        let Some(peer) = self.peers.get_mut(&from) else { return };
        peer.signed = Some(newer(peer.signed, (incarnation, stamp)));
        let late = |(at, told): (Moment, Stamp)| stamp > told && now.since(at) < patience;
        if incarnation == peer.incarnation && peer.told.is_some_and(late) {
            self.bear_witness(from);
        }
    }

    /// How long a restarted node waits for the last of the voters, and others look for what they may have to tell it.
    fn witness_patience(&self) -> u64 {
        self.timing.repeat.max(4 * self.slowest_rtt())
    }

    /// Remembers what a certificate shows to have been signed, also by this identity itself: who reads a vote of its own
    /// that its register does not know has an old disk.
    pub(super) fn learn_signed(&mut self, certificate: &Certificate) {
        for bytes in certificate.votes.iter().filter(|_| !planted!(Plant::ForgetCertified)) {
            let Ok(opened) = wire::open(self.verifier.as_ref(), &self.run, bytes) else { continue };
            let Message::Vote(Vote { question, incarnation, ballot, .. }) = opened.message else { continue };
            let stamp = Stamp { seq: question.seq, instance: question.instance, ballot, phase: 2 };
            let (id, certified) = (opened.sender, &mut self.voice.certified);
            if id == self.me {
                self.voice.own = Some(newer(self.voice.own, (incarnation, stamp)));
            } else if certified.len() < PEERS_MAX || certified.contains_key(&id) {
                certified.insert(id, newer(certified.get(&id).copied(), (incarnation, stamp)));
            }
        }
    }

    pub(super) fn hear_witness(&mut self, from: NodeId, witness: &Witness) {
        if witness.incarnation != self.voice.incarnation && !planted!(Plant::WitnessOfAnother) {
            return self.stale(from);
        }
        if let Some(peer) = self.peers.get_mut(&from) {
            peer.witness = Some(newer(peer.witness, (witness.incarnation, witness.stamp)));
        }
        self.heed_witnesses();
    }

    /// Whether a voter has seen this identity sign what its disk does not know of, or a certificate shows it. Only voters
    /// are believed: votes are for them alone, and no stranger may talk a restarted voter out of its vote.
    pub(super) fn heed_witnesses(&mut self) {
        let Some(head) = self.head.as_ref().filter(|_| self.voice.resumed) else { return };
        let incarnation = self.voice.incarnation;
        let own = self.voice.own.filter(|(of, _)| *of == incarnation).map(|(_, stamp)| stamp);
        let voters = head.quorum.voters().iter().map(|(id, _)| id);
        let strangers = self.peers.keys().filter(|_| planted!(Plant::HeedStrangers));
        let seen = voters.chain(strangers).filter_map(|id| self.witness_of(id));
        let old = seen.chain(own).max().is_some_and(|newest| newest > self.voice.stamp());
        if old && !planted!(Plant::KeepOldIncarnation) {
            self.new_incarnation("others have seen newer votes of this identity than its disk holds");
        }
    }

    /// Goes along into a fork: the register speaks of the new lineage from now on, and never again of the parent's.
    pub(super) fn take_along(&mut self, lineage: Digest, parent: Digest) {
        let stamp = self.voice.stamp();
        let incarnation = self.voice.incarnation;
        self.persist(Register { incarnation, lineage, parent, stamp, estimate: None, vote: None }, None);
    }

    /// Takes a lineage that is new to this node: votes of its incarnation in another lineage stay where they are.
    pub(super) fn speak_in(&mut self, lineage: &Digest) {
        match &self.voice.register {
            None => self.write_empty_register(),
            Some(register) if register.lineage == *lineage || register.lineage == Digest::default() => {}
            Some(_) if planted!(Plant::ForkAndVote) => {}
            Some(_) => self.new_incarnation("this node has come from another lineage"),
        }
    }
}
