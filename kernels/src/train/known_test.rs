//! The limits of a step of Muon in bf16: what rounding does stays within them, and what is wrong does not.

use super::*;
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

/// A small model with its parameters, gradient, and step of the CPU.
struct Known {
    preset: &'static str,
    model: ModelConfig,
    start: Vec<f32>,
    gradient: Vec<f32>,
    ours: Vec<f32>,
}

impl Known {
    fn all() -> impl Iterator<Item = Self> {
        ["0.1m", "125m"].into_iter().map(|preset| Self::new(preset, small(&ModelConfig::preset(preset).unwrap())))
    }

    fn new(preset: &'static str, model: ModelConfig) -> Self {
        let options = options(Rule::Muon);
        let info = DeviceInfo { kind: DeviceKind::Cpu, index: 0, name: "a test".into(), why: String::new() };
        let mut host = HostTrainer::new(info, &model, &options, Vec::new()).unwrap();
        let start = initial_parameters(&model, 1);
        let mut gradient = vec![0.0; start.len()];
        host.load(&start).unwrap();
        let report = host.gradient(&tokens(&model), &mut gradient).unwrap();
        let mut ours = stepped(&model, &options, &start, &gradient, report.grad_norm).unwrap();
        ours.iter_mut().zip(&start).for_each(|(ours, start)| *ours -= start);
        Self { preset, model, start, gradient, ours }
    }

    /// The comparison of the CPU's step with one whose matrices go a way that is found from their gradient.
    fn compare(&self, name: &str, limits: &Limits, way: impl Fn(&[f32], [usize; 2]) -> Vec<f32>) -> Result<(), String> {
        let (mut theirs, lr) = (self.ours.clone(), rate(Rule::Muon) as f32);
        let decay = lr * options(Rule::Muon).weight_decay as f32;
        let (mut furthest, schema) = (0.0f64, self.model.schema());
        for tensor in schema.tensors.iter().filter(|tensor| is_inner_matrix(tensor)) {
            let (shape, range) = ([tensor.shape[0], tensor.shape[1]], tensor.range());
            let length = lr * 0.2 * (shape[0].max(shape[1]) as f32).sqrt();
            let ways = way(&self.gradient[range.clone()], shape);
            let ways = ways.iter().zip(&self.start[range.clone()]);
            theirs[range.clone()]
                .iter_mut()
                .zip(ways)
                .for_each(|(to, (way, start))| *to = -decay * start - length * way);
            let [apart, own] = squares(&theirs[range.clone()], &self.ours[range]);
            furthest = furthest.max((apart / own).sqrt());
        }
        let [apart, size] = squares(&theirs, &self.ours);
        println!("{} {name}: {:.1e} apart, one tensor {furthest:.1e}", self.preset, (apart / size).sqrt());
        compare_vectors("a step", &self.model, limits, &theirs, &self.ours)
    }
}

#[test]
fn bf16_stays_within_the_limits_of_muon_and_mistakes_do_not() {
    let [_, limits] = limits(Rule::Muon, true);
    for known in Known::all() {
        assert_eq!(known.compare("in f32", &F32, |x, shape| orthogonal(x, shape, 5, |x| x)), Ok(()));
        assert_eq!(known.compare("in bf16", limits, |x, shape| orthogonal(x, shape, 5, rounded)), Ok(()));
        known.compare("without an iteration", limits, |x, shape| orthogonal(x, shape, 0, rounded)).unwrap_err();
        known.compare("in three iterations", limits, |x, shape| orthogonal(x, shape, 3, rounded)).unwrap_err();
        let turned = |x: &[f32], [rows, cols]: [usize; 2]| orthogonal(x, [cols, rows], 5, rounded);
        known.compare("in another shape", limits, turned).unwrap_err();
    }
}

#[test]
fn every_matrix_weighs_enough_in_a_step_of_muon_to_be_compared() {
    for Known { preset, model, ours, .. } in Known::all() {
        let [_, size] = squares(&ours, &ours);
        for tensor in model.schema().tensors.iter().filter(|tensor| tensor.decays()) {
            let [_, own] = squares(&ours[tensor.range()], &ours[tensor.range()]);
            assert!(own > 1e-4 * size, "{} of {preset}: {own:.1e} of {size:.1e}", tensor.name);
        }
    }
}
