//! The update that owners make, while its sums arrive.
//!
//! If the codec's payloads have a fixed length, each lies at its final place from the start, so that the update is
//! never in memory twice. Payloads of other codecs are short, and joined at the end.

use starling_protocol::run::Codec;
use starling_protocol::update;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// An update under construction.
pub(super) struct Sheet {
    codec: Codec,
    elements: usize,
    sums: Mutex<Sums>,
}

enum Sums {
    InPlace(Vec<u8>),
    /// The payloads by chunk.
    Apart(Vec<Vec<u8>>),
}

impl Sheet {
    pub fn new(codec: Codec, elements: usize) -> Self {
        let sums = if codec.is_fixed() {
            Sums::InPlace(vec![0; update::encoded_max(codec, elements)])
        } else {
            Sums::Apart(vec![Vec::new(); update::chunks(elements)])
        };
        Self { codec, elements, sums: Mutex::new(sums) }
    }

    /// The bytes are plain data, so a holder that panicked leaves a usable lock.
    fn sums(&self) -> MutexGuard<'_, Sums> {
        self.sums.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores a payload that was checked to be one of `chunk`.
    pub fn put(&self, chunk: usize, payload: &[u8]) {
        match &mut *self.sums() {
            Sums::InPlace(all) => {
                all[update::chunk_range(self.codec, self.elements, chunk)].copy_from_slice(payload);
            }
            Sums::Apart(chunks) => payload.clone_into(&mut chunks[chunk]),
        }
    }

    /// Copies the payload of `chunk` into `out`, whose earlier content goes.
    pub fn copy(&self, chunk: usize, out: &mut Vec<u8>) {
        out.clear();
        match &*self.sums() {
            Sums::InPlace(all) => {
                out.extend_from_slice(&all[update::chunk_range(self.codec, self.elements, chunk)]);
            }
            Sums::Apart(chunks) => out.extend_from_slice(&chunks[chunk]),
        }
    }

    /// The update, once all sums are there.
    pub fn take(&self) -> Vec<u8> {
        match std::mem::replace(&mut *self.sums(), Sums::Apart(Vec::new())) {
            Sums::InPlace(all) => all,
            Sums::Apart(chunks) => update::assemble(self.codec, chunks.iter().map(Vec::as_slice)),
        }
    }
}
