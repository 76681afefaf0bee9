//! Powers of two, which the hardware computes itself.

use cubecl::ir::FastMath;
use cubecl::prelude::*;

/// The base-2 logarithm of e.
pub const LOG2E: f32 = std::f32::consts::LOG2_E;
/// The natural logarithm of 2.
pub const LN2: f32 = std::f32::consts::LN_2;

/// Two to this power, to the hardware's precision.
#[cube(fast_math = FastMath::all())]
pub fn exp2(power: f32) -> f32 {
    f32::powf(f32::new(2.0), power)
}
