//! The limits of a step of Muon in bf16: what rounding does stays within them, and what is wrong does not.

use super::*;
use crate::host::muon;
use crate::host::optimizer::is_inner_matrix;

/// To the nearest number of bf16.
fn rounded(x: f32) -> f32 {
    let bits = x.to_bits();
    f32::from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000)
}

/// `a b` of row-major matrices in f32, rounded as `round` does.
fn product(a: &[f32], b: &[f32], [rows, inner, cols]: [usize; 3], round: fn(f32) -> f32) -> Vec<f32> {
    let mut out = vec![0.0; rows * cols];
    for (row, out) in out.chunks_mut(cols).enumerate() {
        for (k, b) in b.chunks(cols).enumerate() {
            out.iter_mut().zip(b).for_each(|(out, b)| *out += a[row * inner + k] * b);
        }
        out.iter_mut().for_each(|x| *x = round(*x));
    }
    out
}

fn transposed(x: &[f32], [rows, cols]: [usize; 2]) -> Vec<f32> {
    (0..x.len()).map(|place| x[place % rows * cols + place / rows]).collect()
}

/// The way of a step as devices with bf16 find it, in so many iterations.
fn orthogonal(x: &[f32], [rows, cols]: [usize; 2], iterations: usize, round: fn(f32) -> f32) -> Vec<f32> {
    if rows > cols {
        let way = orthogonal(&transposed(x, [rows, cols]), [cols, rows], iterations, round);
        return transposed(&way, [cols, rows]);
    }
    let norm = x.iter().map(|x| x * x).sum::<f32>().sqrt();
    let mut x: Vec<f32> = x.iter().map(|x| round(x / norm)).collect();
    for _ in 0..iterations {
        let gram = product(&x, &transposed(&x, [rows, cols]), [rows, cols, rows], round);
        let mut factor = product(&gram, &gram, [rows; 3], round);
        for (place, (factor, gram)) in factor.iter_mut().zip(&gram).enumerate() {
            let one = if place / rows == place % rows { 3.4445 } else { 0.0 };
            *factor = round(one - 4.775 * gram + 2.0315 * *factor);
        }
        x = product(&factor, &x, [rows, rows, cols], round);
    }
    x
}

/// The ways of all matrices of a model, where `way` finds each from the gradient; and the step of the CPU.
fn steps(model: &ModelConfig, way: impl Fn(&[f32], [usize; 2]) -> Vec<f32>) -> [Vec<f32>; 2] {
    let options = options(Rule::Muon);
    let info = DeviceInfo { kind: DeviceKind::Cpu, index: 0, name: "a test".into(), why: String::new() };
    let mut host = HostTrainer::new(info, model, &options, Vec::new()).unwrap();
    let (start, schema) = (initial_parameters(model, 1), model.schema());
    let mut gradient = vec![0.0; start.len()];
    host.load(&start).unwrap();
    let report = host.gradient(&tokens(model), &mut gradient).unwrap();
    let mut ours = stepped(model, &options, &start, &gradient, report.grad_norm).unwrap();
    ours.iter_mut().zip(&start).for_each(|(ours, start)| *ours -= start);
    let (mut theirs, lr) = (ours.clone(), rate(Rule::Muon) as f32);
    for tensor in schema.tensors.iter().filter(|tensor| is_inner_matrix(tensor)) {
        let (shape, range) = ([tensor.shape[0], tensor.shape[1]], tensor.range());
        let (long, decay) = (shape[0].max(shape[1]) as f32, lr * options.weight_decay as f32);
        for ((theirs, way), start) in
            theirs[range.clone()].iter_mut().zip(way(&gradient[range.clone()], shape)).zip(&start[range])
        {
            *theirs = -decay * start - lr * 0.2 * long.sqrt() * way;
        }
    }
    [theirs, ours]
}

fn models() -> impl Iterator<Item = (&'static str, ModelConfig)> {
    ["0.1m", "125m", "1b"].into_iter().map(|preset| (preset, small(&ModelConfig::preset(preset).unwrap())))
}

#[test]
fn bf16_stays_within_the_limits_of_muon_and_mistakes_do_not() {
    let [_, limits] = limits(Rule::Muon, true);
    let compared = |model: &ModelConfig, limits, [theirs, ours]: [Vec<f32>; 2]| {
        let [apart, size] = squares(&theirs, &ours);
        (compare_vectors("a step", model, limits, &theirs, &ours), (apart / size).sqrt())
    };
    for (preset, model) in models() {
        let exact = steps(&model, |x, shape| orthogonal(x, shape, 5, |x| x));
        let (told, apart) = compared(&model, &F32, exact);
        println!("{preset}: {apart:.1e} apart in f32");
        assert_eq!(told, Ok(()), "{preset} in f32");
        let (told, apart) = compared(&model, limits, steps(&model, |x, shape| orthogonal(x, shape, 5, rounded)));
        println!("{preset}: {apart:.1e} apart in bf16");
        assert_eq!(told, Ok(()), "{preset} in bf16");
        for (mistake, iterations) in [("no iteration", 0), ("three", 3)] {
            let (told, apart) =
                compared(&model, limits, steps(&model, |x, shape| orthogonal(x, shape, iterations, rounded)));
            println!("{preset}: {apart:.1e} apart with {mistake}");
            assert!(told.is_err(), "{preset}: {mistake}");
        }
        let turned = steps(&model, |x, [rows, cols]| {
            let mut x = transposed(x, [rows, cols]);
            muon::orthogonalize(&mut x, cols, rows);
            x
        });
        assert!(compared(&model, limits, turned).0.is_err(), "{preset}: a matrix turned");
    }
}

#[test]
fn every_tensor_weighs_enough_in_a_step_of_muon_to_be_compared() {
    for (preset, model) in models() {
        let [_, ours] = steps(&model, |x, shape| orthogonal(x, shape, 0, |x| x));
        let size: f64 = squares(&ours, &ours)[1];
        for tensor in &model.schema().tensors {
            let own = squares(&ours[tensor.range()], &ours[tensor.range()])[1];
            let gain = tensor.shape.len() == 1;
            assert!(gain || own > 1e-4 * size, "{} of {preset}: {own:.1e} of {size:.1e}", tensor.name);
        }
    }
}
