//! Tells the driver that a reduction moves, but not for every frame.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Told how far an attempt is: a number that grows while something moves, and by which its members can be compared. With
/// owners it is the bytes moved both ways, frame headers included; of a ring see [`of_ring`].
pub type ProgressFn = Arc<dyn Fn(u64) + Send + Sync>;

/// At most one report in this time; the engine's deadlines are far longer.
const REPORT_EVERY: Duration = Duration::from_millis(if cfg!(test) { 1 } else { 50 });
/// Bits of the bytes in a ring's progress.
const BYTES_BITS: u32 = 40;

/// How far a member of a ring is: first by the hops that have arrived whole, those without a chunk among them, then by
/// the bytes received. What has left does not count: where something is withheld, the member after it has received least
/// of all, and so the bad link is known.
pub(super) fn of_ring(hops: usize, received: u64) -> u64 {
    (hops as u64) << BYTES_BITS | received.min((1 << BYTES_BITS) - 1)
}

/// How far one reduction is.
#[derive(Clone)]
pub(super) struct Progress {
    report: ProgressFn,
    reached: Arc<AtomicU64>,
    /// A report is on its way.
    due: Arc<AtomicBool>,
}

impl Progress {
    pub fn new(report: ProgressFn) -> Self {
        Self { report, reached: Arc::default(), due: Arc::default() }
    }

    /// So much more.
    pub fn add(&self, bytes: usize) {
        self.reached.fetch_add(bytes as u64, Ordering::Relaxed);
        self.report_soon();
    }

    /// So much in all.
    pub fn reach(&self, progress: u64) {
        self.reached.fetch_max(progress, Ordering::Relaxed);
        self.report_soon();
    }

    /// The last step before a standstill counts as much as any: whoever moves sees to a report that is made later.
    fn report_soon(&self) {
        if self.due.swap(true, Ordering::AcqRel) {
            return;
        }
        let progress = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(REPORT_EVERY).await;
            progress.due.store(false, Ordering::Release);
            progress.finish();
        });
    }

    /// Reports now.
    pub fn finish(&self) {
        (self.report)(self.reached.load(Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn the_last_step_is_told() {
        crate::reduce::harness::runtime().block_on(async {
            let told = Arc::new(Mutex::new(Vec::new()));
            let seen = Arc::clone(&told);
            let progress = Progress::new(Arc::new(move |reached| seen.lock().unwrap().push(reached)));
            for _ in 0..1000 {
                progress.add(3);
            }
            let last = async {
                while told.lock().unwrap().last() != Some(&3000) {
                    tokio::task::yield_now().await;
                }
            };
            tokio::time::timeout(Duration::from_secs(20), last).await.expect("it is told");
            assert!(told.lock().unwrap().len() < 100, "not for every frame");
        });
    }

    #[test]
    fn hops_come_before_bytes() {
        assert!(of_ring(1, 0) > of_ring(0, u64::MAX));
        assert!(of_ring(1, 5) > of_ring(1, 4));
    }
}
