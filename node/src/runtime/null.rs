//! A trainer that computes nothing, to measure the cost of a round beside training (`--null-trainer`).

use starling_kernels::{DeviceInfo, GivePiece, Moments, StepReport, TakePiece, TrainError, Trainer};
use std::time::Duration;

/// A trainer whose steps take a fixed time and move every parameter a little.
pub struct NullTrainer {
    device: DeviceInfo,
    parameters: Vec<f32>,
    seq_len: usize,
    step_time: Duration,
}

impl NullTrainer {
    pub fn new(device: DeviceInfo, parameters: usize, seq_len: usize, step_time: Duration) -> Self {
        Self { device, parameters: vec![0.0; parameters], seq_len, step_time }
    }

    fn tokens(&self, tokens: &[u32]) -> u64 {
        (tokens.len() / (self.seq_len + 1) * self.seq_len) as u64
    }
}

impl Trainer for NullTrainer {
    fn device(&self) -> &DeviceInfo {
        &self.device
    }

    fn load(&mut self, parameters: &[f32]) -> Result<(), TrainError> {
        self.parameters.copy_from_slice(parameters);
        Ok(())
    }

    fn read(&mut self, out: &mut [f32]) -> Result<(), TrainError> {
        out.copy_from_slice(&self.parameters);
        Ok(())
    }

    fn step(&mut self, tokens: &[u32], lr: f64) -> Result<StepReport, TrainError> {
        std::thread::sleep(self.step_time);
        for parameter in &mut self.parameters {
            *parameter -= lr as f32 * 1e-3;
        }
        Ok(StepReport { loss: 1.0, grad_norm: 1.0, tokens: self.tokens(tokens) })
    }

    fn gradient(&mut self, tokens: &[u32], out: &mut [f32]) -> Result<StepReport, TrainError> {
        std::thread::sleep(self.step_time);
        out.fill(1e-3);
        Ok(StepReport { loss: 1.0, grad_norm: 1.0, tokens: self.tokens(tokens) })
    }

    fn evaluate(&mut self, tokens: &[u32]) -> Result<(f64, u64), TrainError> {
        let tokens = self.tokens(tokens);
        Ok((tokens as f64, tokens))
    }

    fn logits(&mut self, _tokens: &[u32]) -> Result<Vec<f32>, TrainError> {
        Ok(vec![0.0])
    }

    fn moments(&self) -> Moments {
        Moments { step: 0, elements: 0 }
    }

    fn read_moments(&mut self, _take: &mut TakePiece) -> Result<(), TrainError> {
        Ok(())
    }

    fn write_moments(&mut self, moments: Moments, _give: &mut GivePiece) -> Result<(), TrainError> {
        match moments.elements {
            0 => Ok(()),
            got => Err(TrainError::Length { what: "a moment", got, want: 0 }),
        }
    }
}
