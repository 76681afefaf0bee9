//! Causal grouped-query attention without stored scores, forward and backward.
//!
//! A block of queries meets the keys block by block; the softmax is rescaled as its maximum grows, and the log-sum-exp
//! of each row is kept for the backward pass, which computes the scores again (Dao et al. 2022, arXiv 2205.14135; Dao
//! 2023, arXiv 2307.08691). All sums are in f32 and in a fixed order.

mod delta;
mod parts;
pub mod portable;
mod shape;
mod tensor;
mod tensors;
mod way;

pub use shape::Shape;
pub use tensors::{Backward, Forward};
pub use way::{Way, ways};

#[cfg(all(test, feature = "cuda"))]
mod cuda_test;
#[cfg(test)]
mod portable_test;
#[cfg(test)]
mod reference;

use cubecl::prelude::*;
use cubecl::server::Handle;
use way::check;

/// Launches of [`forward`] and of [`backward`].
pub const FORWARD: u32 = 1;
pub const BACKWARD: u32 = 3;

/// Attention of every query to the keys up to its own position. One launch.
///
/// # Errors
///
/// The shape is impossible, or the device cannot go this way.
pub fn forward<R: Runtime, A: Float>(
    client: &ComputeClient<R>,
    way: Way,
    shape: Shape,
    tensors: Forward,
    tally: &Handle,
) -> Result<(), String> {
    check::<R, A>(client, way, shape)?;
    match way {
        Way::Portable => portable::forward::<R, A>(client, shape, tensors, tally),
        Way::TensorCores => {
            tensor::forward::<R, A>(client, shape, tensors, tally);
            Ok(())
        }
    }
}

/// The gradient of [`forward`]. Those of keys and values are sums over the heads of a group, in a fixed order. Three
/// launches.
///
/// # Errors
///
/// The shape is impossible, or the device cannot go this way.
pub fn backward<R: Runtime, A: Float>(
    client: &ComputeClient<R>,
    way: Way,
    shape: Shape,
    tensors: Backward,
    tally: &Handle,
) -> Result<(), String> {
    check::<R, A>(client, way, shape)?;
    delta::rows::<R, A>(client, shape, tensors, tally);
    match way {
        Way::Portable => portable::backward::<R, A>(client, shape, tensors, tally),
        Way::TensorCores => {
            tensor::backward::<R, A>(client, shape, tensors, tally);
            Ok(())
        }
    }
}
