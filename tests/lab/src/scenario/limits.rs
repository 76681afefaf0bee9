//! The system's limits of a node.

use super::place::Place;
use serde::Deserialize;

/// `limits`: the resource limits of each node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Descriptors (RLIMIT_NOFILE).
    pub files: Option<u64>,
    /// Memory that it may write to (RLIMIT_DATA).
    pub memory_mib: Option<u64>,
}

impl Limits {
    pub(super) fn check(&self, place: Place<'_>) -> anyhow::Result<()> {
        for (key, value) in [("files", self.files), ("memory_mib", self.memory_mib)] {
            if let Some(value) = value.filter(|value| !(16..=1 << 24).contains(value)) {
                return place.refuse(&format!("limits.{key} is {value}, allowed is 16 to 16777216"));
            }
        }
        Ok(())
    }
}
