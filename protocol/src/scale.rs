//! The sizes at which a flock becomes a grid of several rows.
//!
//! In a program these are constants. A thread of the simulator may make them small (feature `sim`), so that histories of
//! a dozen nodes show what a flock of hundreds does.

use crate::limits::{ROW_MEMBERS, ROW_MEMBERS_LEAST, VOTERS_MAX};

/// The sizes that go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// The most voters of a flock.
    pub voters: usize,
    /// With so many more members there is another row, which stays while each row has `row_least`.
    pub row: usize,
    pub row_least: usize,
}

/// The protocol's own sizes.
pub const FULL: Scale = Scale { voters: VOTERS_MAX, row: ROW_MEMBERS, row_least: ROW_MEMBERS_LEAST };

/// Sizes with which eight members sit in two rows.
#[cfg(feature = "sim")]
pub const SMALL: Scale = Scale { voters: 3, row: 4, row_least: 3 };

/// The sizes that hold in this thread.
#[cfg(not(feature = "sim"))]
pub const fn scale() -> Scale {
    FULL
}

#[cfg(feature = "sim")]
pub use chosen::{scale, with};

#[cfg(feature = "sim")]
mod chosen {
    use super::{FULL, Scale};
    use std::cell::Cell;

    thread_local! {
        static CHOSEN: Cell<Scale> = const { Cell::new(FULL) };
    }

    /// The sizes that hold in this thread.
    pub fn scale() -> Scale {
        CHOSEN.get()
    }

    /// Runs `body` with other sizes. They end with it, also if it panics.
    pub fn with<T>(scale: Scale, body: impl FnOnce() -> T) -> T {
        struct Restore(Scale);
        impl Drop for Restore {
            fn drop(&mut self) {
                CHOSEN.set(self.0);
            }
        }
        let _restore = Restore(CHOSEN.replace(scale));
        body()
    }
}
