//! A line of a file, for messages.

use anyhow::bail;
use std::path::Path;
use std::time::Duration;

/// Longest scenario: a day.
const SECONDS_MAX: f64 = 86_400.0;

/// A line of a file that a message names.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    pub path: &'a Path,
    pub line: usize,
}

impl Place<'_> {
    /// The place of a fault that is requested while the scenario runs, which is in no file.
    pub fn of_request() -> Place<'static> {
        Place { path: Path::new("request"), line: 1 }
    }

    pub fn refuse<T>(&self, why: &str) -> anyhow::Result<T> {
        bail!("{}: line {}: {why}", self.path.display(), self.line)
    }

    /// Checks that a time is in bounds.
    pub fn seconds(&self, key: &str, value: f64) -> anyhow::Result<Duration> {
        if !(0.0..=SECONDS_MAX).contains(&value) {
            return self.refuse(&format!("{key} is {value}, allowed is 0 to {SECONDS_MAX} seconds"));
        }
        Ok(Duration::from_secs_f64(value))
    }
}
