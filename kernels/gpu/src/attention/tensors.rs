//! The tensors of attention's passes, and the launch of their kernels.

use cubecl::server::Handle;

/// The tensors of [`forward`](super::forward). Activations are of `A`.
#[derive(Clone, Copy)]
pub struct Forward<'a> {
    /// `[batch * tokens, (heads + 2 * kv_heads) * head_dim]`: queries, keys, values, the former two already rotated.
    pub qkv: &'a Handle,
    /// `[batch * tokens, heads * head_dim]`: the results.
    pub out: &'a Handle,
    /// f32 `[batch, heads, tokens]`: the natural logarithm of the sum of the exponentials of the scaled scores, a result.
    pub lse: &'a Handle,
}

/// The tensors of [`backward`](super::backward).
#[derive(Clone, Copy)]
pub struct Backward<'a> {
    /// Those of the forward pass, which has filled them.
    pub forward: Forward<'a>,
    /// The gradient of `out`.
    pub dout: &'a Handle,
    /// f32 `[batch, heads, tokens]`: scratch.
    pub dsum: &'a Handle,
    /// The gradient of `qkv`, all of which is written.
    pub dqkv: &'a Handle,
}

/// Launches a kernel of attention for activations of `A` on `R`: its cubes, units and, if it is free, elements of a vector;
/// its arrays with their lengths, the tally, and the sizes that every kernel takes.
macro_rules! launch {
    (
        $kernel:path, $client:expr, ($cubes:expr, $units:expr $(, $vector:expr)?),
        [$($array:expr => $len:expr),* $(,)?], $tally:expr, $shape:expr, $tile:expr
    ) => {{
        use $kernel as kernel;
        // SAFETY: the kernels test their bounds, and the lengths are the buffers'.
        unsafe {
            kernel::launch_unchecked::<A, R>(
                $client,
                $cubes,
                CubeDim::new_1d($units as u32),
                $($vector,)?
                $(ArrayArg::from_raw_parts($array.clone(), $len),)*
                ArrayArg::from_raw_parts($tally.clone(), 1),
                $shape.tokens,
                $shape.heads,
                $shape.kv_heads,
                $shape.scale(),
                $tile,
            );
        }
    }};
}
pub(super) use launch;
