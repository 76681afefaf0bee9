//! Products on software Vulkan against f64.

use super::{Add, Form, Output, Precision, Product, Products};
use cubecl::prelude::*;
use cubecl::server::Handle;
use cubecl::wgpu::{WgpuDevice, WgpuRuntime};
use proptest::prelude::*;
use proptest::sample::select;
use std::sync::LazyLock;

type Client = ComputeClient<WgpuRuntime>;

/// One set of products for all cases, so that kernels are compiled once.
static PRODUCTS: LazyLock<Products<WgpuRuntime>> = LazyLock::new(|| Products::open(&client(), Precision::F32).0);

fn client() -> Client {
    WgpuRuntime::client(&WgpuDevice::DefaultDevice)
}

/// Numbers between -1 and 1 that a seed repeats.
fn numbers(length: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..length).map(next).collect()
}

/// The product in f64, and the sum of the absolute values of its terms.
fn reference(product: &Product, a: &[f32], b: &[f32], term: &[f32]) -> Vec<(f64, f64)> {
    let (count, m, n, k) = (product.count, product.m, product.n, product.k);
    let element = |at: usize| {
        let (matrix, row, column) = (at / (m * n), at / n % m, at % n);
        let (a, b) = (&a[matrix * m * k..][..m * k], &b[matrix * n * k..][..n * k]);
        let (mut sum, mut size) = (f64::from(term[at]), f64::from(term[at].abs()));
        for p in 0..k {
            let (a, b) = match product.form {
                Form::Forward => (a[row * k + p], b[column * k + p]),
                Form::Input => (a[row * k + p], b[p * n + column]),
                Form::Weight => (a[p * m + row], b[p * n + column]),
            };
            sum += f64::from(a) * f64::from(b);
            size += (f64::from(a) * f64::from(b)).abs();
        }
        (sum, size)
    };
    (0..count * m * n).map(element).collect()
}

/// A part of a larger buffer, which begins at byte 256 and is followed by other numbers.
struct Part {
    whole: Handle,
    length: usize,
}

impl Part {
    fn new(client: &Client, data: &[f32]) -> Self {
        let mut whole = vec![7.5f32; 64 + data.len() + 9];
        whole[64..64 + data.len()].copy_from_slice(data);
        Self { whole: client.create_from_slice(bytemuck::cast_slice(&whole)), length: data.len() }
    }

    fn handle(&self) -> Handle {
        self.whole.clone().offset_start(256)
    }

    /// The part's numbers. Those around it must be as they were.
    fn read(&self, client: &Client) -> Vec<f32> {
        let bytes = client.read_one(self.whole.clone()).expect("a healthy device");
        let all: &[f32] = bytemuck::cast_slice(&bytes);
        let (before, rest) = all.split_at(64);
        let (part, after) = rest.split_at(self.length);
        assert!(before.iter().chain(after).all(|x| *x == 7.5), "numbers beside the result changed");
        part.to_vec()
    }
}

/// Which term a case adds.
#[derive(Clone, Copy, Debug)]
enum Term {
    None,
    Into,
}

fn case(form: Form, sizes: (usize, usize, usize), output: Output, term: Term) {
    counted(form, 1, sizes, output, term);
}

fn counted(form: Form, count: usize, (m, n, k): (usize, usize, usize), output: Output, term: Term) {
    let client = client();
    let [a, b, old] = [(m * k, 1), (n * k, 2), (m * n, 3)].map(|(len, seed)| numbers(count * len, seed));
    let [left, right, d] = [&a, &b, &old].map(|data| Part::new(&client, data));
    let (add, added) = match term {
        Term::None => (Add::None, vec![0.0; count * m * n]),
        Term::Into => (Add::Into, old),
    };
    let product = Product { form, count, m, n, k, output, add };
    let scratch = client.empty(super::scratch(std::slice::from_ref(&product), false).max(4));
    let tally = client.create_from_slice(&[0; 4]);
    let mut expected = reference(&product, &a, &b, &added);
    for run in 1..=2 {
        PRODUCTS.run(&client, &product, &left.handle(), &right.handle(), &d.handle(), &scratch, &tally).expect("a run");
        for (at, (ours, (sum, size))) in d.read(&client).into_iter().zip(&expected).enumerate() {
            let error = (f64::from(ours) - sum).abs();
            assert!(
                error <= 1e-6 * size.max(1.0),
                "element {at} is {ours} and should be {sum} ({product:?}, run {run})"
            );
        }
        let counted = client.read_one(tally.clone()).expect("a healthy device");
        assert_eq!(bytemuck::cast_slice::<u8, u32>(&counted), [run * PRODUCTS.launches(&product)]);
        if matches!(term, Term::Into) {
            // The second run adds to the first one's result.
            expected = expected
                .iter()
                .zip(&added)
                .map(|((sum, size), old)| (2.0 * sum - f64::from(*old), 2.0 * size))
                .collect();
        }
    }
}

fn forms() -> impl Strategy<Value = Form> {
    select(vec![Form::Forward, Form::Input, Form::Weight])
}

fn outputs() -> impl Strategy<Value = Output> {
    select(vec![Output::Activation, Output::Float])
}

fn terms() -> impl Strategy<Value = Term> {
    select(vec![Term::None, Term::Into])
}

/// Sizes of rows, columns and inner dimensions that no power of two divides, beside even ones.
fn sizes() -> impl Strategy<Value = (usize, usize, usize)> {
    let m = select(vec![1, 2, 17, 64, 100]);
    (m, select(vec![1, 2, 3, 64, 96, 1000]), select(vec![1, 5, 64, 96, 257]))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn products_are_those_of_f64(form in forms(), sizes in sizes(), output in outputs(), term in terms()) {
        case(form, sizes, output, term);
    }
}

/// The corners of the sizes above, in every form.
#[test]
fn every_form_has_its_corners() {
    for form in [Form::Forward, Form::Input, Form::Weight] {
        for m in [1, 17, 100] {
            for n in [3, 64, 1000] {
                for k in [5, 64, 96] {
                    case(form, (m, n, k), Output::Activation, Term::None);
                }
            }
        }
        case(form, (17, 3, 5), Output::Float, Term::Into);
        case(form, (100, 64, 96), Output::Activation, Term::Into);
        case(form, (300, 768, 768), Output::Float, Term::Into);
    }
}

/// Several products at once, with the sizes of Muon's: a matrix with itself, and square ones.
#[test]
fn many_products_are_those_of_each() {
    for form in [Form::Forward, Form::Input, Form::Weight] {
        for (count, sizes) in [(2, (1, 1, 1)), (3, (12, 36, 12)), (5, (1, 9, 1)), (4, (64, 64, 176)), (7, (41, 36, 36))]
        {
            counted(form, count, sizes, Output::Activation, Term::None);
        }
        counted(form, 3, (17, 3, 5), Output::Float, Term::Into);
    }
}

#[test]
fn told_words_name_the_library() {
    let (_, told) = Products::open(&client(), Precision::F32);
    assert_eq!(told, "products by cubek");
}

#[test]
fn wrong_handles_are_refused_before_a_launch() {
    let client = client();
    let [small, large] = [1024, 4096].map(|bytes| client.empty(bytes));
    let tally = client.create_from_slice(&[0; 4]);
    let product = |add| Product { form: Form::Forward, count: 1, m: 32, n: 32, k: 32, output: Output::Float, add };
    let run = |product: &Product, a: &Handle, b: &Handle, d: &Handle, scratch: &Handle| {
        PRODUCTS.run(&client, product, a, b, d, scratch, &tally).unwrap_err()
    };
    let none = product(Add::None);
    assert!(run(&none, &small, &large, &large, &small).starts_with("A has 1024 bytes"));
    assert!(run(&none, &large, &small, &large, &small).starts_with("B has 1024 bytes"));
    assert!(run(&none, &large, &large, &small, &small).starts_with("D has 1024 bytes"));
    assert!(run(&product(Add::Into), &large, &large, &large, &small).contains("4096 bytes of scratch memory"));
    let shifted = client.empty(8192).offset_start(128);
    assert!(run(&none, &shifted, &large, &large, &small).contains("begins at byte 128"));
    let empty = Product { k: 0, ..product(Add::None) };
    assert!(run(&empty, &large, &large, &large, &small).contains("empty or too large"));
    let counted = client.read_one(tally.clone()).expect("a healthy device");
    assert_eq!(bytemuck::cast_slice::<u8, u32>(&counted), [0]);
}
