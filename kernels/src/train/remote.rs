//! Training on an accelerator: parameters, gradients and moments are tensors on the device.

use super::batch::{Batch, check_length, check_prompt, check_rate, check_sequences, clip_scale};
use super::{GivePiece, Moments, PIECE, StepReport, TakePiece, TrainError, Trainer, TrainerOptions};
use crate::config::ModelConfig;
use crate::device::DeviceInfo;
use crate::model::{Model, Weights};
use crate::ops::Ops;
use crate::ops::composed::Tables;
use crate::schema::{Layout, Place};
use burn_backend::tensor::{FloatTensor, IntTensor};
use burn_backend::{AutodiffBackend, Backend};
use burn_tensor::{Int, Tensor, TensorData, TensorPrimitive};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// One weight and its moments of AdamW, flat.
struct Slot<B: Backend> {
    place: Place,
    value: Tensor<B, 1>,
    m: Tensor<B, 1>,
    v: Tensor<B, 1>,
}

impl<B: Backend> Slot<B> {
    /// The first (0) or second (1) moment.
    fn moment(&mut self, which: usize) -> &mut Tensor<B, 1> {
        if which == 0 { &mut self.m } else { &mut self.v }
    }
}

/// One gradient for each slot; none for a weight that the loss does not depend on.
type Gradients<B> = Vec<Option<Tensor<B, 1>>>;

/// A backend without autodiff.
type Inner<A> = <A as AutodiffBackend>::InnerBackend;

/// A trainer on an accelerator. `A` is the backend with autodiff.
pub struct RemoteTrainer<A: AutodiffBackend> {
    info: DeviceInfo,
    config: ModelConfig,
    options: TrainerOptions,
    layout: Layout,
    model: Model,
    device: A::Device,
    tables: Tables<Inner<A>>,
    tracked_tables: Tables<A>,
    slots: Vec<Slot<Inner<A>>>,
    step: u64,
}

impl<A, B> RemoteTrainer<A>
where
    A: AutodiffBackend<InnerBackend = B, Device = B::Device> + Ops<Context = Tables<A>>,
    B: Ops<Context = Tables<B>>,
{
    /// Makes a trainer with parameters and moments of zero.
    ///
    /// # Errors
    /// The device's error at its first work.
    pub fn new(
        info: DeviceInfo,
        device: B::Device,
        config: &ModelConfig,
        options: &TrainerOptions,
    ) -> Result<Self, String> {
        guarded(|| {
            let layout = Layout::of(config);
            let (positions, dim, theta) = (config.seq_len, config.head_dim(), config.rope_theta);
            let slots = layout.places().into_iter().map(|place| {
                let zeros = || Tensor::zeros([place.len()], &device);
                Slot { place: place.clone(), value: zeros(), m: zeros(), v: zeros() }
            });
            let trainer = Self {
                info,
                slots: slots.collect(),
                tables: Tables::new(positions, dim, theta, &device),
                tracked_tables: Tables::new(positions, dim, theta, &device),
                model: Model::of(config),
                layout,
                config: config.clone(),
                options: options.clone(),
                device: device.clone(),
                step: 0,
            };
            B::sync(&device).map_err(|e| e.to_string()).map(|()| trainer)
        })?
    }

    fn len(&self) -> usize {
        self.slots.iter().map(|slot| slot.place.len()).sum()
    }

    /// Runs `f`, with the panics of a lost device turned into an error.
    fn on_device<R>(&mut self, f: impl FnOnce(&mut Self) -> Result<R, String>) -> Result<R, TrainError> {
        let result = guarded(|| f(self)).and_then(|result| result);
        result.map_err(|reason| TrainError::Device { device: self.info.to_string(), reason })
    }

    fn shaped(&self, place: &Place) -> FloatTensor<B> {
        // Slots are in the order of their offsets.
        let at = self.slots.partition_point(|slot| slot.place.offset < place.offset);
        let value = self.slots[at].value.clone();
        match place.shape[..] {
            [rows, width] => value.reshape([rows, width]).into_primitive().tensor(),
            _ => value.into_primitive().tensor(),
        }
    }

    fn integers(&self, values: Vec<i32>) -> IntTensor<B> {
        let len = values.len();
        Tensor::<B, 1, Int>::from_data(TensorData::new(values, [len]), &self.device).into_primitive()
    }

    /// Adds the gradients of one micro-batch to `gradients`; returns its share of the loss.
    fn micro_batch(&self, tokens: &[u32], scale: f32, gradients: &mut Gradients<B>) -> Result<f64, String> {
        let length = self.config.seq_len;
        let batch = Batch::of(tokens, length);
        let mut leaves: Vec<FloatTensor<A>> = Vec::with_capacity(self.slots.len());
        let weights = Weights::<A>::of(&self.layout, |place| {
            let leaf = A::float_set_require_grad(A::from_inner(self.shaped(place)), true);
            leaves.push(leaf.clone());
            leaf
        });
        let [inputs, targets] = [batch.inputs, batch.targets].map(|values| A::int_from_inner(self.integers(values)));
        let loss = self.model.loss::<A>(&self.tracked_tables, &weights, inputs, targets, length, scale);
        drop(weights);
        let value = Tensor::<B, 1>::from_primitive(TensorPrimitive::Float(A::inner(loss.clone())));
        let mut found = A::backward(loss);
        gradients.resize_with(leaves.len(), || None);
        for (sum, leaf) in gradients.iter_mut().zip(&leaves) {
            let Some(gradient) = A::grad_remove(leaf, &mut found) else { continue };
            let gradient = flat::<B>(gradient);
            *sum = Some(match sum.take() {
                Some(sum) => sum + gradient,
                None => gradient,
            });
        }
        scalar(value)
    }

    /// The gradient of the mean loss over all of these sequences, tensor by tensor, and the report of a step.
    fn pass(&mut self, tokens: &[u32]) -> Result<(Gradients<B>, StepReport), TrainError> {
        let (batch, accumulate) = (self.options.batch, self.options.accumulate);
        check_sequences(tokens, &self.config, Some(batch * accumulate))?;
        let count = batch * accumulate * self.config.seq_len;
        let (gradients, loss, grad_norm) = self.on_device(|this| {
            let (mut gradients, mut loss) = (Vec::new(), 0.0);
            for part in tokens.chunks_exact(batch * (this.config.seq_len + 1)) {
                loss += this.micro_batch(part, 1.0 / count as f32, &mut gradients)?;
            }
            let grad_norm = this.global_norm(&gradients)?;
            Ok((gradients, loss, grad_norm))
        })?;
        if !(loss.is_finite() && grad_norm.is_finite()) {
            return Err(TrainError::NotFinite { step: self.step + 1, loss, grad_norm });
        }
        Ok((gradients, StepReport { loss, grad_norm, tokens: count as u64 }))
    }

    fn global_norm(&self, gradients: &[Option<Tensor<B, 1>>]) -> Result<f64, String> {
        let squares = gradients.iter().flatten().map(|g| g.clone().powi_scalar(2).sum());
        match squares.reduce(|a, b| a + b) {
            Some(total) => Ok(scalar(total)?.sqrt()),
            None => Err("the backward pass made no gradients".into()),
        }
    }

    fn update(&mut self, gradients: Gradients<B>, lr: f64, grad_norm: f64) {
        self.step += 1;
        let o = &self.options;
        let scale = clip_scale(o.clip, grad_norm);
        let exponent = i32::try_from(self.step).unwrap_or(i32::MAX);
        let rate = lr / (1.0 - o.beta1.powi(exponent));
        let root = 1.0 / (1.0 - o.beta2.powi(exponent)).sqrt();
        for (slot, gradient) in self.slots.iter_mut().zip(gradients) {
            let Some(g) = gradient else { continue };
            let g = g.mul_scalar(scale);
            let decay = if slot.place.shape.len() > 1 { o.weight_decay } else { 0.0 };
            slot.m = slot.m.clone().mul_scalar(o.beta1) + g.clone().mul_scalar(1.0 - o.beta1);
            slot.v = slot.v.clone().mul_scalar(o.beta2) + g.powi_scalar(2).mul_scalar(1.0 - o.beta2);
            let divisor = slot.v.clone().sqrt().mul_scalar(root).add_scalar(o.eps);
            let kept = slot.value.clone().mul_scalar(1.0 - lr * decay);
            slot.value = kept - (slot.m.clone() / divisor).mul_scalar(rate);
        }
    }

    /// Fills the moments on the device, piece by piece.
    fn fill_moments(&mut self, give: &mut GivePiece) -> Result<(), String> {
        let mut piece = Vec::new();
        for which in [0, 1] {
            for slot in &mut self.slots {
                let len = slot.place.len();
                let mut parts = Vec::with_capacity(len.div_ceil(PIECE));
                for start in (0..len).step_by(PIECE) {
                    piece.clear();
                    piece.resize(PIECE.min(len - start), 0.0);
                    give(&mut piece)?;
                    parts.push(Tensor::from_data(TensorData::new(piece.clone(), [piece.len()]), &self.device));
                }
                *slot.moment(which) = Tensor::cat(parts, 0);
            }
        }
        Ok(())
    }

    fn clear_moments(&mut self) {
        self.step = 0;
        for slot in &mut self.slots {
            let zeros = || Tensor::zeros([slot.place.len()], &self.device);
            (slot.m, slot.v) = (zeros(), zeros());
        }
    }

    fn upload(&self, values: &[f32], place: &Place) -> Tensor<B, 1> {
        Tensor::from_data(TensorData::new(values[place.range()].to_vec(), [place.len()]), &self.device)
    }
}

/// Runs `f`; a panic (Burn's answer to a device that is gone) becomes its message.
fn guarded<R>(f: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(f)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        text.unwrap_or("it stopped without a message").to_string()
    })
}

fn flat<B: Backend>(tensor: FloatTensor<B>) -> Tensor<B, 1> {
    let len = burn_backend::TensorMetadata::shape(&tensor).num_elements();
    Tensor::from_primitive(TensorPrimitive::Float(B::float_reshape(tensor, [len].into())))
}

fn download<B: Backend>(tensor: Tensor<B, 1>) -> Result<Vec<f32>, String> {
    tensor.into_data().to_vec::<f32>().map_err(|e| format!("{e:?}"))
}

fn scalar<B: Backend>(tensor: Tensor<B, 1>) -> Result<f64, String> {
    download(tensor)?.first().copied().map(f64::from).ok_or_else(|| "an empty answer".into())
}

impl<A, B> Trainer for RemoteTrainer<A>
where
    A: AutodiffBackend<InnerBackend = B, Device = B::Device> + Ops<Context = Tables<A>>,
    B: Ops<Context = Tables<B>>,
{
    fn device(&self) -> &DeviceInfo {
        &self.info
    }

    fn load(&mut self, parameters: &[f32]) -> Result<(), TrainError> {
        check_length("a parameter vector", parameters.len(), self.len())?;
        self.on_device(|this| {
            for i in 0..this.slots.len() {
                this.slots[i].value = this.upload(parameters, &this.slots[i].place);
            }
            Ok(())
        })
    }

    fn read(&mut self, out: &mut [f32]) -> Result<(), TrainError> {
        check_length("a parameter vector", out.len(), self.len())?;
        self.on_device(|this| {
            for slot in &this.slots {
                out[slot.place.range()].copy_from_slice(&download(slot.value.clone())?);
            }
            Ok(())
        })
    }

    fn amend(&mut self, weight_decay: f64, clip: f64) {
        (self.options.weight_decay, self.options.clip) = (weight_decay, clip);
    }

    fn step(&mut self, tokens: &[u32], lr: f64) -> Result<StepReport, TrainError> {
        check_rate(lr)?;
        let (gradients, report) = self.pass(tokens)?;
        self.on_device(|this| {
            this.update(gradients, lr, report.grad_norm);
            Ok(())
        })?;
        Ok(report)
    }

    fn gradient(&mut self, tokens: &[u32], out: &mut [f32]) -> Result<StepReport, TrainError> {
        check_length("a gradient", out.len(), self.len())?;
        let (gradients, report) = self.pass(tokens)?;
        self.on_device(|this| {
            for (slot, gradient) in this.slots.iter().zip(gradients) {
                let out = &mut out[slot.place.range()];
                match gradient {
                    Some(gradient) => out.copy_from_slice(&download(gradient)?),
                    None => out.fill(0.0),
                }
            }
            Ok(())
        })?;
        Ok(report)
    }

    fn evaluate(&mut self, tokens: &[u32]) -> Result<(f64, u64), TrainError> {
        check_sequences(tokens, &self.config, None)?;
        let length = self.config.seq_len;
        let nats = self.on_device(|this| {
            let weights = Weights::<B>::of(&this.layout, |place| this.shaped(place));
            let mut nats = 0.0;
            for part in tokens.chunks(this.options.batch * (length + 1)) {
                let batch = Batch::of(part, length);
                let [inputs, targets] = [batch.inputs, batch.targets].map(|values| this.integers(values));
                let loss = this.model.loss::<B>(&this.tables, &weights, inputs, targets, length, 1.0);
                nats += scalar(flat::<B>(loss))?;
            }
            Ok(nats)
        })?;
        Ok((nats, (tokens.len() / (length + 1) * length) as u64))
    }

    fn logits(&mut self, tokens: &[u32]) -> Result<Vec<f32>, TrainError> {
        check_prompt(tokens, &self.config)?;
        self.on_device(|this| {
            let weights = Weights::<B>::of(&this.layout, |place| this.shaped(place));
            let inputs = this.integers(tokens.iter().map(|&t| t as i32).collect());
            download(flat::<B>(this.model.next_logits::<B>(&this.tables, &weights, inputs, tokens.len())))
        })
    }

    fn moments(&self) -> Moments {
        Moments { step: self.step, elements: self.len() }
    }

    fn read_moments(&mut self, take: &mut TakePiece) -> Result<(), TrainError> {
        let taken = self.on_device(|this| {
            for which in [0, 1] {
                for slot in &mut this.slots {
                    let len = slot.place.len();
                    for start in (0..len).step_by(PIECE) {
                        let piece = slot.moment(which).clone().slice(start..len.min(start + PIECE));
                        if let Err(reason) = take(&download(piece)?) {
                            return Ok(Err(reason));
                        }
                    }
                }
            }
            Ok(Ok(()))
        })?;
        taken.map_err(TrainError::Moments)
    }

    fn write_moments(&mut self, moments: Moments, give: &mut GivePiece) -> Result<(), TrainError> {
        check_length("a moment", moments.elements, self.len())?;
        let given = self.on_device(|this| {
            let given = this.fill_moments(give);
            match given {
                Ok(()) => this.step = moments.step,
                Err(_) => this.clear_moments(),
            }
            Ok(given)
        })?;
        given.map_err(TrainError::Moments)
    }
}
