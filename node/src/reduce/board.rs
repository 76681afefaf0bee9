//! The bytes of the update being made, at which the reader and the writer of one reduction meet.
//!
//! A partial sum is kept at the place of its chunk's finished payload, so that the reader always has room and never
//! waits for the writer. (A ring whose members stop reading until they have written deadlocks once the data in flight
//! exceeds the buffers.) The finished sum of a chunk that this node has passed on cannot arrive before this node's part
//! has gone around the ring; one that does is refused, so no unsent bytes are ever overwritten.

use starling_protocol::run::Codec;
use starling_protocol::update;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// The update, how far it has been filled, and how far it has been sent.
pub(super) struct Board {
    codec: Codec,
    elements: usize,
    update: Mutex<Vec<u8>>,
    /// Frames that the reader has put here.
    received: watch::Sender<usize>,
    /// Frames that the writer has taken.
    picked: watch::Sender<usize>,
}

impl Board {
    pub fn new(codec: Codec, elements: usize) -> Self {
        Self {
            codec,
            elements,
            update: Mutex::new(vec![0; update::encoded_max(codec, elements)]),
            received: watch::Sender::new(0),
            picked: watch::Sender::new(0),
        }
    }

    /// The bytes are plain data, so a holder that panicked leaves a usable lock.
    fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.update.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores the payload of `chunk`, which has exactly the chunk's length.
    pub fn put(&self, chunk: usize, payload: &[u8]) {
        self.bytes()[update::chunk_range(self.codec, self.elements, chunk)].copy_from_slice(payload);
    }

    /// Copies the payload of `chunk` to `out`, which has exactly its length.
    pub fn copy(&self, chunk: usize, out: &mut [u8]) {
        out.copy_from_slice(&self.bytes()[update::chunk_range(self.codec, self.elements, chunk)]);
    }

    /// Bytes of the payload of `chunk`.
    pub fn payload_len(&self, chunk: usize) -> usize {
        update::chunk_range(self.codec, self.elements, chunk).len()
    }

    /// Counts a frame that was received and stored.
    pub fn received(&self) {
        self.received.send_modify(|count| *count += 1);
    }

    /// Counts a frame whose bytes were copied to be sent.
    pub fn picked(&self) {
        self.picked.send_modify(|count| *count += 1);
    }

    pub fn picked_count(&self) -> usize {
        *self.picked.borrow()
    }

    pub fn received_count(&self) -> usize {
        *self.received.borrow()
    }

    /// Returns when `count` frames have been received.
    pub async fn wait_received(&self, count: usize) {
        // The sender is in `self`, so the channel cannot close during the wait.
        drop(self.received.subscribe().wait_for(|received| *received >= count).await);
    }

    /// The finished update.
    pub fn into_update(self) -> Vec<u8> {
        self.update.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}
