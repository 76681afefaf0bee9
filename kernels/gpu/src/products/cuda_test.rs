//! Products on CUDA, as far as the machine goes: without a driver nothing is tested, with a driver that computes nothing
//! the words are, and with a GPU the numbers are.

use super::{Add, Form, Output, Precision, Product, Products};
use cubecl::cuda::{CudaDevice, CudaRuntime};
use cubecl::prelude::*;
use cubecl::server::Handle;
use half::bf16;

type Client = ComputeClient<CudaRuntime>;

fn client() -> Option<Client> {
    let name = if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so.1" };
    // SAFETY: the driver's initialisers are NVIDIA's.
    unsafe { libloading::Library::new(name) }.ok()?;
    Some(CudaRuntime::client(&CudaDevice::new(0)))
}

fn upload(client: &Client, precision: Precision, data: &[f32]) -> Handle {
    match precision {
        Precision::F32 => client.create_from_slice(bytemuck::cast_slice(data)),
        Precision::Bf16 => {
            let bytes: Vec<u8> = data.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect();
            client.create_from_slice(&bytes)
        }
    }
}

fn download(client: &Client, precision: Precision, handle: &Handle) -> Vec<f32> {
    let bytes = client.read_one(handle.clone()).expect("a healthy device");
    match precision {
        Precision::F32 => bytes.chunks_exact(4).map(|c| f32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect(),
        Precision::Bf16 => bytes.chunks_exact(2).map(|c| bf16::from_le_bytes([c[0], c[1]]).to_f32()).collect(),
    }
}

/// Numbers that bf16 holds exactly, and whose products f32 sums exactly.
fn numbers(length: usize, factor: usize) -> Vec<f32> {
    (0..length).map(|i| ((i * factor + i / 7) % 17) as f32 / 8.0 - 1.0).collect()
}

fn reference(form: Form, (m, n, k): (usize, usize, usize), (row, column): (usize, usize), a: &[f32], b: &[f32]) -> f64 {
    let term = |p: usize| match form {
        Form::Forward => (a[row * k + p], b[column * k + p]),
        Form::Input => (a[row * k + p], b[p * n + column]),
        Form::Weight => (a[p * m + row], b[p * n + column]),
    };
    (0..k).map(term).map(|(a, b)| f64::from(a) * f64::from(b)).sum()
}

/// Some products and the same products added to their results; all must be exact but for the last rounding.
fn case(
    client: &Client,
    products: &Products<CudaRuntime>,
    precision: Precision,
    form: Form,
    (count, size): (usize, (usize, usize, usize)),
) {
    let (m, n, k) = size;
    for output in [Output::Activation, Output::Float] {
        let kind = if output == Output::Float { Precision::F32 } else { precision };
        let [a, b, c] = [(m * k, 5), (n * k, 3), (m * n, 11)].map(|(length, factor)| numbers(count * length, factor));
        let [left, right] = [&a, &b].map(|data| upload(client, precision, data));
        let d = upload(client, kind, &c);
        let tally = client.create_from_slice(&[0; 4]);
        for (add, expected_terms) in [(Add::None, 0.0), (Add::Into, 1.0)] {
            let before = download(client, kind, &d);
            let product = Product { form, count, m, n, k, output, add };
            let scratch = client.empty(super::scratch(std::slice::from_ref(&product), true).max(4));
            products.run(client, &product, &left, &right, &d, &scratch, &tally).expect("a run");
            products.check().expect("no failure");
            let after = download(client, kind, &d);
            for at in (0..count * m * n).step_by(1 + count * m * n / 4096) {
                let added = expected_terms * f64::from(before[at]);
                let (matrix, place) = (at / (m * n), (at / n % m, at % n));
                let right = reference(form, size, place, &a[matrix * m * k..], &b[matrix * n * k..]) + added;
                let slack = right.abs().max(1.0) * if kind == Precision::Bf16 { 0.004 } else { 1e-5 };
                let error = (f64::from(after[at]) - right).abs();
                assert!(error <= slack, "element {at} is {} and should be {right} ({product:?})", after[at]);
            }
        }
    }
}

/// Whether the device computes at all: a driver for machines without a GPU may not.
fn computes(client: &Client) -> bool {
    let portable = Products::<CudaRuntime>::open_portable(Precision::F32);
    let ones = client.create_from_slice(bytemuck::cast_slice(&[1.0f32; 64]));
    let tally = client.create_from_slice(&[0; 4]);
    let product = Product { form: Form::Input, count: 1, m: 1, n: 1, k: 1, output: Output::Float, add: Add::Into };
    let d = client.create_from_slice(&[0; 4]);
    portable.run(client, &product, &ones, &ones, &d, &client.empty(4), &tally).expect("a run");
    let counted = client.read_one(tally).expect("a healthy device");
    counted[0] == 1
}

#[test]
fn products_are_exact_where_a_gpu_is() {
    let Some(client) = client() else { return };
    for precision in [Precision::Bf16, Precision::F32] {
        let (products, told) = Products::open(&client, precision);
        println!("{told}");
        assert!(told.starts_with("products by cuBLASLt ") || told.starts_with("products by cubek, because "), "{told}");
        let computes = computes(&client);
        // A stand-in of cuBLASLt may compute where the driver does not.
        let sets =
            [(told.starts_with("products by cuBLASLt"), products), (computes, Products::open_portable(precision))];
        for (_, products) in sets.iter().filter(|set| set.0) {
            for form in [Form::Forward, Form::Input, Form::Weight] {
                for size in [(1, 3, 5), (17, 64, 96), (100, 1000, 64), (512, 768, 768), (768, 256, 2048)] {
                    case(&client, products, precision, form, (1, size));
                }
                for size in [(3, 5, 7), (64, 64, 176), (768, 768, 256)] {
                    case(&client, products, precision, form, (5, size));
                }
            }
        }
    }
}

/// All kernels of the portable products compile for a model's shapes.
#[test]
fn portable_products_compile() {
    let Some(client) = client() else { return };
    let portable = Products::<CudaRuntime>::open_portable(Precision::Bf16);
    let tally = client.create_from_slice(&[0; 4]);
    for (form, count, m, n, k) in [
        (Form::Forward, 1, 8192, 1280, 768),
        (Form::Input, 1, 8192, 768, 1280),
        (Form::Weight, 1, 1280, 768, 8192),
        (Form::Forward, 1, 17, 100, 96),
        (Form::Weight, 1, 3, 65, 17),
        // Muon's.
        (Form::Weight, 20, 768, 768, 2048),
        (Form::Forward, 20, 768, 768, 2048),
        (Form::Input, 20, 768, 2048, 768),
    ] {
        let [a, b, d, scratch] = [m * k * 2, n * k * 2, m * n * 4, m * n * 4].map(|bytes| client.empty(count * bytes));
        for output in [Output::Activation, Output::Float] {
            for add in [Add::None, Add::Into] {
                let product = Product { form, count, m, n, k, output, add };
                portable.run(&client, &product, &a, &b, &d, &scratch, &tally).expect("a run");
            }
        }
    }
}
