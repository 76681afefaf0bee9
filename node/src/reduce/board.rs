//! The bytes of the update being made, at which the reader and the writer of one reduction meet.
//!
//! A partial sum is kept at the place of its chunk's finished payload, so that the reader always has room and never
//! waits for the writer. (A ring whose members stop reading until they have written deadlocks once the data in flight
//! exceeds the buffers.) The finished sum of a chunk that this node has passed on cannot arrive before this node's part
//! has gone around the ring; one that does is refused, so no unsent bytes are ever overwritten.

use super::sums::Sheet;
use tokio::sync::watch;

/// The update, how far it has been filled, and how far it has been sent.
pub(super) struct Board {
    pub sheet: Sheet,
    /// Frames that the reader has put here.
    received: watch::Sender<usize>,
    /// Frames that the writer has taken.
    picked: watch::Sender<usize>,
}

impl Board {
    pub fn new(sheet: Sheet) -> Self {
        Self { sheet, received: watch::Sender::new(0), picked: watch::Sender::new(0) }
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
}
