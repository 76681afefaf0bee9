//! Carries out the engine's outputs.

use super::catch_up;
use super::device::WantedRound;
use super::driver::Driver;
use super::ledger::Job;
use super::matter::Matter;
use super::notice::{count_refusal, ids, refusal_text, tell};
use crate::exit::{Code, Failure};
use crate::reduce::Passed;
use crate::watch::event::Event;
use starling_protocol::engine::io::{Notice, Output};
use starling_protocol::evidence::Contradiction;
use starling_protocol::identity::Ed25519Verifier;
use starling_protocol::message::{Evidence, Phase};
use starling_protocol::record::Record;
use starling_protocol::{NodeId, admission};
use std::time::Instant;

impl Driver {
    /// Carries out one output, without waiting for the network, the disk or the device.
    pub(super) async fn carry_out(&mut self, output: Output) -> Result<(), Failure> {
        match output {
            Output::Send { to, bytes, after: None } => self.say(to, bytes),
            Output::Send { to, bytes, after: Some(token) } => self.undurable.hold(token, to, bytes),
            Output::Train { round, base, lease, inner_steps, done } => {
                #[cfg(feature = "byzantine")]
                crate::byzantine::at_round(round);
                self.hand(Matter::Train);
                self.device.want(WantedRound { round, base, lease, inner_steps, done, cut: false });
                self.start_wanted_round().await?;
            }
            Output::CutShort { round } => self.device.cut_short(round),
            Output::StopTraining { round } => self.device.stop(round),
            Output::Reduce { key, members, flock, grid, codec } => self.reduce(key, members, (flock, grid), codec),
            Output::Abandon { key } => {
                self.reductions.abandon(key);
                self.fetches.abandon(key);
                self.ledger(Job::Abandon { key }).await?;
            }
            Output::Speculate { key, update, rule } => self.ledger(Job::Speculate { key, update, rule }).await?,
            Output::Persist { token, vote_state, candidate } => {
                candidate.iter().for_each(|candidate| self.hand(Matter::Candidate(candidate)));
                self.ledger(Job::Persist { token, vote_state, candidate: candidate.map(Box::new) }).await?;
            }
            Output::Commit { token, key, record, certificate, mine } => {
                if record.changes_state() {
                    let committed = self.committed(&record);
                    self.undurable.hold_commit(token, committed);
                }
                self.residuals.settle(&[Passed::of(&record, &self.me)]);
                self.hand(Matter::Commit(&record));
                let (seq, record) = (record.seq, Box::new(record));
                self.ledger(Job::Commit { token, record, certificate }).await?;
                self.forget_attempts(seq);
                if let Some(key) = key {
                    self.reductions.leave(key);
                }
                if mine {
                    self.contributions.clear();
                }
            }
            Output::VerifyState => self.ledger(Job::Verify).await?,
            Output::Fetch { key, record, sources } => self.fetch(key, record, sources),
            Output::Found { token, record } => self.ledger(Job::Found { token, record }).await?,
            Output::CatchUp { seq, target, sources, afresh, lineage } => {
                self.catch_up(catch_up::Errand { lineage, seq, target, sources, afresh });
            }
            Output::Prove { peer, seq, record, foreign } => self.prove(peer, (seq, record), foreign),
            Output::Evidence { against, what, evidence } => {
                self.show_evidence(against, what, &evidence);
                self.ledger(Job::Evidence { against, evidence: Some(Box::new(evidence)) }).await?;
            }
            Output::DropEvidence { against } => self.ledger(Job::Evidence { against, evidence: None }).await?,
            Output::Refuse { peer, refusal } => {
                self.show(Event::Refused { peer: peer.to_string(), reason: refusal_text(&refusal) });
                self.net.refuse(peer, &refusal_text(&refusal));
                count_refusal(&refusal);
            }
            Output::Admit { peer } => self.net.admit(peer),
            Output::Deny { peer, proof } => self.net.turn_away(peer, proof),
            Output::Notice(notice) => self.notice(notice),
            Output::Finished { reason } => self.finish = Some(reason),
            Output::GoesOn => self.finish = None,
            other => {
                self.hand(Matter::Output(other));
                self.start_beside().await?;
            }
        }
        Ok(())
    }

    /// Sends bytes to a peer; a Byzantine member may send more than it was told to.
    pub(super) fn say(&self, to: NodeId, bytes: Vec<u8>) {
        #[cfg(feature = "byzantine")]
        crate::byzantine::control(bytes).into_iter().for_each(|bytes| self.net.send_control(to, bytes));
        #[cfg(not(feature = "byzantine"))]
        self.net.send_control(to, bytes);
    }

    /// Queues a job. The queue is longer than the engine's jobs under way, so this does not wait in practice.
    pub(super) async fn ledger(&mut self, job: Job) -> Result<(), Failure> {
        self.ledger_jobs
            .send(job)
            .await
            .map_err(|_| Failure::message(Code::StoreDamaged, "the ledger thread stopped; see the message before"))
    }

    /// Forgets attempts up to this record, which is decided.
    pub(super) fn forget_attempts(&mut self, seq: u64) {
        self.reductions.forget(seq);
        self.fetches.forget(seq);
    }

    pub(super) fn notice(&mut self, notice: Notice) {
        let mut joins = false;
        match notice {
            Notice::PhaseChanged { phase, .. } => {
                self.gauges.waiting = None;
                joins = phase == Phase::Joining;
                // A node that began without a record may have one now, and an amendment of the folder follows it.
                if matches!(phase, Phase::Joining | Phase::Training | Phase::Finished) {
                    self.hand_in_kept(false);
                }
            }
            Notice::AttemptStarted { .. } => self.gauges.attempt_started(),
            Notice::Amended { .. } => self.show_budget(),
            // Every round waits a moment; a wait is shown when it lasts.
            Notice::Waiting { on, why } => {
                self.gauges.waiting = Some((Event::Waiting { on: ids(on), why: why.into() }, Instant::now()));
                return;
            }
            _ => {}
        }
        self.hand(Matter::Notice(&notice));
        tell(&mut self.screen, notice);
        if joins && let Some(record) = self.engine.head().cloned() {
            self.check_admission(&record);
        }
    }

    /// Shows that a node has contradicted itself, with both statements as they were signed.
    pub(super) fn show_evidence(&mut self, against: NodeId, what: Contradiction, evidence: &Evidence) {
        metrics::counter!("starling_evidence_total", "what" => what.name()).increment(1);
        if against == self.me {
            tracing::error!(
                "this node's key has signed {what}: it is in use elsewhere, or its disk is an old copy; the others \
                 will remove it, and it needs a new key"
            );
        }
        let hex = |bytes: &[u8]| data_encoding::HEXLOWER.encode(bytes);
        let (first, second) = (hex(&evidence.first), hex(&evidence.second));
        self.show(Event::Evidence { against: against.to_string(), what: what.name().into(), first, second });
    }

    /// Shows why members would refuse this node, if it is at the flock's head and no member. Members refuse it with few
    /// words, and then ignore its requests for a minute; from the same record it can tell the reason itself.
    pub(super) fn check_admission(&mut self, record: &Record) {
        let ticket = &self.settings.admission;
        let verdict = admission::admit(&self.spec, &Ed25519Verifier, &self.run, record, &self.me, ticket);
        let barred = verdict.err().map(|why| why.to_string());
        if barred != self.gauges.barred
            && let Some(why) = barred.clone()
        {
            // Plain lines leave a wait out if another progress line came shortly before, and this wait is told once.
            tracing::warn!("this node is not admitted: {why}");
            self.show(Event::Waiting { on: Vec::new(), why });
        }
        self.gauges.barred = barred;
    }
}
