//! Shared parts of the benches: the CPU time of this process's threads, its heap, and the file of JSON rows.

pub mod cycles;
pub mod heap;
pub mod way;

use anyhow::{Context, Result};
use serde_json::Value;
use std::io::Write;
use std::path::{Path, PathBuf};

/// CPU seconds of this process's living threads, if the system has them.
pub fn cpu_seconds() -> Option<f64> {
    let mut nanoseconds = 0.0;
    for task in std::fs::read_dir("/proc/self/task").ok()? {
        let text = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        nanoseconds += text.split_whitespace().next()?.parse::<f64>().ok()?;
    }
    Some(nanoseconds * 1e-9)
}

/// The file for rows: `told`, or the one that the variable JSON names.
pub fn json_file(told: Option<&Path>) -> Option<PathBuf> {
    told.map(Path::to_path_buf).or_else(|| std::env::var_os("JSON").filter(|name| !name.is_empty()).map(PathBuf::from))
}

/// Appends one row.
///
/// # Errors
/// If the file cannot be written.
pub fn append_row(path: Option<&Path>, row: &Value) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
    file.and_then(|mut file| writeln!(file, "{row}")).with_context(|| format!("writing {}", path.display()))
}

/// The median; of an even number the upper one.
pub fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), Some(2.0));
        assert_eq!(median([4.0, 1.0, 2.0, 3.0].into_iter()), Some(3.0));
        assert_eq!(median(std::iter::empty()), None);
    }
}
