//! The context that the operations share, and tensors as plain slices.

use crate::host::pool::{Buffer, Pool};
use crate::host::rope::Table;
use crate::host::team::Team;
use burn_autodiff::Autodiff;
use burn_backend::{Bytes, DType};
use burn_flex::{Flex, FlexTensor, Layout};
use burn_std::{AllocationController, AllocationProperty};
use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex};

/// The tracked backend of the CPU.
pub type Tracked = Autodiff<Flex>;

/// Threads, buffers, tables and gradients that the operations share.
#[derive(Clone, Debug)]
pub struct Context {
    pub team: Arc<Team>,
    pub pool: Arc<Pool>,
    /// Turns queries and keys; has at least as many positions as a sequence has tokens.
    pub rope: Arc<Table>,
    /// Receives the gradients of the weights, at the weights' own offsets in their vector.
    pub gradients: Arc<Mutex<Vec<f32>>>,
}

impl Context {
    pub fn new(team: Team, rope: Table, parameters: usize) -> Self {
        let gradients = Arc::new(Mutex::new(vec![0.0; parameters]));
        Self { team: Arc::new(team), pool: Arc::default(), rope: Arc::new(rope), gradients }
    }
}

/// The elements of a dense tensor.
///
/// # Panics
/// If the tensor is not dense or not of f32, which no operation here makes.
pub fn floats(tensor: &FlexTensor) -> &[f32] {
    match tensor.as_slice() {
        Some(slice) => slice,
        None => panic!("a fused operation was given a tensor that is not dense f32: {tensor:?}"),
    }
}

/// The elements of a dense tensor of i32; see [`floats`].
pub fn integers(tensor: &FlexTensor) -> &[i32] {
    match tensor.as_slice() {
        Some(slice) => slice,
        None => panic!("a fused operation was given a tensor that is not dense i32: {tensor:?}"),
    }
}

/// A tensor of `rows x width` in a buffer that returns to its pool.
pub fn tensor(buffer: Buffer, rows: usize, width: usize) -> FlexTensor {
    let len = buffer.len() * size_of::<f32>();
    // SAFETY: all of the buffer is initialised.
    let bytes = unsafe { Bytes::from_controller(Box::new(buffer), len) };
    FlexTensor::new(bytes, Layout::contiguous([rows, width].into()), DType::F32)
}

impl AllocationController for Buffer {
    fn alloc_align(&self) -> usize {
        align_of::<f32>()
    }

    fn property(&self) -> AllocationProperty {
        AllocationProperty::Other
    }

    unsafe fn memory_mut(&mut self) -> &mut [MaybeUninit<u8>] {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(self);
        // SAFETY: same layout; the caller promises to write initialised bytes only.
        unsafe { &mut *(std::ptr::from_mut(bytes) as *mut [MaybeUninit<u8>]) }
    }

    fn memory(&self) -> &[MaybeUninit<u8>] {
        let bytes: &[u8] = bytemuck::cast_slice(self);
        // SAFETY: same layout, and initialised bytes may be read as possibly uninitialised ones.
        unsafe { &*(std::ptr::from_ref(bytes) as *const [MaybeUninit<u8>]) }
    }
}
