//! Products by cubek's kernels, on any device.

use super::addition;
use super::product::{Add, Form, Precision, Product, Shape};
use super::samples;
use cubecl::prelude::*;
use cubecl::server::Handle;
use cubecl::zspace::{Shape as Dimensions, Strides};
use cubek_matmul::definition::{MatmulElems, MatmulGlobalElems};
use cubek_matmul::launch::{Strategy, launch_ref};
use cubek_matmul::routines::BlueprintStrategy;
use cubek_matmul::routines::ordered_double_buffering::OrderedSelectionArgs;
use cubek_matmul::routines::simple::SimpleArgs;
use cubek_std::InputBinding;
use half::bf16;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

/// cubek's kernels, with the one that was found for each shape.
#[derive(Default)]
pub struct Portable {
    found: Mutex<HashMap<Shape, usize>>,
}

/// The kernels to try, in order of preference. Products of f32 stay in f32: cubek's kernels for tensor cores would round
/// their inputs to TF32.
///
/// The order for bf16 follows the assembler's report for sm_90a and the 125m preset: the first takes 139 to 168 registers
/// and spills 64 bytes at most, the double-buffered `wmma` kernel spills 18 kB. No GPU has timed them.
fn strategies(input: Precision) -> Vec<Strategy> {
    let units = [Strategy::SimpleUnit(Default::default()), Strategy::Naive];
    let ordered = OrderedSelectionArgs {
        partition_k: Some(2),
        row_count: Some(8),
        rows_per_plane: Some(2),
        ..Default::default()
    };
    let rows = SimpleArgs { multi_rows: true, ..Default::default() };
    let cores = match input {
        Precision::Bf16 => vec![
            Strategy::OrderedDoubleMma(BlueprintStrategy::Inferred(ordered)),
            Strategy::SimpleCyclicMma(BlueprintStrategy::Inferred(rows)),
            Strategy::SimpleCyclicCmma(Default::default()),
        ],
        Precision::F32 => Vec::new(),
    };
    cores.into_iter().chain(units).collect()
}

fn element(precision: Precision) -> cubecl::ir::StorageType {
    match precision {
        Precision::F32 => f32::as_type_native_unchecked().storage_type(),
        Precision::Bf16 => bf16::as_type_native_unchecked().storage_type(),
    }
}

/// `count` matrices of `rows` and `columns`, which may lie in memory transposed.
fn matrices<R: Runtime>(
    handle: &Handle,
    count: usize,
    [rows, columns]: [usize; 2],
    transposed: bool,
) -> TensorBinding<R> {
    // A row or a column has one layout only. cubek takes the row-major one.
    let [row, column] = if transposed && rows > 1 && columns > 1 { [1, rows] } else { [columns, 1] };
    let (strides, sizes) = ([rows * columns, row, column], [count, rows, columns]);
    let first = usize::from(count == 1);
    let (strides, sizes) = (Strides::new(&strides[first..]), Dimensions::from(sizes[first..].to_vec()));
    // SAFETY: the sizes of the handles are checked before.
    unsafe { TensorBinding::from_raw_parts(handle.clone(), strides, sizes) }
}

fn launch<R: Runtime>(
    strategy: &Strategy,
    client: &ComputeClient<R>,
    shape: Shape,
    (a, b, d): (&Handle, &Handle, &Handle),
) -> Result<(), String> {
    let Shape { form, count, m, n, k, .. } = shape;
    let input = element(shape.input);
    let left = InputBinding::new(matrices(a, count, [m, k], form == Form::Weight), input);
    let right = InputBinding::new(matrices(b, count, [k, n], form == Form::Forward), input);
    let elements = MatmulGlobalElems { lhs: input, rhs: input, out: element(shape.output) };
    let mut elements = MatmulElems::from_globals(&elements);
    let call = || launch_ref(strategy, client, left, right, matrices(d, count, [m, n], false), &mut elements);
    // Some refusals of cubek are panics.
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(answer) => answer.map_err(|e| e.to_string().trim().to_string()),
        Err(_) => Err("a panic".to_string()),
    }
}

impl Portable {
    /// Bytes for a result that is added after.
    pub fn scratch_bytes(product: &Product) -> usize {
        match product.add {
            Add::None => 0,
            _ => product.count * product.m * product.n * Precision::F32.bytes(),
        }
    }

    pub fn run<R: Runtime>(
        &self,
        client: &ComputeClient<R>,
        (product, shape): (&Product, Shape),
        (a, b, d): (&Handle, &Handle, &Handle),
        scratch: &Handle,
        tally: &Handle,
    ) -> Result<(), String> {
        if product.add == Add::None {
            return self.multiply(client, shape, (a, b, d));
        }
        let needed = Self::scratch_bytes(product);
        if scratch.size_in_used() < needed as u64 {
            return Err(format!("the product {shape} needs {needed} bytes of scratch memory"));
        }
        let output = shape.output;
        self.multiply(client, Shape { output: Precision::F32, ..shape }, (a, b, scratch))?;
        addition::add(client, output, shape.count * shape.m * shape.n, (scratch, d), tally);
        Ok(())
    }

    fn multiply<R: Runtime>(
        &self,
        client: &ComputeClient<R>,
        shape: Shape,
        handles: (&Handle, &Handle, &Handle),
    ) -> Result<(), String> {
        let strategies = strategies(shape.input);
        let known = self.found.lock().unwrap_or_else(PoisonError::into_inner).get(&shape).copied();
        if let Some(index) = known {
            return launch(&strategies[index], client, shape, handles)
                .map_err(|e| format!("cubek refused the product {shape}, which it took before: {e}"));
        }
        client.flush().map_err(|e| format!("a kernel before the product {shape} failed: {e:?}"))?;
        let mut refusals = Vec::new();
        for (index, strategy) in strategies.iter().enumerate() {
            match attempt(strategy, client, shape, handles) {
                Ok(()) => {
                    self.found.lock().unwrap_or_else(PoisonError::into_inner).insert(shape, index);
                    return Ok(());
                }
                Err(why) => refusals.push(format!("{strategy}: {why}")),
            }
        }
        Err(format!("no kernel of cubek computes the product {shape}: {}", refusals.join("; ")))
    }
}

/// A launch whose result is looked at.
fn attempt<R: Runtime>(
    strategy: &Strategy,
    client: &ComputeClient<R>,
    shape: Shape,
    handles: (&Handle, &Handle, &Handle),
) -> Result<(), String> {
    let own = client.create_from_slice(&[0; 4]);
    samples::mark(client, shape, handles.2, &own);
    launch(strategy, client, shape, handles)?;
    samples::compare(client, shape, handles, &own)
}
