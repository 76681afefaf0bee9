//! Rows of figures: their medians, and the file that they go to.

use anyhow::Context;
use serde_json::Value;
use std::io::Write;
use std::path::Path;

/// The median; of an even number the upper one.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// Appends one row, if there is a file for rows.
///
/// # Errors
/// If the file cannot be written.
pub fn append(path: Option<&Path>, row: &Value) -> anyhow::Result<()> {
    let Some(path) = path else { return Ok(()) };
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
    file.and_then(|mut file| writeln!(file, "{row}")).with_context(|| format!("cannot write {}", path.display()))
}
