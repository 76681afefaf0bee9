//! A trainer for devices: a decoder-only transformer of the Llama family on CUDA or a graphics adapter, with kernels in
//! cubecl, memory set aside once, and a backward pass without a tape.
//!
//! * [`graphics`], [`cuda`]: the devices of this machine.
//! * [`Opened`]: an open device; [`Session`]: a model on it.
//! * [`attention`], [`products`] and the modules of single operations hold the kernels.
//!
//! Parameters, gradients and moments are f32; activations are bf16 where the device has it, else f32; sums are f32.
//! Nothing here must agree between nodes.

mod attention;
mod buffers;
mod carrier;
mod cross_entropy;
#[cfg(feature = "cuda")]
pub mod cuda;
mod embed;
mod fill;
pub mod graphics;
mod grid;
mod launches;
mod machine;
mod measure;
mod muon;
mod muon_kernel;
mod norm;
mod norm_kernel;
mod opened;
mod optimizer;
mod pass;
#[cfg(feature = "cuda")]
mod pinned;
mod products;
mod rope;
mod session;
mod sizes;
mod swiglu;
mod team;
mod total;
mod transfer;
mod ways;
mod words;

#[cfg(all(test, feature = "cuda"))]
mod cuda_test;
#[cfg(test)]
mod half_test;
#[cfg(test)]
mod norm_test;
#[cfg(test)]
mod step_test;
#[cfg(test)]
mod trial;

pub use buffers::{BATCHES_MAX, Batch, Need};
pub use measure::Timed;
pub use opened::{Device, Opened, settle};
pub use optimizer::{Rule, Update};
pub use session::{Moment, Report, Session};
pub use sizes::{Layout, Sizes, Weight};
pub use ways::Ways;
pub use words::{NO_MEMORY, guarded, plain};
