//! The inner optimizer's moments on disk: private to the node, and never required.

use starling_kernels::OptimizerState;
use starling_store::{Store, StoreError};

/// Name under which they are kept in the store.
pub const MOMENTS: &str = "moments";

/// `step u64 | elements u64 | m f32.. | v f32..`, little endian.
pub fn put(store: &Store, state: &OptimizerState) -> Result<(), StoreError> {
    let head = [state.step.to_le_bytes(), (state.m.len() as u64).to_le_bytes()].concat();
    store.put_private(MOMENTS, &[&head, bytemuck::cast_slice(&state.m), bytemuck::cast_slice(&state.v)])
}

/// The state that these bytes hold, if they are whole.
pub fn decode(bytes: &[u8]) -> Option<OptimizerState> {
    let (step, rest) = bytes.split_first_chunk::<8>()?;
    let (elements, rest) = rest.split_first_chunk::<8>()?;
    let elements = usize::try_from(u64::from_le_bytes(*elements)).ok()?;
    if rest.len() != elements.checked_mul(8)? {
        return None;
    }
    let values = |bytes: &[u8]| bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    let (m, v) = rest.split_at(elements * 4);
    Some(OptimizerState { step: u64::from_le_bytes(*step), m: values(m), v: values(v) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_read_back_whole_or_not_at_all() {
        let mut bytes = [7u64.to_le_bytes(), 2u64.to_le_bytes()].concat();
        for value in [1.0f32, -2.5, 0.25, f32::MIN_POSITIVE] {
            bytes.extend(value.to_le_bytes());
        }
        let back = decode(&bytes).expect("whole");
        assert_eq!((back.step, back.m, back.v), (7, vec![1.0, -2.5], vec![0.25, f32::MIN_POSITIVE]));
        for cut in 0..bytes.len() {
            assert!(decode(&bytes[..cut]).is_none(), "cut at {cut}");
        }
    }
}
