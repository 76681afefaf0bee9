//! What others say: connections, greetings, and the checks that every message passes before it counts.

use super::Engine;
use super::io::{Finish, Notice, Output, Refusal};
use super::peer::{Incarnation, Peer, make_room};
use super::succession::{SignedReady, merging};
use crate::admission;
use crate::limits::READY_BYTES_MAX;
use crate::message::{Head, Hello, Join, Message, Phase, Ready};
use crate::plant::{Plant, planted};
use crate::wire::{self, Opened, WireError};
use crate::{Digest, NodeId};

/// Why somebody is not admitted against whom there is evidence.
const CONTRADICTED: &str = "contradicted_itself";
/// What is wrong with a READY that is not of the head record, or of nobody in it.
const LEASE: &str = "ready that does not fit its lease";

impl Engine {
    pub(super) fn peer_up(&mut self, id: NodeId) {
        let now = self.now;
        if id != self.me {
            let Some(peer) = self.entry(id) else { return self.refuse(id, Refusal::Full) };
            peer.connected = true;
            peer.refused = false;
            peer.switched_at = now;
        }
        self.introduce(id);
    }

    pub(super) fn peer_down(&mut self, id: NodeId) {
        if let Some(peer) = self.peers.get_mut(&id) {
            // The greeting stays: it names the process, not the connection, and the next connection's may have
            // overtaken this news.
            peer.connected = false;
            peer.refused = false;
            peer.switched_at = self.now;
            peer.fork = None;
            peer.join = None;
            peer.end_of_channel();
        }
        if !self.is_member(&id)
            && let Some(peer) = self.peers.get_mut(&id)
        {
            peer.witness = None;
        }
    }

    /// The entry of a peer, made if there is room. A member of the head takes the place of a connected stranger, which is
    /// refused.
    fn entry(&mut self, id: NodeId) -> Option<&mut Peer> {
        if !self.peers.contains_key(&id) {
            let record = self.head.as_ref().map(|head| &head.record);
            let is_member = |id: &NodeId| record.is_some_and(|record| record.member(id).is_some());
            let member = is_member(&id);
            if let Some(displaced) = make_room(&mut self.peers, is_member, member)? {
                self.refuse(displaced, Refusal::Full);
            }
        }
        Some(self.peers.entry(id).or_default())
    }

    /// Bytes of one message, as they came.
    pub(super) fn receive(&mut self, from: NodeId, bytes: &[u8]) {
        if self.peers.get(&from).is_some_and(|peer| peer.refused) {
            return self.stale(from);
        }
        match wire::check(self.verifier.as_ref(), &self.run, &from, &self.me, bytes) {
            Ok(opened) => self.hear(from, opened, bytes),
            Err(error) => self.refuse_bytes(from, error),
        }
    }

    /// The same, opened by the driver with [`wire::check`].
    pub(super) fn receive_opened(&mut self, from: NodeId, opened: Opened, bytes: &[u8]) {
        if self.peers.get(&from).is_some_and(|peer| peer.refused) {
            return self.stale(from);
        }
        self.hear(from, opened, bytes);
    }

    fn hear(&mut self, from: NodeId, opened: Opened, bytes: &[u8]) {
        if opened.sender == self.me {
            return self.meet_myself(from, &opened.message);
        }
        if let Message::Hello(hello) = opened.message {
            return self.greet(from, &hello);
        }
        let (now, heeded) = (self.now, self.heeds(&from, &opened.message));
        let Some(peer) = self.peers.get_mut(&from).filter(|peer| peer.greeted || planted!(Plant::BeforeHello)) else {
            return self.stale(from);
        };
        peer.heard_at = now;
        // Who has left is silent: whoever speaks is here, and its leave was an old one.
        peer.left &= matches!(opened.message, Message::Leave(_));
        if !heeded {
            return self.stale(from);
        }
        match opened.message {
            Message::Hello(_) => {}
            Message::Head(head) => self.hear_head(from, head),
            Message::Join(join) => self.hear_join(from, join),
            Message::Ready(ready) => self.hear_ready(from, ready, opened.digest, bytes),
            Message::Estimate(estimate) => self.hear_estimate(from, estimate, bytes),
            Message::Vote(vote) => self.hear_vote(from, vote, bytes),
            Message::Certificate(certificate) => self.hear_certificate(from, certificate),
            Message::Witness(witness) => self.hear_witness(from, &witness),
            Message::Fork(fork) => self.hear_fork(from, fork, bytes),
            Message::Start(start) => self.hear_start(from, start),
            Message::Evidence(evidence) => self.hear_evidence(from, evidence),
            Message::Alive(alive) => self.hear_alive(from, &alive, bytes),
            Message::Leave(leave) => {
                if peer.was_beyond(&leave.lineage, leave.seq) {
                    return self.stale(from);
                }
                peer.left = true;
                peer.join = None;
            }
        }
    }

    /// Whether a message of this sender is looked at. Of whoever is no member only what leads to being one, and that it is
    /// here: all else of it costs one signature, and nothing is kept. Votes, and what they decided, are also heard from
    /// who voted on one of the last records: what it has signed there has to be remembered.
    fn heeds(&self, from: &NodeId, message: &Message) -> bool {
        let voted = || self.history.iter().any(|past| past.quorum.incarnation(from).is_some());
        match message {
            Message::Hello(_)
            | Message::Head(_)
            | Message::Join(_)
            | Message::Leave(_)
            | Message::Witness(_)
            | Message::Alive(_) => true,
            _ if planted!(Plant::HeedAnybody) => true,
            Message::Estimate(_) | Message::Vote(_) | Message::Certificate(_) => self.is_member(from) || voted(),
            Message::Ready(_) | Message::Fork(_) | Message::Start(_) | Message::Evidence(_) => self.is_member(from),
        }
    }

    fn greet(&mut self, from: NodeId, hello: &Hello) {
        if hello.spec != self.spec_bytes {
            return self.refuse(from, Refusal::Malformed { what: "hello of another run under this run's name" });
        }
        let now = self.now;
        let Some(peer) = self.entry(from) else { return self.refuse(from, Refusal::Full) };
        let first = !peer.is_introduced();
        if peer.meet(hello.boot, now) == Incarnation::Former {
            return self.stale(from);
        }
        peer.greeted = true;
        peer.heard_at = now;
        peer.incarnation = hello.incarnation;
        self.bear_witness(from);
        if first && self.end.is_none() && !self.frozen {
            self.pass_on_evidence(from);
        }
    }

    fn hear_head(&mut self, from: NodeId, head: Head) {
        let now = self.now;
        let heard = head.clone();
        let Some(peer) = self.peers.get_mut(&from) else { return };
        if peer.was_beyond(&head.lineage, head.seq) {
            return self.stale(from);
        }
        let parent = self.round.as_ref().map(|round| round.parent);
        let stands = |head: &Head| Some(head.record) == parent && head.phase != Phase::CatchingUp;
        let arrives = stands(&heard) && !peer.head.as_ref().is_some_and(stands);
        let before = peer.head.as_ref().map(|head| (head.lineage, head.seq.checked_add(1)));
        let stepped = before == Some((heard.lineage, Some(heard.seq)));
        peer.take_head(head, now);
        // A READY of whoever is no member of the record at hand is not looked at: said by a newcomer, or to one, before
        // that one has come here, it is lost.
        if arrives && self.is_member(&from) && (self.is_new() || !stepped) {
            self.repeat_ready(&[from]);
        }
        if arrives && self.head.as_ref().is_some_and(|head| head.quorum.incarnation(&from).is_some()) {
            // What was said before meant nothing to it.
            self.repeat_votes(from);
        }
        self.hear_accusation(from, &heard);
        self.help_along(from, &heard);
        // Who stands here or behind calls nobody away.
        let mine = self.head.as_ref().map(|head| (head.record.lineage, head.record.seq));
        let calm = mine.is_some_and(|(lineage, seq)| heard.lineage == lineage && heard.seq <= seq);
        self.stirs &= !(calm && self.is_large());
    }

    /// Whether this node has its seat since the head record only, as far as it knows.
    fn is_new(&self) -> bool {
        self.history.iter().nth_back(1).is_none_or(|parent| parent.record.member(&self.me).is_none())
    }

    fn hear_join(&mut self, from: NodeId, join: Join) {
        if join.state_root == Digest::default() {
            return self.hear_ticket(from, &join);
        }
        let known = self.history.iter().any(|past| {
            (past.digest, past.record.seq, past.record.lineage, past.record.state_root)
                == (join.record, join.seq, join.lineage, join.state_root)
        });
        // Who comes over from another lineage, also from the one that this one has forked from, does so under a new
        // incarnation: the one that its Join names would get a seat that nobody can vote on.
        let here = |head: &&super::Standing| known && head.record.lineage == join.lineage;
        let Some(head) = self.head.as_ref().filter(here) else { return self.stale(from) };
        if self.is_convicted(&from) && !planted!(Plant::WelcomeConvicted) {
            return self.refuse(from, Refusal::NotAdmitted { why: CONTRADICTED });
        }
        // Who is a member has been admitted before.
        if head.record.member(&from).is_none() {
            let admitted =
                admission::admit(&self.spec, self.verifier.as_ref(), &self.run, &head.record, &from, &join.ticket);
            if let Err(why) = admitted {
                // Who stands on an older record may have been admitted by that one. It reads why it is not any more, in
                // the records between, and is told so by its own node: nobody shuts it out before.
                if join.record != head.digest {
                    return self.stale(from);
                }
                return self.refuse(from, Refusal::NotAdmitted { why: why.reason() });
            }
        }
        let now = self.now;
        if let Some(peer) = self.peers.get_mut(&from) {
            peer.join = Some((join, now));
        }
        self.invite(&from);
    }

    fn hear_ready(&mut self, from: NodeId, ready: Ready, digest: Digest, bytes: &[u8]) {
        // Of another lineage it is said again to whoever comes there.
        let past = |head: &super::Standing| head.record.lineage != ready.lineage || ready.round <= head.record.round;
        if self.head.as_ref().is_some_and(past) {
            return self.stale(from);
        }
        // What a former process of this peer said does not hold any more, and comes up again on a new connection.
        if self.peers.get(&from).is_some_and(|peer| peer.boot != Some(ready.boot) && !planted!(Plant::ReadyOfFormer)) {
            return self.stale(from);
        }
        if bytes.len() > READY_BYTES_MAX {
            return self.refuse(from, Refusal::Malformed { what: "ready beyond its size" });
        }
        let signed = SignedReady { member: from, ready, digest, bytes: bytes.to_vec() };
        // Of the same state but another lease: the sender stands on another record of it, or says nonsense.
        if let Err(what) = self.fits_round(&signed) {
            return self.refuse(from, Refusal::Malformed { what });
        }
        let Some(peer) = self.peers.get_mut(&from) else { return };
        peer.pace.note(Phase::Training, signed.ready.measured.step_us.into());
        if let Err(first) = peer.take_ready(signed) {
            self.refuse(from, Refusal::Equivocation { what: "two different READYs for one round" });
            self.convict(first, bytes);
            return;
        }
        self.stirs &= !(self.still_awaits() && self.is_large());
    }

    /// Whether a READY agrees with the head record; it does if it is about another state.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn fits_round(&self, signed: &SignedReady) -> Result<(), &'static str> {
        let (ready, Some(head)) = (&signed.ready, &self.head) else { return Ok(()) };
        if ready.base != head.base || ready.lineage != head.record.lineage {
            return Ok(());
        }
        let record = &head.record;
        let member = record.member(&signed.member).ok_or(LEASE)?;
        let tokens_max = ready.samples.saturating_mul(u64::from(self.spec.model.seq_len));
        let fits = Some(ready.round) == record.round.checked_add(1)
            && ready.state_root == record.state_root
            && (ready.start == member.lease.start && ready.samples <= member.lease.count || planted!(Plant::AnyLease))
            && ready.steps <= record.next.inner_steps
            && ready.tokens <= tokens_max;
        if !fits {
            return Err(LEASE);
        }
        let allowed = merging::allowed(&self.spec.sync, record, &signed.member, ready);
        if allowed { Ok(()) } else { Err("ready that merges what it may not") }
    }

    /// The head moved: READYs that came before it are checked now.
    pub(super) fn recheck_readys(&mut self) {
        let Some(head) = &self.head else { return };
        let (lineage, round, base) = (head.record.lineage, head.record.round.saturating_add(1), head.base);
        let past = |ready: &Ready| ready.lineage == lineage && ready.round < round;
        self.peers.values_mut().for_each(|peer| peer.forget_readys(past));
        let early = self.peers.iter().filter_map(|(id, peer)| Some((*id, peer.ready(&lineage, round, &base)?)));
        let bad = early.filter_map(|(id, signed)| Some((id, self.fits_round(signed).err()?)));
        for (id, what) in bad.collect::<Vec<(NodeId, &'static str)>>() {
            if let Some(peer) = self.peers.get_mut(&id) {
                peer.drop_ready(&lineage, &base);
            }
            self.refuse(id, Refusal::Malformed { what });
        }
    }

    /// Closes the connection and says why.
    pub(super) fn refuse(&mut self, id: NodeId, refusal: Refusal) {
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.refused = true;
        }
        self.out.push(Output::Refuse { peer: id, refusal });
    }

    /// Counted, nothing else: a message that came too late or too early is nobody's fault.
    pub(super) fn stale(&mut self, id: NodeId) {
        self.notice(Notice::Refused { peer: id, refusal: Refusal::Stale });
    }

    fn refuse_bytes(&mut self, from: NodeId, error: WireError) {
        let refusal = match error {
            WireError::Version { theirs, ours } => Refusal::Version { theirs, ours },
            WireError::BadSignature { .. } => Refusal::BadSignature,
            WireError::OtherRun { spec, .. } => return self.meet_other_run(from, self.spec.differences(&spec)),
            other => Refusal::Malformed { what: other.reason() },
        };
        self.refuse(from, refusal);
    }

    /// A peer of another run. A node that has met nobody of its own run was started with the wrong file, if the user has
    /// named that peer. A node that was told of nobody has only those to go by who are here, and asks them all.
    fn meet_other_run(&mut self, from: NodeId, keys: Vec<String>) {
        self.refuse(from, Refusal::RunMismatch { keys: keys.clone() });
        let alone =
            self.head.is_none() && self.founding.is_none() && !self.peers.values().any(|peer| peer.boot.is_some());
        let others = self.peers.values().any(|peer| peer.connected && !peer.refused);
        let told = self.guides.contains(&from) || self.guides.is_empty() && !others;
        if alone && (told || planted!(Plant::AnyMismatch)) {
            self.finish(Finish::RunMismatch { peer: from, keys });
        }
    }
}
