//! Training one model on one device.

mod batch;
mod device;
mod host;
mod known;
mod open;
mod remote;
mod session;

use crate::config::ModelConfig;
use crate::device::DeviceInfo;
use crate::host::optimizer::Rule;
use serde::{Deserialize, Serialize};

pub use open::{OpenError, open_trainer, open_untried_trainer};

/// Options of a trainer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainerOptions {
    /// Sequences a micro-batch: the most that are on a device at once. A device without memory for them takes as many
    /// sequences a step in more parts.
    pub batch: usize,
    /// Micro-batches a step.
    pub accumulate: usize,
    /// Threads of the CPU trainer; accelerators ignore it.
    pub threads: usize,
    /// The inner optimizer.
    pub rule: Rule,
    pub beta1: f64,
    pub beta2: f64,
    pub eps: f64,
    /// Applies to matrices (the embedding too), not to the gains of norms.
    pub weight_decay: f64,
    /// Largest global norm of a gradient; 0 = no clipping.
    pub clip: f64,
}

/// Why a trainer cannot step as asked.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum OptionsError {
    #[error("{0} is 0; it must be at least 1")]
    Zero(&'static str),
    #[error("batch ({batch}) x accumulate ({accumulate}) sequences of {seq_len} tokens are too many: at most {max} tokens a step", max = TrainerOptions::TOKENS_MAX)]
    TooManyTokens { batch: usize, accumulate: usize, seq_len: usize },
    #[error("{key} must be a finite number from {low} to below {high}")]
    OutOfRange { key: &'static str, low: f64, high: f64 },
}

impl TrainerOptions {
    /// Tokens of one step.
    pub const TOKENS_MAX: usize = 1 << 30;

    /// # Errors
    /// Names the first option that no trainer can work with.
    pub fn validate(&self, model: &ModelConfig) -> Result<(), OptionsError> {
        let (batch, accumulate, seq_len) = (self.batch, self.accumulate, model.seq_len);
        for (key, value) in [("batch", batch), ("accumulate", accumulate), ("threads", self.threads)] {
            if value == 0 {
                return Err(OptionsError::Zero(key));
            }
        }
        let tokens = batch.checked_mul(accumulate).and_then(|n| n.checked_mul(seq_len));
        if tokens.is_none_or(|n| n > Self::TOKENS_MAX) {
            return Err(OptionsError::TooManyTokens { batch, accumulate, seq_len });
        }
        let ranges = [
            ("beta1", self.beta1, 0.0, 1.0),
            ("beta2", self.beta2, 0.0, 1.0),
            ("eps", self.eps, 1e-30, 1.0),
            ("weight_decay", self.weight_decay, 0.0, 1e6),
            ("clip", self.clip, 0.0, 1e30),
        ];
        for (key, value, low, high) in ranges {
            // A comparison that refuses NaN too.
            if !(value >= low && value < high) {
                return Err(OptionsError::OutOfRange { key, low, high });
            }
        }
        Ok(())
    }
}

/// The outcome of one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepReport {
    /// Mean cross-entropy before the update, in nats per token.
    pub loss: f64,
    /// Global norm of the gradient before clipping.
    pub grad_norm: f64,
    /// Tokens predicted.
    pub tokens: u64,
}

/// A step has at most so many times `accumulate * batch` sequences.
pub const BATCHES_MAX: usize = starling_gpu::BATCHES_MAX;

/// The state of an optimizer without its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moments {
    /// Steps done; AdamW corrects the bias of young moments by it.
    pub step: u64,
    /// Numbers of the first moment, and as many of the second; those of a moment that the rule lacks are zero.
    pub elements: usize,
}

/// Numbers of the moments that are copied at a time: 1 MiB.
const PIECE: usize = 1 << 18;

/// Takes or gives the next numbers of the moments; an error, as text for the user, ends it.
pub type TakePiece<'a> = dyn FnMut(&[f32]) -> Result<(), String> + 'a;
pub type GivePiece<'a> = dyn FnMut(&mut [f32]) -> Result<(), String> + 'a;

/// Why a trainer did not do its task. Parameters and moments are as before, except after `Device` and `Moments`.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TrainError {
    #[error("{what} has {got} numbers; this model needs {want}: it belongs to another model")]
    Length { what: &'static str, got: usize, want: usize },
    #[error("{got} tokens are no batch: {want}")]
    Tokens { got: usize, want: String },
    #[error("token {token} at position {at} is not in the vocabulary of {vocab}: the tokenizer does not fit the model")]
    Vocabulary { token: u32, at: usize, vocab: usize },
    #[error("the learning rate is {0}; it must be a finite number from 0")]
    LearningRate(f64),
    #[error(
        "step {step} was left out: its loss is {loss} and its gradient's norm {grad_norm}; lower the learning rate, or load an earlier checkpoint if this goes on"
    )]
    NotFinite { step: u64, loss: f64, grad_norm: f64 },
    #[error("the optimizer's moments did not change hands: {0}")]
    Moments(String),
    #[error("the device {device} failed: {reason}; restart this node, with --device cpu if it fails again")]
    Device { device: String, reason: String },
}

/// A model on a device, with its optimizer. One thread owns it.
pub trait Trainer: Send {
    /// The device, and why it was chosen.
    fn device(&self) -> &DeviceInfo;

    /// Sentences about how the device was opened: its ways, and what it does not do.
    fn told(&self) -> &[String] {
        &[]
    }

    /// Replaces the parameters; the optimizer's moments stay.
    fn load(&mut self, parameters: &[f32]) -> Result<(), TrainError>;

    /// Copies the parameters out.
    fn read(&mut self, out: &mut [f32]) -> Result<(), TrainError>;

    /// Goes on with another weight decay and another largest norm of a gradient, from the next step on.
    fn amend(&mut self, weight_decay: f64, clip: f64);

    /// One step of the optimizer over `accumulate * batch` sequences of `seq_len + 1` tokens, one after the other, or up
    /// to [`BATCHES_MAX`] times as many.
    fn step(&mut self, tokens: &[u32], lr: f64) -> Result<StepReport, TrainError>;

    /// Instead of a step: writes the mean gradient over as many sequences into `out`, unclipped, in the order of the
    /// parameters. Neither parameters nor moments change; the report's loss and norm are those of [`Trainer::step`].
    fn gradient(&mut self, tokens: &[u32], out: &mut [f32]) -> Result<StepReport, TrainError>;

    /// Sum of nats and number of predicted tokens of any number of sequences of `seq_len + 1` tokens.
    fn evaluate(&mut self, tokens: &[u32]) -> Result<(f64, u64), TrainError>;

    /// Logits of the token that follows `tokens`, of which there are 1 to `seq_len`.
    fn logits(&mut self, tokens: &[u32]) -> Result<Vec<f32>, TrainError>;

    /// The number of the optimizer's steps, and the size of its moments.
    fn moments(&self) -> Moments;

    /// Hands out the moments: all of the first moment, then all of the second, in the order of the schema, in
    /// pieces of at most 1 MiB, so that there is never a second copy of them.
    fn read_moments(&mut self, take: &mut TakePiece) -> Result<(), TrainError>;

    /// Replaces the optimizer's state by numbers in the order of [`Trainer::read_moments`], which it asks for in pieces
    /// of at most 1 MiB.
    ///
    /// # Errors
    /// `Length`: nothing has changed. After any other error the optimizer begins anew: no steps, moments of zero.
    fn write_moments(&mut self, moments: Moments, give: &mut GivePiece) -> Result<(), TrainError>;
}
