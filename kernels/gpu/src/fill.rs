//! Zeros, conversions and copies of buffers.

use crate::grid::{array, dim, line, units};
use crate::launches::count;
use cubecl::Runtime;
use cubecl::prelude::*;
use cubecl::server::Handle;

/// Sets `words` words of 4 bytes to zero. One launch.
pub fn zero<R: Runtime>(client: &ComputeClient<R>, target: &Handle, words: usize, tally: &Handle) {
    let n = line(size_of::<u32>(), &[words]);
    let (vectors, target, tally) = (words / n, array(target, words), array(tally, 1));
    // SAFETY: the kernel tests its indices against the length.
    unsafe { fill_zeros::launch_unchecked::<R>(client, units(client, vectors), dim(), n, target, vectors, tally) }
}

/// `to[i] = from[i]` for `len` elements, rounded to `A`. One launch.
pub fn convert<R: Runtime, A: Float>(
    client: &ComputeClient<R>,
    from: &Handle,
    to: &Handle,
    len: usize,
    tally: &Handle,
) {
    let n = line(size_of::<f32>(), &[len]);
    let vectors = len / n;
    let (from, to, tally) = (array(from, len), array(to, len), array(tally, 1));
    // SAFETY: the kernel tests its indices against the length.
    unsafe {
        fill_converted::launch_unchecked::<A, R>(client, units(client, vectors), dim(), n, from, to, vectors, tally)
    }
}

/// `to[to_start + i] = from[from_start + i]` for `len` elements. The starts may be any. One launch.
pub fn copy<R: Runtime, A: Float>(
    client: &ComputeClient<R>,
    (from, from_start): (&Handle, usize),
    (to, to_start): (&Handle, usize),
    len: usize,
    tally: &Handle,
) {
    let (from, to) = (array(from, from_start + len), array(to, to_start + len));
    let (units, tally) = (units(client, len), array(tally, 1));
    // SAFETY: the kernel tests its indices against the length.
    unsafe { fill_copied::launch_unchecked::<A, R>(client, units, dim(), from, to, from_start, to_start, len, tally) }
}

#[cube(launch_unchecked)]
fn fill_zeros<N: Size>(target: &mut Array<Vector<u32, N>>, vectors: usize, tally: &mut Array<Atomic<u32>>) {
    count(tally);
    if ABSOLUTE_POS < vectors {
        target[ABSOLUTE_POS] = Vector::new(0u32);
    }
}

#[cube(launch_unchecked)]
fn fill_converted<A: Float, N: Size>(
    from: &Array<Vector<f32, N>>,
    to: &mut Array<Vector<A, N>>,
    vectors: usize,
    tally: &mut Array<Atomic<u32>>,
) {
    count(tally);
    if ABSOLUTE_POS < vectors {
        to[ABSOLUTE_POS] = Vector::cast_from(from[ABSOLUTE_POS]);
    }
}

#[cube(launch_unchecked)]
fn fill_copied<A: Float>(
    from: &Array<A>,
    to: &mut Array<A>,
    from_start: usize,
    to_start: usize,
    len: usize,
    tally: &mut Array<Atomic<u32>>,
) {
    count(tally);
    if ABSOLUTE_POS < len {
        to[to_start + ABSOLUTE_POS] = from[from_start + ABSOLUTE_POS];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::{Trial, noise};
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(8))]

        #[test]
        fn buffers_are_filled_and_copied(len in 1usize..3000, seed in any::<u64>()) {
            let trial = Trial::new();
            let (a, b) = (noise(len + 1, seed), noise(len, !seed));
            let (from, copy) = (trial.floats(&b), trial.floats(&a));
            convert::<_, f32>(&trial.client, &from, &copy, len, &trial.tally);
            let shifted = trial.floats(&a);
            super::copy::<_, f32>(&trial.client, (&copy, 0), (&shifted, 1), len, &trial.tally);
            zero(&trial.client, &from, len, &trial.tally);
            prop_assert_eq!(&trial.read(&copy)[..len], &b[..]);
            prop_assert_eq!(trial.read(&copy)[len], a[len]);
            prop_assert_eq!(trial.read(&from), vec![0.0; len]);
            prop_assert_eq!(&trial.read(&shifted)[1..], &b[..]);
            prop_assert_eq!(trial.ran(), 3);
        }
    }
}
