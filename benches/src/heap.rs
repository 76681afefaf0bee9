//! An allocator that counts the bytes in use, and their peak.

use mimalloc::MiMalloc;
use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// mimalloc with counts. They leave out memory that mimalloc holds beyond the bytes in use.
pub struct Heap;

static IN_USE: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

fn count(before: usize, after: usize) {
    if after > before {
        let now = IN_USE.fetch_add(after - before, Relaxed) + (after - before);
        MOST.fetch_max(now, Relaxed);
    } else {
        IN_USE.fetch_sub(before - after, Relaxed);
    }
}

// SAFETY: every call goes to mimalloc unchanged.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(0, layout.size());
        // SAFETY: the caller's promises are the conditions of mimalloc.
        unsafe { MiMalloc.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(0, layout.size());
        // SAFETY: as above.
        unsafe { MiMalloc.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(layout.size(), 0);
        // SAFETY: as above.
        unsafe { MiMalloc.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(layout.size(), size);
        // SAFETY: as above.
        unsafe { MiMalloc.realloc(at, layout, size) }
    }
}

/// Resets the peak to the bytes in use, and returns these.
pub fn begin() -> usize {
    let now = IN_USE.load(Relaxed);
    MOST.store(now, Relaxed);
    now
}

/// The peak since [`begin`].
pub fn most() -> usize {
    MOST.load(Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[global_allocator]
    static HEAP: Heap = Heap;

    #[test]
    fn memory_given_back_counts_in_the_most_that_was_in_use() {
        let before = begin();
        let mut grown = Vec::with_capacity(1 << 20);
        grown.resize(8 << 20, 1u8);
        drop(std::hint::black_box(grown));
        // Other tests of this process have bytes in use too.
        assert!((8 << 20..10 << 20).contains(&(most() - before)), "{}", most() - before);
        assert!(begin() < before + (1 << 20));
    }
}
