//! The lab's own actions and observations, as lines of JSON and on the terminal.

use anyhow::Context;
use serde::{Deserialize, Serialize};
use starling_tests::process::seconds_since_epoch;
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// One line.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// Seconds since the Unix epoch, by the lab's clock.
    pub seen: f64,
    pub what: What,
    /// The node or bootstrap peer of the entry, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Number of the fault, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<usize>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// Exit status; 128 + N for signal N.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<i32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    Began,
    /// All nodes of the beginning contribute to one commit.
    AllIn,
    Started,
    /// A process ended; `text` tells whether the lab had asked for it.
    Ended,
    /// A process is stopped for a while, and goes on.
    Frozen,
    Thawed,
    FaultBegan,
    FaultEnded,
    /// A fault that needs another kind of network.
    LeftOut,
    /// No fault holds any more; nodes only have to go on.
    Healed,
    /// The nodes are asked to end.
    Closing,
    Sample,
    /// Memory, descriptors and processor time of each node that runs.
    Sizes,
    /// An error of the scenario itself.
    Trouble,
}

/// The file and its entries.
pub struct Diary {
    file: File,
    pub entries: Vec<Entry>,
    quiet: bool,
    started: f64,
}

impl Diary {
    /// Makes the file.
    ///
    /// # Errors
    /// If the file cannot be made.
    pub fn new(path: &Path, quiet: bool) -> anyhow::Result<Self> {
        let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { file, entries: Vec::new(), quiet, started: seconds_since_epoch() })
    }

    /// Seconds since the lab began.
    pub fn elapsed(&self) -> f64 {
        seconds_since_epoch() - self.started
    }

    pub fn note(&mut self, what: What, node: Option<&str>, fault: Option<usize>, text: &str) {
        self.write(Entry {
            seen: seconds_since_epoch(),
            what,
            node: node.map(String::from),
            fault,
            text: text.into(),
            code: None,
        });
    }

    pub fn write(&mut self, entry: Entry) {
        // A full disk is an error when the report is written.
        let _ = serde_json::to_string(&entry).map(|line| writeln!(self.file, "{line}"));
        use What::{Began, Frozen, Sample, Sizes, Started, Thawed};
        let shown = !matches!(entry.what, Sample | Sizes | Started | Began | Frozen | Thawed) && !self.quiet;
        if shown {
            self.say(&line_of(&entry));
        }
        self.entries.push(entry);
    }

    /// Prints a line on the terminal.
    pub fn say(&self, text: &str) {
        if !self.quiet {
            println!("{:7.1} s  {text}", self.elapsed());
        }
    }
}

fn line_of(entry: &Entry) -> String {
    let node = entry.node.as_deref().unwrap_or_default();
    match entry.what {
        What::AllIn => format!("everybody is in: {}", entry.text),
        What::Ended => format!("{node} ended with status {}, {}", entry.code.unwrap_or(-1), entry.text),
        What::FaultBegan => format!("fault: {}", entry.text),
        What::FaultEnded => format!("over:  {}", entry.text),
        What::LeftOut => format!("left out: {}", entry.text),
        What::Healed => "no fault holds any more".into(),
        What::Closing => "the nodes are asked to end".into(),
        What::Trouble => format!("TROUBLE: {}", entry.text),
        _ => format!("{node} {}", entry.text),
    }
}
