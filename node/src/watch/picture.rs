//! The present state of the node and of its flock, as a person at the terminal sees it.

use super::event::{Committed, Event};
use super::names::Names;
use super::pace::Pace;
use super::words;
use std::time::{Duration, Instant};

/// The part of its way to a new figure that a smoothed loss takes with each commit.
const LOSS_STEP: f64 = 0.2;
/// The same of a rate of bytes, with each look.
const RATE_STEP: f64 = 0.5;

/// A node's work between the begin of its training and its first step, which takes long if kernels are compiled.
pub const FIRST_STEP: &str =
    "loads the model, measures the loss on held-out text if that is due, then makes the first step";

/// The knowledge of the engine and the network at one moment.
#[derive(Clone, Debug, Default)]
pub struct Glance {
    /// The lineage; none before a flock has been met.
    pub lineage: Option<String>,
    /// `voter`, `learner` or nothing.
    pub role: Option<String>,
    /// Members, and how many of them are connected, this node included.
    pub members: usize,
    pub members_here: usize,
    pub voters: usize,
    pub voters_here: usize,
    /// Enough voters are here to decide.
    pub quorum: bool,
    /// The fate of a flock of two when one is lost; empty in any other flock.
    pub if_lost: Vec<String>,
    /// Connected nodes of the run that are no members.
    pub guests: usize,
    /// The node's work, as a sentence without an end.
    pub doing: String,
    /// The node's inner steps are its work.
    pub trains: bool,
    /// Bytes since the start, all protocols.
    pub sent: u64,
    pub received: u64,
    /// Connected nodes by their ids, each with its name if it has one.
    pub names: Vec<(String, Option<String>)>,
}

/// The inner steps of a round.
#[derive(Clone, Copy, Debug)]
pub struct Steps {
    pub round: u64,
    pub step: u32,
    pub steps: u32,
    pub at: Instant,
    /// The first step of this round that was shown, and its time.
    first: (u32, Instant),
    /// Seconds of a step, once two are known.
    seconds: Option<f64>,
}

impl Steps {
    fn after(before: Option<&Steps>, (round, step, steps): (u64, u32, u32), at: Instant) -> Self {
        let same = before.filter(|before| before.round == round && before.first.0 <= step);
        let first = same.map_or((step, at), |before| before.first);
        let count = step - first.0;
        let took = at.saturating_duration_since(first.1).as_secs_f64();
        let seconds = if count > 0 { Some(took / f64::from(count)) } else { before.and_then(|before| before.seconds) };
        Self { round, step, steps, at, first, seconds }
    }

    /// Seconds until the last step of the round is done; none before two steps are known.
    pub fn left(&self, now: Instant) -> Option<f64> {
        let since = now.saturating_duration_since(self.at).as_secs_f64();
        let of = |seconds: f64| (f64::from(self.steps.saturating_sub(self.step)) * seconds - since).max(0.0);
        self.seconds.map(of)
    }
}

/// Bytes a second, both ways.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Traffic {
    pub out: f64,
    pub into: f64,
}

/// The training goes wrong.
#[derive(Clone, Debug)]
pub struct Warning {
    pub text: String,
    /// The flock's loss, that of this node's last step, and that on held-out text when it was said.
    loss: Option<f64>,
    step_loss: Option<f64>,
    validation: Option<f64>,
}

impl Warning {
    fn new(text: String, picture: &Picture) -> Self {
        let Picture { loss, step_loss, validation, .. } = *picture;
        Self { text, loss, step_loss, validation }
    }

    /// Whether the losses since then show that the training has recovered. The warning may come of this node's losses or
    /// of the flock's.
    fn is_over(&self, picture: &Picture) -> bool {
        let is_below = |now: Option<f64>, then: Option<f64>, part: f64| match (now, then) {
            (Some(now), Some(then)) => now.is_finite() && (then.is_nan() || now < then * part),
            _ => false,
        };
        is_below(picture.loss, self.loss, 0.5)
            || is_below(picture.step_loss, self.step_loss, 0.5)
            || is_below(picture.validation, self.validation, 1.0)
    }
}

/// The whole picture.
#[derive(Debug)]
pub struct Picture {
    /// The full id of this node.
    pub node: String,
    pub run: String,
    /// Rounds and tokens of the run; 0 is no bound.
    pub budget: (u64, u64),
    /// The run learns from text, so that its losses are nats per token. Others have units that only their users know.
    pub of_text: bool,
    /// The node's work before it flies and at its end, and since when.
    pub stage: Option<(String, Instant)>,
    /// The run is at its end, so that the stage is what the node does.
    ends: bool,
    /// The time at which this node began to train, while no step of the round is done.
    pub training_since: Option<Instant>,
    pub steps: Option<Steps>,
    /// The last committed round.
    pub committed: Option<u64>,
    pub pace: Pace,
    /// Tokens a second of this node's inner steps.
    pub own_pace: Option<f64>,
    /// Losses: of the flock's rounds, smoothed; of this node's last step; and on held-out text.
    pub loss: Option<f64>,
    pub step_loss: Option<f64>,
    pub validation: Option<f64>,
    pub warning: Option<Warning>,
    pub names: Names,
    pub glance: Option<Glance>,
    pub traffic: Traffic,
    looked: Option<Instant>,
    /// The last notable event.
    pub last: Option<(String, Instant)>,
}

impl Picture {
    pub fn new(node: String) -> Self {
        Self {
            node,
            run: String::new(),
            budget: (0, 0),
            of_text: true,
            stage: None,
            ends: false,
            training_since: None,
            steps: None,
            committed: None,
            pace: Pace::default(),
            own_pace: None,
            loss: None,
            step_loss: None,
            validation: None,
            warning: None,
            names: Names::default(),
            glance: None,
            traffic: Traffic::default(),
            looked: None,
            last: None,
        }
    }

    /// Takes an event in.
    pub fn take(&mut self, event: &Event, now: Instant) {
        match event {
            Event::Waiting { on, why } if self.glance.is_none() => {
                self.stage = Some((words::waiting(&self.names.list(on), why), now));
            }
            Event::Phase { phase, .. } => self.phase(phase, now),
            Event::Step { round, step, steps, loss, tokens_per_second } => {
                (self.stage, self.training_since) = (None, None);
                self.steps = Some(Steps::after(self.steps.as_ref(), (*round, *step, *steps), now));
                (self.step_loss, self.own_pace) = (Some(*loss), Some(*tokens_per_second));
            }
            Event::Committed(committed) => self.commit(committed, now),
            Event::Validated { loss, .. } => self.validation = Some(*loss),
            Event::Diverges { round, why } => {
                let text = format!("the training diverges (round {round}): {why}");
                self.warning = Some(Warning::new(text, self));
            }
            _ => {}
        }
        if self.warning.as_ref().is_some_and(|warning| warning.is_over(self)) {
            self.warning = None;
        }
    }

    fn phase(&mut self, phase: &str, now: Instant) {
        self.training_since = (phase == "training").then_some(now);
        self.ends = phase == "finished";
        self.stage = self.ends.then(|| {
            let doing = "the run's budget is spent: writes the model, measures it, and hands it to the others";
            (doing.to_owned(), now)
        });
    }

    fn commit(&mut self, committed: &Committed, now: Instant) {
        self.stage = None;
        self.committed = Some(committed.round);
        self.pace.committed(committed.round, committed.tokens, now);
        if committed.timing.tokens_per_second > 0.0 {
            self.own_pace = Some(committed.timing.tokens_per_second);
        }
        self.loss = Some(match self.loss {
            Some(before) if before.is_finite() => before + (committed.loss - before) * LOSS_STEP,
            _ => committed.loss,
        });
    }

    /// Takes in what the engine and the network know now.
    pub fn look(&mut self, glance: Glance, now: Instant) {
        if let (Some(before), Some(at)) = (&self.glance, self.looked) {
            let seconds = now.saturating_duration_since(at).as_secs_f64().max(1e-3);
            let rate =
                |rate: f64, from: u64, to: u64| rate + (to.saturating_sub(from) as f64 / seconds - rate) * RATE_STEP;
            self.traffic = Traffic {
                out: rate(self.traffic.out, before.sent, glance.sent),
                into: rate(self.traffic.into, before.received, glance.received),
            };
        }
        if !self.ends {
            self.stage = None;
        }
        self.names.here(&self.node, &glance.names);
        (self.glance, self.looked) = (Some(glance), Some(now));
    }

    /// The round under way.
    pub fn round(&self) -> u64 {
        let next = self.committed.map_or(0, |round| round + 1).max(self.steps.map_or(0, |steps| steps.round));
        let (most, _) = self.budget;
        if most > 0 { next.min(most) } else { next }
    }

    /// The inner steps of the round under way, if it has any yet.
    pub fn steps_now(&self) -> Option<&Steps> {
        self.steps.as_ref().filter(|steps| self.committed.is_none_or(|round| steps.round > round))
    }

    /// The time for which this node has trained without a step.
    pub fn first_step_for(&self, now: Instant) -> Option<Duration> {
        self.training_since.map(|since| now.saturating_duration_since(since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::event::RoundTiming;

    fn step(round: u64, step: u32) -> Event {
        Event::Step { round, step, steps: 10, loss: 3.0, tokens_per_second: 500.0 }
    }

    fn committed(round: u64, loss: f64) -> Event {
        Event::Committed(Committed {
            seq: round,
            round,
            record: String::new(),
            lineage: String::new(),
            state_root: String::new(),
            contributors: Vec::new(),
            members: 1,
            voters: 1,
            inner_steps: 10,
            codec: "bf16".into(),
            bits_per_value: 16.0,
            tokens: round * 1000,
            loss,
            bytes_sent: 0,
            timing: RoundTiming::default(),
        })
    }

    #[test]
    fn the_steps_of_the_first_round_have_an_end_after_two() {
        let (mut picture, start) = (Picture::new("1a2b".into()), Instant::now());
        let second = Duration::from_secs(1);
        picture.take(&Event::Phase { phase: "training".into(), round: 1 }, start);
        assert_eq!(picture.first_step_for(start + 7 * second), Some(7 * second));
        picture.take(&step(1, 1), start + 20 * second);
        let steps = *picture.steps_now().expect("a step was made");
        assert_eq!((steps.left(start + 20 * second), picture.training_since), (None, None), "one step says little");
        picture.take(&step(1, 3), start + 24 * second);
        let steps = *picture.steps_now().expect("steps were made");
        assert_eq!(steps.left(start + 24 * second), Some(14.0), "the first step took longer and does not count");
        assert_eq!(steps.left(start + 26 * second), Some(12.0));
        picture.take(&committed(1, 3.0), start + 40 * second);
        assert!(picture.steps_now().is_none(), "the round is over");
        picture.take(&step(2, 1), start + 41 * second);
        let steps = *picture.steps_now().expect("the next round's");
        assert_eq!(steps.left(start + 41 * second), Some(18.0), "the pace of the round before");
        assert_eq!(picture.round(), 2);
    }

    #[test]
    fn losses_are_smoothed_and_rates_follow_the_bytes() {
        let (mut picture, now) = (Picture::new("1a2b".into()), Instant::now());
        picture.take(&committed(1, 4.0), now);
        assert_eq!(picture.loss, Some(4.0));
        picture.take(&committed(2, 3.0), now);
        assert!(picture.loss.is_some_and(|loss| (loss - 3.8).abs() < 1e-9), "{:?}", picture.loss);
        let glance = |sent| Glance { sent, ..Glance::default() };
        picture.look(glance(1000), now);
        assert_eq!(picture.traffic, Traffic::default());
        for second in 1..20 {
            picture.look(glance(1000 + second * 500), now + Duration::from_secs(second));
        }
        assert!((picture.traffic.out - 500.0).abs() < 1.0 && picture.traffic.into == 0.0, "{:?}", picture.traffic);
    }

    #[test]
    fn a_warning_stays_until_the_losses_have_recovered() {
        let (mut picture, now) = (Picture::new("1a2b".into()), Instant::now());
        let diverges = Event::Diverges { round: 3, why: "the loss is 40".into() };
        let validated = |loss| Event::Validated { round: 1, loss, nats_per_byte: Some(loss) };
        for event in [validated(2.0), committed(1, 40.0), diverges.clone(), committed(2, 40.0), validated(30.0)] {
            picture.take(&event, now);
        }
        assert!(picture.warning.as_ref().is_some_and(|warning| warning.text.contains("the loss is 40")));
        for round in 3..10 {
            picture.take(&committed(round, 2.0), now);
        }
        assert!(picture.warning.is_none(), "the loss has halved");
        for event in [validated(3.0), diverges, validated(3.1)] {
            picture.take(&event, now);
        }
        assert!(picture.warning.is_some());
        picture.take(&validated(2.9), now);
        assert!(picture.warning.is_none(), "it falls again");
    }

    /// The flock's loss may never have been high, so that it cannot halve.
    #[test]
    fn a_warning_of_this_node_s_losses_ends_with_them() {
        let (mut picture, now) = (Picture::new("1a2b".into()), Instant::now());
        let step = |round, loss| Event::Step { round, step: 1, steps: 10, loss, tokens_per_second: 500.0 };
        let diverges = Event::Diverges { round: 3, why: "the loss is 40".into() };
        for event in [committed(2, 2.0), step(3, 40.0), diverges, committed(3, 2.0), step(4, 30.0)] {
            picture.take(&event, now);
        }
        assert!(picture.warning.is_some());
        picture.take(&step(5, 2.0), now);
        assert!(picture.warning.is_none());
    }

    #[test]
    fn a_wait_is_shown_until_the_engine_is_asked() {
        let (mut picture, now) = (Picture::new("1a2b".into()), Instant::now());
        let wait = Event::Waiting { on: Vec::new(), why: "a peer that has the run's text".into() };
        picture.take(&wait, now);
        let stage = picture.stage.as_ref().map(|(text, _)| text.as_str());
        assert_eq!(stage, Some("waiting: a peer that has the run's text"));
        picture.take(&step(1, 1), now);
        assert!(picture.stage.is_none());
        picture.look(Glance::default(), now);
        picture.take(&wait, now);
        assert!(picture.stage.is_none(), "the engine knows better");
        picture.take(&Event::Phase { phase: "finished".into(), round: 1 }, now);
        picture.look(Glance::default(), now);
        assert!(picture.stage.is_some_and(|(text, _)| text.contains("budget is spent")));
    }
}
