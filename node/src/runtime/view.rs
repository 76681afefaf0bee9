//! The driver as watchers see it: the answers of the status socket, and commits.

use super::driver::Driver;
use super::notice::{hold_text, seeking_text};
use crate::exit::Failure;
use crate::net::UnreachedPeer;
use crate::watch::choice::ChoiceStatus;
use crate::watch::event::{Committed, Event, RoundTiming};
use crate::watch::status::{
    Answer, Asked, EvidenceStatus, Member, ProbationStatus, Question, QuorumStatus, Status, Terms, UnreachedStatus,
};
use starling_protocol::NodeId;
use starling_protocol::codec::encoded_max;
use starling_protocol::engine::io::Input;
use starling_protocol::engine::succession::probation::Probation;
use starling_protocol::engine::{EvidenceView, MemberState, MemberView, QuorumView};
use starling_protocol::message::Phase;
use starling_protocol::record::{Record, Role};
use starling_protocol::run::Codec;
use std::time::Instant;
use tokio::sync::oneshot;

impl Driver {
    /// Answers a question of the status socket, or has it answered later, and does what follows from the answer.
    pub(super) async fn answer(&mut self, asked: Asked) -> Result<(), Failure> {
        // A tick first: the engine's view is as old as its last input.
        self.feed(Input::Tick).await?;
        self.reply_to(asked).await?;
        self.feed(Input::Tick).await
    }

    async fn reply_to(&mut self, (question, reply): Asked) -> Result<(), Failure> {
        let answer = match question {
            Question::Checkpoint => return self.checkpoint_for(reply).await,
            Question::Status => Answer::Status(Box::new(self.status())),
            Question::Invite(terms) => {
                self.invite(terms, reply);
                return Ok(());
            }
            Question::Change(change) => self.change(&change),
            Question::Agree { id } => self.agree(&id),
            Question::Revoke(subject) => match self.settings.ticket.revoke(&self.spec, &subject) {
                Ok(revocation) => {
                    let subject = revocation.subject.to_string();
                    self.later(Input::Revoke { revocation });
                    Answer::Revoked { subject }
                }
                Err(message) => Answer::refused(message),
            },
        };
        // The asker may have gone.
        let _ = reply.send(answer);
        Ok(())
    }

    /// Makes a ticket in a task of its own, since the network says where the members are.
    fn invite(&self, terms: Terms, reply: oneshot::Sender<Answer>) {
        let (net, spec, maker) = (self.net.clone(), self.spec.clone(), self.settings.ticket.clone());
        tokio::spawn(async move {
            let members = net.status().await.members;
            let answer = match maker.make(&spec, (&net.addresses(), members), &terms) {
                Ok(ticket) => Answer::Invite { ticket },
                Err(message) => Answer::refused(message),
            };
            // The asker may have gone.
            let _ = reply.send(answer);
        });
    }

    fn status(&self) -> Status {
        let view = self.engine.view();
        let head = self.state.head();
        let counters = self.net.counters();
        let known = view.lineage != starling_protocol::Digest::default();
        let row = |peer: &MemberView| Member {
            node: peer.id.to_string(),
            name: if peer.id == self.me { self.settings.name.clone() } else { self.net.name_of(&peer.id) },
            me: peer.id == self.me,
            member: peer.state != MemberState::Outside,
            role: peer.role.map(|role| role.to_string()),
            connected: peer.connected || peer.id == self.me,
            phase: peer.phase.map(|p| p.to_string()),
            seq: peer.heard.map(|_| peer.seq),
            heard_s: peer.heard.map(|us| us as f64 / 1e6),
            out: match peer.state {
                MemberState::Out(why) => Some(why.to_string()),
                _ => None,
            },
        };
        let hold = view.hold.as_ref().map(hold_text);
        let waiting = view.waiting.as_ref().map(|waiting| {
            let on: Vec<_> = waiting.on.iter().map(NodeId::short).collect();
            if on.is_empty() { waiting.why.to_string() } else { format!("{}: {}", on.join(", "), waiting.why) }
        });
        // A node that is not admitted follows the flock record by record, in either phase.
        let outside = matches!(view.phase, Phase::Joining | Phase::CatchingUp);
        let barred = || self.gauges.barred.clone().filter(|_| outside);
        let waiting = barred().or(hold).or(waiting);
        let seeking = || (view.phase == Phase::Seeking && !view.founds).then(|| seeking_text(view.others.len()));
        let waiting = waiting.or_else(seeking);
        let members = view.members.iter().chain(&view.others).map(row).collect();
        let mut status = Status {
            version: env!("CARGO_PKG_VERSION").into(),
            node: self.me.to_string(),
            name: self.settings.name.clone(),
            run: self.spec.name.clone(),
            lineage: known.then(|| view.lineage.to_string()),
            device: self.settings.device.clone(),
            phase: view.phase.to_string(),
            quorum: known.then(|| self.quorum_status(&view.quorum)),
            waiting,
            round: head.record.round,
            seq: head.record.seq,
            tokens: head.record.tokens,
            state_root: known.then(|| head.record.state_root.to_string()),
            uptime_s: self.started.elapsed().as_secs(),
            bytes_sent: counters.bytes_sent,
            bytes_received: counters.bytes_received,
            loss: self.gauges.loss,
            validation_nats_per_token: self.gauges.validation,
            validation_nats_per_byte: self.gauges.validation_per_byte,
            addresses: self.net.addresses().iter().map(ToString::to_string).collect(),
            members,
            evidence: view.evidence.iter().map(evidence_row).collect(),
            merged: Vec::new(),
            offers: None,
            choice: known.then(|| ChoiceStatus::of(&self.spec, &head.record)),
            gossip: None,
            probation: self.probation_status(&head.record),
            trainer: self.settings.guest.as_ref().map(|note| note.words()),
            amended: self.amended_status(),
            proposals: self.proposal_status(),
            unreached: self.net.unreached().into_iter().map(unreached_row).collect(),
        };
        self.variants.show(&head.record, &mut status);
        status
    }

    /// The rest of this node's probation, while it is a learner and has one.
    fn probation_status(&self, record: &Record) -> Option<ProbationStatus> {
        let seat = record.member(&self.me).filter(|seat| seat.role == Role::Learner)?;
        let probation = Probation::of(&self.spec, record.round);
        let ((rounds, contributions), newcomer) = (probation.left(seat), probation.new_for(seat));
        (rounds.max(contributions).max(newcomer) > 0).then(|| ProbationStatus {
            from_round: record.round + rounds.max(contributions).max(1),
            contributions,
            newcomer_until: record.round + newcomer,
        })
    }

    fn quorum_status(&self, quorum: &QuorumView) -> QuorumStatus {
        let partition = &self.engine.in_force().partition;
        QuorumStatus {
            voters: quorum.voters,
            here: quorum.here,
            in_reach: quorum.in_reach,
            distinguished: quorum.distinguished.map(|id| id.to_string()),
            quorum_lost_s: quorum.quorum_lost.map(|us| us as f64 / 1e6),
            forks_in_s: quorum.forks_in.map(|us| us as f64 / 1e6),
            policy: partition.minority.to_string(),
            grace_s: f64::from(partition.grace_ms) / 1e3,
            frozen: quorum.frozen,
        }
    }

    /// The values that show a commit once it is on disk.
    pub(super) fn committed(&self, record: &Record) -> Committed {
        let tokens: u64 = record.contributors.iter().map(|c| c.tokens).sum();
        let loss_sum: f64 = record.contributors.iter().map(|c| f64::from(c.loss_q16) / 65536.0 * c.tokens as f64).sum();
        Committed {
            seq: record.seq,
            round: record.round,
            record: record.digest().to_string(),
            lineage: record.lineage.to_string(),
            state_root: record.state_root.to_string(),
            contributors: record.contributors.iter().map(|c| c.member.to_string()).collect(),
            members: record.next.members.len(),
            voters: record.voters().count(),
            inner_steps: record.next.inner_steps,
            codec: record.next.codec.to_string(),
            bits_per_value: bits_per_value(record.next.codec),
            tokens: record.tokens,
            loss: loss_sum / tokens.max(1) as f64,
            bytes_sent: self.net.counters().bytes_sent,
            timing: RoundTiming::default(),
        }
    }

    /// Shows a commit that is on disk; its times end here.
    pub(super) fn show_committed(&mut self, mut committed: Committed) {
        let timing = self.gauges.committed(Instant::now());
        self.gauges.loss = Some(committed.loss);
        metrics::gauge!("starling_round").set(committed.round as f64);
        metrics::gauge!("starling_tokens").set(committed.tokens as f64);
        metrics::gauge!("starling_members").set(committed.members as f64);
        metrics::gauge!("starling_voters").set(committed.voters as f64);
        metrics::gauge!("starling_quorum").set(1.0);
        metrics::gauge!("starling_loss_nats_per_token").set(committed.loss);
        metrics::histogram!("starling_round_seconds").record(timing.seconds);
        metrics::histogram!("starling_reduce_seconds").record(timing.reduce_seconds);
        metrics::histogram!("starling_settle_seconds").record(timing.settle_seconds);
        metrics::histogram!("starling_overhead_seconds").record(timing.overhead_seconds);
        metrics::histogram!("starling_idle_seconds").record(timing.idle_seconds);
        committed.timing = timing;
        self.show(Event::Committed(committed));
    }

    /// Whether every connected peer has the record that this node ended with.
    pub(super) fn everybody_finished(&self) -> bool {
        let view = self.engine.view();
        view.members.iter().chain(&view.others).filter(|p| p.connected && p.id != self.me).all(|p| p.seq >= view.seq)
    }
}

/// The most bits that a codec takes for a value, headers of blocks included: over a number of values with which all
/// codecs fill their blocks.
fn bits_per_value(codec: Codec) -> f64 {
    const VALUES: usize = 4096;
    encoded_max(codec, VALUES) as f64 * 8.0 / VALUES as f64
}

fn unreached_row(unreached: UnreachedPeer) -> UnreachedStatus {
    let UnreachedPeer { peer, reason, addresses, dials } = unreached;
    UnreachedStatus { peer: peer.to_string(), reason, addresses, dials }
}

fn evidence_row(evidence: &EvidenceView) -> EvidenceStatus {
    let EvidenceView { against, what, revoked } = *evidence;
    EvidenceStatus { against: against.to_string(), what: what.into(), revoked }
}
