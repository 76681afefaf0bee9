//! Exchanges with a partner between inner steps (`starling_protocol::gossip`).
//!
//! Drift and momentum are this member's own, begin with zeros in each round, and are never written to disk: after a
//! commit all members have the canonical state again.

use super::job::{Round, TrainerEvent};
use super::rounds::Course;
use super::task::Trouble;
use super::worker::{Steps, Worked, Worker};
use crate::coding::Coder;
use crate::gossip::{Exchanger, Offer, PairError, PairKey, Place, Theirs};
use starling_protocol::NodeId;
use starling_protocol::gossip::{GossipSpec, Meetings, Rule, Said};
use starling_protocol::limits::CHUNK_ELEMENTS;
use starling_protocol::run::Codec;
use starling_protocol::update;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

/// Bounds of the time that an exchange may take; within them it may take twice as long as the steps between two
/// exchanges. A longer one costs more than the drift that it removes.
const LEAST: Duration = Duration::from_secs(1);
const MOST: Duration = Duration::from_secs(30);
/// The interval at which a waiting trainer checks whether its round goes on.
const LOOK: Duration = Duration::from_millis(20);
/// Interval of the signs of life that a member in an exchange gives, or a step's time if that is longer, so that it
/// does not look slower than it is. The deadline ends them.
const SIGN: Duration = Duration::from_secs(4);

/// The means of exchanges beside a round's job.
pub struct PairSetting {
    pub spec: GossipSpec,
    pub exchanger: Exchanger,
    pub runtime: Handle,
}

/// The exchanges of the round at hand.
pub struct Gossip {
    setting: PairSetting,
    place: Place,
    meetings: Meetings,
    /// Slow weights minus the state that the round began with.
    drift: Vec<f32>,
    momentum: Vec<f32>,
    /// Exchanges of the round that are over.
    done: u32,
    /// Partners that failed this node in the round: it does not wait for them again.
    avoided: BTreeSet<NodeId>,
}

/// How an exchange ended.
enum Met {
    With(Theirs),
    Alone(PairError),
    /// The round is to stop, or to end early.
    Interrupted,
}

impl Gossip {
    pub fn new(setting: PairSetting) -> Self {
        Self {
            setting,
            place: Place::default(),
            meetings: Meetings::new(Default::default(), Default::default(), []),
            drift: Vec::new(),
            momentum: Vec::new(),
            done: 0,
            avoided: BTreeSet::new(),
        }
    }

    fn begin(&mut self, job: &Round, elements: usize) {
        self.place = Place { lineage: job.lineage, base: job.base, round: job.round };
        self.meetings = Meetings::new(job.lineage, job.base, job.expected.iter().copied());
        for vector in [&mut self.drift, &mut self.momentum] {
            vector.clear();
            vector.resize(elements, 0.0);
        }
        self.done = 0;
        self.avoided.clear();
        self.setting.exchanger.router.begin(self.place);
    }

    /// Ends the exchanges, as the round's steps are done: a partner that comes now need not wait.
    fn end(&self) {
        self.setting.exchanger.router.over(u32::MAX);
    }

    /// Whether an exchange falls before the step after `made` of `steps`.
    fn is_due(&self, job: &Round, made: u32, steps: u32) -> bool {
        let spec = &self.setting.spec;
        made < steps
            && self.done < spec.exchanges(job.inner_steps)
            && spec.due(self.done + 1, job.inner_steps, steps) <= made
    }

    /// Time that an exchange may take, by the mean time of a step of this round.
    fn patience(&self, step: Duration) -> Duration {
        step.saturating_mul(self.setting.spec.steps.saturating_mul(2)).clamp(LEAST, MOST)
    }

    /// Computes the new drift, chunk by chunk, and leaves the new difference between parameters and state in `change`.
    fn apply(&mut self, change: &mut [f32], theirs: Option<&Theirs>) -> Result<bool, String> {
        let rule = Rule::from(&self.setting.spec);
        let codec = self.setting.exchanger.codec;
        let mut mixer =
            Mixer { codec, coder: Coder::new(codec), bytes: Vec::new(), said: std::array::from_fn(|_| Vec::new()) };
        let elements = change.len();
        let mut finite = true;
        let vectors = self.drift.chunks_mut(CHUNK_ELEMENTS).zip(self.momentum.chunks_mut(CHUNK_ELEMENTS));
        for (chunk, (change, (drift, momentum))) in change.chunks_mut(CHUNK_ELEMENTS).zip(vectors).enumerate() {
            finite &= match theirs {
                None => rule.alone(drift, momentum, change),
                Some(theirs) => {
                    mixer.load(elements, chunk, change, drift, theirs)?;
                    let [mine, my_drift, other, other_drift] = &mixer.said;
                    let mine = Said { change: mine, drift: my_drift };
                    rule.meet(drift, momentum, mine, Said { change: other, drift: other_drift })
                }
            };
            change.copy_from_slice(drift);
        }
        Ok(finite)
    }
}

/// The values of both members in one chunk, as both decode them.
struct Mixer {
    codec: Codec,
    coder: Coder,
    bytes: Vec<u8>,
    /// This member's change and drift, then the partner's.
    said: [Vec<f32>; 4],
}

impl Mixer {
    fn load(
        &mut self,
        elements: usize,
        chunk: usize,
        change: &[f32],
        drift: &[f32],
        theirs: &Theirs,
    ) -> Result<(), String> {
        let [mine, my_drift, other, other_drift] = &mut self.said;
        for vector in [&mut *mine, &mut *my_drift, &mut *other, &mut *other_drift] {
            vector.clear();
            vector.resize(change.len(), 0.0);
        }
        let range = update::chunk_range(self.codec, elements, chunk);
        let read = |bytes: &[u8], to: &mut [f32]| self.coder.decode(bytes, to).map_err(|e| e.to_string());
        read(theirs.change.get(range.clone()).unwrap_or_default(), other)?;
        if let Some(bytes) = &theirs.drift {
            read(bytes.get(range).unwrap_or_default(), other_drift)?;
        }
        // This member's own values are decoded too, so that both members use the values that were sent.
        let drift = theirs.drift.as_ref().map(|_| (drift, my_drift));
        for (values, decoded) in [(change, mine)].into_iter().chain(drift) {
            self.coder.encode(values, &mut self.bytes).map_err(|e| e.to_string())?;
            self.coder.decode(&self.bytes, decoded).map_err(|e| e.to_string())?;
        }
        Ok(())
    }
}

impl Course for Gossip {
    fn work(&mut self, worker: &mut Worker, job: &Round, begun: (Instant, Steps)) -> Worked {
        let (started, elements) = (begun.0, worker.state.read().elements());
        self.begin(job, elements);
        let exchanges = |worker: &mut Worker, made, steps| self.exchanges(worker, job, (made, steps), started);
        let done = worker.steps(job, begun, exchanges);
        // Without its trainer this member comes to no exchange, either.
        if matches!(done, Ok(Ok(_)) | Err(Trouble::Gone(_))) {
            self.end();
        }
        done
    }
}

impl Gossip {
    /// Makes the exchanges that are due after this many steps. False if the head has changed.
    fn exchanges(
        &mut self,
        worker: &mut Worker,
        job: &Round,
        (made, steps): (u32, u32),
        started: Instant,
    ) -> Result<bool, Trouble> {
        let mut goes_on = Ok(true);
        while matches!(goes_on, Ok(true)) && self.is_due(job, made, steps) && !worker.is_to_end(job) {
            let at = Instant::now();
            let step = at.duration_since(started).saturating_sub(worker.waited) / made.max(1);
            goes_on = self.exchange(worker, job, step);
            worker.waited += at.elapsed();
        }
        goes_on
    }

    fn exchange(&mut self, worker: &mut Worker, job: &Round, step: Duration) -> Result<bool, Trouble> {
        let at = Instant::now();
        let mut change = worker.spare();
        change.resize(self.drift.len(), 0.0);
        worker.task.given()?;
        worker.task.read(&mut change)?;
        if !worker.against_state(job, &mut change, |change, theta| change - theta) {
            return Ok(false);
        }
        change.iter_mut().zip(&self.drift).for_each(|(change, drift)| *change -= drift);
        self.done += 1;
        let partner = self.meetings.next(&self.setting.exchanger.me);
        let met = partner.map(|partner| self.meet(worker, job, partner, &change, step));
        self.setting.exchanger.router.over(self.done);
        if matches!(met, Some(Met::Interrupted)) {
            worker.keep(change);
            return Ok(true);
        }
        let theirs = match &met {
            Some(Met::With(theirs)) => Some(theirs),
            _ => None,
        };
        if !self.apply(&mut change, theirs)? {
            let why = format!("parameters became infinite or not a number in round {}: lower inner.lr", job.round);
            return Err(why.into());
        }
        if !worker.against_state(job, &mut change, |drift, theta| theta + drift) {
            return Ok(false);
        }
        worker.task.load(&change)?;
        worker.task.taken()?;
        worker.keep(change);
        let why = match met {
            Some(Met::Alone(why)) => Some(why),
            _ => None,
        };
        let seconds = at.elapsed().as_secs_f64();
        let said = TrainerEvent::Exchanged { round: job.round, exchange: self.done, partner, why, seconds };
        // The event is for watching alone: a full queue drops it.
        let _ = worker.events.try_send(said);
        Ok(true)
    }

    /// Waits for the partner within the time limit, or not at all if it has failed this node before.
    fn meet(&mut self, worker: &mut Worker, job: &Round, partner: NodeId, change: &[f32], step: Duration) -> Met {
        if self.avoided.contains(&partner) {
            return Met::Alone(PairError::Avoided);
        }
        let patience = self.patience(step);
        let key = PairKey { place: self.place, exchange: self.done };
        let drift = (self.done > 1).then_some(self.drift.as_slice());
        let meeting = self.setting.exchanger.meet(key, partner, Offer { change, drift });
        let mut signs = Signs { made: worker.signs, steps: worker.reached, round: job.round, events: &worker.events };
        let watch = async {
            let mut sign = tokio::time::Instant::now() + SIGN.max(step);
            while !worker.is_to_end(job) {
                tokio::time::sleep(LOOK).await;
                if tokio::time::Instant::now() >= sign {
                    signs.give();
                    sign += SIGN.max(step);
                }
            }
        };
        let met = self.setting.runtime.block_on(async {
            tokio::select! {
                biased;
                met = tokio::time::timeout(patience, meeting) => match met {
                    Ok(Ok(theirs)) => Met::With(theirs),
                    Ok(Err(why)) => Met::Alone(why),
                    Err(_) => Met::Alone(PairError::Late { seconds: patience.as_secs_f64() }),
                },
                () = watch => Met::Interrupted,
            }
        });
        worker.signs = signs.made;
        if let Met::Alone(why) = &met {
            self.avoided.insert(partner);
            if let Some(reason) = why.refusal() {
                metrics::counter!("starling_refused_total", "reason" => reason).increment(1);
            }
        }
        met
    }
}

impl Worker {
    fn is_to_end(&self, job: &Round) -> bool {
        self.generation.load(Ordering::Acquire) != job.generation || self.cut.load(Ordering::Acquire) == job.generation
    }

    /// Combines each value with the round's state; false if the head has changed.
    fn against_state(&self, job: &Round, values: &mut [f32], combine: impl Fn(f32, f32) -> f32) -> bool {
        let state = self.state.read();
        if state.base != job.base {
            return false;
        }
        values.iter_mut().zip(&state.state.theta).for_each(|(value, theta)| *value = combine(*value, *theta));
        true
    }
}

/// Shows that a member in an exchange is alive.
struct Signs<'a> {
    made: u32,
    steps: u32,
    round: u64,
    events: &'a mpsc::Sender<TrainerEvent>,
}

impl Signs<'_> {
    fn give(&mut self) {
        self.made += 1;
        let _ = self.events.try_send(TrainerEvent::Exchanging { round: self.round, reached: self.steps + self.made });
    }
}
