//! The built-in task: a language model of `kernels`, and a text as a data set of tokens.

use super::moments;
use super::trainer::{Learned, StepAt, Task, TaskError};
use starling_data::{DataError, Dataset};
use starling_kernels::{StepReport, TrainError, Trainer};
use starling_store::Store;
use std::sync::Arc;

/// A model on a device, and the text that it learns.
pub struct LanguageModel {
    trainer: Box<dyn Trainer>,
    data: Arc<Dataset>,
    /// Tokens of a sample.
    seq_len: usize,
    /// The sequences of one step.
    batch: Vec<u32>,
    /// The held-out sequences that were read last.
    validation: Vec<u32>,
}

impl LanguageModel {
    pub fn new(trainer: Box<dyn Trainer>, data: Arc<Dataset>, seq_len: usize) -> Self {
        Self { trainer, data, seq_len, batch: Vec::new(), validation: Vec::new() }
    }

    /// Reads the sequences of one step.
    fn read_batch(&mut self, samples: &[u64]) -> Result<(), TaskError> {
        self.batch.clear();
        for sample in samples {
            self.data.read_train(self.seq_len, *sample, &mut self.batch).map_err(|e| match e {
                DataError::MissingShard { digest } => TaskError::Missing(digest),
                e => TaskError::Failed(e.to_string()),
            })?;
        }
        Ok(())
    }
}

fn failed(error: TrainError) -> TaskError {
    TaskError::Failed(error.to_string())
}

fn learned(report: Result<StepReport, TrainError>) -> Result<Learned, TaskError> {
    match report {
        Ok(report) => Ok(Learned { loss: report.loss, weight: report.tokens }),
        Err(e @ TrainError::NotFinite { loss, .. }) => Err(TaskError::NotFinite { message: e.to_string(), loss }),
        Err(e) => Err(failed(e)),
    }
}

impl Task for LanguageModel {
    fn samples(&self) -> Option<u64> {
        Some(self.data.train_sequences(self.seq_len))
    }

    fn load(&mut self, parameters: &[f32]) -> Result<(), TaskError> {
        self.trainer.load(parameters).map_err(failed)
    }

    fn read(&mut self, out: &mut [f32]) -> Result<(), TaskError> {
        self.trainer.read(out).map_err(failed)
    }

    fn amend(&mut self, weight_decay: f64, clip: f64) {
        self.trainer.amend(weight_decay, clip);
    }

    fn step(&mut self, samples: &[u64], at: StepAt) -> Result<Learned, TaskError> {
        self.read_batch(samples)?;
        learned(self.trainer.step(&self.batch, at.lr))
    }

    fn gradient(&mut self, samples: &[u64], out: &mut [f32]) -> Result<Learned, TaskError> {
        self.read_batch(samples)?;
        learned(self.trainer.gradient(&self.batch, out))
    }

    fn evaluate(&mut self, samples: usize) -> Result<Option<(f64, u64)>, TaskError> {
        if self.validation.len() != samples * (self.seq_len + 1) {
            let read = self.data.validation(self.seq_len, samples as u64);
            self.validation = read.map_err(|e| TaskError::Failed(e.to_string()))?;
        }
        if self.validation.is_empty() {
            return Ok(None);
        }
        self.trainer.evaluate(&self.validation).map(Some).map_err(failed)
    }

    fn restore(&mut self, store: &Store) {
        match moments::restore(&mut *self.trainer, store) {
            Ok(true) => tracing::debug!("restored the inner optimizer's moments"),
            Ok(false) => {}
            Err(e) => tracing::warn!("the inner optimizer starts anew: {}", starling_words::of_chain(e.chain())),
        }
    }

    fn save(&mut self, store: &Store) {
        if let Err(e) = moments::save(&mut *self.trainer, store) {
            let why = starling_words::of_chain(e.chain());
            tracing::warn!("the inner optimizer's moments were not saved: {why}");
        }
    }
}

#[cfg(test)]
#[path = "language_test.rs"]
mod tests;
