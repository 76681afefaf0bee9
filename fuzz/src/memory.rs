//! How much memory a decoder asks for, by an allocator that counts.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Bytes that a decoder may hold beyond a multiple of its input: one full list of the largest kind, which is that of
/// a task's tensors.
const BASE: usize = 1024 * 1024;
const PER_BYTE: usize = 8;

struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Relaxed).wrapping_add(layout.size());
        PEAK.fetch_max(now, Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Runs a decoder of `input` bytes and holds it to its memory.
pub fn within_limits<T>(input: usize, decode: impl FnOnce() -> T) -> T {
    let before = NOW.load(Relaxed);
    PEAK.store(before, Relaxed);
    let result = decode();
    let most = PEAK.load(Relaxed).saturating_sub(before);
    assert!(most <= BASE + PER_BYTE * input, "{input} bytes take {most} bytes of memory");
    result
}
