//! The ways in which a device can compute an attention.

use super::shape::Shape;
use super::{portable, tensor};
use cubecl::prelude::*;

/// How the kernels compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// In f32 arithmetic, on every device.
    Portable,
    /// On tensor cores: NVIDIA from Ampere on, activations in bf16, a head dimension of 32, 64 or 128.
    TensorCores,
}

/// All ways possible for activations of type `A`, the fastest first.
pub fn ways<R: Runtime, A: Float>(client: &ComputeClient<R>, shape: Shape) -> Vec<Way> {
    let all = [Way::TensorCores, Way::Portable];
    all.into_iter().filter(|&way| check::<R, A>(client, way, shape).is_ok()).collect()
}

/// Whether the device can go this way.
pub(super) fn check<R: Runtime, A: Float>(client: &ComputeClient<R>, way: Way, shape: Shape) -> Result<(), String> {
    shape.sound()?;
    match way {
        Way::Portable => portable::fits(client, shape),
        Way::TensorCores => tensor::fits::<R, A>(client, shape),
    }
}
