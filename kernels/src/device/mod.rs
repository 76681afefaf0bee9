//! The device that trains: asked for by name, or the best that works. A named device is never replaced by another.

mod choice;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
pub(crate) mod graphics;

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

/// Why a device is not available.
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
