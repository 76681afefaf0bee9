//! Compares the fused operations with compositions of Burn's own: values and every gradient, for random shapes.

use burn_backend::{AutodiffBackend, Bytes, DType};
use burn_flex::{Flex, FlexTensor, Layout};
use burn_tensor::{Int, Tensor, TensorData, TensorPrimitive};
use proptest::prelude::*;
use starling_kernels::host::rope::Table;
use starling_kernels::host::team::Team;
use starling_kernels::ops::composed::{self, Tables};
use starling_kernels::ops::flex::{Context, Tracked};
use starling_kernels::ops::{AttentionShape, AttentionWeights, HeadWeights, Heads, MlpWeights, Ops};
use std::sync::Arc;

type Float<const D: usize> = Tensor<Tracked, D>;

const EPS: f32 = 1e-5;
const THETA: f64 = 100.0;

/// Numbers from a seed, around zero.
fn numbers(seed: u64, len: usize, size: f32) -> Vec<f32> {
    let mut state = seed | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) as f32 / (1u64 << 24) as f32 - 0.5) * 2.0 * size
    };
    (0..len).map(|_| next()).collect()
}

fn leaf<const D: usize>(data: Vec<f32>, shape: [usize; D]) -> Float<D> {
    Tensor::from_data(TensorData::new(data, shape), &Default::default()).require_grad()
}

fn primitive<const D: usize>(tensor: &Float<D>) -> burn_backend::tensor::FloatTensor<Tracked> {
    tensor.clone().into_primitive().tensor()
}

fn wrap<const D: usize>(tensor: burn_backend::tensor::FloatTensor<Tracked>) -> Float<D> {
    Tensor::from_primitive(TensorPrimitive::Float(tensor))
}

/// Weights in one vector, as views and as separate tensors.
struct Weights {
    shapes: Vec<Vec<usize>>,
    values: Vec<Vec<f32>>,
    flat: Arc<Bytes>,
}

impl Weights {
    fn new(seed: u64, shapes: &[&[usize]]) -> Self {
        let values: Vec<Vec<f32>> = shapes
            .iter()
            .enumerate()
            .map(|(i, shape)| {
                let len = shape.iter().product();
                match shape.len() {
                    1 => numbers(seed + i as u64, len, 0.5).into_iter().map(|x| 1.0 + x).collect(),
                    _ => numbers(seed + i as u64, len, 0.3),
                }
            })
            .collect();
        let flat = Arc::new(Bytes::from_elems(values.concat()));
        Self { shapes: shapes.iter().map(|s| s.to_vec()).collect(), values, flat }
    }

    fn len(&self) -> usize {
        self.flat.len() / 4
    }

    fn offset(&self, i: usize) -> usize {
        self.values[..i].iter().map(Vec::len).sum()
    }

    fn view(&self, i: usize) -> burn_backend::tensor::FloatTensor<Tracked> {
        let shape = &self.shapes[i];
        let strides = if shape.len() == 2 { vec![shape[1] as isize, 1] } else { vec![1] };
        let layout = Layout::new(shape.clone().into(), strides, self.offset(i));
        let tensor = FlexTensor::from_arc(self.flat.clone(), layout, DType::F32);
        <Tracked as AutodiffBackend>::from_inner(tensor).require_grad()
    }

    fn own<const D: usize>(&self, i: usize) -> Float<D> {
        leaf(self.values[i].clone(), self.shapes[i].clone().try_into().unwrap())
    }
}

fn context(threads: usize, positions: usize, dim: usize, parameters: usize) -> Context {
    Context::new(Team::new(threads).unwrap(), Table::new(positions, dim, THETA), parameters)
}

/// Largest difference, relative to the largest value.
fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let size = b.iter().fold(1e-3f32, |m, x| m.max(x.abs()));
    a.iter().zip(b).fold(0.0f32, |m, (x, y)| m.max((x - y).abs())) / size
}

fn values<const D: usize>(tensor: Tensor<Flex, D>) -> Vec<f32> {
    tensor.into_data().to_vec().unwrap()
}

/// The outcome of one operation: outputs, gradient of the input, gradients of the weights.
struct Outcome {
    y: Vec<f32>,
    dx: Vec<f32>,
    weights: Vec<Vec<f32>>,
}

fn compare(fused: &Outcome, plain: &Outcome) -> Result<(), TestCaseError> {
    let check = |what: String, a: &[f32], b: &[f32]| {
        let d = distance(a, b);
        // The gradient of a norm over one or two numbers is a small difference of large terms: its error in f32 is a
        // few 1e-5. A wrong gradient is off by far more.
        prop_assert!(d < 3e-4, "{what} differs by {d}");
        Ok(())
    };
    check("output".into(), &fused.y, &plain.y)?;
    check("gradient of the input".into(), &fused.dx, &plain.dx)?;
    for (i, (a, b)) in fused.weights.iter().zip(&plain.weights).enumerate() {
        check(format!("gradient of weight {i}"), a, b)?;
    }
    Ok(())
}

/// Back-propagates `sum(y * r)` through the fused operation.
fn fused(context: &Context, weights: &Weights, x: &Float<2>, y: Float<2>, r: &Float<2>) -> Outcome {
    let out = values(y.clone().inner());
    let grads = (y * r.clone().inner_tracked()).sum().backward();
    let gradients = context.gradients.lock().unwrap();
    let part = |i: usize| gradients[weights.offset(i)..][..weights.values[i].len()].to_vec();
    Outcome { y: out, dx: values(x.grad(&grads).unwrap()), weights: (0..weights.values.len()).map(part).collect() }
}

trait InnerTracked {
    fn inner_tracked(self) -> Self;
}

impl InnerTracked for Float<2> {
    /// The same values, untracked.
    fn inner_tracked(self) -> Self {
        Tensor::from_inner(self.inner())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn attention_block(
        seed: u64, threads in 1usize..4, batch in 1usize..4, tokens in 1usize..150,
        kv_heads in 1usize..3, group in 1usize..4, half in 1usize..10, extra in 0usize..3,
    ) {
        let heads = Heads { heads: kv_heads * group, kv_heads, head_dim: 2 * half };
        let (width, rows) = (heads.query_width(), batch * tokens);
        let shapes: [&[usize]; 3] = [&[width], &[heads.row(), width], &[width, width]];
        let weights = Weights::new(seed, &shapes);
        let shape = AttentionShape { heads, tokens, eps: EPS };
        let positions = tokens + extra;
        let context = context(threads, positions, heads.head_dim, weights.len());
        let x = leaf(numbers(seed, rows * width, 2.0), [rows, width]);
        let r = leaf(numbers(seed ^ 1, rows * width, 1.0), [rows, width]);
        let w = AttentionWeights::<Tracked> { norm: weights.view(0), qkv: weights.view(1), out: weights.view(2) };
        let y = wrap(Tracked::attention_block(&context, shape, primitive(&x), w));
        let ours = fused(&context, &weights, &x, y, &r);

        let tables = Tables::<Tracked>::new(positions, heads.head_dim, THETA, &Default::default());
        let (x, a, b, c) = (leaf(numbers(seed, rows * width, 2.0), [rows, width]), weights.own::<1>(0), weights.own::<2>(1), weights.own::<2>(2));
        let w = AttentionWeights::<Tracked> { norm: primitive(&a), qkv: primitive(&b), out: primitive(&c) };
        let y: Float<2> = wrap(composed::attention_block::<Tracked>(&tables, shape, primitive(&x), w));
        let out = values(y.clone().inner());
        let grads = (y * r.inner_tracked()).sum().backward();
        let plain = Outcome {
            y: out,
            dx: values(x.grad(&grads).unwrap()),
            weights: vec![values(a.grad(&grads).unwrap()), values(b.grad(&grads).unwrap()), values(c.grad(&grads).unwrap())],
        };
        compare(&ours, &plain)?;
    }

    #[test]
    fn mlp_block(seed: u64, threads in 1usize..4, rows in 1usize..150, width in 1usize..70, ffn in 1usize..90) {
        let shapes: [&[usize]; 3] = [&[width], &[2 * ffn, width], &[width, ffn]];
        let weights = Weights::new(seed, &shapes);
        let context = context(threads, 1, 2, weights.len());
        let x = leaf(numbers(seed, rows * width, 2.0), [rows, width]);
        let r = leaf(numbers(seed ^ 1, rows * width, 1.0), [rows, width]);
        let w = MlpWeights::<Tracked> { norm: weights.view(0), gate_up: weights.view(1), down: weights.view(2) };
        let y = wrap(Tracked::mlp_block(&context, EPS, primitive(&x), w));
        let ours = fused(&context, &weights, &x, y, &r);

        let (x, a, b, c) = (leaf(numbers(seed, rows * width, 2.0), [rows, width]), weights.own::<1>(0), weights.own::<2>(1), weights.own::<2>(2));
        let w = MlpWeights::<Tracked> { norm: primitive(&a), gate_up: primitive(&b), down: primitive(&c) };
        let y: Float<2> = wrap(composed::mlp_block::<Tracked>(EPS, primitive(&x), w));
        let out = values(y.clone().inner());
        let grads = (y * r.inner_tracked()).sum().backward();
        let plain = Outcome {
            y: out,
            dx: values(x.grad(&grads).unwrap()),
            weights: vec![values(a.grad(&grads).unwrap()), values(b.grad(&grads).unwrap()), values(c.grad(&grads).unwrap())],
        };
        compare(&ours, &plain)?;
    }

    #[test]
    fn head_loss(
        seed: u64, threads in 1usize..4, rows in 1usize..150, width in 1usize..70, vocab in 2usize..300, end in 0.5f32..2.0,
    ) {
        // One case in three ends in another operation, so that the incoming gradient differs from one.
        let end = if seed.is_multiple_of(3) { end } else { 1.0 };
        let shapes: [&[usize]; 2] = [&[width], &[vocab, width]];
        let weights = Weights::new(seed, &shapes);
        let context = context(threads, 1, 2, weights.len());
        let data = numbers(seed, rows * width, 2.0);
        let targets: Vec<i32> = numbers(seed ^ 2, rows, 0.5).iter().map(|x| ((x + 0.5) * vocab as f32) as i32 % vocab as i32).collect();
        let targets = Tensor::<Tracked, 1, Int>::from_data(TensorData::new(targets, [rows]), &Default::default()).into_primitive();
        let x = leaf(data.clone(), [rows, width]);
        let w = HeadWeights::<Tracked> { norm: weights.view(0), output: weights.view(1) };
        let y: Float<1> = wrap(Tracked::head_loss(&context, EPS, primitive(&x), w, targets.clone(), 0.25));
        let out = values(y.clone().inner());
        let grads = if end == 1.0 { y.backward() } else { y.mul_scalar(end).backward() };
        let gradients = context.gradients.lock().unwrap();
        let ours = Outcome {
            y: out,
            dx: values(x.grad(&grads).unwrap()),
            weights: vec![gradients[..width].to_vec(), gradients[width..].to_vec()],
        };

        let (x, a, b) = (leaf(data, [rows, width]), weights.own::<1>(0), weights.own::<2>(1));
        let w = HeadWeights::<Tracked> { norm: primitive(&a), output: primitive(&b) };
        let y: Float<1> = wrap(composed::head_loss::<Tracked>(EPS, primitive(&x), w, targets, 0.25));
        let out = values(y.clone().inner());
        let grads = y.mul_scalar(end).backward();
        let plain = Outcome {
            y: out,
            dx: values(x.grad(&grads).unwrap()),
            weights: vec![values(a.grad(&grads).unwrap()), values(b.grad(&grads).unwrap())],
        };
        compare(&ours, &plain)?;
    }

    #[test]
    fn embed(seed: u64, rows in 1usize..50, width in 1usize..30, vocab in 1usize..20) {
        let weights = Weights::new(seed, &[&[vocab, width]]);
        let context = context(1, 1, 2, weights.len());
        let tokens: Vec<i32> = (0..rows).map(|i| (i * 7 % vocab) as i32).collect();
        let tokens = Tensor::<Tracked, 1, Int>::from_data(TensorData::new(tokens, [rows]), &Default::default()).into_primitive();
        let r = leaf(numbers(seed ^ 1, rows * width, 1.0), [rows, width]).inner_tracked();
        let y: Float<2> = wrap(Tracked::embed(&context, weights.view(0), tokens.clone()));
        let ours = values(y.clone().inner());
        (y * r.clone()).sum().backward();
        let table = weights.own::<2>(0);
        let y: Float<2> = wrap(composed::embed::<Tracked>(primitive(&table), tokens));
        prop_assert_eq!(ours, values(y.clone().inner()));
        let grads = (y * r).sum().backward();
        let d = distance(&context.gradients.lock().unwrap(), &values(table.grad(&grads).unwrap()));
        prop_assert!(d < 1e-5, "gradient differs by {}", d);
    }
}
