//! Opens a trainer on the chosen device.

use super::host::HostTrainer;
use super::remote::RemoteTrainer;
use super::{OptionsError, Trainer, TrainerOptions};
use crate::config::{ModelConfig, ModelError};
#[cfg(feature = "cuda")]
use crate::device::cuda;
use crate::device::{DeviceChoice, DeviceError, DeviceInfo, DeviceKind, graphics};
use burn_autodiff::Autodiff;

/// Unit tests are built without accelerators, which take minutes to compile; the tests of the crate have them.
const LEFT_OUT: &str = "left out of this build";

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

/// A trainer for `model` on the chosen device, with parameters and moments of zero: [`Trainer::load`] comes first.
///
/// # Errors
/// If the model or the options are not sound, or the device is not there; another one is never taken instead.
pub fn open_trainer(
    choice: &DeviceChoice,
    model: &ModelConfig,
    options: &TrainerOptions,
) -> Result<Box<dyn Trainer>, OpenError> {
    model.validate()?;
    options.validate(model)?;
    Ok(match *choice {
        DeviceChoice::Cpu => open_cpu("asked for".into(), model, options),
        DeviceChoice::Wgpu(index) => open_graphics(graphics::find(index)?, model, options),
        #[cfg(feature = "cuda")]
        DeviceChoice::Cuda(index) => open_cuda(cuda::find(index)?, model, options),
        #[cfg(not(feature = "cuda"))]
        DeviceChoice::Cuda(_) => Err(DeviceError::WithoutCuda),
        DeviceChoice::Auto => open_best(model, options),
    }?)
}

/// Takes CUDA, then a graphics card that is no software, then the CPU.
fn open_best(model: &ModelConfig, options: &TrainerOptions) -> Result<Box<dyn Trainer>, DeviceError> {
    #[cfg(feature = "cuda")]
    if let Ok(info) = cuda::find(0) {
        let why = "auto: the first CUDA device".into();
        return open_cuda(DeviceInfo { why, ..info }, model, options);
    }
    let adapters = graphics::adapters();
    let count = adapters.len();
    if let Some(found) = adapters.into_iter().find(|adapter| !adapter.software) {
        let why = format!("auto: the best of {count} graphics adapters");
        return open_graphics(found.because(why), model, options);
    }
    let why = match count {
        0 => "auto: there is no graphics adapter",
        _ => "auto: the only graphics adapter is software",
    };
    open_cpu(why.into(), model, options)
}

fn open_cpu(why: String, model: &ModelConfig, options: &TrainerOptions) -> Result<Box<dyn Trainer>, DeviceError> {
    let name = match options.threads {
        1 => "1 thread".to_string(),
        n => format!("{n} threads"),
    };
    let info = DeviceInfo { kind: DeviceKind::Cpu, index: 0, name, why };
    opened(info.clone(), HostTrainer::new(info, model, options))
}

fn open_graphics(
    found: graphics::Found,
    model: &ModelConfig,
    options: &TrainerOptions,
) -> Result<Box<dyn Trainer>, DeviceError> {
    let info = found.info.clone();
    if cfg!(test) {
        return opened::<HostTrainer>(info, Err(LEFT_OUT.into()));
    }
    let trainer = graphics::start(found)
        .and_then(|device| RemoteTrainer::<Autodiff<burn_wgpu::Wgpu>>::new(info.clone(), device, model, options));
    opened(info, trainer)
}

#[cfg(feature = "cuda")]
fn open_cuda(info: DeviceInfo, model: &ModelConfig, options: &TrainerOptions) -> Result<Box<dyn Trainer>, DeviceError> {
    if cfg!(test) {
        return opened::<HostTrainer>(info, Err(LEFT_OUT.into()));
    }
    let device = burn_cuda::CudaDevice::new(info.index);
    opened(info.clone(), RemoteTrainer::<Autodiff<burn_cuda::Cuda>>::new(info, device, model, options))
}

fn opened<T: Trainer + 'static>(
    device: DeviceInfo,
    trainer: Result<T, String>,
) -> Result<Box<dyn Trainer>, DeviceError> {
    match trainer {
        Ok(trainer) => Ok(Box::new(trainer)),
        Err(reason) => Err(DeviceError::Failed { device: device.to_string(), reason }),
    }
}
