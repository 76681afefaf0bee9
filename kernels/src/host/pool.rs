//! Reused buffers: activations of one step become those of the next, so that no page is faulted in twice.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

/// Free buffers by length. Lengths are few: they follow from the model and the batch.
#[derive(Default)]
pub struct Pool {
    free: Mutex<BTreeMap<usize, Vec<Vec<f32>>>>,
}

impl Pool {
    /// A buffer of `len` floats of any content; it returns to the pool when dropped.
    pub fn take(self: &Arc<Self>, len: usize) -> Buffer {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let data = free.get_mut(&len).and_then(Vec::pop).unwrap_or_else(|| vec![0.0; len]);
        Buffer { data, home: self.clone() }
    }

    /// Frees the buffers that are not in use.
    pub fn trim(&self) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pool")
    }
}

/// A buffer on loan from a [`Pool`].
pub struct Buffer {
    data: Vec<f32>,
    home: Arc<Pool>,
}

impl Deref for Buffer {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.data
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.data
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let data = std::mem::take(&mut self.data);
        let mut free = self.home.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.entry(data.len()).or_default().push(data);
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({})", self.data.len())
    }
}
