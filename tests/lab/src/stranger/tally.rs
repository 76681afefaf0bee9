//! Counters of the strangers' connections.

use serde_json::json;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The counters.
#[derive(Default)]
pub struct Tally {
    pub tried: AtomicU64,
    /// Connections that were made, with a handshake if the behaviour has one.
    pub opened: AtomicU64,
    pub failed: AtomicU64,
    /// Connections that the other side ended before their time.
    pub closed: AtomicU64,
    /// Messages that the other sides have read.
    pub said: AtomicU64,
}

impl Tally {
    /// Prints one line; `open` is the current number of connections.
    pub fn tell(&self, open: usize) {
        let [tried, opened, failed, closed, said] =
            [&self.tried, &self.opened, &self.failed, &self.closed, &self.said].map(|n| n.load(Relaxed));
        let row = json!({
            "event": "strangers", "tried": tried, "opened": opened, "failed": failed, "closed": closed, "open": open,
            "said": said,
        });
        println!("{row}");
    }
}
