//! The device that trains: asked for by name, or the best that works. A named device is never replaced by another.

mod choice;

use starling_gpu::Device;
use starling_gpu::graphics::{self as adapter, Adapter};
use std::fmt;

pub use choice::{ChoiceError, DeviceChoice};

/// The kind of a device.
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
    /// The name that the device's driver gives.
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

/// Why a device does not train. The last sentence says what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    #[error(
        "there is no adapter wgpu:{index}; found {found}. Install a Vulkan, Metal or DirectX 12 driver, or take --device cpu"
    )]
    NoAdapter { index: usize, found: String },
    #[error("there is no device cuda:{index}; {found}. Check nvidia-smi, or take --device cpu")]
    NoCuda { index: usize, found: String },
    #[error(
        "the driver of this machine's CUDA devices is of CUDA {driver}, and cuda:{index} needs {least} or newer. Update the \
         driver, or take --device cpu"
    )]
    OldDriver { index: usize, driver: String, least: String },
    #[error("this binary was built without CUDA; build it with --features cuda, or take --device wgpu or cpu")]
    WithoutCuda,
    #[error(
        "{device} needs NVRTC, which compiles its kernels, and this machine has none. Install CUDA's toolkit 12 or newer \
         (or Python's packages nvidia-cuda-nvrtc and nvidia-cuda-runtime, with their libraries on LD_LIBRARY_PATH), or \
         take --device cpu"
    )]
    NoCompiler { device: String },
    #[error(
        "{device} needs NVRTC of CUDA {least} or newer, which compiles its kernels, and this machine's is of CUDA \
         {compiler}. Install CUDA's toolkit {least} or newer (or Python's packages nvidia-cuda-nvrtc and \
         nvidia-cuda-runtime, with their libraries on LD_LIBRARY_PATH), or take --device cpu"
    )]
    OldCompiler { device: String, compiler: String, least: String },
    #[error(
        "the driver of {device} is of CUDA {driver}, and does not load the kernels that NVRTC of CUDA {compiler} compiles. \
         Update the driver to one of CUDA {compiler} or newer, or install NVRTC of CUDA {driver}, or take --device cpu"
    )]
    Ahead { device: String, driver: String, compiler: String },
    #[error(
        "{device} needs CUDA's headers, and {headers} has none. Install CUDA's toolkit 12 or newer, or set CUDA_PATH to \
         the folder whose include has cuda_fp16.h, or take --device cpu"
    )]
    NoHeaders { device: String, headers: String },
    #[error(
        "{device} has {free} MiB of memory free, and one sequence of this model takes {need} MiB. Stop other programs on \
         it, set a smaller model.preset or model.seq_len in the run file, or take --device cpu"
    )]
    Memory { device: String, need: u64, free: u64 },
    #[error(
        "{device} does not give the {need} MiB of memory that one sequence of this model takes, though they look free. Stop \
         other programs on it, set a smaller model.preset or model.seq_len in the run file, or take --device cpu"
    )]
    Refused { device: String, need: u64 },
    #[error(
        "{device} takes buffers of at most {most} MiB, and this model has one of {need} MiB. Set a smaller model.preset in \
         the run file, or take --device cpu"
    )]
    Buffer { device: String, need: u64, most: u64 },
    #[error(
        "{device} does not compute what it should: {reason}. None of its numbers is used. Update its driver, or take \
         --device cpu"
    )]
    Untrue { device: String, reason: String },
    #[error("the device {device} does not start: {reason}. Update its driver, or take --device cpu")]
    Failed { device: String, reason: String },
}

/// A device, not yet opened.
pub(crate) struct Found {
    pub info: DeviceInfo,
    pub device: Device,
    software: bool,
}

impl Found {
    pub fn because(mut self, why: String) -> Self {
        self.info.why = why;
        self
    }

    /// Whether the CPU does the device's work.
    pub fn is_software(&self) -> bool {
        self.software
    }
}

/// All graphics adapters, from the best to the least.
pub(crate) fn adapters() -> Vec<Found> {
    let found = adapter::adapters().into_iter().enumerate().map(|(index, adapter)| {
        let Adapter { name, software, .. } = &adapter;
        let info = DeviceInfo { kind: DeviceKind::Wgpu, index, name: name.clone(), why: "asked for".into() };
        Found { info, software: *software, device: Device::Graphics(adapter) }
    });
    found.collect()
}

/// The adapter with this number.
pub(crate) fn graphics(index: usize) -> Result<Found, DeviceError> {
    let mut all = adapters();
    if index < all.len() {
        return Ok(all.swap_remove(index));
    }
    let names: Vec<String> = all.iter().map(|found| found.info.to_string()).collect();
    let found = if names.is_empty() { "none at all".to_string() } else { names.join(", ") };
    Err(DeviceError::NoAdapter { index, found })
}

/// The CUDA device with this number.
#[cfg(feature = "cuda")]
pub(crate) fn cuda(index: usize) -> Result<Found, DeviceError> {
    use starling_gpu::cuda::{Absent, Version, find};
    let name = find(index).map_err(|absent| match absent {
        Absent::OldDriver(version) => {
            let (driver, least) = (version.to_string(), Version::LEAST.to_string());
            DeviceError::OldDriver { index, driver, least }
        }
        Absent::Other(found) => DeviceError::NoCuda { index, found },
    })?;
    let info = DeviceInfo { kind: DeviceKind::Cuda, index, name, why: "asked for".into() };
    Ok(Found { info, software: false, device: Device::Cuda(index) })
}

/// The CUDA device with this number.
#[cfg(not(feature = "cuda"))]
pub(crate) fn cuda(_: usize) -> Result<Found, DeviceError> {
    Err(DeviceError::WithoutCuda)
}
