//! The seam between rounds of training and what is trained. A task is asked in sample numbers, and told which come
//! next; where a batch comes from is its own affair.

use starling_protocol::Digest;
use starling_store::Store;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// A thing to learn, and the data from which the nodes of a run learn it. One thread owns it.
pub trait Task: Send {
    /// Number of training samples; none if samples have no numbers, so that only their count means anything.
    fn samples(&self) -> Option<u64>;

    /// Hears where it is told since when the node ends: then it waits for nobody for long.
    fn watch(&mut self, _leaving: Arc<OnceLock<Instant>>) {}

    /// Waits until the task can be asked, as long as `goes_on` says that somebody wants it.
    fn ready(&mut self, _goes_on: &dyn Fn() -> bool) -> Ready {
        Ready::AsBefore
    }

    /// Hears where in the run the parameters stand that are loaded next.
    fn stand(&mut self, _place: &Place) {}

    /// Replaces the parameters; what the inner optimizer remembers stays. It waits for nobody, since the state may be
    /// locked: [`Self::taken`] does.
    fn load(&mut self, parameters: &[f32]) -> Result<(), TaskError>;

    /// Waits until the parameters that were loaded are taken over. The state is not locked.
    fn taken(&mut self) -> Result<(), TaskError> {
        Ok(())
    }

    /// Waits until the parameters can be read. The state is not locked.
    fn given(&mut self) -> Result<(), TaskError> {
        Ok(())
    }

    /// Copies the parameters out. It waits for nobody, since the state may be locked: [`Self::given`] does.
    fn read(&mut self, out: &mut [f32]) -> Result<(), TaskError>;

    /// Goes on with another weight decay and another largest norm of a gradient, from the next step on.
    fn amend(&mut self, weight_decay: f64, clip: f64);

    /// Hears which samples the steps to come will have, or those of the next round will most likely have.
    fn lease(&mut self, _coming: Coming<'_>) -> Result<(), TaskError> {
        Ok(())
    }

    /// One step of the inner optimizer on these samples.
    fn step(&mut self, samples: &[u64], at: StepAt) -> Result<Learned, TaskError>;

    /// Instead of a step: writes the mean gradient over these samples into `out`. Nothing else changes.
    fn gradient(&mut self, samples: &[u64], out: &mut [f32]) -> Result<Learned, TaskError>;

    /// Sum of the losses of at most so many held-out samples, and their weight; none if there are none to tell of.
    fn evaluate(&mut self, samples: usize) -> Result<Option<(f64, u64)>, TaskError>;

    /// Takes up what the inner optimizer remembered at the node's last end.
    fn restore(&mut self, store: &Store);

    /// Keeps what the inner optimizer remembers for the node's next start.
    fn save(&mut self, store: &Store);

    /// Hears that rounds cannot go on with what it gave, and why; whether they may be asked for again, so that the node
    /// goes on.
    fn fail(&mut self, _why: &str) -> bool {
        false
    }

    /// A round's contribution is handed over, and nobody waits for the task.
    fn rest(&mut self) -> Result<(), TaskError> {
        Ok(())
    }

    /// The node ends; `over` if the run does.
    fn end(&mut self, _over: bool) {}
}

/// Whether a task can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    AsBefore,
    /// It can, and its parameters are not those that it had.
    Anew,
    /// Nobody wants it any more.
    Unwanted,
}

/// A place in the run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place {
    pub round: u64,
    /// The record that made the parameters.
    pub base: Digest,
    /// Committed tokens.
    pub tokens: u64,
    /// The spent part of the budget, from 0 to 1; 0 without a budget.
    pub progress: f64,
    /// Members that the round expects.
    pub flying: usize,
}

/// A step's place in its round, and its learning rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepAt {
    /// From 0.
    pub step: u32,
    pub lr: f64,
}

/// The samples of the steps to come.
pub struct Coming<'a> {
    pub round: u64,
    /// They are the next round's, as far as can be foreseen.
    pub is_likely: bool,
    pub steps: u32,
    pub samples: u64,
    /// As many numbers, in the order in which steps take them.
    pub numbers: &'a mut dyn Iterator<Item = u64>,
}

/// The result of one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Learned {
    /// Mean over the samples, before the step; in a language model in nats a token.
    pub loss: f64,
    /// The samples' weight; in a language model their tokens.
    pub weight: u64,
}

/// Why a task did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    #[error("the piece {0} of the text is not here")]
    Missing(Digest),
    /// The step is left out, and parameters are as before.
    #[error("{message}")]
    NotFinite { message: String, loss: f64 },
    /// It may come back.
    #[error("{0}")]
    Gone(String),
    #[error("{0}")]
    Failed(String),
}

/// Why a job came to no end.
#[derive(Debug)]
pub enum Trouble {
    /// The node cannot train.
    Failed(String),
    /// The task has lost what it trained with, which may come back.
    Gone(String),
}

impl From<String> for Trouble {
    fn from(message: String) -> Self {
        Self::Failed(message)
    }
}

impl From<TaskError> for Trouble {
    fn from(error: TaskError) -> Self {
        match error {
            TaskError::Gone(why) => Self::Gone(why),
            other => Self::Failed(other.to_string()),
        }
    }
}
