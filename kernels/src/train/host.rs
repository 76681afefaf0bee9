//! Training on the CPU, through the fused operations on `Flex`.
//!
//! The parameters live in one flat vector in host memory. The tensors that the model sees are views of it, made again
//! for every pass, so that loading and reading are copies and the optimizer runs over whole vectors.

use super::batch::{Batch, check_batches, check_length, check_prompt, check_rate, check_sequences, clip_scale};
use super::{GivePiece, Moments, PIECE, StepReport, TakePiece, TrainError, Trainer, TrainerOptions};
use crate::config::ModelConfig;
use crate::device::DeviceInfo;
use crate::host::adamw::{self, Update};
use crate::host::optimizer;
use crate::host::rope::Table;
use crate::host::team::Team;
use crate::model::{Model, Weights};
use crate::ops::flex::{Context, Tracked};
use crate::schema::{Layout, Place, Schema};
use burn_backend::{AutodiffBackend, Bytes, DType, TensorData};
use burn_flex::{Flex, FlexTensor};
use std::sync::{Arc, PoisonError};

/// A trainer on the CPU.
pub struct HostTrainer {
    info: DeviceInfo,
    told: Vec<String>,
    config: ModelConfig,
    options: TrainerOptions,
    schema: Schema,
    layout: Layout,
    model: Model,
    context: Context,
    /// f32, flat. A pass shares them with its tensors; between passes the trainer alone has them.
    parameters: Arc<Bytes>,
    moments: HostMoments,
}

/// The optimizer's state, each moment flat, in the order of the schema.
#[derive(Default)]
struct HostMoments {
    step: u64,
    m: Vec<f32>,
    v: Vec<f32>,
}

impl HostTrainer {
    /// Makes a trainer with parameters and moments of zero. `told` is about devices that do not do.
    ///
    /// # Errors
    /// If the operating system gives no threads.
    pub fn new(
        info: DeviceInfo,
        config: &ModelConfig,
        options: &TrainerOptions,
        told: Vec<String>,
    ) -> Result<Self, String> {
        let schema = config.schema();
        let len = schema.elements();
        let rope = Table::new(config.seq_len, config.head_dim(), config.rope_theta);
        Ok(Self {
            info,
            told,
            layout: Layout::of(config),
            model: Model::of(config),
            context: Context::new(Team::new(options.threads)?, rope, len),
            parameters: Arc::new(Bytes::from_elems(vec![0.0f32; len])),
            moments: HostMoments { step: 0, m: vec![0.0; len], v: vec![0.0; len] },
            schema,
            config: config.clone(),
            options: options.clone(),
        })
    }

    fn len(&self) -> usize {
        self.moments.m.len()
    }

    fn view(&self, place: &Place) -> FlexTensor {
        let strides = match place.shape[..] {
            [_, width] => vec![width as isize, 1],
            _ => vec![1],
        };
        let layout = burn_flex::Layout::new(place.shape.clone().into(), strides, place.offset);
        FlexTensor::from_arc(self.parameters.clone(), layout, DType::F32)
    }

    fn weights(&self) -> Weights<Flex> {
        Weights::of(&self.layout, |place| self.view(place))
    }

    fn tracked_weights(&self) -> Weights<Tracked> {
        Weights::of(&self.layout, |place| Tracked::from_inner(self.view(place)).require_grad())
    }

    /// The parameters, to write. No pass is running, so nothing else shares them.
    fn parameters_mut(&mut self) -> Result<&mut [f32], TrainError> {
        let device = self.info.to_string();
        match Arc::get_mut(&mut self.parameters) {
            Some(bytes) => Ok(bytemuck::cast_slice_mut(bytes)),
            None => Err(TrainError::Device { device, reason: "a pass has not ended".into() }),
        }
    }

    /// Adds the gradients of one micro-batch to the context's; returns the loss in mean nats, divided by `accumulate`.
    fn micro_batch(&self, tokens: &[u32], scale: f32) -> f64 {
        let length = self.config.seq_len;
        let batch = Batch::of(tokens, length);
        let weights = self.tracked_weights();
        let [inputs, targets] = [batch.inputs, batch.targets].map(integers);
        let loss = self.model.loss::<Tracked>(&self.context, &weights, inputs, targets, length, scale);
        drop(weights);
        let value = scalar(&loss.primitive);
        // The gradients of the weights are in the context; the container holds none of them.
        drop(Tracked::backward(loss));
        value
    }

    /// Leaves the gradient of the mean loss over all of these sequences in the context.
    fn pass(&mut self, tokens: &[u32]) -> Result<StepReport, TrainError> {
        let (batch, accumulate) = (self.options.batch, self.options.accumulate);
        let count = check_batches(tokens, &self.config, batch * accumulate)? * self.config.seq_len;
        let scale = 1.0 / count as f32;
        let team = self.context.team.clone();
        let (loss, grad_norm) = team.enter(|| {
            let mut gradients = self.context.gradients.lock().unwrap_or_else(PoisonError::into_inner);
            gradients.fill(0.0);
            drop(gradients);
            let parts = tokens.chunks_exact(batch * (self.config.seq_len + 1));
            let loss: f64 = parts.map(|part| self.micro_batch(part, scale)).sum();
            let gradients = self.context.gradients.lock().unwrap_or_else(PoisonError::into_inner);
            (loss, adamw::norm(&team, &gradients))
        });
        if !(loss.is_finite() && grad_norm.is_finite()) {
            return Err(TrainError::NotFinite { step: self.moments.step + 1, loss, grad_norm });
        }
        Ok(StepReport { loss, grad_norm, tokens: count as u64 })
    }

    fn update(&mut self, lr: f64, grad_norm: f64) -> Result<(), TrainError> {
        let (context, options) = (self.context.clone(), &self.options);
        let rule = options.rule;
        let update = Update {
            lr,
            beta1: options.beta1,
            beta2: options.beta2,
            eps: options.eps,
            weight_decay: options.weight_decay,
            gradient_scale: clip_scale(options.clip, grad_norm),
            step: self.moments.step + 1,
        };
        let mut moments = std::mem::take(&mut self.moments);
        let schema = std::mem::replace(&mut self.schema, Schema { tensors: Vec::new() });
        let done = self.parameters_mut().map(|theta| {
            let gradient = context.gradients.lock().unwrap_or_else(PoisonError::into_inner);
            let pair = [&mut moments.m[..], &mut moments.v[..]];
            context.team.enter(|| optimizer::step(rule, &context.team, update, &schema, theta, pair, &gradient));
            moments.step += 1;
        });
        (self.moments, self.schema) = (moments, schema);
        done
    }
}

fn integers(values: Vec<u32>) -> FlexTensor {
    // Tokens are below the vocabulary, hence below 2^20.
    let values: Vec<i32> = values.into_iter().map(|token| token as i32).collect();
    let len = values.len();
    FlexTensor::from_data(TensorData::new(values, [len]))
}

fn scalar(tensor: &FlexTensor) -> f64 {
    tensor.as_slice::<f32>().and_then(|s| s.first()).copied().map_or(f64::NAN, f64::from)
}

impl Trainer for HostTrainer {
    fn device(&self) -> &DeviceInfo {
        &self.info
    }

    fn told(&self) -> &[String] {
        &self.told
    }

    fn load(&mut self, parameters: &[f32]) -> Result<(), TrainError> {
        check_length("a parameter vector", parameters.len(), self.len())?;
        self.parameters_mut()?.copy_from_slice(parameters);
        Ok(())
    }

    fn read(&mut self, out: &mut [f32]) -> Result<(), TrainError> {
        check_length("a parameter vector", out.len(), self.len())?;
        out.copy_from_slice(bytemuck::cast_slice(&self.parameters));
        Ok(())
    }

    fn amend(&mut self, weight_decay: f64, clip: f64) {
        (self.options.weight_decay, self.options.clip) = (weight_decay, clip);
    }

    fn step(&mut self, tokens: &[u32], lr: f64) -> Result<StepReport, TrainError> {
        check_rate(lr)?;
        let report = self.pass(tokens)?;
        self.update(lr, report.grad_norm)?;
        Ok(report)
    }

    fn gradient(&mut self, tokens: &[u32], out: &mut [f32]) -> Result<StepReport, TrainError> {
        check_length("a gradient", out.len(), self.len())?;
        let report = self.pass(tokens)?;
        out.copy_from_slice(&self.context.gradients.lock().unwrap_or_else(PoisonError::into_inner));
        Ok(report)
    }

    fn evaluate(&mut self, tokens: &[u32]) -> Result<(f64, u64), TrainError> {
        check_sequences(tokens, &self.config)?;
        let length = self.config.seq_len;
        let weights = self.weights();
        let mut nats = 0.0;
        for part in tokens.chunks(self.options.batch * (length + 1)) {
            let batch = Batch::of(part, length);
            let [inputs, targets] = [batch.inputs, batch.targets].map(integers);
            let (context, model) = (&self.context, &self.model);
            nats += context.team.enter(|| scalar(&model.loss::<Flex>(context, &weights, inputs, targets, length, 1.0)));
        }
        let sequences = tokens.len() / (length + 1);
        Ok((nats, (sequences * length) as u64))
    }

    fn logits(&mut self, tokens: &[u32]) -> Result<Vec<f32>, TrainError> {
        check_prompt(tokens, &self.config)?;
        let weights = self.weights();
        let inputs = integers(tokens.to_vec());
        let (context, model) = (&self.context, &self.model);
        let logits = context.team.enter(|| model.next_logits::<Flex>(context, &weights, inputs, tokens.len()));
        let out = logits.as_slice().unwrap_or_default().to_vec();
        drop(logits);
        // Prompts have any length, so the pool must not keep buffers for each length.
        context.pool.trim();
        Ok(out)
    }

    fn moments(&self) -> Moments {
        Moments { step: self.moments.step, elements: self.len() }
    }

    fn read_moments(&mut self, take: &mut TakePiece) -> Result<(), TrainError> {
        let mut pieces = [&self.moments.m, &self.moments.v].into_iter().flat_map(|values| values.chunks(PIECE));
        pieces.try_for_each(take).map_err(TrainError::Moments)
    }

    fn write_moments(&mut self, moments: Moments, give: &mut GivePiece) -> Result<(), TrainError> {
        check_length("a moment", moments.elements, self.len())?;
        let HostMoments { step, m, v } = &mut self.moments;
        let given = [&mut *m, &mut *v].into_iter().flat_map(|values| values.chunks_mut(PIECE)).try_for_each(give);
        if given.is_err() {
            m.fill(0.0);
            v.fill(0.0);
        }
        *step = if given.is_ok() { moments.step } else { 0 };
        given.map_err(TrainError::Moments)
    }
}
