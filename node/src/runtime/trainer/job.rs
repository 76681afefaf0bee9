//! What the device thread is asked to do, and what it says.

use crate::gossip::PairError;
use starling_protocol::record::Span;
use starling_protocol::{Digest, NodeId};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

/// What the device thread is asked to do.
pub enum Job {
    Round(Round),
    Ahead(Ahead),
    /// Take the fragment of this round from the trainer's own parameters as they are, on top of the state of `base`.
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
    /// Digest of the record that made the parameters they start from.
    pub base: Digest,
    pub lineage: Digest,
    /// Whom the head expects: among them are this node's partners.
    pub expected: Vec<NodeId>,
    pub lease: Span,
    /// Steps for the whole lease.
    pub inner_steps: u32,
    /// Committed tokens of the lineage, for the schedule.
    pub tokens: u64,
    /// Validate the parameters first, on this many sequences.
    pub validate: Option<usize>,
    /// The generation of the trainer for which this job is meant; a newer one stops it.
    pub generation: u64,
    pub news: FragmentEvent,
}

/// Some inner steps of the round after the one whose record is being made: over a lease that it will most likely give.
pub struct Ahead {
    pub round: u64,
    /// The record that made the state at hand.
    pub base: Digest,
    pub lease: Span,
    /// Steps for the whole lease, and how many of them may be done.
    pub inner_steps: u32,
    pub steps: u32,
    /// Committed tokens that the record will name.
    pub tokens: u64,
    pub generation: u64,
    pub news: FragmentEvent,
}

/// What the device thread says.
pub enum TrainerEvent {
    Step {
        round: u64,
        step: u32,
        steps: u32,
        /// What the others see of it: steps, and signs of life in exchanges.
        reached: u32,
        loss: f64,
        tokens_per_second: f64,
    },
    /// The trainer waits for a partner, or exchanges with it.
    Exchanging {
        round: u64,
        reached: u32,
    },
    /// An exchange is over; why it came to nothing, if it did. Nobody was left to meet if there is no partner.
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
    Trained(Trained),
    /// The round was stopped, or its parameters are no longer the head's.
    Stopped,
    /// As much as could be was done ahead of a record.
    WentAhead {
        ended: Instant,
    },
    /// A fragment was taken without new steps; none if there is nothing to take it from.
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
    Failed {
        message: String,
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
    /// Pseudo-gradient: head's parameters minus the trained ones, of the fragment whose turn it is. Or the gradient, in runs that average each step.
    pub delta: Arc<Vec<f32>>,
    pub payload: Digest,
    /// L2 norm of what is offered ([`Made`]).
    pub norm: f32,
    pub step_us: u32,
    /// What the inner steps took, those done ahead included.
    pub seconds: f64,
    /// When the last inner step was done.
    pub ended: Instant,
}

/// What the trainer has to know of what was committed since its last job; comes with the next one.
#[derive(Clone, Debug, Default)]
pub struct FragmentEvent {
    /// What it has of its own does not count any more.
    pub start_over: bool,
    /// Fragments that were stepped.
    pub stepped: BTreeSet<usize>,
    /// The record that made the state which the newest COMMIT has stepped, if it is one that this process saw.
    pub before: Option<Digest>,
}

/// A pseudo-gradient, its digest, and the L2 norm of what is offered with it: with what earlier ones have left out.
pub struct Made {
    pub delta: Arc<Vec<f32>>,
    pub payload: Digest,
    pub norm: f32,
}
