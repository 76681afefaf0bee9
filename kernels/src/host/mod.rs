//! Numerics on host buffers, from which the CPU's fused operations are made. Nothing here knows Burn.

pub mod adamw;
pub mod attention;
pub mod cross_entropy;
pub mod matrix;
pub mod muon;
pub mod norm;
pub mod optimizer;
pub mod pool;
pub mod rope;
pub mod simd;
pub mod swiglu;
pub mod team;
