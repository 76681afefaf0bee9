//! Which device trains: asked for by name, or the best that is really there. Never a silent replacement.

mod choice;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
pub(crate) mod graphics;

use crate::config::ModelConfig;
use crate::train::{HostTrainer, Trainer, TrainerOptions};
use std::fmt;

pub use choice::{ChoiceError, DeviceChoice};

/// What kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    Cpu,
    Wgpu,
    Cuda,
}

/// The device of a trainer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    pub kind: DeviceKind,
    /// Number of the device among those of its kind.
    pub index: usize,
    /// As its driver calls it.
    pub name: String,
    /// Why it was taken, as the end of a sentence: "asked for", "the best of 2 adapters".
    pub why: String,
}

impl fmt::Display for DeviceInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            DeviceKind::Cpu => write!(f, "cpu ({})", self.name),
            DeviceKind::Wgpu => write!(f, "wgpu:{} ({})", self.index, self.name),
            DeviceKind::Cuda => write!(f, "cuda:{} ({})", self.index, self.name),
        }
    }
}

/// Why a device cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    #[error(
        "there is no adapter wgpu:{index}; found {found}. Install a Vulkan, Metal or DirectX 12 driver, or take --device cpu"
    )]
    NoAdapter { index: usize, found: String },
    #[error("there is no device cuda:{index}; {found}. Check nvidia-smi, or take --device cpu")]
    NoCuda { index: usize, found: String },
    #[error("this binary was built without CUDA; build it with --features cuda, or take --device wgpu or cpu")]
    WithoutCuda,
    #[error("the device {device} does not start: {reason}. Update its driver, or take --device cpu")]
    Failed { device: String, reason: String },
}

/// Open the chosen device.
pub(crate) fn open(
    choice: &DeviceChoice,
    model: &ModelConfig,
    options: &TrainerOptions,
) -> Result<Box<dyn Trainer>, DeviceError> {
    match *choice {
        DeviceChoice::Cpu => open_cpu("asked for".into(), model, options),
        DeviceChoice::Wgpu(index) => graphics::open(graphics::find(index)?, model, options),
        #[cfg(feature = "cuda")]
        DeviceChoice::Cuda(index) => cuda::open(cuda::find(index)?, model, options),
        #[cfg(not(feature = "cuda"))]
        DeviceChoice::Cuda(_) => Err(DeviceError::WithoutCuda),
        DeviceChoice::Auto => open_best(model, options),
    }
}

/// CUDA, then a graphics card that is no software, then the CPU.
fn open_best(model: &ModelConfig, options: &TrainerOptions) -> Result<Box<dyn Trainer>, DeviceError> {
    #[cfg(feature = "cuda")]
    if let Ok(info) = cuda::find(0) {
        let why = "auto: the first CUDA device".into();
        return cuda::open(DeviceInfo { why, ..info }, model, options);
    }
    let adapters = graphics::adapters();
    let count = adapters.len();
    if let Some(found) = adapters.into_iter().find(|adapter| !adapter.software) {
        let why = format!("auto: the best of {count} graphics adapters");
        return graphics::open(found.because(why), model, options);
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
    match HostTrainer::new(info.clone(), model, options) {
        Ok(trainer) => Ok(Box::new(trainer)),
        Err(reason) => Err(DeviceError::Failed { device: info.to_string(), reason }),
    }
}
