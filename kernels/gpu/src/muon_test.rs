//! Steps of Muon on software Vulkan beside the formulas in f64.

use super::*;
use crate::fill;
use crate::launches::Tally;
use crate::optimizer::{APPLIED, Rule};
use crate::products::Precision;
use crate::sizes::{Sizes, Weight};
use crate::trial::{Trial, close, noise};
use cubecl::wgpu::WgpuRuntime;
use std::sync::LazyLock;

/// One set of products for all cases, so that kernels are tried once.
static PRODUCTS: LazyLock<Products<WgpuRuntime>> = LazyLock::new(|| Products::open_portable(Precision::F32));
const UPDATE: Update =
    Update { rule: Rule::Muon, lr: 0.01, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1, clip: 1.0, step: 2 };

fn sizes([width, heads, kv_heads, ffn, layers]: [usize; 5]) -> Sizes {
    let (vocab, tokens, tied, theta, eps) = (37, 8, false, 1e4, 1e-5);
    Sizes { vocab, width, layers, heads, kv_heads, ffn, tokens, tied, theta, eps }
}

/// Square matrices alone; wide and tall ones of odd sizes; rows and columns; many layers of several pieces a matrix.
const CASES: [[usize; 5]; 4] = [[32, 4, 4, 32, 2], [36, 6, 2, 41, 2], [6, 3, 3, 1, 1], [192, 6, 2, 260, 3]];

/// Parameters, both moments and the gradient, in the device's layout with zeros as padding.
fn vectors(layout: &Layout) -> [Vec<f32>; 4] {
    [1.0, 0.01, 0.001, 0.1].map(|size| {
        let mut vector = vec![0.0; layout.device];
        for weight in layout.weights() {
            let values = noise(weight.elements(), (weight.device as f32 / size) as u64);
            // A second moment is not negative.
            let values = values.iter().map(|x| if size == 0.001 { size * x.abs() } else { size * x });
            vector[weight.device..].iter_mut().zip(values).for_each(|(to, from)| *to = from);
        }
        vector
    })
}

/// A step on the device: parameters, moments and copy after it, and its report.
fn stepped(layout: &Layout, plan: &Plan, start: &[Vec<f32>; 4], told: [f32; 2]) -> ([Vec<f32>; 4], [f32; REPORT]) {
    let trial = Trial::new();
    let client = &trial.client;
    let [master, m, v, gradient] = start.each_ref().map(|vector| trial.floats(vector));
    let (copy, starts, workspace) = (trial.empty(layout.device), trial.words(&plan.starts), trial.empty(1));
    let scratch = Scratch::of(plan, size_of::<f32>(), &mut |bytes| trial.empty(bytes as usize / 4));
    let tally = Tally::new(client);
    fill::convert::<_, f32>(client, &trial.floats(&told), tally.report(), 2, tally.of(1));
    let (starts, scratch, products) = (&starts, &scratch, &*PRODUCTS);
    let (len, decayed) = (layout.device, layout.decayed);
    let muon = Muon { client, plan, starts, scratch, products, workspace: &workspace };
    let vectors = Vectors { master: &master, m: &m, v: &v, gradient: &gradient, copy: Some(&copy), len, decayed };
    muon.step::<f32>(vectors, &UPDATE, &tally).unwrap();
    let report = tally.read(client).unwrap();
    ([&master, &m, &v, &copy].map(|handle| trial.read(handle)), report)
}

/// `a b` of row-major matrices.
fn product(a: &[f64], b: &[f64], [rows, inner, cols]: [usize; 3]) -> Vec<f64> {
    let at = |i: usize, j: usize| (0..inner).map(|k| a[i * inner + k] * b[k * cols + j]).sum();
    (0..rows * cols).map(|place| at(place / cols, place % cols)).collect()
}

fn transposed(x: &[f64], rows: usize, cols: usize) -> Vec<f64> {
    (0..rows * cols).map(|place| x[place % rows * cols + place / rows]).collect()
}

/// The iteration as it is written down, for all shapes by X X'.
fn orthogonal(mut x: Vec<f64>, rows: usize, cols: usize) -> Vec<f64> {
    if rows > cols {
        return transposed(&orthogonal(transposed(&x, rows, cols), cols, rows), cols, rows);
    }
    let norm = x.iter().map(|x| x * x).sum::<f64>().sqrt();
    x.iter_mut().for_each(|x| *x /= norm);
    for _ in 0..5 {
        let gram = product(&x, &transposed(&x, rows, cols), [rows, cols, rows]);
        let square = product(&gram, &gram, [rows; 3]);
        let poly: Vec<f64> = gram.iter().zip(&square).map(|(gram, square)| -4.775 * gram + 2.0315 * square).collect();
        let moved = product(&poly, &x, [rows, rows, cols]);
        x = x.iter().zip(&moved).map(|(x, moved)| 3.4445 * x + moved).collect();
    }
    x
}

/// The parameters and first moments of a matrix after a step.
fn reference(matrix: &Weight, start: &[Vec<f32>; 4], scale: f64) -> [Vec<f64>; 2] {
    let place = matrix.device..matrix.device + matrix.elements();
    let [theta, m, _, g] = start.each_ref().map(|vector| vector[place.clone()].iter().map(|x| f64::from(*x)));
    let g: Vec<f64> = g.map(|g| scale * g).collect();
    let m: Vec<f64> = m.zip(&g).map(|(m, g)| 0.95 * m + g).collect();
    let ahead = m.iter().zip(&g).map(|(m, g)| g + 0.95 * m).collect();
    let way = orthogonal(ahead, matrix.rows, matrix.width);
    let rate = UPDATE.lr * 0.2 * (matrix.rows.max(matrix.width) as f64).sqrt();
    let keep = 1.0 - UPDATE.lr * UPDATE.weight_decay;
    [theta.zip(&way).map(|(theta, way)| theta * keep - rate * way).collect(), m]
}

#[test]
fn matrices_of_all_shapes_step_by_the_formula() {
    for case in CASES {
        let layout = Layout::of(&sizes(case));
        let start = vectors(&layout);
        let (after, [.., applied, step]) = stepped(&layout, &Plan::of(&layout), &start, [2.0, 2.5]);
        assert_eq!((applied, step), (1.0, 2.0));
        let [master, m, v, copy] = &after;
        let mut furthest = 0.0f64;
        for matrix in layout.inner_matrices() {
            let place = matrix.device..matrix.device + matrix.elements();
            let [theta, moment] = reference(&matrix, &start, 0.4);
            let name = format!("{}x{} of {case:?}", matrix.rows, matrix.width);
            close(&name, &master[place.clone()], &theta, 2e-6);
            close(&name, &m[place.clone()], &moment, 1e-6);
            assert!(v[place.clone()] == start[2][place.clone()], "the second moments of {name}");
            assert!(master[place.clone()] == copy[place.clone()], "the copy of {name}");
            let far = master[place].iter().zip(&theta).map(|(a, b)| (f64::from(*a) - b).abs());
            furthest = far.fold(furthest, f64::max);
        }
        println!("{case:?}: at most {furthest:.1e} apart");
        padding_stays(&layout, [master, m, v]);
    }
}

/// Nothing but weights has changed from zero.
fn padding_stays(layout: &Layout, after: [&Vec<f32>; 3]) {
    let mut beside = vec![true; layout.device];
    layout.weights().iter().for_each(|w| beside[w.device..w.device + w.elements()].fill(false));
    for vector in after {
        assert!(vector.iter().zip(&beside).all(|(x, beside)| !beside || *x == 0.0));
    }
}

#[test]
fn the_rest_steps_by_adamw() {
    let layout = Layout::of(&sizes(CASES[1]));
    let start = vectors(&layout);
    let (after, _) = stepped(&layout, &Plan::of(&layout), &start, [2.0, 2.5]);
    let trial = Trial::new();
    let [master, m, v, gradient] = start.each_ref().map(|vector| trial.floats(vector));
    let (report, len, decayed) = (trial.floats(&[2.0, 2.5, 0.0, 0.0]), layout.device, layout.decayed);
    let vectors = Vectors { master: &master, m: &m, v: &v, gradient: &gradient, copy: None, len, decayed };
    optimizer::step::<_, f32>(&trial.client, vectors, &Update { rule: Rule::AdamW, ..UPDATE }, &report, &trial.tally);
    let whole = [&master, &m, &v].map(|handle| trial.read(handle));
    let layers = layout.layers[0].qkv.device..layout.output.device;
    for (after, whole) in after.iter().zip(&whole) {
        assert!(after[..layers.start] == whole[..layers.start] && after[layers.end..] == whole[layers.end..]);
        assert!(after[layers.clone()] != whole[layers.clone()]);
    }
}

#[test]
fn passes_of_some_matrices_do_as_one_of_all() {
    for case in CASES {
        let layout = Layout::of(&sizes(case));
        let (start, plans) = (vectors(&layout), [SCRATCH, 1, 1 << 15].map(|most| Plan::within(&layout, most)));
        assert_eq!(plans[1].passes.len(), layout.inner_matrices().len());
        let [all, single, some] = plans.each_ref().map(|plan| stepped(&layout, plan, &start, [2.0, 0.5]).0);
        let apart = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        for other in [single, some] {
            assert!(all.iter().zip(&other).all(|(a, b)| apart(a, b) < 2e-6), "{case:?}");
        }
    }
}

#[test]
fn a_step_without_a_sound_loss_or_norm_changes_nothing() {
    let layout = Layout::of(&sizes(CASES[1]));
    let mut start = vectors(&layout);
    start[3][layout.layers[1].out.device] = f32::NAN;
    for told in [[f32::NAN, 1.0], [1.0, f32::NAN], [f32::INFINITY, 1.0], [1.0, f32::INFINITY]] {
        let ([master, m, v, copy], report) = stepped(&layout, &Plan::of(&layout), &start, told);
        assert!([&master, &m, &v] == [&start[0], &start[1], &start[2]]);
        assert!(copy.iter().all(|c| c.is_nan()));
        assert_eq!(report[APPLIED], 0.0);
    }
}

#[test]
fn a_gradient_of_zeros_moves_matrices_but_by_decay() {
    let layout = Layout::of(&sizes(CASES[1]));
    let mut start = vectors(&layout);
    start[1].fill(0.0);
    start[3].fill(0.0);
    let ([master, ..], _) = stepped(&layout, &Plan::of(&layout), &start, [2.0, 0.0]);
    for matrix in layout.inner_matrices() {
        let place = matrix.device..matrix.device + matrix.elements();
        let wanted: Vec<f32> = start[0][place.clone()].iter().map(|theta| theta * 0.999).collect();
        assert!(master[place] == wanted, "{}x{}", matrix.rows, matrix.width);
    }
}

#[test]
fn large_models_have_few_passes_and_bounded_scratch() {
    for ([width, heads, kv_heads, ffn, layers], passes) in
        [([768, 12, 4, 2048, 20], 5), ([1024, 16, 4, 2816, 31], 9), ([2048, 32, 4, 5632, 22], 24)]
    {
        let layout = Layout::of(&sizes([width, heads, kv_heads, ffn, layers]));
        let plan = Plan::of(&layout);
        let mut bytes = 0;
        Scratch::of(&plan, 2, &mut |more| bytes += more);
        println!("{width} wide: {} passes, {bytes} bytes of scratch", plan.passes.len());
        assert!(plan.passes.len() <= passes && bytes < 3 * SCRATCH as u64, "{plan:?}");
        assert_eq!(plan.starts.len(), 7 * layers);
    }
}
