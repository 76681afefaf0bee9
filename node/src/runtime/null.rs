//! A trainer that computes nothing, to measure the cost of a round beside training (`--null-trainer`).

use starling_kernels::{DeviceInfo, GivePiece, Moments, StepReport, TakePiece, TrainError, Trainer};
use std::time::Duration;

/// Number of different amounts by which parameters move: a prime, so that no two chunks of the outer optimizer's
/// moments are alike. A newcomer fetches chunks that are alike only once.
const AMOUNTS: usize = 65_537;

/// A trainer whose steps take a fixed time and move every parameter a little.
pub struct NullTrainer {
    device: DeviceInfo,
    /// The parameters that were loaded. Steps take no processor time of their own: what they move is taken off when the
    /// parameters are read.
    parameters: Vec<f32>,
    amounts: Vec<f32>,
    /// The amounts' factor by which the steps since have moved the parameters.
    moved: f32,
    seq_len: usize,
    /// The time of a step of so many sequences.
    step_time: Duration,
    batch: usize,
    /// Steps until the device fails, for a test of that.
    left: Option<u64>,
}

impl NullTrainer {
    pub fn new(device: DeviceInfo, parameters: usize, (batch, seq_len): (usize, usize), step_time: Duration) -> Self {
        Self {
            device,
            parameters: vec![0.0; parameters],
            amounts: amounts(),
            moved: 0.0,
            seq_len,
            step_time,
            batch,
            left: None,
        }
    }

    /// The same with a device that fails in the step after so many.
    pub fn failing_after(self, steps: Option<u64>) -> Self {
        Self { left: steps, ..self }
    }

    /// Takes the time of a step over these tokens.
    fn spend(&mut self, tokens: &[u32]) -> Result<(), TrainError> {
        let sequences = tokens.len() / (self.seq_len + 1);
        std::thread::sleep(self.step_time.mul_f64(sequences as f64 / self.batch.max(1) as f64));
        match &mut self.left {
            Some(0) => {
                let reason = "it fails after so many steps, as it was asked to".into();
                Err(TrainError::Device { device: self.device.to_string(), reason })
            }
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
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
        self.moved = 0.0;
        Ok(())
    }

    fn read(&mut self, out: &mut [f32]) -> Result<(), TrainError> {
        out.copy_from_slice(&self.parameters);
        let moved = self.moved;
        in_turn(out, &self.amounts, |parameter, amount| *parameter -= moved * amount);
        Ok(())
    }

    fn amend(&mut self, _weight_decay: f64, _clip: f64) {}

    fn step(&mut self, tokens: &[u32], lr: f64) -> Result<StepReport, TrainError> {
        self.spend(tokens)?;
        self.moved += lr as f32 * 1e-3;
        Ok(StepReport { loss: 1.0, grad_norm: 1.0, tokens: self.tokens(tokens) })
    }

    fn gradient(&mut self, tokens: &[u32], out: &mut [f32]) -> Result<StepReport, TrainError> {
        self.spend(tokens)?;
        in_turn(out, &self.amounts, |gradient, amount| *gradient = 1e-3 * amount);
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

/// Amounts from a half to one and a half, in no order.
fn amounts() -> Vec<f32> {
    (0..AMOUNTS).map(|n| 0.5 + (n * 40_503 % AMOUNTS) as f32 / AMOUNTS as f32).collect()
}

/// Changes each value by the next amount; after the last amount comes the first.
fn in_turn(values: &mut [f32], amounts: &[f32], change: impl Fn(&mut f32, f32)) {
    for piece in values.chunks_mut(amounts.len().max(1)) {
        piece.iter_mut().zip(amounts).for_each(|(value, amount)| change(value, *amount));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling_kernels::DeviceKind;
    use starling_protocol::limits::CHUNK_ELEMENTS;
    use std::collections::BTreeSet;

    #[test]
    fn steps_move_what_is_read_until_parameters_are_loaded() {
        let device = DeviceInfo { kind: DeviceKind::Cpu, index: 0, name: "none".into(), why: "asked for".into() };
        let mut trainer = NullTrainer::new(device, 3, (1, 1), Duration::ZERO);
        let mut read = [0.0; 3];
        trainer.load(&[1.0; 3]).expect("as many parameters");
        for _ in 0..2 {
            trainer.step(&[1, 2], 10.0).expect("a step");
        }
        trainer.read(&mut read).expect("as many parameters");
        let want: Vec<f32> = amounts()[..3].iter().map(|amount| 1.0 - 0.02 * amount).collect();
        assert!(read.iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-6), "{read:?} is not {want:?}");
        trainer.load(&[1.0; 3]).expect("as many parameters");
        trainer.read(&mut read).expect("as many parameters");
        assert_eq!(read, [1.0; 3]);
    }

    #[test]
    fn no_two_chunks_move_alike() {
        let mut moved = vec![0.0; 40 * CHUNK_ELEMENTS];
        in_turn(&mut moved, &amounts(), |value, amount| *value -= amount);
        assert!(moved.iter().all(|value| (-1.5..=-0.5).contains(value)));
        let chunks = moved.chunks(CHUNK_ELEMENTS).map(|chunk| chunk.iter().map(|v| v.to_bits()).collect::<Vec<_>>());
        assert_eq!(chunks.collect::<BTreeSet<_>>().len(), 40);
    }
}
