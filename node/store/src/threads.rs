//! Work on many files at once.

use crate::StoreError;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::Builder;

/// Bytes of a thread's stack: the work needs little, and some machines count what is reserved.
const STACK_BYTES: usize = 512 << 10;

/// Does `work` for every number below `count`, on at most so many threads, each with a buffer of its own. After a failure, which is
/// returned, no further number is begun. A thread that panics is a failure of `action` at `path`. Threads that cannot be had leave their
/// work to the others.
pub(crate) fn each(
    (action, path): (&'static str, &Path),
    threads: usize,
    count: usize,
    work: impl Fn(usize, &mut Vec<u8>) -> Result<(), StoreError> + Sync,
) -> Result<(), StoreError> {
    let next = AtomicUsize::new(0);
    let go = || -> Result<(), StoreError> {
        let mut buffer = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return Ok(());
            }
            work(number, &mut buffer).inspect_err(|_| next.store(count, Ordering::Relaxed))?;
        }
    };
    std::thread::scope(|scope| {
        let spawn = |_| Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, go).ok();
        let others: Vec<_> = (1..threads.min(count)).filter_map(spawn).collect();
        let died = |_| StoreError::io(action, path, 0, io::Error::other("a thread that worked on its files panicked"));
        others.into_iter().fold(go(), |all, other| all.and(other.join().map_err(died).flatten()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    fn here() -> (&'static str, &'static Path) {
        ("write", Path::new("chunks"))
    }

    #[test]
    fn each_number_is_done_once_and_a_failure_ends_the_rest() {
        for threads in [1, 3, 100] {
            let done: Vec<_> = (0..50).map(|_| AtomicU64::new(0)).collect();
            let work = |number: usize, _: &mut Vec<u8>| {
                done[number].fetch_add(1, Ordering::Relaxed);
                Ok(())
            };
            each(here(), threads, done.len(), work).unwrap();
            assert!(done.iter().all(|times| times.load(Ordering::Relaxed) == 1), "{threads} threads");
        }
        each(here(), 8, 0, |_, _| Err(StoreError::NoChain)).unwrap();
        let done = AtomicU64::new(0);
        let fails_at_once = |_: usize, _: &mut Vec<u8>| {
            done.fetch_add(1, Ordering::Relaxed);
            Err(StoreError::NoChain)
        };
        assert!(matches!(each(here(), 4, 1000, fails_at_once), Err(StoreError::NoChain)));
        assert!(done.into_inner() <= 4, "each thread has begun one at most");
    }

    #[test]
    fn a_panic_is_a_failure_with_a_name() {
        let caller = std::thread::current().id();
        let turn = std::sync::Barrier::new(2);
        // Each of the two threads gets a number; the caller's own goes well.
        let work = |_: usize, _: &mut Vec<u8>| {
            turn.wait();
            assert_eq!(std::thread::current().id(), caller, "planned");
            Ok(())
        };
        match each(here(), 2, 2, work) {
            Err(e @ StoreError::Io { action: "write", .. }) => assert!(e.to_string().contains("panicked"), "{e}"),
            other => panic!("{other:?}"),
        }
    }
}
