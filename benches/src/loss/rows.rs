//! Rows of results: a file with one JSON object a line. A run whose row is there is not run again.

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Largest file of rows that is read.
const BYTES_MAX: u64 = 256 << 20;
/// This bench's name in its rows.
const BENCH: &str = "loss";

/// The result of one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub bench: String,
    pub case: String,
    /// Everything that decides the result but the seed.
    pub key: String,
    pub seed: u64,
    /// Nats per byte at the end; none if the run diverged.
    pub loss: Option<f64>,
    /// Tokens and nats per byte along the run.
    pub curve: Vec<(f64, f64)>,
    /// Seconds of a lab's run at the points of the curve.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lab_seconds: Vec<f64>,
    /// Seconds that the run took here.
    pub seconds: f64,
    /// The settings one by one, for whoever reads the row.
    pub settings: Value,
    pub commit: String,
}

impl Row {
    pub fn bench() -> String {
        BENCH.to_owned()
    }
}

/// The rows of a file, and those that are added to it.
pub struct Rows {
    path: Option<PathBuf>,
    rows: Vec<Row>,
    /// Lines that are no JSON, such as the last one of a bench that was killed.
    pub torn: usize,
}

impl Rows {
    /// Reads the rows of a file, if there is one yet.
    pub fn open(path: Option<&Path>) -> Result<Self> {
        let mut found = Self { path: path.map(Path::to_path_buf), rows: Vec::new(), torn: 0 };
        let Some(path) = path.filter(|path| path.exists()) else { return Ok(found) };
        let bytes = std::fs::metadata(path).with_context(|| format!("reading {}", path.display()))?.len();
        ensure!(bytes <= BYTES_MAX, "{} has {bytes} bytes, at most {BYTES_MAX}: give another file", path.display());
        let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            match serde_json::from_str::<Row>(line) {
                Ok(row) if row.bench == BENCH => found.rows.push(row),
                Ok(_) => {}
                // Rows of other benches, and of this one before it could resume.
                Err(_) if serde_json::from_str::<Value>(line).is_ok() => {}
                Err(_) => found.torn += 1,
            }
        }
        Ok(found)
    }

    pub fn find(&self, key: &str, seed: u64) -> Option<&Row> {
        self.rows.iter().find(|row| row.seed == seed && row.key == key)
    }

    /// Adds a row, to the file as well. It gets a line of its own even behind one that was torn.
    pub fn append(&mut self, row: Row) -> Result<()> {
        if let Some(path) = &self.path {
            append_line(path, &serde_json::to_string(&row)?).with_context(|| format!("writing {}", path.display()))?;
        }
        self.rows.push(row);
        Ok(())
    }
}

/// One write, so that the lines of two benches do not mix.
fn append_line(path: &Path, line: &str) -> std::io::Result<()> {
    let mut file = OpenOptions::new().create(true).read(true).append(true).open(path)?;
    let before = if ends_within_a_line(&mut file)? { "\n" } else { "" };
    file.write_all(format!("{before}{line}\n").as_bytes())
}

fn ends_within_a_line(file: &mut File) -> std::io::Result<bool> {
    if file.metadata()?.len() == 0 {
        return Ok(false);
    }
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last != *b"\n")
}

/// The commit that rows name: the variable COMMIT, or that of the folder, with a plus if something is changed.
pub fn commit() -> String {
    if let Some(told) = std::env::var("COMMIT").ok().filter(|told| !told.is_empty()) {
        return told;
    }
    let git = |words: &[&str]| {
        let output = Command::new("git").args(words).output().ok().filter(|output| output.status.success())?;
        String::from_utf8(output.stdout).ok().map(|text| text.trim().to_owned())
    };
    let Some(commit) = git(&["rev-parse", "--short=8", "HEAD"]) else { return "unknown".to_owned() };
    let changed = git(&["status", "--porcelain", "--untracked-files=no"]).is_none_or(|text| !text.is_empty());
    if changed { commit + "+" } else { commit }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(key: &str, seed: u64, loss: Option<f64>) -> Row {
        Row {
            bench: Row::bench(),
            case: "a case".to_owned(),
            key: key.to_owned(),
            seed,
            loss,
            curve: vec![(0.0, 5.5), (1024.0, 2.25)],
            lab_seconds: Vec::new(),
            seconds: 1.5,
            settings: serde_json::json!({"members": 4}),
            commit: "0123abcd".to_owned(),
        }
    }

    #[test]
    fn rows_come_back_and_are_found_by_key_and_seed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.jsonl");
        let mut rows = Rows::open(Some(&path)).unwrap();
        assert_eq!(rows.find("a", 1), None);
        rows.append(row("a", 1, Some(1.5))).unwrap();
        rows.append(row("a", 2, None)).unwrap();
        let again = Rows::open(Some(&path)).unwrap();
        assert_eq!(again.find("a", 1), Some(&row("a", 1, Some(1.5))));
        assert_eq!(again.find("a", 2), Some(&row("a", 2, None)), "a run that diverged is not run again");
        assert_eq!((again.find("a", 3), again.find("b", 1), again.torn), (None, None, 0));
    }

    #[test]
    fn a_bench_goes_on_behind_a_torn_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.jsonl");
        let whole = serde_json::to_string(&row("a", 1, Some(1.5))).unwrap();
        std::fs::write(&path, format!("{whole}\n{{\"bench\":\"codec\"}}\n{}", &whole[..whole.len() / 2])).unwrap();
        let mut rows = Rows::open(Some(&path)).unwrap();
        assert_eq!(rows.torn, 1);
        rows.append(row("a", 2, Some(1.25))).unwrap();
        let again = Rows::open(Some(&path)).unwrap();
        assert_eq!(again.torn, 1);
        assert!(again.find("a", 1).is_some() && again.find("a", 2).is_some());
        assert!(std::fs::read_to_string(&path).unwrap().ends_with("}\n"));
    }

    #[test]
    fn without_a_file_rows_are_kept_for_this_run() {
        let mut rows = Rows::open(None).unwrap();
        rows.append(row("a", 1, Some(1.5))).unwrap();
        assert!(rows.find("a", 1).is_some());
    }
}
