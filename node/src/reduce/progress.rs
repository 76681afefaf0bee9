//! Tells the driver that bytes move, but not for every frame.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Told how many bytes an attempt has moved so far, frame headers included.
pub type ProgressFn = Arc<dyn Fn(u64) + Send + Sync>;

/// At most one report in this time; the engine's deadlines are far longer.
const REPORT_EVERY: Duration = Duration::from_millis(50);

/// Sums up both directions of one reduction.
#[derive(Clone)]
pub(super) struct Progress {
    report: ProgressFn,
    moved: Arc<AtomicU64>,
    last: Arc<Mutex<Instant>>,
}

impl Progress {
    pub fn new(report: ProgressFn) -> Self {
        Self { report, moved: Arc::default(), last: Arc::new(Mutex::new(Instant::now())) }
    }

    pub fn add(&self, bytes: usize) {
        let moved = self.moved.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
        let due = {
            let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
            let due = last.elapsed() >= REPORT_EVERY;
            if due {
                *last = Instant::now();
            }
            due
        };
        if due {
            (self.report)(moved);
        }
    }

    /// Reports the total.
    pub fn finish(&self) {
        (self.report)(self.moved.load(Ordering::Relaxed));
    }
}
