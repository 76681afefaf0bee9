//! Checks of a caller's inputs, and their split into inputs and targets.

use super::{BATCHES_MAX, TrainError};
use crate::config::ModelConfig;

/// Inputs and targets of some sequences, one after the other.
pub struct Batch {
    pub inputs: Vec<u32>,
    pub targets: Vec<u32>,
}

impl Batch {
    /// Sequences of `seq_len + 1` tokens: all but the last are inputs, all but the first targets.
    pub fn of(tokens: &[u32], seq_len: usize) -> Self {
        let sequences = tokens.chunks_exact(seq_len + 1);
        let inputs = sequences.clone().flat_map(|s| &s[..seq_len]).copied().collect();
        let targets = sequences.flat_map(|s| &s[1..]).copied().collect();
        Self { inputs, targets }
    }
}

/// Checks that every token is in the vocabulary.
pub fn check_vocabulary(tokens: &[u32], vocab: usize) -> Result<(), TrainError> {
    match tokens.iter().position(|&t| t as usize >= vocab) {
        Some(at) => Err(TrainError::Vocabulary { token: tokens[at], at, vocab }),
        None => Ok(()),
    }
}

/// Checks for whole sequences of `seq_len + 1` known tokens, at least one.
pub fn check_sequences(tokens: &[u32], model: &ModelConfig) -> Result<(), TrainError> {
    let length = model.seq_len + 1;
    if tokens.is_empty() || !tokens.len().is_multiple_of(length) {
        let want = format!("whole sequences of {length} are needed");
        return Err(TrainError::Tokens { got: tokens.len(), want });
    }
    check_vocabulary(tokens, model.vocab)
}

/// Checks for 1 to [`BATCHES_MAX`] batches of so many sequences of `seq_len + 1` known tokens. Returns the number of
/// sequences.
pub fn check_batches(tokens: &[u32], model: &ModelConfig, batch: usize) -> Result<usize, TrainError> {
    let length = batch * (model.seq_len + 1);
    let batches = tokens.len() / length.max(1);
    if !(1..=BATCHES_MAX).contains(&batches) || tokens.len() != batches * length {
        let want =
            format!("{batch} sequences of {} are needed, or up to {BATCHES_MAX} times as many", model.seq_len + 1);
        return Err(TrainError::Tokens { got: tokens.len(), want });
    }
    check_vocabulary(tokens, model.vocab)?;
    Ok(batches * batch)
}

/// Checks for one sequence of 1 to `seq_len` known tokens.
pub fn check_prompt(tokens: &[u32], model: &ModelConfig) -> Result<(), TrainError> {
    if tokens.is_empty() || tokens.len() > model.seq_len {
        let want = format!("1 to {} are needed", model.seq_len);
        return Err(TrainError::Tokens { got: tokens.len(), want });
    }
    check_vocabulary(tokens, model.vocab)
}

/// Checks the length of a vector of the model's size.
pub fn check_length(what: &'static str, got: usize, want: usize) -> Result<(), TrainError> {
    if got == want { Ok(()) } else { Err(TrainError::Length { what, got, want }) }
}

/// Checks that a learning rate is finite and not negative.
pub fn check_rate(lr: f64) -> Result<(), TrainError> {
    if lr.is_finite() && lr >= 0.0 { Ok(()) } else { Err(TrainError::LearningRate(lr)) }
}

/// The factor that brings a gradient of this norm below `clip` (0 = no clipping).
pub fn clip_scale(clip: f64, norm: f64) -> f64 {
    if clip > 0.0 && norm > clip { clip / norm } else { 1.0 }
}
