//! Builds without the feature `mutations`: no bug is ever injected, and nothing of one is left.

use super::Mutation;

/// Whether the bug is injected: never in this build.
macro_rules! mutated {
    ($mutation:expr) => {{
        let _: $crate::mutation::Mutation = $mutation;
        false
    }};
}

pub(crate) use mutated;

/// Nothing, in this build.
pub fn disturbance() -> u64 {
    0
}

/// None, in this build.
pub fn everywhere(_: Mutation) -> bool {
    false
}
