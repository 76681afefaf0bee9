//! The part of a node that runs on a device: the model, its optimizer, and the codecs of updates. This crate knows no
//! peers and no network.
//!
//! * [`ModelConfig`], [`Schema`], [`initial_parameters`]: the trained model, as one flat vector of f32 with named
//!   parts.
//! * [`open_trainer`], [`Trainer`]: steps of an inner optimizer on the CPU, or through `starling-gpu` on a graphics
//!   card (wgpu) or on CUDA.
//! * [`ops`]: the operations that Starling adds to Burn's backends; [`host`] holds the numerics of the CPU's.
//! * [`codec`]: the encodings of updates on the wire, at memory speed.
//!
//! Training is deterministic for a given machine and number of threads. Nothing here must agree between nodes, except
//! [`initial_parameters`] and the codecs, which are exact everywhere.

pub mod codec;
mod config;
mod device;
pub mod host;
mod init;
mod memory;
mod model;
pub mod ops;
mod schedule;
mod schema;
mod train;

/// Compiled kernels of devices are kept in this folder. Only the first call of a process counts, and only before it opens
/// a device.
pub fn keep_compiled_in(folder: &std::path::Path) {
    starling_gpu::settle(Some(folder));
}

pub use config::{ModelConfig, ModelError};
pub use device::{ChoiceError, DeviceChoice, DeviceError, DeviceInfo, DeviceKind};
pub use init::initial_parameters;
pub use memory::{MemoryEstimate, memory_estimate};
pub use schedule::Schedule;
pub use schema::{Schema, TensorSpec};
pub use train::{
    BATCHES_MAX, GivePiece, Moments, OpenError, OptionsError, StepReport, TakePiece, TrainError, Trainer,
    TrainerOptions, open_trainer, open_untried_trainer,
};
