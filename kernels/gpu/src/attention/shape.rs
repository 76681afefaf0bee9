//! Sizes of an attention, and the ways in which a device can compute it.

use super::portable;
use crate::sizes::Sizes;
use cubecl::ir::features::MmaConfig;
use cubecl::ir::{ElemType, FloatKind, StorageType};
use cubecl::prelude::*;

/// Sizes of one attention layer's call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Sequences.
    pub batch: usize,
    /// Tokens of each sequence.
    pub tokens: usize,
    /// Heads of the queries.
    pub heads: usize,
    /// Heads of the keys and of the values; a divisor of `heads`.
    pub kv_heads: usize,
    /// Elements of one head's vector.
    pub head_dim: usize,
}

impl Shape {
    /// The attention of `batch` sequences of a model.
    pub fn of(sizes: &Sizes, batch: usize) -> Self {
        let Sizes { tokens, heads, kv_heads, .. } = *sizes;
        Self { batch, tokens, heads, kv_heads, head_dim: sizes.head_dim() }
    }

    /// Elements of a row of `qkv`.
    pub fn width(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }

    /// Rows: tokens of all sequences.
    pub fn rows(&self) -> usize {
        self.batch * self.tokens
    }

    /// Elements of `lse` and of the backward pass's scratch.
    pub fn sums(&self) -> usize {
        self.rows() * self.heads
    }

    /// Bytes of the backward pass's scratch `dsum`.
    pub fn scratch_bytes(&self) -> usize {
        self.sums() * size_of::<f32>()
    }

    fn sound(&self) -> Result<(), String> {
        let Shape { batch, tokens, heads, kv_heads, head_dim } = *self;
        if [batch, tokens, heads, kv_heads, head_dim].contains(&0) {
            return Err(format!("attention of no size: {self:?}"));
        }
        if heads % kv_heads != 0 || head_dim % 2 != 0 {
            return Err(format!("heads do not divide into groups, or the head's dimension is odd: {self:?}"));
        }
        // Offsets are 32 bits wide, and the grids' y and z axes end at 65,535.
        if self.rows() * self.width() > u32::MAX as usize || batch > 65_535 || tokens > 4 * 65_535 {
            return Err(format!("attention too large: {self:?}"));
        }
        Ok(())
    }
}

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
        Way::TensorCores => tensor_cores::<R, A>(client, shape),
    }
}

/// Whether the device offers all that the tensor cores' kernels use.
fn tensor_cores<R: Runtime, A: Float>(client: &ComputeClient<R>, shape: Shape) -> Result<(), String> {
    let bf16: StorageType = ElemType::Float(FloatKind::BF16).into();
    let f32: StorageType = ElemType::Float(FloatKind::F32).into();
    if A::as_type_native().map(|ty| ty.storage_type()) != Some(bf16) {
        return Err("tensor cores need activations in bf16".into());
    }
    if ![32, 64, 128].contains(&shape.head_dim) {
        return Err(format!("tensor cores need heads of 32, 64 or 128 elements, not {}", shape.head_dim));
    }
    let properties = client.properties();
    let product = MmaConfig { a_type: bf16, b_type: bf16, cd_type: f32, m: 16, n: 8, k: 16 };
    let matmul = &properties.features.matmul;
    let offered = matmul.mma.contains(&product) && matmul.ldmatrix.contains(&bf16) && properties.features.copy_async;
    let plane = (properties.hardware.plane_size_min, properties.hardware.plane_size_max);
    if !offered || plane != (32, 32) {
        return Err("the device lacks products of bf16 with known registers, or asynchronous copies".into());
    }
    Ok(())
}
