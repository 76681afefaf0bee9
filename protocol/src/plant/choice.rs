//! Which bug a thread, or the whole process, runs.

use super::Plant;
use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

thread_local! {
    // One for each thread, so that a batch can run several bugs side by side.
    static CHOSEN: Cell<Option<Plant>> = const { Cell::new(None) };
}

/// The bug of all threads that have none of their own, chosen by the program.
static EVERYWHERE: OnceLock<Plant> = OnceLock::new();

/// Any test can be run with a bug (`tests/scripts/rules.sh`).
#[cfg(test)]
fn named() -> Option<Plant> {
    static NAMED: OnceLock<Option<Plant>> = OnceLock::new();
    *NAMED.get_or_init(|| Plant::of_name(&std::env::var("STARLING_PLANT").ok()?))
}

#[cfg(not(test))]
fn named() -> Option<Plant> {
    None
}

/// The bug that this thread runs.
pub fn chosen() -> Option<Plant> {
    CHOSEN.get().or_else(|| EVERYWHERE.get().copied()).or_else(named)
}

/// Plants a bug in the whole process, for good. `false`: there is one already.
pub fn everywhere(plant: Plant) -> bool {
    EVERYWHERE.set(plant).is_ok()
}

/// Something that is never the same twice.
pub fn disturbance() -> u64 {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    COUNT.fetch_add(1, Ordering::Relaxed) % 100_000
}

/// Runs `body` with a bug, and without it again afterwards, also if it panics.
pub fn with<T>(plant: Option<Plant>, body: impl FnOnce() -> T) -> T {
    struct Restore(Option<Plant>);
    impl Drop for Restore {
        fn drop(&mut self) {
            CHOSEN.set(self.0);
        }
    }
    let _restore = Restore(CHOSEN.replace(plant));
    body()
}

/// Whether the bug is planted in this thread.
macro_rules! planted {
    ($plant:expr) => {
        $crate::plant::chosen() == Some($plant)
    };
}

pub(crate) use planted;
