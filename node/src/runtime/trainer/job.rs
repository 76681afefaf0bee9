//! The device thread's jobs and events.

use crate::gossip::PairError;
use starling_protocol::record::{Done, Span};
use starling_protocol::run::{Budget, InnerSpec};
use starling_protocol::{Digest, NodeId};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

/// A job of the device thread.
pub enum Job {
    Round(Round),
    Ahead(Ahead),
    /// Take the fragment of this round from the trainer's own parameters, on top of the state of `base`.
    Retake {
        round: u64,
        base: Digest,
        news: FragmentEvent,
    },
    /// Validate the head's parameters on this many sequences.
    Validate {
        sequences: usize,
    },
}

/// The inner steps of one round.
pub struct Round {
    pub round: u64,
    /// Digest of the record that made the parameters from which they start.
    pub base: Digest,
    pub lineage: Digest,
    /// The members of this node's row that the head expects; its partners are among them.
    pub expected: Vec<NodeId>,
    pub lease: Span,
    /// Steps for the whole lease.
    pub inner_steps: u32,
    /// The work of the lineage so far, for the schedule.
    pub done: Done,
    /// The terms of the run as they are in force in this round.
    pub inner: InnerSpec,
    pub budget: Budget,
    /// Validate the parameters first, on this many sequences.
    pub validate: Option<usize>,
    /// The generation of the trainer for which this job is meant; a newer one stops it.
    pub generation: u64,
    pub news: FragmentEvent,
}

/// Inner steps of the round after the one whose record is being made, over the lease that the record will most likely
/// give.
pub struct Ahead {
    pub round: u64,
    /// The record that made the state at hand.
    pub base: Digest,
    pub lease: Span,
    /// Steps for the whole lease, and the most of them that may be done ahead.
    pub inner_steps: u32,
    pub steps: u32,
    /// The work of the lineage that the record will name.
    pub done: Done,
    pub generation: u64,
    pub news: FragmentEvent,
}

/// An event of the device thread.
pub enum TrainerEvent {
    Step {
        round: u64,
        step: u32,
        steps: u32,
        /// The progress that the others see: steps, and signs of life in exchanges.
        reached: u32,
        loss: f64,
        tokens_per_second: f64,
    },
    /// The trainer waits for a partner, or exchanges with it.
    Exchanging {
        round: u64,
        reached: u32,
    },
    /// An exchange is over; `why` is the reason if it failed. Without a partner no member was left to meet.
    Exchanged {
        round: u64,
        exchange: u32,
        partner: Option<NodeId>,
        why: Option<PairError>,
        seconds: f64,
    },
    Validated {
        round: u64,
        loss: f64,
    },
    /// A validation that was asked for by itself is left out.
    NotValidated,
    Trained(Trained),
    /// The round was stopped, or its parameters are no longer the head's.
    Stopped,
    /// The steps ahead of a record have ended.
    WentAhead {
        ended: Instant,
    },
    /// A fragment was taken without new steps; none if the trainer has no parameters of its own.
    Retaken {
        round: u64,
        base: Digest,
        made: Option<Made>,
    },
    /// A shard is not here yet: fetch it and ask again.
    MissingShard {
        round: u64,
        shard: Digest,
    },
    /// The task has what it trains with, for the first time or again.
    Came,
    /// The task has lost what it trained with beside a round.
    Lost {
        why: String,
    },
    /// The task has lost what it trained with: the round can be asked for again, and begins when that is back.
    Gone {
        why: String,
    },
    Failed {
        message: String,
        /// Because numbers are not finite any more.
        diverged: bool,
    },
}

/// A finished round, or one that was cut short after some steps.
pub struct Trained {
    pub round: u64,
    pub base: Digest,
    pub samples: u64,
    pub tokens: u64,
    pub steps: u32,
    /// Mean over the steps, in nats per token.
    pub loss: f64,
    /// The pseudo-gradient: the head's parameters minus the trained ones, of the fragment whose turn it is. In runs
    /// that average each step it is the gradient.
    pub delta: Arc<Vec<f32>>,
    pub payload: Digest,
    /// L2 norm of the offer ([`Made`]).
    pub norm: f32,
    pub step_us: u32,
    /// Time of the inner steps, those done ahead included.
    pub seconds: f64,
    /// The end of the last inner step.
    pub ended: Instant,
}

/// The commits since the trainer's last job, which it hears of with the next one.
#[derive(Clone, Debug, Default)]
pub struct FragmentEvent {
    /// The trainer's own parameters do not count any more.
    pub start_over: bool,
    /// Fragments that were stepped.
    pub stepped: BTreeSet<usize>,
    /// The record that made the state which the newest COMMIT has stepped, if this process saw that COMMIT.
    pub before: Option<Digest>,
}

/// A pseudo-gradient, its digest, and the L2 norm of the offer: the pseudo-gradient with what earlier ones left out.
pub struct Made {
    pub delta: Arc<Vec<f32>>,
    pub payload: Digest,
    pub norm: f32,
}
