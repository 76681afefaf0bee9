//! Opens a trainer on the chosen device.

use super::device::{open_device, open_untried};
use super::host::HostTrainer;
use super::{OptionsError, Trainer, TrainerOptions};
use crate::config::{ModelConfig, ModelError};
use crate::device::{self, DeviceChoice, DeviceError, DeviceInfo, DeviceKind};

/// Why there is no trainer.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Options(#[from] OptionsError),
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// A trainer for `model` on the chosen device, with parameters and moments of zero: [`Trainer::load`] comes first. A
/// device that is opened has computed a few training steps with known answers.
///
/// # Errors
/// If the model or the options are not sound, or the device is not there or computes something else; a device that was
/// named is never replaced by another.
pub fn open_trainer(
    choice: &DeviceChoice,
    model: &ModelConfig,
    options: &TrainerOptions,
) -> Result<Box<dyn Trainer>, OpenError> {
    model.validate()?;
    options.validate(model)?;
    Ok(match *choice {
        DeviceChoice::Cpu => open_cpu("asked for".into(), model, options, Vec::new()),
        DeviceChoice::Wgpu(index) => open_device(device::graphics(index)?, model, options, Vec::new()),
        DeviceChoice::Cuda(index) => open_device(device::cuda(index)?, model, options, Vec::new()),
        DeviceChoice::Auto => open_best(model, options),
    }?)
}

/// A trainer on a device whose answers are not compared with the CPU's: for checks with drivers that compute nothing, by
/// which launches are counted and failures are shown. Nothing that it computes may be offered to other nodes.
///
/// # Errors
/// As those of [`open_trainer`], but for devices that compute something else.
pub fn open_untried_trainer(
    choice: &DeviceChoice,
    model: &ModelConfig,
    options: &TrainerOptions,
) -> Result<Box<dyn Trainer>, OpenError> {
    model.validate()?;
    options.validate(model)?;
    let found = match *choice {
        DeviceChoice::Wgpu(index) => device::graphics(index)?,
        DeviceChoice::Cuda(index) => device::cuda(index)?,
        DeviceChoice::Auto | DeviceChoice::Cpu => return open_trainer(choice, model, options),
    };
    Ok(open_untried(found, model, options)?)
}

/// Takes CUDA, then a graphics card that is no software, then the CPU. A device that is there and does not do is told.
fn open_best(model: &ModelConfig, options: &TrainerOptions) -> Result<Box<dyn Trainer>, DeviceError> {
    let mut told = Vec::new();
    let found = device::cuda(0).map(|found| found.because("auto: the first CUDA device".into()));
    match found.and_then(|found| open_device(found, model, options, Vec::new())) {
        Ok(trainer) => return Ok(trainer),
        Err(DeviceError::NoCuda { .. } | DeviceError::WithoutCuda) => {}
        Err(error) => told.push(format!("{error}. Until then auto takes the next best device")),
    }
    let adapters = device::adapters();
    let count = adapters.len();
    if let Some(found) = adapters.into_iter().find(|found| !found.is_software()) {
        let why = format!("auto: the best of {count} graphics adapters");
        match open_device(found.because(why), model, options, told.clone()) {
            Ok(trainer) => return Ok(trainer),
            Err(error) => told.push(format!("{error}. Until then auto takes the CPU")),
        }
    }
    let why = match (told.is_empty(), count) {
        (false, _) => "auto: no other device does",
        (true, 0) => "auto: there is no graphics adapter",
        (true, _) => "auto: the only graphics adapter is software",
    };
    open_cpu(why.into(), model, options, told)
}

fn open_cpu(
    why: String,
    model: &ModelConfig,
    options: &TrainerOptions,
    told: Vec<String>,
) -> Result<Box<dyn Trainer>, DeviceError> {
    let name = match options.threads {
        1 => "1 thread".to_string(),
        n => format!("{n} threads"),
    };
    let info = DeviceInfo { kind: DeviceKind::Cpu, index: 0, name, why };
    match HostTrainer::new(info.clone(), model, options, told) {
        Ok(trainer) => Ok(Box::new(trainer)),
        Err(reason) => Err(DeviceError::Failed { device: info.to_string(), reason }),
    }
}
