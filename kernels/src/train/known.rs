//! Known answers: a device trains a small model beside the CPU before it is trusted with a large one.
//!
//! Runtimes of devices log a kernel that does not compile, or memory that is not there, and go on with whatever is in
//! their buffers.

use super::batch::clip_scale;
use super::host::HostTrainer;
use super::remote::RemoteTrainer;
use super::session::open_session;
use super::{StepReport, Trainer, TrainerOptions};
use crate::config::ModelConfig;
use crate::device::{DeviceInfo, DeviceKind};
use crate::host::adamw::Update;
use crate::host::optimizer::{Optimizer, Rule};
use crate::host::team::Team;
use crate::init::initial_parameters;
use starling_gpu::{Batch, NO_MEMORY, Opened, Sizes, Ways};

/// Tokens of a known sequence: several tiles of attention, the last one not full.
const TOKENS: usize = 200;
const SEQUENCES: usize = 2;

/// The largest errors, relative to the CPU's numbers: of the loss, of all gradients together, and of one tensor's.
struct Limits {
    loss: f64,
    all: f64,
    one: f64,
}

const BF16: Limits = Limits { loss: 4e-3, all: 2e-2, one: 8e-2 };
const F32: Limits = Limits { loss: 1e-4, all: 1e-3, one: 5e-3 };
/// A step of Muon in bf16: rounding turns directions in which a gradient is next to nothing, and Muon makes all of them
/// of one length.
const MUON: Limits = Limits { all: 0.1, one: 0.2, ..BF16 };

/// A small model with the heads of `model`, so that the same kernels run.
fn small(model: &ModelConfig) -> ModelConfig {
    let kv_heads = model.kv_heads.min(2);
    let heads = kv_heads * (model.heads / model.kv_heads);
    ModelConfig {
        vocab: model.vocab.min(320),
        d_model: heads * model.head_dim(),
        layers: 2,
        heads,
        kv_heads,
        ffn: model.ffn.min(192),
        seq_len: model.seq_len.min(TOKENS),
        ..model.clone()
    }
}

/// Options under which a step is nearly linear in its gradient: `eps` outweighs the second moment's root. Only Lion's
/// and Muon's are not; with Muon the rest takes steps as long as those of matrices, so that they weigh as much.
fn options(rule: Rule) -> TrainerOptions {
    let eps = if rule == Rule::Muon { 1e-3 } else { 0.9 };
    let (beta1, beta2, weight_decay, clip) = (0.9, 0.99, 0.1, 0.5);
    TrainerOptions { batch: SEQUENCES, accumulate: 2, threads: 1, rule, beta1, beta2, eps, weight_decay, clip }
}

/// A rate with which a step moves the loss a little. Lion's steps are as long as the rate in each element, and Muon's a
/// fifth of it.
const fn rate(rule: Rule) -> f64 {
    match rule {
        Rule::Lion => 1e-3,
        Rule::Muon => 1e-2,
        Rule::AdamW | Rule::Sgd | Rule::RmsProp => 0.5,
    }
}

/// Tokens without a pattern that a wrong mask would not show in.
fn tokens(model: &ModelConfig) -> Vec<u32> {
    let count = 2 * SEQUENCES * (model.seq_len + 1);
    let mut state = 1u64;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % model.vocab as u64) as u32
    };
    std::iter::repeat_with(next).take(count).collect()
}

/// Why a device's answers are not known to be right.
pub enum Unknown {
    /// The memory of a small model could not be set aside.
    NoMemory,
    /// It did not do something, or did it otherwise.
    Other(String),
}

impl From<String> for Unknown {
    fn from(reason: String) -> Self {
        Self::Other(reason)
    }
}

/// Whether the device trains as the CPU does, with these ways.
///
/// # Errors
/// The step that the device left out or computed otherwise.
pub fn check(opened: &Opened, model: &ModelConfig, rule: Rule, ways: Ways) -> Result<(), Unknown> {
    let (small, options) = (small(model), options(rule));
    let sizes = Sizes::from(&small);
    let batch = Batch::new(&sizes, SEQUENCES, options.accumulate, ways, rule.into());
    let session = open_session(opened, &sizes, &batch, ways).map_err(|reason| match reason.contains(NO_MEMORY) {
        true => Unknown::NoMemory,
        false => Unknown::Other(reason),
    })?;
    let info = DeviceInfo { kind: DeviceKind::Cpu, index: 0, name: "known answers".into(), why: String::new() };
    let mut host = HostTrainer::new(info.clone(), &small, &options, Vec::new())?;
    let mut device = RemoteTrainer::new(info, &small, &options, SEQUENCES, session, Vec::new());
    let limits = limits(rule, ways.bf16);
    compare(&small, limits, &options, &mut device, &mut host)?;
    Ok(())
}

/// The limits of losses and gradients, and those of a step.
const fn limits(rule: Rule, bf16: bool) -> [&'static Limits; 2] {
    match (rule, bf16) {
        (Rule::Muon, true) => [&BF16, &MUON],
        (_, true) => [&BF16; 2],
        (_, false) => [&F32; 2],
    }
}

/// The words of what a trainer could not do.
fn words(error: super::TrainError) -> String {
    match error {
        super::TrainError::Device { reason, .. } => reason,
        other => other.to_string(),
    }
}

/// The parameters after the first step of the CPU's optimizer from `start`.
fn stepped(
    model: &ModelConfig,
    options: &TrainerOptions,
    start: &[f32],
    gradient: &[f32],
    norm: f64,
) -> Result<Vec<f32>, String> {
    let TrainerOptions { rule, beta1, beta2, eps, weight_decay, clip, .. } = *options;
    let (lr, gradient_scale) = (rate(rule), clip_scale(clip, norm));
    let update = Update { lr, beta1, beta2, eps, weight_decay, gradient_scale, step: 1 };
    let mut theta = start.to_vec();
    let mut optimizer = Optimizer::new(rule, theta.len());
    optimizer.step(&Team::new(1)?, update, &model.schema(), &mut theta, gradient);
    Ok(theta)
}

fn compare(
    model: &ModelConfig,
    [limits, of_step]: [&Limits; 2],
    options: &TrainerOptions,
    device: &mut dyn Trainer,
    host: &mut dyn Trainer,
) -> Result<(), String> {
    let start = initial_parameters(model, 1);
    let (tokens, rate) = (tokens(model), rate(options.rule));
    let mut vectors = [(); 3].map(|()| vec![f32::NAN; start.len()]);
    let [their_gradient, our_gradient, theirs] = &mut vectors;
    device.load(&start).map_err(words)?;
    host.load(&start).map_err(words)?;
    let report = device.gradient(&tokens, their_gradient).map_err(words)?;
    let known = host.gradient(&tokens, our_gradient).map_err(words)?;
    compare_reports("the first loss", limits, &report, &known)?;
    compare_vectors("gradients", model, limits, their_gradient, our_gradient)?;
    device.step(&tokens, rate).map_err(words)?;
    device.read(theirs).map_err(words)?;
    // By the device's gradient: a small difference may change the sign of an element, which is all that Lion takes.
    let mut ours = stepped(model, options, &start, their_gradient, report.grad_norm)?;
    host.load(&ours).map_err(words)?;
    for (theirs, (ours, start)) in theirs.iter_mut().zip(ours.iter_mut().zip(&start)) {
        *theirs -= start;
        *ours -= start;
    }
    compare_vectors("an optimizer's step", model, of_step, theirs, &ours)?;
    let report = device.step(&tokens, rate).map_err(words)?;
    let known = host.gradient(&tokens, our_gradient).map_err(words)?;
    compare_reports("the next loss", limits, &report, &known)
}

fn compare_reports(what: &str, limits: &Limits, device: &StepReport, known: &StepReport) -> Result<(), String> {
    let apart = (device.loss - known.loss).abs() / known.loss;
    let norms = (device.grad_norm - known.grad_norm).abs() / known.grad_norm;
    match apart < limits.loss && norms < limits.all {
        true => Ok(()),
        false => Err(format!(
            "{what} of known tokens is {:.5} where the CPU has {:.5}, and its gradient's norm {:.5} where the CPU has {:.5}",
            device.loss, known.loss, device.grad_norm, known.grad_norm
        )),
    }
}

/// The squares of a difference and of the known numbers.
fn squares(device: &[f32], known: &[f32]) -> [f64; 2] {
    let pairs = device.iter().zip(known).map(|(&a, &b)| (f64::from(a), f64::from(b)));
    pairs.fold([0.0; 2], |[apart, size], (a, b)| [apart + (a - b) * (a - b), size + b * b])
}

fn compare_vectors(
    what: &str,
    model: &ModelConfig,
    limits: &Limits,
    device: &[f32],
    known: &[f32],
) -> Result<(), String> {
    let [apart, size] = squares(device, known);
    let all = (apart / size).sqrt();
    if all.is_nan() || all >= limits.all {
        return Err(format!("{what} of known tokens are {all:.1e} apart from the CPU's (at most {:.0e})", limits.all));
    }
    for tensor in &model.schema().tensors {
        let [apart, own] = squares(&device[tensor.range()], &known[tensor.range()]);
        let one = (apart / own).sqrt();
        // Tensors that weigh next to nothing are mostly rounding.
        if own > 1e-4 * size && one > limits.one {
            let name = &tensor.name;
            return Err(format!("{what} of {name} are {one:.1e} apart from the CPU's (at most {:.0e})", limits.one));
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "known_test.rs"]
mod tests;
