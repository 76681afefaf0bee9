//! Reports to the driver that a reduction moves, and what it waits for, but not for every frame.

use starling_protocol::NodeId;
use starling_protocol::message::{Awaited, Awaits};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

/// The receiver of reports.
pub type ProgressFn = Arc<dyn Fn(Report) + Send + Sync>;

/// How far an attempt is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Grows while something moves, so that members can be compared. With owners it counts the bytes moved in both
    /// directions, frame headers included; for a ring see [`of_ring`].
    pub reached: u64,
    /// The thing that the reduction waits for, with owners.
    pub awaits: Option<Awaits>,
}

/// Least time between two reports; the engine's deadlines are far longer.
const REPORT_EVERY: Duration = Duration::from_millis(if cfg!(test) { 1 } else { 50 });
/// Bits of the bytes in a ring's progress.
const BYTES_BITS: u32 = 40;

/// Progress of a ring's member: first the hops that have arrived whole, empty ones included, then the bytes received.
/// Sent bytes do not count: if a member withholds data, the member after it has received least, which shows the bad
/// link.
pub(super) fn of_ring(hops: usize, received: u64) -> u64 {
    (hops as u64) << BYTES_BITS | received.min((1 << BYTES_BITS) - 1)
}

/// How far one reduction is.
#[derive(Clone)]
pub(super) struct Progress {
    report: ProgressFn,
    reached: Arc<AtomicU64>,
    /// Whether a report is on its way.
    due: Arc<AtomicBool>,
    /// The [`Awaited`] number that each direction of each link waits for, or 0.
    waits: Arc<[(NodeId, [AtomicU8; 2])]>,
}

/// The directions of a link.
#[derive(Clone, Copy)]
pub(super) enum Way {
    In,
    Out,
}

impl Progress {
    /// Progress of a reduction that reports nothing of what it waits for.
    pub fn new(report: ProgressFn) -> Self {
        Self { report, reached: Arc::default(), due: Arc::default(), waits: Arc::default() }
    }

    /// Progress of a reduction with links to these members.
    pub fn of_links(self, members: impl Iterator<Item = NodeId>) -> Self {
        Self { waits: members.map(|member| (member, <[AtomicU8; 2]>::default())).collect(), ..self }
    }

    /// Waits for `step`, and meanwhile shows that it is due from the member at `place`.
    pub async fn wait<T>(&self, place: usize, way: Way, what: Awaited, step: impl Future<Output = T>) -> T {
        let Some(cell) = self.waits.get(place).and_then(|(_, ways)| ways.get(way as usize)) else { return step.await };
        // Most steps are ready at once.
        let mut step = std::pin::pin!(step);
        let at_once = std::future::poll_fn(|cx| std::task::Poll::Ready(step.as_mut().poll(cx))).await;
        if let std::task::Poll::Ready(done) = at_once {
            return done;
        }
        cell.store(what.number(), Ordering::Release);
        self.report_soon();
        let done = step.await;
        cell.store(0, Ordering::Release);
        done
    }

    /// The awaited thing that depends on no other awaited one.
    fn awaits(&self) -> Option<Awaits> {
        let number = |cell: &AtomicU8| Awaited::from_number(cell.load(Ordering::Acquire));
        let of = |(from, ways): &(NodeId, [AtomicU8; 2])| Some((ways.iter().filter_map(number).min()?, *from));
        let (what, from) = self.waits.iter().filter_map(of).min()?;
        Some(Awaits { what, from })
    }

    /// Adds this many bytes.
    pub fn add(&self, bytes: usize) {
        self.reached.fetch_add(bytes as u64, Ordering::Relaxed);
        self.report_soon();
    }

    /// Raises the progress to this value.
    pub fn reach(&self, progress: u64) {
        self.reached.fetch_max(progress, Ordering::Relaxed);
        self.report_soon();
    }

    /// Sees to it that a report follows soon. The last step before a standstill counts as much as any, so each step
    /// either sends a later report or finds one due.
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
        (self.report)(Report { reached: self.reached.load(Ordering::Relaxed), awaits: self.awaits() });
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
            let progress = Progress::new(Arc::new(move |report: Report| seen.lock().unwrap().push(report.reached)));
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
    fn the_first_thing_awaited_is_told_even_if_nothing_moves() {
        crate::reduce::harness::runtime().block_on(async {
            let told = Arc::new(Mutex::new(None));
            let seen = Arc::clone(&told);
            let progress = Progress::new(Arc::new(move |report: Report| *seen.lock().unwrap() = report.awaits));
            let ids = [NodeId([1; 32]), NodeId([2; 32]), NodeId([3; 32])];
            let progress = progress.of_links(ids.into_iter());
            let never = std::future::pending::<()>;
            let sum = progress.wait(0, Way::In, Awaited::Sum, never());
            let room = progress.wait(1, Way::Out, Awaited::Room, never());
            let part = progress.wait(2, Way::In, Awaited::Part, async { tokio::task::yield_now().await });
            let until = |expected: Option<Awaits>| {
                let told = Arc::clone(&told);
                async move {
                    while *told.lock().unwrap() != expected {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                }
            };
            let all = async { futures::future::join3(sum, room, part).await };
            let sum_is_told = until(Some(Awaits { what: Awaited::Sum, from: ids[0] }));
            let limit = tokio::time::timeout(Duration::from_secs(20), sum_is_told);
            tokio::select! {
                _ = all => unreachable!("two of them never end"),
                told = limit => told.expect("it is told"),
            }
        });
    }

    #[test]
    fn hops_come_before_bytes() {
        assert!(of_ring(1, 0) > of_ring(0, u64::MAX));
        assert!(of_ring(1, 5) > of_ring(1, 4));
    }
}
