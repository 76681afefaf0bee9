//! Rounds as the driver has them trained: when one can begin, and the trainer's reports.

use super::device::{WantedRound, Work};
use super::driver::Driver;
use super::losses::ways_out;
use super::matter::Matter;
use super::shards;
use super::trainer::{Job, Round, Trained, TrainerEvent};
use crate::exit::{Code, Failure};
use crate::watch::event::Event;
use starling_protocol::engine::io::Input;
use starling_protocol::record::Measured;

impl Driver {
    /// Starts the wanted round if its base is the state at hand and its shards are here.
    pub(super) async fn start_wanted_round(&mut self) -> Result<(), Failure> {
        let Some(wanted) = self.device.wanted.clone() else { return Ok(()) };
        // The ledger may be changing the state: it reports the end, and this is tried again then.
        let head = self.state.head();
        let at_base = head.base == wanted.base;
        if !at_base || self.device.work.is_some() || self.fetches.bring_text_or_state() {
            return Ok(());
        }
        let sequences = self.settings.validate_sequences;
        let missing = shards::missing_for(&self.data, &self.spec, &wanted.lease, sequences as u64);
        if !missing.is_empty() {
            self.fetch_shards(missing);
            return Ok(());
        }
        let generation = self.device.halt();
        let due = wanted.round == 1 || (wanted.round - 1) % self.settings.validate_every.max(1) == 0;
        self.gauges.training_started();
        let job = Job::Round(Round {
            round: wanted.round,
            base: wanted.base,
            lineage: head.record.lineage,
            expected: head.record.gossip_of(&self.me).collect(),
            lease: wanted.lease,
            inner_steps: wanted.inner_steps,
            done: wanted.done,
            inner: self.engine.in_force().inner.clone(),
            budget: self.engine.in_force().budget.clone(),
            validate: due.then_some(sequences).filter(|n| *n > 0),
            generation,
            news: self.variants.news(),
        });
        if wanted.cut {
            self.device.trainer.cut_short();
        }
        self.device.start(Work::Round, job).await
    }

    /// Starts a wanted job beside rounds if the device has nothing to do.
    pub(super) async fn start_beside(&mut self) -> Result<(), Failure> {
        if self.device.work.is_some() || self.device.wanted.is_some() {
            return Ok(());
        }
        match self.beside() {
            Some(job) => self.device.start(Work::Beside, job).await,
            None => Ok(()),
        }
    }

    pub(super) async fn use_device(&mut self) -> Result<(), Failure> {
        self.start_wanted_round().await?;
        self.start_beside().await
    }

    pub(super) async fn trainer_event(&mut self, happened: TrainerEvent) -> Result<(), Failure> {
        match happened {
            TrainerEvent::Step { round, step, steps, reached, loss, tokens_per_second } => {
                if self.gauges.step(step, steps, loss, tokens_per_second) {
                    self.show(Event::Step { round, step, steps, loss, tokens_per_second });
                }
                self.feed(Input::TrainProgress { round, step: reached }).await
            }
            TrainerEvent::Exchanging { round, reached } => {
                self.feed(Input::TrainProgress { round, step: reached }).await
            }
            TrainerEvent::Validated { round, loss } => {
                let nats_per_byte = self.bytes_per_token().map(|bytes| loss / bytes);
                self.gauges.validated(loss, nats_per_byte);
                self.show(Event::Validated { round, loss, nats_per_byte });
                // Text that is learned by heart raises it, too, so this is only told. The losses of another task may be
                // below zero, and tell no stranger whether they are good.
                let rises = if self.spec.task.is_none() { self.gauges.losses.validated(loss) } else { None };
                if let Some(why) = rises {
                    self.show(Event::Diverges { round, why });
                }
                Ok(())
            }
            TrainerEvent::Trained(trained) => {
                self.device.rest();
                self.trained(trained).await
            }
            TrainerEvent::Stopped => {
                self.device.rest();
                self.use_device().await
            }
            TrainerEvent::MissingShard { round, shard } => {
                self.device.rest();
                tracing::debug!("round {round} waits for shard {shard}");
                self.fetch_shards(vec![shard]);
                Ok(())
            }
            TrainerEvent::NotValidated => Ok(()),
            TrainerEvent::Came => {
                let why = self.settings.guest.as_ref().map(|note| note.words()).unwrap_or_default();
                self.show(Event::Trainer { here: true, why });
                Ok(())
            }
            TrainerEvent::Lost { why } => {
                self.show(Event::Trainer { here: false, why });
                Ok(())
            }
            TrainerEvent::Gone { why } => {
                self.device.rest();
                self.show(Event::Trainer { here: false, why });
                self.use_device().await
            }
            TrainerEvent::Failed { message, diverged } => {
                let failed = format!("training failed: {message}");
                if !diverged {
                    return Err(Failure::message(Code::Refused, failed));
                }
                let ways = ways_out(&self.settings.home);
                let why = format!("{failed}; the state of the last record is on the disk: {ways}");
                Err(Failure::message(Code::Diverged, why))
            }
            other => self.hand_over(Matter::TrainerEvent(other)).await,
        }
    }

    async fn trained(&mut self, trained: Trained) -> Result<(), Failure> {
        let is_it = |wanted: &mut WantedRound| (wanted.base, wanted.round) == (trained.base, trained.round);
        if self.device.wanted.take_if(is_it).is_none() {
            return self.start_wanted_round().await;
        }
        #[cfg(feature = "byzantine")]
        let trained = {
            let mut trained = trained;
            crate::byzantine::contribution(&mut trained.delta, &mut trained.norm, &mut trained.payload);
            trained
        };
        self.gauges.trained(&trained);
        self.show(Event::Trained {
            round: trained.round,
            loss: trained.loss,
            tokens: trained.tokens,
            seconds: trained.seconds,
        });
        let why = self.gauges.losses.trained(trained.loss, self.guessing());
        let halts = why.is_some_and(|why| self.diverges(trained.round, why));
        self.contributions.make(trained.payload, trained.delta);
        let measured = Measured {
            step_us: trained.step_us,
            upload_kbps: self.net.end_uplink_round(),
            reduce_us: self.gauges.last_reduction_us(),
            overhead_us: self.gauges.last_overhead_us(),
            norm_bits: trained.norm.to_bits(),
        };
        let gathering = self.gauges.gathering();
        self.feed(Input::Trained {
            round: trained.round,
            base: trained.base,
            samples: trained.samples,
            tokens: trained.tokens,
            steps: trained.steps,
            loss_q16: (trained.loss.max(0.0) * 65536.0).min(f64::from(u32::MAX)) as u32,
            payload: trained.payload,
            measured,
        })
        .await?;
        // This READY began an attempt, so no other contribution came after it.
        if gathering {
            self.gauges.was_last();
        }
        // The contribution is made, so the node leaves as it does when it is asked to.
        if halts { self.feed(Input::Leave).await } else { Ok(()) }
    }

    /// Says that the training diverges, and why. Returns whether the node is to leave for that, as its file says, and
    /// keeps the reason then.
    fn diverges(&mut self, round: u64, why: String) -> bool {
        self.show(Event::Diverges { round, why: why.clone() });
        if !self.settings.halt_on_divergence {
            return false;
        }
        let ways = ways_out(&self.settings.home);
        self.gauges.halted = Some(format!(
            "the training diverges in round {round}: {why}; inner.lr is too high, or inner.warmup_steps too low: \
             {ways}. With halt_on_divergence = false below [inner] in its node file a node goes on"
        ));
        true
    }

    /// The loss of a model that knows nothing, if anybody knows it.
    fn guessing(&self) -> Option<f64> {
        self.spec.task.is_none().then(|| f64::from(self.spec.model.vocab).ln())
    }

    /// Bytes of text a token, on average over the held-out text; none where losses are of no text.
    fn bytes_per_token(&self) -> Option<f64> {
        self.spec.task.is_none().then(|| self.data.manifest().bytes_per_token().max(f64::MIN_POSITIVE))
    }
}
