//! How it went so far.

use serde_json::json;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// See the module.
#[derive(Default)]
pub struct Tally {
    pub tried: AtomicU64,
    /// Connections that came about, as far as this way goes.
    pub opened: AtomicU64,
    pub failed: AtomicU64,
    /// Ended by the other side before their time.
    pub closed: AtomicU64,
    /// Messages that the other sides have taken.
    pub said: AtomicU64,
}

impl Tally {
    /// One line; `open` connections are there now.
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
