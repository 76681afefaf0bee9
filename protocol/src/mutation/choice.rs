//! The choice of the bug that a thread, or the whole process, runs.

use super::Mutation;
use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

thread_local! {
    // One for each thread, so that a batch can run several bugs side by side.
    static CHOSEN: Cell<Option<Mutation>> = const { Cell::new(None) };
}

/// The bug of all threads that have none of their own, chosen by the program.
static EVERYWHERE: OnceLock<Mutation> = OnceLock::new();

/// The bug that the environment names. Any test can be run with a bug (`tests/scripts/rules.sh`).
#[cfg(test)]
fn named() -> Option<Mutation> {
    static NAMED: OnceLock<Option<Mutation>> = OnceLock::new();
    *NAMED.get_or_init(|| Mutation::of_name(&std::env::var("STARLING_MUTATION").ok()?))
}

#[cfg(not(test))]
fn named() -> Option<Mutation> {
    None
}

/// The bug that this thread runs.
pub fn chosen() -> Option<Mutation> {
    CHOSEN.get().or_else(|| EVERYWHERE.get().copied()).or_else(named)
}

/// Injects a bug into the whole process, for good. Returns false if one is there already.
pub fn everywhere(mutation: Mutation) -> bool {
    EVERYWHERE.set(mutation).is_ok()
}

/// A number that is never the same twice.
pub fn disturbance() -> u64 {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    COUNT.fetch_add(1, Ordering::Relaxed) % 100_000
}

/// Runs `body` with a bug. The bug ends with it, also if it panics.
pub fn with<T>(mutation: Option<Mutation>, body: impl FnOnce() -> T) -> T {
    struct Restore(Option<Mutation>);
    impl Drop for Restore {
        fn drop(&mut self) {
            CHOSEN.set(self.0);
        }
    }
    let _restore = Restore(CHOSEN.replace(mutation));
    body()
}

/// Whether the bug is injected in this thread.
macro_rules! mutated {
    ($mutation:expr) => {
        $crate::mutation::chosen() == Some($mutation)
    };
}

pub(crate) use mutated;
