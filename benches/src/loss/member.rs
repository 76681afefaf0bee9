//! A member: a trainer with the case's inner optimizer. With every step an optimizer takes the mean gradient of all.

use anyhow::{Context, Result};
use starling_kernels::host::adamw::{self, Update};
use starling_kernels::host::optimizer::{Optimizer, Rule};
use starling_kernels::host::team::Team;
use starling_kernels::{DeviceChoice, ModelConfig, Schema, TrainError, Trainer, TrainerOptions, open_trainer};
use starling_protocol::codec::CodecError;
use std::fmt;

/// The error of a run whose numbers are finite no more.
#[derive(Debug)]
pub struct Diverged;

impl fmt::Display for Diverged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the run diverged")
    }
}

impl std::error::Error for Diverged {}

/// Whether a run ended with this error because its numbers were finite no more: that is a result.
pub fn has_diverged(error: &anyhow::Error) -> bool {
    let step = matches!(error.downcast_ref::<TrainError>(), Some(TrainError::NotFinite { .. }));
    let codec = error.downcast_ref::<CodecError>();
    let codec = matches!(codec, Some(CodecError::NotFinite { .. } | CodecError::TooLarge { .. }));
    step || codec || error.is::<Diverged>()
}

/// An inner optimizer on vectors in memory, for the mean gradient of all members.
pub struct Inner {
    optimizer: Optimizer,
    team: Team,
    schema: Schema,
    options: TrainerOptions,
}

impl Inner {
    pub fn new(rule: Rule, model: &ModelConfig, options: &TrainerOptions) -> Result<Self> {
        let schema = model.schema();
        let optimizer = Optimizer::new(rule, schema.elements());
        let team = Team::new(options.threads).map_err(anyhow::Error::msg)?;
        Ok(Self { optimizer, team, schema, options: options.clone() })
    }

    /// Steps the parameters by a gradient, which is cut to the largest norm before.
    pub fn step(&mut self, theta: &mut [f32], gradient: &[f32], lr: f64) {
        let (options, norm) = (&self.options, adamw::norm(&self.team, gradient));
        let update = Update {
            lr,
            beta1: options.beta1,
            beta2: options.beta2,
            eps: options.eps,
            weight_decay: options.weight_decay,
            gradient_scale: if options.clip > 0.0 && norm > options.clip { options.clip / norm } else { 1.0 },
            step: 0,
        };
        self.optimizer.step(&self.team, update, &self.schema, theta, gradient);
    }
}

/// One member of the flock.
pub struct Member {
    trainer: Box<dyn Trainer>,
}

impl Member {
    pub fn new(device: &DeviceChoice, model: &ModelConfig, options: &TrainerOptions) -> Result<Self> {
        let trainer = open_trainer(device, model, options).with_context(|| format!("--device {device}"))?;
        Ok(Self { trainer })
    }

    /// Replaces the parameters; the optimizer's moments stay.
    pub fn load(&mut self, parameters: &[f32]) -> Result<()> {
        Ok(self.trainer.load(parameters)?)
    }

    /// Copies the parameters out.
    pub fn read(&mut self, out: &mut [f32]) -> Result<()> {
        Ok(self.trainer.read(out)?)
    }

    pub fn step(&mut self, tokens: &[u32], lr: f64) -> Result<()> {
        self.trainer.step(tokens, lr)?;
        Ok(())
    }

    /// Writes the mean gradient of these sequences.
    pub fn gradient(&mut self, tokens: &[u32], out: &mut [f32]) -> Result<()> {
        self.trainer.gradient(tokens, out)?;
        Ok(())
    }

    /// Adds this share of both moments of the optimizer, one behind the other.
    pub fn add_moments(&mut self, share: f32, sum: &mut [f32]) -> Result<()> {
        let mut at = 0;
        Ok(self.trainer.read_moments(&mut |piece| {
            sum[at..].iter_mut().zip(piece).for_each(|(sum, moment)| *sum += share * moment);
            at += piece.len();
            Ok(())
        })?)
    }

    /// Replaces both moments of the optimizer.
    pub fn set_moments(&mut self, moments: &[f32]) -> Result<()> {
        let (now, mut at) = (self.trainer.moments(), 0);
        Ok(self.trainer.write_moments(now, &mut |piece| {
            piece.copy_from_slice(&moments[at..at + piece.len()]);
            at += piece.len();
            Ok(())
        })?)
    }

    /// Nats per token of held-out sequences.
    pub fn evaluate(&mut self, tokens: &[u32]) -> Result<f64> {
        let (nats, count) = self.trainer.evaluate(tokens)?;
        Ok(nats / count.max(1) as f64)
    }
}
