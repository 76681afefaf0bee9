//! The sizes at which a flock becomes a grid of several rows.
//!
//! In a node these are constants. With the feature `scales` a thread, or a whole process, may make them small, so that a
//! dozen nodes show what a flock of hundreds does: the simulator does so, and a test's nodes that are real processes.

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
#[cfg(feature = "scales")]
pub const SMALL: Scale = Scale { voters: 3, row: 4, row_least: 3 };

/// The sizes that hold in this thread.
#[cfg(not(feature = "scales"))]
pub const fn scale() -> Scale {
    FULL
}

#[cfg(feature = "scales")]
pub use chosen::{everywhere, scale, with};

#[cfg(feature = "scales")]
mod chosen {
    use super::{FULL, Scale};
    use std::cell::Cell;
    use std::sync::OnceLock;

    thread_local! {
        // One for each thread, so that a batch of the simulator can play several sizes side by side.
        static CHOSEN: Cell<Option<Scale>> = const { Cell::new(None) };
    }

    /// The sizes of all threads that have none of their own, chosen by the program.
    static EVERYWHERE: OnceLock<Scale> = OnceLock::new();

    /// The sizes that hold in this thread.
    pub fn scale() -> Scale {
        CHOSEN.get().or_else(|| EVERYWHERE.get().copied()).unwrap_or(FULL)
    }

    /// Sets the sizes of the whole process, for good. Returns false if that was done before.
    pub fn everywhere(scale: Scale) -> bool {
        EVERYWHERE.set(scale).is_ok()
    }

    /// Runs `body` with other sizes. They end with it, also if it panics.
    pub fn with<T>(scale: Scale, body: impl FnOnce() -> T) -> T {
        struct Restore(Option<Scale>);
        impl Drop for Restore {
            fn drop(&mut self) {
                CHOSEN.set(self.0);
            }
        }
        let _restore = Restore(CHOSEN.replace(Some(scale)));
        body()
    }
}
