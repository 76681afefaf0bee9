//! Training on a device: checks of inputs, and what the device did not do said in words.

use super::batch::{Batch, check_batches, check_length, check_prompt, check_rate, check_sequences};
use super::session::asked;
use super::{GivePiece, Moments, PIECE, StepReport, TakePiece, TrainError, Trainer, TrainerOptions};
use crate::config::ModelConfig;
use crate::device::DeviceInfo;
use starling_gpu::{Moment, Report, Session, Update};

/// A trainer on a device.
pub struct RemoteTrainer {
    info: DeviceInfo,
    config: ModelConfig,
    /// The run's batch, of which the device may have a part at once.
    options: TrainerOptions,
    /// Sequences on the device at once.
    sequences: usize,
    session: Box<dyn Session>,
    told: Vec<String>,
    elements: usize,
    step: u64,
}

impl RemoteTrainer {
    /// A trainer of an open session, which holds parameters and moments of zero and takes `sequences` at once.
    pub fn new(
        info: DeviceInfo,
        config: &ModelConfig,
        options: &TrainerOptions,
        sequences: usize,
        session: Box<dyn Session>,
        told: Vec<String>,
    ) -> Self {
        let elements = config.schema().elements();
        let (config, options) = (config.clone(), options.clone());
        Self { info, config, options, sequences, session, told, elements, step: 0 }
    }

    /// The device's words as an error.
    fn on_device<R>(&mut self, f: impl FnOnce(&mut dyn Session) -> Result<R, String>) -> Result<R, TrainError> {
        asked(|| f(&mut *self.session)).map_err(|reason| TrainError::Device { device: self.info.to_string(), reason })
    }

    /// Inputs and targets of one step.
    fn batch(&self, tokens: &[u32]) -> Result<Batch, TrainError> {
        check_batches(tokens, &self.config, self.options.batch * self.options.accumulate)?;
        Ok(Batch::of(tokens, self.config.seq_len))
    }

    /// The report of a step over so many tokens, unless its numbers are not finite.
    fn report(&self, report: Report, tokens: usize) -> Result<StepReport, TrainError> {
        let Report { loss, norm: grad_norm, .. } = report;
        if !(loss.is_finite() && grad_norm.is_finite()) {
            return Err(TrainError::NotFinite { step: self.step + 1, loss, grad_norm });
        }
        Ok(StepReport { loss, grad_norm, tokens: tokens as u64 })
    }
}

/// Both moments, in pieces: which, and the places of the piece.
fn pieces(elements: usize) -> impl Iterator<Item = (Moment, std::ops::Range<usize>)> {
    let ranges = move || (0..elements).step_by(PIECE).map(move |start| start..elements.min(start + PIECE));
    [Moment::First, Moment::Second].into_iter().flat_map(move |which| ranges().map(move |range| (which, range)))
}

impl Trainer for RemoteTrainer {
    fn device(&self) -> &DeviceInfo {
        &self.info
    }

    fn told(&self) -> &[String] {
        &self.told
    }

    fn load(&mut self, parameters: &[f32]) -> Result<(), TrainError> {
        check_length("a parameter vector", parameters.len(), self.elements)?;
        self.on_device(|session| session.load(parameters))
    }

    fn read(&mut self, out: &mut [f32]) -> Result<(), TrainError> {
        check_length("a parameter vector", out.len(), self.elements)?;
        self.on_device(|session| session.read(out))
    }

    fn amend(&mut self, weight_decay: f64, clip: f64) {
        (self.options.weight_decay, self.options.clip) = (weight_decay, clip);
    }

    fn step(&mut self, tokens: &[u32], lr: f64) -> Result<StepReport, TrainError> {
        check_rate(lr)?;
        let batch = self.batch(tokens)?;
        let TrainerOptions { rule, beta1, beta2, eps, weight_decay, clip, .. } = self.options;
        let update = Update { rule: rule.into(), lr, beta1, beta2, eps, weight_decay, clip, step: self.step + 1 };
        let report = self.on_device(|session| session.step(&batch.inputs, &batch.targets, &update))?;
        let stepped = self.report(report, batch.inputs.len())?;
        if !report.applied {
            let reason = "its optimizer left out a step whose numbers are finite".into();
            return Err(TrainError::Device { device: self.info.to_string(), reason });
        }
        self.step += 1;
        Ok(stepped)
    }

    fn gradient(&mut self, tokens: &[u32], out: &mut [f32]) -> Result<StepReport, TrainError> {
        check_length("a gradient", out.len(), self.elements)?;
        let batch = self.batch(tokens)?;
        let report = self.on_device(|session| session.gradient(&batch.inputs, &batch.targets, out))?;
        self.report(report, batch.inputs.len())
    }

    fn evaluate(&mut self, tokens: &[u32]) -> Result<(f64, u64), TrainError> {
        check_sequences(tokens, &self.config)?;
        let (length, sequences) = (self.config.seq_len, self.sequences);
        let nats = self.on_device(|session| {
            let mut nats = 0.0;
            for part in tokens.chunks(sequences * (length + 1)) {
                let batch = Batch::of(part, length);
                nats += session.evaluate(&batch.inputs, &batch.targets)?;
            }
            Ok(nats)
        })?;
        Ok((nats, (tokens.len() / (length + 1) * length) as u64))
    }

    fn logits(&mut self, tokens: &[u32]) -> Result<Vec<f32>, TrainError> {
        check_prompt(tokens, &self.config)?;
        self.on_device(|session| session.logits(tokens))
    }

    fn moments(&self) -> Moments {
        Moments { step: self.step, elements: self.elements }
    }

    fn read_moments(&mut self, take: &mut TakePiece) -> Result<(), TrainError> {
        let mut piece = Vec::new();
        for (which, range) in pieces(self.elements) {
            piece.resize(range.len(), 0.0);
            self.on_device(|session| session.read_moment(which, range.start, &mut piece))?;
            take(&piece).map_err(TrainError::Moments)?;
        }
        Ok(())
    }

    fn write_moments(&mut self, moments: Moments, give: &mut GivePiece) -> Result<(), TrainError> {
        check_length("a moment", moments.elements, self.elements)?;
        let mut piece = Vec::new();
        for (which, range) in pieces(self.elements) {
            piece.resize(range.len(), 0.0);
            let written = match give(&mut piece) {
                Ok(()) => self.on_device(|session| session.write_moment(which, range.start, &piece)),
                Err(reason) => Err(TrainError::Moments(reason)),
            };
            if let Err(error) = written {
                self.step = 0;
                self.on_device(|session| session.clear_moments())?;
                return Err(error);
            }
        }
        self.step = moments.step;
        Ok(())
    }
}
