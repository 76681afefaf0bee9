//! The report of a scenario: `report.json`, a page with pictures, and the pictures as files.

mod fetches;
mod figures;
pub mod heat;
pub mod page;
pub mod picture;
mod pictures;
mod png;
mod summary;
mod timeline;

pub use figures::Figures;
pub use summary::{NodeRow, Recovery, Report};

use crate::history::History;
use anyhow::Context;
use picture::Picture;
use std::path::Path;

/// Writes the report into the scenario's folder: `report.json`, `index.html`, `pictures/NAME.png` and `.svg`.
///
/// # Errors
/// If a picture cannot be drawn, or a file cannot be written.
pub fn write(folder: &Path, report: &Report, history: &History, again: &str) -> anyhow::Result<()> {
    let put = |name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        std::fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))
    };
    put("report.json", serde_json::to_string_pretty(report).context("a report is JSON")?.as_bytes())?;
    let pictures = pictures::all(history)?;
    write_pictures(folder, &pictures)?;
    put("index.html", page::html(report, &pictures, again).as_bytes())
}

/// Writes the results of several scenarios: `summary.json` (their reports) and `index.html` (a table that leads to
/// each).
///
/// # Errors
/// If a file cannot be written.
pub fn write_summary(folder: &Path, reports: &[Report]) -> anyhow::Result<()> {
    let json = serde_json::to_vec_pretty(reports).context("reports are JSON")?;
    for (name, bytes) in [("summary.json", json), ("index.html", page::summary(reports).into_bytes())] {
        let path = folder.join(name);
        std::fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Writes `pictures/NAME.png` and `.svg`.
///
/// # Errors
/// If a file cannot be written.
pub fn write_pictures(folder: &Path, pictures: &[Picture]) -> anyhow::Result<()> {
    let folder = folder.join("pictures");
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    for picture in pictures {
        for (end, bytes) in [("svg", picture.svg.as_bytes()), ("png", &picture.png)] {
            let path = folder.join(format!("{}.{end}", picture.name));
            std::fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
        }
    }
    Ok(())
}
