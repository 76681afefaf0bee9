//! Messages of others: connections, greetings, and the checks that every message passes before it counts.

use super::chain::ChainHead;
use super::claims::Verdict;
use super::io::{Claim, Finish, Notice, Refusal};
use super::peer::{Incarnation, Peer};
use super::relay::Relay;
use super::split::signers_of_both;
use super::succession::SignedReady;
use super::touch::Touch;
use super::vote::Objection;
use super::{Engine, scene};
use crate::ballot::Said;
use crate::certificate::{self, Split};
use crate::limits::READY_BYTES_MAX;
use crate::message::{
    Certificate, Estimate, Fork, Head, Hello, Join, Message, Phase, Question, Ready, Stamp, Start, Value, Vote,
};
use crate::mutation::{Mutation, mutated};
use crate::wire::{self, Opened, WireError};
use crate::{Digest, NodeId};

/// The reason for which a node is not admitted if there is evidence against it.
const CONTRADICTED: &str = "contradicted_itself";

impl Engine {
    pub(super) fn peer_up(&mut self, id: NodeId) {
        if id != self.ctx.me {
            let now = self.ctx.now;
            let Some(peer) = self.ctx.entry(id, &mut self.out) else { return self.refuse(id, Refusal::Full) };
            (peer.link.connected, peer.link.refused, peer.link.switched_at) = (true, false, now);
            peer.link.gone = false;
        }
        self.introduce(id);
    }

    /// Sends a newly connected peer all that it needs to know.
    fn introduce(&mut self, peer: NodeId) {
        self.ctx.send_hello(&[peer], &mut self.out);
        let head = scene!(self).head_message();
        self.out.send_to(&self.ctx, &[peer], &Message::Head(head));
        self.ctx.pass_amendments_on(peer, &mut self.out);
        if self.life.end().is_some() {
            return;
        }
        if self.ctx.peers.get(&peer).is_some_and(|peer| peer.link.greeted) {
            self.ctx.bear_witness(peer, &mut self.out);
        }
        if let Some(round) = self.life.round().filter(|_| self.ctx.is_member(&peer)) {
            round.repeat_readys_to(peer, &self.ctx, &mut self.out);
            round.repeat_votes(peer, &self.ctx, &mut self.out, &self.own_votes);
            round.repeat_fork(&[peer], &self.ctx, &mut self.out);
        }
        // Only voters let nodes in, and no other node is to see the ticket.
        if self.ctx.is_voter(&peer) && scene!(self).wants_in() {
            self.ctx.send_join(&[peer], &mut self.out);
        }
    }

    pub(super) fn peer_down(&mut self, id: NodeId) {
        let member = self.ctx.is_member(&id);
        let Some(peer) = self.ctx.peers.get_mut(&id) else { return };
        // The greeting stays: it names the process, not the connection, and the next connection's may have
        // overtaken this news.
        (peer.link.connected, peer.link.refused) = (false, false);
        peer.link.switched_at = self.ctx.now;
        (peer.said.fork, peer.said.join) = (None, None);
        peer.vote_state.witness.take_if(|_| !member);
        peer.end_of_channel();
    }

    /// Takes the bytes of one message, as they came, or as the driver opened them with [`wire::check`].
    pub(super) fn receive(&mut self, from: NodeId, opened: Option<Opened>, bytes: &[u8]) {
        if self.ctx.peers.get(&from).is_some_and(|peer| peer.link.refused) {
            return self.out.stale(from);
        }
        if opened.is_none()
            && let Some(signer) = wire::passed_on(&from, bytes)
        {
            return self.receive_passed_on(from, signer, bytes);
        }
        let check = || wire::check(self.ctx.verifier.as_ref(), &self.ctx.run, &from, &self.ctx.me, bytes);
        match opened.map_or_else(check, Ok) {
            Ok(opened) => {
                if let Err(objection) = self.hear(from, opened, bytes) {
                    self.object(from, objection, bytes);
                }
            }
            Err(error) => self.refuse_bytes(from, error),
        }
    }

    /// Takes a word of `signer` that a neighbour passes on. The neighbour is at fault only if the signature does not hold:
    /// the word may be older than it knows.
    fn receive_passed_on(&mut self, from: NodeId, signer: NodeId, bytes: &[u8]) {
        let passes_on = self.ctx.may_pass_on(&from) || mutated!(Mutation::AnybodyPassesOn);
        if !passes_on || signer == self.ctx.me || !self.ctx.is_member(&signer) || !self.ctx.is_connected(&from) {
            return self.out.stale(from);
        }
        let now = self.ctx.now;
        self.ctx.peers.entry(from).and_modify(|peer| peer.link.heard_at = now);
        if self.ctx.has_ready(&signer, bytes) {
            return;
        }
        match wire::open(self.ctx.verifier.as_ref(), &self.ctx.run, bytes) {
            Err(error) => self.refuse_bytes(from, error),
            Ok(opened) => {
                if let Err(objection) = self.hear_passed_on(signer, opened, bytes) {
                    self.object(from, Objection { refusal: Refusal::Stale, ..objection }, bytes);
                }
            }
        }
    }

    fn hear_passed_on(&mut self, signer: NodeId, opened: Opened, bytes: &[u8]) -> Result<(), Objection> {
        let now = self.ctx.now;
        match opened.message {
            Message::Ready(ready) => {
                let place = (ready.lineage, ready.round, ready.base);
                let here = |round: &super::round::Round| {
                    (round.head.record.lineage, round.task.number, round.head.base) == place
                };
                let silent = self.life.round().is_some_and(here) && self.ctx.is_long_unheard(&signer);
                let peer = self.ctx.entry(signer, &mut self.out).ok_or(Refusal::Stale)?;
                if !peer.meet_far(ready.boot, silent, now) {
                    return Err(Refusal::Stale.into());
                }
                self.hear_ready(signer, ready, opened.digest, bytes)
            }
            Message::Start(start) => self.hear_start(signer, start, bytes),
            Message::Head(head) => self.hear_passed_head(signer, head),
            Message::Leave(leave) => {
                let touch = self.ctx.touch(&signer);
                let peer = self.ctx.peers.get_mut(&signer).filter(|_| touch == Touch::Passed).ok_or(Refusal::Stale)?;
                if peer.was_beyond(&leave.lineage, leave.seq) {
                    return Err(Refusal::Stale.into());
                }
                peer.said.left = true;
                Ok(())
            }
            _ => Err(Refusal::Stale.into()),
        }
    }

    /// Takes the Head of a member that this node is not connected with.
    fn hear_passed_head(&mut self, signer: NodeId, heard: Head) -> Result<(), Objection> {
        let (now, touch) = (self.ctx.now, self.ctx.touch(&signer));
        let silent = self.ctx.is_long_unheard(&signer);
        let peer = self.ctx.entry(signer, &mut self.out).filter(|_| touch == Touch::Passed).ok_or(Refusal::Stale)?;
        if !peer.meet_far(heard.pulse.boot, silent, now) || !peer.is_news(&heard) {
            return Err(Refusal::Stale.into());
        }
        peer.take_passed_head(heard.clone(), now);
        self.ctx.note_down(&signer);
        if let Some(round) = self.life.round_mut() {
            round.hear_report(signer, &heard, &mut self.conduct, &self.ctx);
        }
        self.stir.more &= !self.ctx.is_large();
        Ok(())
    }

    fn hear_start(&mut self, from: NodeId, start: Start, bytes: &[u8]) -> Result<(), Objection> {
        let round = self.life.round_mut().ok_or(Refusal::Stale)?;
        let question = start.question.clone();
        round.hear_start(from, start, &self.ctx, &mut self.out)?;
        self.relay.pass_start(question, bytes, &self.ctx, &mut self.out);
        Ok(())
    }

    fn hear(&mut self, from: NodeId, opened: Opened, bytes: &[u8]) -> Result<(), Objection> {
        if opened.sender == self.ctx.me {
            if self.ctx.meet_myself(from, &opened.message, &mut self.out)? {
                self.finish(Finish::Fenced);
            }
            return Ok(());
        }
        if let Message::Hello(hello) = opened.message {
            return self.greet(from, &hello);
        }
        let (now, heeded) = (self.ctx.now, self.ctx.heeds(&from, &opened.message));
        let greeted = |peer: &&mut Peer| peer.link.greeted || mutated!(Mutation::BeforeHello);
        let peer = self.ctx.peers.get_mut(&from).filter(greeted).ok_or(Refusal::Stale)?;
        peer.link.heard_at = now;
        // A node that has left is silent. A node that speaks is here, and its leave was an old one.
        peer.said.left &= matches!(opened.message, Message::Leave(_));
        if !heeded {
            self.ctx.note_unknown(from, &opened.message, &mut self.out);
            return Err(Refusal::Stale.into());
        }
        match opened.message {
            Message::Hello(_) => Ok(()),
            Message::Head(head) => {
                self.hear_head(from, head)?;
                Relay::pass_head(&from, bytes, &mut self.ctx, &mut self.out);
                Ok(())
            }
            Message::Join(join) => self.hear_join(from, join),
            Message::Ready(ready) => {
                self.hear_ready(from, ready, opened.digest, bytes)?;
                if let Some(round) = self.life.round().filter(|_| self.ctx.is_neighbour(&from)) {
                    self.relay.pass_ready(&from, round, &self.ctx, &mut self.out);
                }
                Ok(())
            }
            Message::Estimate(Estimate { question, incarnation, ballot, value }) => {
                self.hear_said(from, (&question, incarnation), Said { ballot, value, voted: None }, bytes)
            }
            Message::Vote(Vote { question, incarnation, ballot, value, voted }) => {
                self.hear_said(from, (&question, incarnation), Said { ballot, value, voted: Some(voted) }, bytes)
            }
            Message::Certificate(certificate) => self.hear_certificate(&certificate),
            Message::Witness(witness) => {
                if !self.ctx.hear_witness(&from, &witness) {
                    return Err(Refusal::Stale.into());
                }
                self.heed_witnesses();
                Ok(())
            }
            Message::Fork(fork) => self.hear_fork(from, fork, bytes),
            Message::Start(start) => self.hear_start(from, start, bytes),
            Message::Want(want) => {
                let round = self.life.round().ok_or(Refusal::Stale)?;
                Ok(round.hear_want(from, &want, &mut self.ctx, &mut self.out)?)
            }
            Message::Evidence(evidence) => Ok(self.conduct.hear_evidence(evidence, &self.ctx, &mut self.out)?),
            Message::Amend(amendment) => {
                self.ctx.hear_amendment(from, amendment, &mut self.out)?;
                self.go_on_if_amended();
                Ok(())
            }
            Message::Alive(alive) => {
                let shown = self.ctx.hear_alive(from, &alive, bytes, &mut self.out);
                if shown { Ok(()) } else { Err(Refusal::Stale.into()) }
            }
            Message::Leave(leave) => {
                if peer.was_beyond(&leave.lineage, leave.seq) {
                    return Err(Refusal::Stale.into());
                }
                (peer.said.left, peer.said.join) = (true, None);
                Relay::pass_head(&from, bytes, &mut self.ctx, &mut self.out);
                Ok(())
            }
        }
    }

    fn greet(&mut self, from: NodeId, hello: &Hello) -> Result<(), Objection> {
        if hello.spec != self.ctx.spec_bytes {
            return Err(Refusal::Malformed { what: "hello of another run under this run's name" }.into());
        }
        let now = self.ctx.now;
        let peer = self.ctx.entry(from, &mut self.out).ok_or(Refusal::Full)?;
        let first = !peer.is_introduced();
        if peer.meet(hello.boot, now) == Incarnation::Former {
            return Err(Refusal::Stale.into());
        }
        (peer.link.greeted, peer.link.heard_at, peer.vote_state.incarnation) = (true, now, hello.incarnation);
        self.ctx.bear_witness(from, &mut self.out);
        if first && self.life.end().is_none() && !self.ctx.frozen {
            self.conduct.pass_on(from, &self.ctx, &mut self.out);
        }
        Ok(())
    }

    fn hear_head(&mut self, from: NodeId, heard: Head) -> Result<(), Objection> {
        let (ctx, out) = (&mut self.ctx, &mut self.out);
        let Some(peer) = ctx.peers.get_mut(&from) else { return Ok(()) };
        if peer.was_beyond(&heard.lineage, heard.seq) || peer.has_heard_newer(&heard.pulse) {
            return Err(Refusal::Stale.into());
        }
        let parent = self.life.round().map(|round| round.head.digest);
        let stands = |head: &Head| Some(head.record) == parent && head.phase != Phase::CatchingUp;
        let arrives = stands(&heard) && !peer.said.head.as_ref().is_some_and(stands);
        let before = peer.said.head.as_ref().map(|head| (head.lineage, head.seq.checked_add(1)));
        let stepped = before == Some((heard.lineage, Some(heard.seq)));
        peer.take_head(heard.clone(), ctx.now);
        peer.said.passed = false;
        ctx.note_down(&from);
        if let Some(round) = self.life.round_mut() {
            // A receiver drops a READY whose sender is no member of the receiver's head record. A READY said by a
            // newcomer, or to one, before the receiver had this record is therefore lost.
            if arrives && ctx.is_member(&from) && (ctx.is_new() || !stepped) {
                round.repeat_readys_to(from, ctx, out);
            }
            if arrives {
                ctx.pass_amendments_on(from, out);
            }
            if arrives && ctx.is_voter(&from) {
                // Statements that the peer heard before it had this head meant nothing to it.
                round.repeat_votes(from, ctx, out, &self.own_votes);
            }
            round.hear_report(from, &heard, &mut self.conduct, ctx);
        }
        let helped = ctx.help_along(from, &heard, self.life.round().map(|round| round.began), out);
        if helped || ctx.is_to_learn_of_head(from, &heard) {
            let mine = scene!(self).head_message();
            self.out.send_to(&self.ctx, &[from], &Message::Head(mine));
        }
        // A peer with this node's head, or one behind it, calls no node away.
        let mine = self.ctx.head.as_ref().map(|head| (head.record.lineage, head.record.seq));
        let calm = mine.is_some_and(|(lineage, seq)| heard.lineage == lineage && heard.seq <= seq);
        self.stir.more &= !(calm && self.ctx.is_large());
        Ok(())
    }

    fn hear_join(&mut self, from: NodeId, join: Join) -> Result<(), Objection> {
        let head = self.ctx.head.as_ref().filter(|head| head.record.lineage == join.lineage).ok_or(Refusal::Stale)?;
        if join.state_root == Digest::default() {
            // A newcomer without a state shows its ticket. A ticket that admits nobody costs only the look at it: its
            // holder learns the reason when it asks for a seat.
            if self.ctx.admits(head, &from, &join.ticket).is_err() || self.conduct.is_equivocator(&from) {
                return Err(Refusal::Stale.into());
            }
            self.ctx.invite(&from);
            return Ok(());
        }
        // A node that comes over from another lineage, also from the one that this one has forked from, does so under a
        // new incarnation. The incarnation that its Join names would get a seat on which no process can vote.
        let known = self.ctx.history.iter().any(|past| {
            (past.digest, past.record.seq, past.record.lineage, past.record.state_root)
                == (join.record, join.seq, join.lineage, join.state_root)
        });
        if !known {
            return Err(Refusal::Stale.into());
        }
        if self.conduct.is_equivocator(&from) && !mutated!(Mutation::WelcomeEquivocators) {
            return Err(Refusal::NotAdmitted { why: CONTRADICTED }.into());
        }
        // A member has been admitted before.
        if head.record.member(&from).is_none()
            && let Err(why) = self.ctx.admits(head, &from, &join.ticket)
        {
            // A node with an older head may have been admitted by that record. It reads in the records between why it
            // is not admitted any more, and its own program says so. No other node shuts it out before.
            let here = join.record == head.digest;
            return Err(if here { Refusal::NotAdmitted { why: why.reason() } } else { Refusal::Stale }.into());
        }
        let now = self.ctx.now;
        if let Some(peer) = self.ctx.peers.get_mut(&from) {
            peer.said.join = Some((join, now));
        }
        self.ctx.invite(&from);
        Ok(())
    }

    fn hear_ready(&mut self, from: NodeId, ready: Ready, digest: Digest, bytes: &[u8]) -> Result<(), Objection> {
        // A READY of another lineage is said again to nodes that come to that lineage.
        let past = |head: &ChainHead| head.record.lineage != ready.lineage || ready.round <= head.record.round;
        // A statement of a former process of this peer does not hold any more. It comes up again on a new connection.
        let former = |peer: &Peer| peer.process.boot != Some(ready.boot) && !mutated!(Mutation::ReadyOfFormer);
        if self.ctx.head.as_deref().is_some_and(past) || self.ctx.peers.get(&from).is_some_and(former) {
            return Err(Refusal::Stale.into());
        }
        if bytes.len() > READY_BYTES_MAX {
            return Err(Refusal::Malformed { what: "ready beyond its size" }.into());
        }
        let signed = SignedReady { member: from, ready, digest, bytes: bytes.to_vec() };
        // The READY is for the same state but another lease: its sender has another record of that state as head, or
        // says nonsense.
        self.ctx.fits_round(&signed).map_err(|what| Refusal::Malformed { what })?;
        let Some(peer) = self.ctx.peers.get_mut(&from) else { return Ok(()) };
        let unit = self.ctx.spec.inner.samples(1);
        peer.said.pace.note(Phase::Training, signed.ready.step_us(unit));
        peer.take_ready(signed).map_err(|first| Objection {
            refusal: Refusal::Equivocation { what: "two different READYs for one round" },
            first: Some(first),
        })?;
        let awaits = self.life.round().is_some_and(|round| round.still_awaits(&self.ctx));
        self.stir.more &= !(awaits && self.ctx.is_large());
        Ok(())
    }

    fn hear_said(
        &mut self,
        from: NodeId,
        (question, incarnation): (&Question, u64),
        said: Said<Value>,
        bytes: &[u8],
    ) -> Result<(), Objection> {
        let (ballot, phase) = said.place();
        let stamp = Stamp { seq: question.seq, instance: question.instance, ballot, phase };
        self.ctx.note_signed(from, incarnation, stamp, &mut self.out);
        let round = self.life.round_mut().ok_or(Refusal::Stale)?;
        round.hear_said(from, (question, incarnation), said, bytes, (&self.ctx, &mut self.out))
    }

    fn hear_certificate(&mut self, certificate: &Certificate) -> Result<(), Objection> {
        if let Some(ours) = self.ctx.check_split(certificate)? {
            self.freeze(ours, certificate.clone());
        }
        let round = self.life.round_mut().ok_or(Refusal::Stale)?;
        round.hear_certificate(certificate, &mut self.conduct, (&self.ctx, &mut self.out))?;
        self.ctx.learn_signed(certificate);
        Ok(())
    }

    fn hear_fork(&mut self, from: NodeId, fork: Fork, bytes: &[u8]) -> Result<(), Objection> {
        let here = self.life.round().is_some_and(|round| round.heeds_fork(&fork));
        if !here || !self.ctx.is_member(&from) {
            return Err(Refusal::Stale.into());
        }
        if let Some(peer) = self.ctx.peers.get_mut(&from) {
            peer.said.fork = Some((fork, bytes.to_vec()));
        }
        Ok(())
    }

    /// Freezes this node if two records contradict each other further back than it remembers. A catch-up, or the look
    /// at a claim, has searched for the first place that differs.
    pub(super) fn contradicted(&mut self, split: &Split) {
        if certificate::verify_split(self.ctx.verifier.as_ref(), &self.ctx.spec, split).is_err() {
            return;
        }
        let (ours, theirs) = (&split.ours.1, &split.theirs.1);
        if self.ctx.a_voter_signed(ours, theirs) {
            self.freeze(ours.clone(), theirs.clone());
        } else if let Some(peer) = signers_of_both(ours, theirs).next() {
            let refusal = Refusal::Equivocation { what: "records of former voters" };
            self.out.notice(Notice::Refused { peer, refusal });
        }
    }

    /// Takes the outcome of a claim.
    pub(super) fn judge_claim(&mut self, peer: NodeId, record: Digest, outcome: Claim) {
        match self.sync.judge(&peer, record, outcome, &self.ctx) {
            None => {}
            Some(Verdict::Pause) => self.ctx.pause(&peer),
            Some(Verdict::False { why }) => {
                self.ctx.pause(&peer);
                self.refuse(peer, Refusal::FalseClaim { why });
            }
            Some(Verdict::Foreign) => {
                let Some(peer) = self.ctx.peers.get_mut(&peer) else { return };
                let Some(lineage) = peer.said.head.as_ref().map(|head| head.lineage) else { return };
                peer.chain.foreign = Some(lineage);
                if self.sync.claims.meet_foreign(lineage) {
                    self.out.notice(Notice::LineageMet { lineage, yields: false });
                }
            }
        }
    }

    /// Checks READYs that came before the new head.
    pub(super) fn recheck_readys(&mut self) {
        for (id, what) in self.ctx.recheck_readys() {
            self.refuse(id, Refusal::Malformed { what });
        }
        if let Some(round) = self.life.round() {
            self.relay.pass_early(round, &self.ctx, &mut self.out);
        }
    }

    /// Does what a refusal asks for: a stale message is counted, and for all others the connection is closed. A message
    /// that contradicts an earlier one may be evidence.
    fn object(&mut self, id: NodeId, objection: Objection, bytes: &[u8]) {
        match objection.refusal {
            Refusal::Stale => self.out.stale(id),
            refusal => self.refuse(id, refusal),
        }
        if let Some(first) = objection.first {
            self.conduct.expose(first, bytes, &self.ctx, &mut self.out);
        }
    }

    /// Closes the connection and says why.
    fn refuse(&mut self, id: NodeId, refusal: Refusal) {
        self.ctx.refuse(id, refusal, &mut self.out);
    }

    fn refuse_bytes(&mut self, from: NodeId, error: WireError) {
        let refusal = match error {
            WireError::Version { theirs, ours } => Refusal::Version { theirs, ours },
            WireError::BadSignature { .. } => Refusal::BadSignature,
            WireError::OtherRun { spec, .. } => return self.meet_other_run(from, self.ctx.spec.differences(&spec)),
            other => Refusal::Malformed { what: other.reason() },
        };
        self.refuse(from, refusal);
    }

    /// Refuses a peer of another run. A node that has met no node of its own run was started with the wrong file, if
    /// the user has named that peer. A node for which the user named no peer can judge only by the peers that are here,
    /// and hears them all first.
    fn meet_other_run(&mut self, from: NodeId, keys: Vec<String>) {
        self.refuse(from, Refusal::RunMismatch { keys: keys.clone() });
        let alone = self.ctx.head.is_none()
            && !self.life.founds()
            && !self.ctx.peers.values().any(|peer| peer.process.boot.is_some());
        let others = self.ctx.peers.values().any(|peer| peer.link.connected && !peer.link.refused);
        let told = self.sync.guides.contains(&from) || self.sync.guides.is_empty() && !others;
        if alone && (told || mutated!(Mutation::AnyMismatch)) {
            self.finish(Finish::RunMismatch { peer: from, keys });
        }
    }
}
