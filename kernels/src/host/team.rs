//! The threads of a trainer and the buffers that they share.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Threads that work on the parts of one operation.
///
/// Chance decides which thread takes which part. The result of a part never depends on it, so results are the same in
/// every run with the same number of threads.
pub struct Team {
    pool: Option<rayon::ThreadPool>,
    threads: usize,
}

impl Team {
    /// # Errors
    /// If the operating system gives no threads.
    pub fn new(threads: usize) -> Result<Self, String> {
        let threads = threads.max(1);
        let pool = if threads == 1 {
            None
        } else {
            let builder = rayon::ThreadPoolBuilder::new().num_threads(threads);
            Some(builder.thread_name(|i| format!("kernel-{i}")).build().map_err(|e| e.to_string())?)
        };
        Ok(Self { pool, threads })
    }

    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Runs `f` on a thread of the team, so that the operations within fan out without a change of threads.
    pub fn enter<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        match &self.pool {
            Some(pool) => pool.install(f),
            None => f(),
        }
    }

    /// Calls `f` for each of `0..parts`; returns when all are done.
    pub fn each(&self, parts: usize, f: impl Fn(usize) + Sync) {
        let Some(pool) = self.pool.as_ref().filter(|_| parts > 1) else {
            return (0..parts).for_each(f);
        };
        let next = AtomicUsize::new(0);
        let work = || {
            loop {
                let part = next.fetch_add(1, Ordering::Relaxed);
                if part >= parts {
                    break;
                }
                f(part);
            }
        };
        pool.scope(|scope| {
            for _ in 1..self.threads.min(parts) {
                scope.spawn(|_| work());
            }
            work();
        });
    }

    /// Cuts `0..len` into pieces of whole `grain`s, about `per_thread` of them a thread, and calls `f(piece, range)`.
    pub fn ranges(&self, len: usize, grain: usize, per_thread: usize, f: impl Fn(usize, Range<usize>) + Sync) {
        let size = self.piece(len, grain, per_thread);
        self.each(len.div_ceil(size), |i| f(i, i * size..((i + 1) * size).min(len)));
    }

    /// The size of the pieces that [`Self::ranges`] makes.
    pub fn piece(&self, len: usize, grain: usize, per_thread: usize) -> usize {
        len.div_ceil(self.threads * per_thread).next_multiple_of(grain).max(grain)
    }
}

impl std::fmt::Debug for Team {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Team({})", self.threads)
    }
}

/// A buffer whose disjoint parts are written by several threads.
#[derive(Clone, Copy)]
pub struct Shared<'a> {
    data: *mut f32,
    len: usize,
    buffer: std::marker::PhantomData<&'a mut [f32]>,
}

// SAFETY: access goes through the unsafe methods, whose callers promise that parts in use do not overlap.
unsafe impl Send for Shared<'_> {}
// SAFETY: as above.
unsafe impl Sync for Shared<'_> {}

impl<'a> Shared<'a> {
    pub fn new(data: &'a mut [f32]) -> Self {
        Self { data: data.as_mut_ptr(), len: data.len(), buffer: std::marker::PhantomData }
    }

    /// The part `range` of the buffer.
    ///
    /// # Safety
    /// No element of the range is in use elsewhere while the result lives.
    ///
    /// # Panics
    /// If the range leaves the buffer.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn part(&self, range: Range<usize>) -> &'a mut [f32] {
        assert!(range.start <= range.end && range.end <= self.len, "part {range:?} of a buffer of {}", self.len);
        // SAFETY: the assertion keeps it in bounds; by the caller's promise nothing else uses the range.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(range.start), range.len()) }
    }
}

thread_local! {
    static SCRATCH: RefCell<Vec<Vec<f32>>> = const { RefCell::new(Vec::new()) };
}

/// Calls `f` with `len` floats of this thread's own, of any content. Calls may nest; the next call reuses the memory.
pub fn with_scratch<R>(len: usize, f: impl FnOnce(&mut [f32]) -> R) -> R {
    let mut buffer = SCRATCH.with_borrow_mut(Vec::pop).unwrap_or_default();
    if buffer.len() < len {
        buffer = vec![0.0; len];
    }
    let result = f(&mut buffer[..len]);
    SCRATCH.with_borrow_mut(|stack| stack.push(buffer));
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_done_once() {
        for threads in 1..4 {
            let team = Team::new(threads).unwrap();
            for len in [0, 1, 7, 64, 1000] {
                let mut seen = vec![0.0f32; len];
                let shared = Shared::new(&mut seen);
                team.enter(|| {
                    team.ranges(len, 8, 2, |_, range| {
                        // SAFETY: the ranges do not overlap.
                        unsafe { shared.part(range) }.iter_mut().for_each(|x| *x += 1.0);
                    });
                });
                assert!(seen.iter().all(|&x| x == 1.0));
            }
        }
    }

    #[test]
    fn scratch_nests() {
        with_scratch(4, |a| {
            a.fill(1.0);
            with_scratch(4, |b| b.fill(2.0));
            assert_eq!(a, [1.0; 4]);
        });
    }
}
