//! SwiGLU (Shazeer, arXiv 2002.05202): `act = silu(gate) * up`, with gate and up side by side in one row.

use crate::grid::{array, dim, line, units};
use crate::launches::count;
use cubecl::Runtime;
use cubecl::prelude::*;
use cubecl::server::Handle;

/// `act` (`A`, `[rows, ffn]`) of `gate_up` (`A`, `[rows, 2 ffn]`, gates first). One launch.
pub fn forward<R: Runtime, A: Float>(
    client: &ComputeClient<R>,
    gate_up: &Handle,
    act: &Handle,
    [rows, ffn]: [usize; 2],
    tally: &Handle,
) {
    let n = line(size_of::<A>(), &[ffn]);
    let vectors = rows * ffn / n;
    let (gate_up, act, tally) = (array(gate_up, 2 * rows * ffn), array(act, rows * ffn), array(tally, 1));
    let count = units(client, vectors);
    // SAFETY: the kernel tests its indices against the number of vectors.
    unsafe { swiglu_rows::launch_unchecked::<A, R>(client, count, dim(), n, gate_up, act, vectors, tally, ffn / n) }
}

/// Turns `gate_up` into its gradient, given the gradient `dact` (`A`, `[rows, ffn]`) of the outputs, and `dact` into the
/// outputs, which the gradient of the next weight needs. One launch.
pub fn backward<R: Runtime, A: Float>(
    client: &ComputeClient<R>,
    gate_up: &Handle,
    dact: &Handle,
    [rows, ffn]: [usize; 2],
    tally: &Handle,
) {
    let n = line(size_of::<A>(), &[ffn]);
    let vectors = rows * ffn / n;
    // SAFETY: the kernel tests its indices against the number of vectors.
    unsafe {
        swiglu_slopes::launch_unchecked::<A, R>(
            client,
            units(client, vectors),
            dim(),
            n,
            array(gate_up, 2 * rows * ffn),
            array(dact, rows * ffn),
            vectors,
            array(tally, 1),
            ffn / n,
        );
    }
}

/// `ffn` is counted in vectors.
#[cube(launch_unchecked)]
fn swiglu_rows<A: Float, N: Size>(
    gate_up: &Array<Vector<A, N>>,
    act: &mut Array<Vector<A, N>>,
    vectors: usize,
    tally: &mut Array<Atomic<u32>>,
    #[comptime] ffn: usize,
) {
    count(tally);
    if ABSOLUTE_POS < vectors {
        let at = ABSOLUTE_POS + ABSOLUTE_POS / ffn * ffn;
        let gate = Vector::<f32, N>::cast_from(gate_up[at]);
        let up = Vector::<f32, N>::cast_from(gate_up[at + ffn]);
        act[ABSOLUTE_POS] = Vector::cast_from(gate * sigmoid::<N>(gate) * up);
    }
}

/// `ffn` is counted in vectors.
#[cube(launch_unchecked)]
fn swiglu_slopes<A: Float, N: Size>(
    gate_up: &mut Array<Vector<A, N>>,
    dact: &mut Array<Vector<A, N>>,
    vectors: usize,
    tally: &mut Array<Atomic<u32>>,
    #[comptime] ffn: usize,
) {
    count(tally);
    if ABSOLUTE_POS < vectors {
        let at = ABSOLUTE_POS + ABSOLUTE_POS / ffn * ffn;
        let gate = Vector::<f32, N>::cast_from(gate_up[at]);
        let up = Vector::<f32, N>::cast_from(gate_up[at + ffn]);
        let grad = Vector::<f32, N>::cast_from(dact[ABSOLUTE_POS]);
        let sigmoid = sigmoid::<N>(gate);
        let silu = gate * sigmoid;
        let slope = sigmoid * (Vector::new(1.0f32) + gate - silu);
        gate_up[at] = Vector::cast_from(grad * up * slope);
        gate_up[at + ffn] = Vector::cast_from(grad * silu);
        dact[ABSOLUTE_POS] = Vector::cast_from(silu * up);
    }
}

#[cube]
fn sigmoid<N: Size>(x: Vector<f32, N>) -> Vector<f32, N> {
    let one = Vector::<f32, N>::new(1.0f32);
    // CUDA has no negation of vectors.
    one / (one + (Vector::new(0.0f32) - x).exp())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::{Trial, close, noise};
    use proptest::prelude::*;

    /// Gradient of the gates, gradient of the ups, and outputs.
    fn reference(gate_up: &[f32], dact: &[f32], ffn: usize) -> (Vec<f64>, Vec<f64>) {
        let (mut gradient, mut act) = (Vec::new(), Vec::new());
        for (row, dact) in gate_up.chunks(2 * ffn).zip(dact.chunks(ffn)) {
            let terms = (0..ffn).map(|i| {
                let (g, u, d) = (f64::from(row[i]), f64::from(row[i + ffn]), f64::from(dact[i]));
                let sigmoid = 1.0 / (1.0 + (-g).exp());
                (d * u * sigmoid * (1.0 + g * (1.0 - sigmoid)), d * g * sigmoid, g * sigmoid * u)
            });
            let terms: Vec<_> = terms.collect();
            gradient.extend(terms.iter().map(|t| t.0).chain(terms.iter().map(|t| t.1)));
            act.extend(terms.iter().map(|t| t.2));
        }
        (gradient, act)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(8))]

        #[test]
        fn outputs_and_gradients_are_right(rows in 1usize..40, ffn in 1usize..300, seed in any::<u64>()) {
            let trial = Trial::new();
            let size = [rows, ffn];
            let values: Vec<f32> = noise(2 * rows * ffn, seed).iter().map(|v| 12.0 * v).collect();
            let upstream = noise(rows * ffn, !seed);
            let (gradient, act) = reference(&values, &upstream, ffn);
            let (gate_up, out, dact) = (trial.floats(&values), trial.empty(rows * ffn), trial.floats(&upstream));
            forward::<_, f32>(&trial.client, &gate_up, &out, size, &trial.tally);
            close("act", &trial.read(&out), &act, 1e-6);
            backward::<_, f32>(&trial.client, &gate_up, &dact, size, &trial.tally);
            close("gradient", &trial.read(&gate_up), &gradient, 1e-6);
            prop_assert_eq!(trial.read(&dact), trial.read(&out));
            prop_assert_eq!(trial.ran(), 2);
        }
    }

    #[test]
    fn large_gates_do_not_overflow() {
        let trial = Trial::new();
        let gate_up = trial.floats(&[-1000.0, 1000.0, -89.0, 0.0, 2.0, 2.0, 2.0, 2.0]);
        let dact = trial.floats(&[1.0; 4]);
        let act = trial.empty(4);
        forward::<_, f32>(&trial.client, &gate_up, &act, [1, 4], &trial.tally);
        close("act", &trial.read(&act), &[0.0, 2000.0, 0.0, 0.0], 1e-6);
        backward::<_, f32>(&trial.client, &gate_up, &dact, [1, 4], &trial.tally);
        close("gradient", &trial.read(&gate_up), &[0.0, 2.0, 0.0, 1.0, 0.0, 1000.0, 0.0, 0.0], 1e-6);
    }
}
