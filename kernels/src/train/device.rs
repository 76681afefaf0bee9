//! Opens a device: the fastest of its ways that gives known answers, and the largest micro-batch for which it has memory.

use super::known::{self, Unknown};
use super::remote::RemoteTrainer;
use super::session::open_session;
use super::{Trainer, TrainerOptions};
use crate::config::ModelConfig;
use crate::device::{DeviceError, DeviceInfo, Found};
use crate::host::optimizer::Rule;
use starling_gpu::{Batch, NO_MEMORY, Need, Opened, Session, Sizes, Ways};

/// Memory of a device that compiled kernels, libraries and the batches' tokens take besides.
const BESIDE: u64 = 512 << 20;

/// Chooses the ways of a device; what it finds on the way is told.
type Choose = fn(&Opened, &DeviceInfo, &ModelConfig, Rule, &mut Vec<String>) -> Result<Ways, DeviceError>;

/// A trainer on the device. `told` is what was said before it.
///
/// # Errors
/// The device lacks something, or computes something else than the CPU.
pub fn open_device(
    found: Found,
    model: &ModelConfig,
    options: &TrainerOptions,
    told: Vec<String>,
) -> Result<Box<dyn Trainer>, DeviceError> {
    open(found, model, options, told, true_ways)
}

/// A trainer on a device whose answers nobody has compared: its first way is taken.
///
/// # Errors
/// The device lacks something.
pub fn open_untried(
    found: Found,
    model: &ModelConfig,
    options: &TrainerOptions,
) -> Result<Box<dyn Trainer>, DeviceError> {
    open(found, model, options, Vec::new(), |opened, info, model, _, _| {
        opened.ways(&Sizes::from(model)).first().copied().ok_or_else(|| no_way(info))
    })
}

fn open(
    found: Found,
    model: &ModelConfig,
    options: &TrainerOptions,
    mut told: Vec<String>,
    choose: Choose,
) -> Result<Box<dyn Trainer>, DeviceError> {
    let info = found.info.clone();
    check_toolkit(&found)?;
    let opened = Opened::new(found.device).map_err(|reason| failed(&info, reason))?;
    let sizes = Sizes::from(model);
    check_memory(&opened, &info, &sizes, options)?;
    let ways = choose(&opened, &info, model, options.rule, &mut told)?;
    let (session, sequences) = session(&opened, &info, &sizes, options, ways)?;
    if sequences < options.batch {
        told.push(format!(
            "{info} has memory for {sequences} sequences at a time, and not for inner.batch = {}; a step has as many as \
             before, in more parts",
            options.batch
        ));
    }
    told.push(format!("on {info} {}", session.ways()));
    Ok(Box::new(RemoteTrainer::new(info, model, options, sequences, session, told)))
}

fn failed(info: &DeviceInfo, reason: String) -> DeviceError {
    DeviceError::Failed { device: info.to_string(), reason }
}

fn no_way(info: &DeviceInfo) -> DeviceError {
    DeviceError::Untrue { device: info.to_string(), reason: "it has no way to train this model".into() }
}

#[cfg(feature = "cuda")]
fn check_toolkit(found: &Found) -> Result<(), DeviceError> {
    use starling_gpu::cuda::{Unfit, Version, unfit};
    if found.info.kind != crate::device::DeviceKind::Cuda {
        return Ok(());
    }
    let device = found.info.to_string();
    match unfit() {
        None => Ok(()),
        Some(Unfit::NoCompiler) => Err(DeviceError::NoCompiler { device }),
        Some(Unfit::OldCompiler(compiler)) => {
            let (compiler, least) = (compiler.to_string(), Version::LEAST.to_string());
            Err(DeviceError::OldCompiler { device, compiler, least })
        }
        Some(Unfit::Ahead(ahead)) => Err(too_new(device, ahead)),
        Some(Unfit::NoHeaders(folder)) => Err(DeviceError::NoHeaders { device, headers: folder.display().to_string() }),
    }
}

#[cfg(feature = "cuda")]
fn too_new(device: String, ahead: starling_gpu::cuda::Ahead) -> DeviceError {
    DeviceError::Ahead { device, driver: ahead.driver.to_string(), compiler: ahead.compiler.to_string() }
}

/// The error of a device that has no true way: its NVRTC, where that is newer than its driver.
#[cfg(feature = "cuda")]
fn untrue(info: &DeviceInfo, reason: String) -> DeviceError {
    let device = info.to_string();
    match (info.kind, starling_gpu::cuda::ahead()) {
        (crate::device::DeviceKind::Cuda, Some(ahead)) => too_new(device, ahead),
        _ => DeviceError::Untrue { device, reason },
    }
}

#[cfg(not(feature = "cuda"))]
fn untrue(info: &DeviceInfo, reason: String) -> DeviceError {
    DeviceError::Untrue { device: info.to_string(), reason }
}

#[cfg(not(feature = "cuda"))]
fn check_toolkit(_: &Found) -> Result<(), DeviceError> {
    Ok(())
}

/// Memory for the least part of a step, before anything is set aside.
fn check_memory(
    opened: &Opened,
    info: &DeviceInfo,
    sizes: &Sizes,
    options: &TrainerOptions,
) -> Result<(), DeviceError> {
    let (Some(ways), Some(free)) = (opened.ways(sizes).first().copied(), opened.free_memory()) else { return Ok(()) };
    let Some((sequences, parts)) = divisions(options).last() else { return Ok(()) };
    let batch = Batch::new(sizes, sequences, parts, ways, options.rule.into());
    let need = Need::of(sizes, &batch).total.saturating_add(BESIDE);
    match need <= free {
        true => Ok(()),
        false => Err(DeviceError::Memory { device: info.to_string(), need: need >> 20, free: free >> 20 }),
    }
}

/// The first way that gives known answers.
fn true_ways(
    opened: &Opened,
    info: &DeviceInfo,
    model: &ModelConfig,
    rule: Rule,
    told: &mut Vec<String>,
) -> Result<Ways, DeviceError> {
    let mut first = None;
    for ways in opened.ways(&Sizes::from(model)) {
        match known::check(opened, model, rule, ways) {
            Ok(()) => return Ok(ways),
            Err(Unknown::NoMemory) => {
                return Err(DeviceError::Refused { device: info.to_string(), need: BESIDE >> 20 });
            }
            Err(Unknown::Other(reason)) => {
                told.push(format!("{info} does not do with {ways}: {reason}. Its next way is tried"));
                first.get_or_insert(reason);
            }
        }
    }
    Err(first.map_or_else(|| no_way(info), |reason| untrue(info, reason)))
}

/// The numbers of sequences, from the most, that divide a step evenly.
fn divisions(options: &TrainerOptions) -> impl Iterator<Item = (usize, usize)> {
    let all = options.batch * options.accumulate;
    (1..=options.batch).rev().filter(move |sequences| all.is_multiple_of(*sequences)).map(move |n| (n, all / n))
}

/// The model with the largest micro-batch that fits, and its sequences.
fn session(
    opened: &Opened,
    info: &DeviceInfo,
    sizes: &Sizes,
    options: &TrainerOptions,
    ways: Ways,
) -> Result<(Box<dyn Session>, usize), DeviceError> {
    let (mut least, mut refused) = (Need::default(), false);
    for (sequences, parts) in divisions(options) {
        let batch = Batch::new(sizes, sequences, parts, ways, options.rule.into());
        least = Need::of(sizes, &batch);
        let free = opened.free_memory().unwrap_or(u64::MAX);
        if least.total.saturating_add(BESIDE) > free || least.largest > opened.largest() {
            continue;
        }
        match open_session(opened, sizes, &batch, ways) {
            Ok(session) => return Ok((session, sequences)),
            // Another program may have taken the memory meanwhile.
            Err(reason) if reason.contains(NO_MEMORY) => refused = true,
            Err(reason) => return Err(failed(info, reason)),
        }
    }
    let device = info.to_string();
    if refused {
        return Err(DeviceError::Refused { device, need: least.total >> 20 });
    }
    if least.largest > opened.largest() {
        return Err(DeviceError::Buffer { device, need: least.largest >> 20, most: opened.largest() >> 20 });
    }
    let (need, free) = ((least.total + BESIDE) >> 20, opened.free_memory().unwrap_or_default() >> 20);
    Err(DeviceError::Memory { device, need, free })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::optimizer::is_inner_matrix;
    use crate::schema::Layout;

    #[test]
    fn the_devices_layout_is_the_hosts_in_its_order() {
        for tied in [true, false] {
            let model = ModelConfig { tied, kv_heads: 2, ..ModelConfig::preset("0.1m").unwrap() };
            let host = Layout::of(&model);
            let device = starling_gpu::Layout::of(&Sizes::from(&model));
            let theirs: Vec<_> = device.weights().iter().map(|weight| (weight.host, weight.elements())).collect();
            let ours: Vec<_> = host.places().iter().map(|place| (place.offset, place.len())).collect();
            assert_eq!(theirs, ours);
            let inner =
                device.inner_matrices().into_iter().map(|matrix| (matrix.host, vec![matrix.rows, matrix.width]));
            let schema = model.schema();
            let known = schema.tensors.iter().filter(|tensor| is_inner_matrix(tensor));
            assert!(inner.eq(known.map(|tensor| (tensor.offset, tensor.shape.clone()))), "Muon's matrices");
            assert_eq!(device.host, model.schema().elements());
        }
    }

    #[test]
    fn a_step_is_divided_evenly() {
        let (rule, beta1, beta2, eps, weight_decay, clip) = (Rule::AdamW, 0.9, 0.99, 1e-8, 0.0, 0.0);
        let options =
            TrainerOptions { batch: 6, accumulate: 2, threads: 1, rule, beta1, beta2, eps, weight_decay, clip };
        assert_eq!(divisions(&options).collect::<Vec<_>>(), [(6, 2), (4, 3), (3, 4), (2, 6), (1, 12)]);
    }
}
