//! The ways in which a device may compute.

use std::fmt;

/// The ways of a model's operations where there are several. The first that gives known answers is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ways {
    /// Activations in bf16 rather than f32.
    pub bf16: bool,
    /// Attention with tensor cores rather than with the portable kernels.
    pub tensor_cores: bool,
    /// Products by cuBLASLt rather than by cubek.
    pub cublas: bool,
}

impl fmt::Display for Ways {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let precision = if self.bf16 { "bf16" } else { "f32" };
        let attention = if self.tensor_cores { "attention on tensor cores" } else { "portable attention" };
        let products = if self.cublas { "products by cuBLASLt where it is" } else { "products by cubek" };
        write!(f, "{precision}, {attention}, {products}")
    }
}
