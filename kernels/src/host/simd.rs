//! Runs a loop with the widest vector instructions of the machine; has the few mathematical functions of such loops.
//!
//! The functions are branchless scalar code that the compiler vectorises when it is inlined into [`vectorized`].
//! Results depend on the machine's instruction set (FMA or not); nothing here must agree between nodes.

use pulp::{Arch, Simd, WithSimd};

struct Loop<F>(F);

impl<R, F: FnOnce() -> R> WithSimd for Loop<F> {
    type Output = R;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> R {
        // `vectorize` compiles the closure with the features of `S`, whatever the crate was compiled for.
        simd.vectorize(self.0)
    }
}

/// Runs `body` compiled for the best instruction set found at run time.
///
/// A function that `body` calls must be `#[inline(always)]` to be compiled for that set too.
#[inline]
pub fn vectorized<R>(body: impl FnOnce() -> R) -> R {
    Arch::new().dispatch(Loop(body))
}

/// `e^x` with a relative error below 2e-7; saturates outside of [-87.3, 88.3].
///
/// Cody-Waite reduction by ln 2 in two parts, then a polynomial of degree 6 in [-ln 2 / 2, ln 2 / 2].
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits of the mantissa.
    const ROUND: f32 = 12_582_912.0;
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let x = x.clamp(-87.3, 88.3);
    let shifted = x.mul_add(core::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN2_HIGH, x);
    let r = n.mul_add(-LN2_LOW, r);
    let mut p = 1.388_889e-3f32;
    p = p.mul_add(r, 8.333_334e-3);
    p = p.mul_add(r, 4.166_666_8e-2);
    p = p.mul_add(r, 0.166_666_67);
    p = p.mul_add(r, 0.5);
    p = p.mul_add(r, 1.0);
    p = p.mul_add(r, 1.0);
    let scale = f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3f80_0000));
    p * scale
}

/// Lanes of the reductions below: enough to hide the latency of the additions on 8- and 16-wide machines.
const LANES: usize = 32;

/// Sum of `f(a[i], b[i], c[i])`, in a fixed order.
#[inline(always)]
pub fn sum3(a: &[f32], b: &[f32], c: &[f32], f: impl Fn(f32, f32, f32) -> f32) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (ac, bc, cc) = (a.chunks_exact(LANES), b.chunks_exact(LANES), c.chunks_exact(LANES));
    let rest = ac.remainder().iter().zip(bc.remainder()).zip(cc.remainder());
    let tail: f32 = rest.map(|((&x, &y), &z)| f(x, y, z)).sum();
    for ((x, y), z) in ac.zip(bc).zip(cc) {
        for i in 0..LANES {
            lanes[i] += f(x[i], y[i], z[i]);
        }
    }
    fold(lanes, |x, y| x + y) + tail
}

/// Sum of `f(a[i], b[i])`, in a fixed order.
#[inline(always)]
pub fn sum2(a: &[f32], b: &[f32], f: impl Fn(f32, f32) -> f32) -> f32 {
    sum3(a, b, b, |x, y, _| f(x, y))
}

/// Sum of `f(a[i])`, in a fixed order.
#[inline(always)]
pub fn sum(a: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    sum3(a, a, a, |x, _, _| f(x))
}

/// The largest element, ignoring NaN; negative infinity of an empty slice.
#[inline(always)]
pub fn max(a: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let chunks = a.chunks_exact(LANES);
    let tail = chunks.remainder().iter().fold(f32::NEG_INFINITY, |m, &x| if x > m { x } else { m });
    for x in chunks {
        for i in 0..LANES {
            lanes[i] = if x[i] > lanes[i] { x[i] } else { lanes[i] };
        }
    }
    fold(lanes, |x, y| if y > x { y } else { x }).max(tail)
}

#[inline(always)]
fn fold(mut lanes: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] = f(lanes[i], lanes[i + width]);
        }
        width /= 2;
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_close_to_the_real_one() {
        let mut worst = 0.0f64;
        for i in -87_000..88_000 {
            let x = i as f32 / 1000.0;
            let want = f64::from(x).exp();
            worst = worst.max((f64::from(vectorized(|| exp(x))) / want - 1.0).abs());
        }
        assert!(worst < 4e-7, "relative error {worst}");
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(-1000.0) < 1e-37 && exp(1000.0).is_finite());
    }

    #[test]
    fn reductions_cover_every_length() {
        for n in 0..100 {
            let a: Vec<f32> = (0..n).map(|i| (i * 7 % 13) as f32).collect();
            assert_eq!(vectorized(|| sum(&a, |x| x)), a.iter().sum::<f32>());
            assert_eq!(vectorized(|| sum2(&a, &a, |x, y| x * y)), a.iter().map(|x| x * x).sum::<f32>());
            let want = a.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            assert_eq!(vectorized(|| max(&a)), want);
        }
    }
}
