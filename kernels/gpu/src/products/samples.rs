//! A look at some elements of a product that a kernel has just computed for the first time.
//!
//! A kernel that does not compile fails on the device's thread, where cubecl keeps or logs the error, and a kernel may be
//! wrong on a device that nobody tried. So the elements are made NaN before, and computed anew by one plain kernel after.

use super::product::{Form, Precision, Shape};
use crate::launches::count;
use cubecl::prelude::*;
use cubecl::server::Handle;
use half::bf16;

/// How many elements are looked at.
const SAMPLES: u32 = 64;

/// The place of a sample among `length` elements: evenly from the first to the last.
#[cube]
fn place(sample: u32, length: u32) -> u32 {
    let mut at = length - 1;
    if sample + 1 < SAMPLES {
        at = sample * (length / SAMPLES);
    }
    at
}

/// Sets all bits of the samples, which makes NaN of every type.
#[cube(launch_unchecked)]
fn mark_samples<I: Int>(data: &mut Array<I>, length: u32, tally: &mut Array<Atomic<u32>>) {
    count(tally);
    data[place(UNIT_POS, length) as usize] = !I::new(0);
}

/// The distances between neighbours in `A` and `B`.
#[derive(CubeType, CubeLaunch)]
struct Steps {
    row: u32,
    inner_left: u32,
    inner_right: u32,
    column: u32,
}

/// Writes, for every sample, the element, its value by one plain sum, and the sum of its terms' absolute values.
#[cube(launch_unchecked)]
fn compute_samples<E: Float, O: Float>(
    a: &Array<E>,
    b: &Array<E>,
    d: &Array<O>,
    samples: &mut Array<f32>,
    steps: &Steps,
    m: u32,
    n: u32,
    k: u32,
    length: u32,
    tally: &mut Array<Atomic<u32>>,
) {
    count(tally);
    let at = place(UNIT_POS, length);
    let (matrix, row, column) = (at / (m * n), at / n % m, at % n);
    let mut sum = 0.0f32;
    let mut size = 0.0f32;
    for p in 0..k {
        let left = f32::cast_from(a[(matrix * m * k + row * steps.row + p * steps.inner_left) as usize]);
        let right = f32::cast_from(b[(matrix * n * k + p * steps.inner_right + column * steps.column) as usize]);
        sum += left * right;
        size += f32::abs(left * right);
    }
    let first = UNIT_POS as usize * 3;
    samples[first] = f32::cast_from(d[at as usize]);
    samples[first + 1] = sum;
    samples[first + 2] = size;
}

/// Makes NaN of the samples of `d`, before the kernel runs. `tally` counts a launch.
pub fn mark<R: Runtime>(client: &ComputeClient<R>, shape: Shape, d: &Handle, tally: &Handle) {
    let length = shape.count * shape.m * shape.n;
    let (grid, dim) = (CubeCount::new_single(), CubeDim::new_1d(SAMPLES));
    // SAFETY: the handle holds `length` elements, which `place` stays in.
    unsafe {
        let (data, tally) = (ArrayArg::from_raw_parts(d.clone(), length), ArrayArg::from_raw_parts(tally.clone(), 1));
        match shape.output {
            Precision::F32 => mark_samples::launch_unchecked::<u32, R>(client, grid, dim, data, length as u32, tally),
            Precision::Bf16 => mark_samples::launch_unchecked::<u16, R>(client, grid, dim, data, length as u32, tally),
        }
    }
}

/// Compares the samples of `d` with plain sums, after the kernel. Waits for the device. `tally` counts a launch.
///
/// # Errors
///
/// The error of the kernel, in the device's words, or a sample that is wrong. Where no kernel runs at all there is none.
pub fn compare<R: Runtime>(
    client: &ComputeClient<R>,
    shape: Shape,
    handles: (&Handle, &Handle, &Handle),
    tally: &Handle,
) -> Result<(), String> {
    let samples = match (shape.input, shape.output) {
        (Precision::F32, _) => launch::<R, f32, f32>(client, shape, handles, tally),
        (Precision::Bf16, Precision::F32) => launch::<R, bf16, f32>(client, shape, handles, tally),
        (Precision::Bf16, Precision::Bf16) => launch::<R, bf16, bf16>(client, shape, handles, tally),
    };
    let bytes = client.read_one(samples).map_err(|e| format!("{e:?}"))?;
    let counted = client.read_one(tally.clone()).map_err(|e| format!("{e:?}"))?;
    if counted.iter().all(|byte| *byte == 0) {
        // A driver that computes nothing proves nothing; the caller's own tally shows it.
        return Ok(());
    }
    for sample in bytes.chunks_exact(12) {
        let number = |at: usize| f32::from_ne_bytes([sample[at], sample[at + 1], sample[at + 2], sample[at + 3]]);
        let (element, sum, size) = (number(0), number(4), number(8));
        // The order of a sum moves its end; bf16 rounds to 8 bits.
        let slack = 1e-4 * size + if shape.output == Precision::Bf16 { 0.01 * sum.abs() } else { 0.0 };
        let error = (element - sum).abs();
        if sum.is_finite() && (error.is_nan() || error > slack) {
            return Err(format!("an element is {element} and should be {sum}"));
        }
    }
    Ok(())
}

fn launch<R: Runtime, E: Float, O: Float>(
    client: &ComputeClient<R>,
    shape: Shape,
    (a, b, d): (&Handle, &Handle, &Handle),
    tally: &Handle,
) -> Handle {
    let (count, [m, n, k]) = (shape.count, [shape.m, shape.n, shape.k].map(|size| size as u32));
    let steps = match shape.form {
        Form::Forward => StepsLaunch::new(k, 1, 1, k),
        Form::Input => StepsLaunch::new(k, 1, n, 1),
        Form::Weight => StepsLaunch::new(1, m, n, 1),
    };
    let samples = client.empty(SAMPLES as usize * 12);
    let (grid, dim) = (CubeCount::new_single(), CubeDim::new_1d(SAMPLES));
    // SAFETY: the sizes of the handles are those of the shape.
    unsafe {
        let array = |handle: &Handle, length| ArrayArg::from_raw_parts(handle.clone(), length);
        let [left, right, result] =
            [(a, m * k), (b, n * k), (d, m * n)].map(|(handle, size)| array(handle, count * size as usize));
        let (out, tally) = (array(&samples, SAMPLES as usize * 3), array(tally, 1));
        compute_samples::launch_unchecked::<E, O, R>(
            client,
            grid,
            dim,
            left,
            right,
            result,
            out,
            steps,
            m,
            n,
            k,
            count as u32 * m * n,
            tally,
        );
    }
    samples
}

#[cfg(test)]
mod tests {
    use super::*;
    use cubecl::wgpu::{WgpuDevice, WgpuRuntime};

    #[test]
    fn unwritten_and_wrong_results_are_found() {
        let client = WgpuRuntime::client(&WgpuDevice::DefaultDevice);
        for (m, n) in [(1, 1), (3, 21), (8, 8), (17, 100)] {
            let output = Precision::F32;
            let shape = Shape { form: Form::Forward, count: 1, m, n, k: 2, input: Precision::F32, output };
            let upload = |data: &[f32]| client.create_from_slice(bytemuck::cast_slice(data));
            let (a, b) = (upload(&vec![1.0; m * 2]), upload(&vec![2.0; n * 2]));
            let tally = client.create_from_slice(&[0; 4]);
            let right = upload(&vec![4.0; m * n]);
            assert_eq!(compare(&client, shape, (&a, &b, &right), &tally), Ok(()));
            mark(&client, shape, &right, &tally);
            let words = compare(&client, shape, (&a, &b, &right), &tally).unwrap_err();
            assert_eq!(words, "an element is NaN and should be 4");
            let mut wrong = vec![4.0; m * n];
            wrong[m * n - 1] = 5.0;
            let words = compare(&client, shape, (&a, &b, &upload(&wrong)), &tally).unwrap_err();
            assert_eq!(words, "an element is 5 and should be 4");
        }
    }
}
