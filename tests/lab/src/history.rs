//! The events of all nodes, gathered from the files of a scenario.

use crate::stage::{Entry, What};
use anyhow::Context;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// The events of one node, in their order, from all its processes.
#[derive(Debug, Default)]
pub struct NodeHistory {
    pub name: String,
    /// The node's ids, oldest first: a node whose disk is emptied has a new one.
    pub ids: Vec<String>,
    pub events: Vec<Value>,
}

/// All events of one scenario.
#[derive(Debug, Default)]
pub struct History {
    pub nodes: Vec<NodeHistory>,
    /// Nodes that run another program than ours, such as one that lies. No check expects anything of their events.
    pub aside: Vec<NodeHistory>,
    pub diary: Vec<Entry>,
}

/// A `committed` event.
#[derive(Clone, Debug)]
pub struct Commit<'a> {
    /// Seconds since the Unix epoch, by the lab's clock.
    pub seen: f64,
    pub node: usize,
    pub seq: u64,
    pub round: u64,
    pub record: &'a str,
    pub lineage: &'a str,
    pub root: &'a str,
    pub contributors: Vec<&'a str>,
    pub event: &'a Value,
}

impl History {
    /// Reads the folder of a scenario that was played.
    ///
    /// # Errors
    /// If the folder has no diary, or a file cannot be read.
    pub fn read(folder: &Path) -> anyhow::Result<Self> {
        let path = folder.join("lab.jsonl");
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("{} is not there: no scenario was played here", path.display()))?;
        let diary = text
            .lines()
            .map(serde_json::from_str)
            .collect::<Result<_, _>>()
            .with_context(|| format!("{} is damaged", path.display()))?;
        let mut files: Vec<_> = std::fs::read_dir(folder.join("logs"))?.flatten().map(|e| e.path()).collect();
        files.retain(|p| p.extension().is_some_and(|e| e == "jsonl"));
        files.sort();
        let mut nodes = Vec::new();
        for file in files {
            let name = file.file_stem().and_then(|s| s.to_str()).unwrap_or_default().to_owned();
            if name.starts_with("bootstrap") {
                continue;
            }
            let text = std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
            nodes.push(NodeHistory::of(name, &text));
        }
        Ok(Self { nodes, aside: Vec::new(), diary })
    }

    /// Sets nodes aside by name.
    pub fn set_aside(&mut self, chosen: impl Fn(&str) -> bool) {
        let (aside, nodes) = std::mem::take(&mut self.nodes).into_iter().partition(|node| chosen(&node.name));
        (self.nodes, self.aside) = (nodes, aside);
    }

    /// All reported commits, by time.
    pub fn commits(&self) -> Vec<Commit<'_>> {
        let all = self
            .nodes
            .iter()
            .enumerate()
            .flat_map(|(n, node)| node.events.iter().filter_map(move |e| Commit::of(n, e)));
        let mut all: Vec<_> = all.collect();
        all.sort_by(|a, b| a.seen.total_cmp(&b.seen));
        all
    }

    /// All reported places.
    pub fn places(&self) -> impl Iterator<Item = Place<'_>> {
        self.nodes.iter().enumerate().flat_map(|(n, node)| node.events.iter().filter_map(move |e| Place::of(n, e)))
    }

    /// The times in which the lab's faults stopped the node's process: begin, and end if it has one.
    pub fn frozen(&self, name: &str) -> Vec<(f64, Option<f64>)> {
        let mut found: Vec<(f64, Option<f64>)> = Vec::new();
        for entry in self.diary.iter().filter(|e| e.node.as_deref() == Some(name)) {
            match entry.what {
                What::Frozen => found.push((entry.seen, None)),
                What::Thawed | What::Ended => {
                    if let Some(last) = found.last_mut() {
                        last.1.get_or_insert(entry.seen);
                    }
                }
                _ => {}
            }
        }
        found
    }

    /// The first commit of each record, by time.
    pub fn first_commits(&self) -> Vec<Commit<'_>> {
        let mut known = std::collections::BTreeSet::new();
        self.commits().into_iter().filter(|c| known.insert(c.record)).collect()
    }

    /// The first time at which the lab noted `what`.
    pub fn when(&self, what: What) -> Option<f64> {
        self.diary.iter().find(|e| e.what == what).map(|e| e.seen)
    }

    /// The time of the first entry.
    pub fn start(&self) -> f64 {
        self.when(What::Began).unwrap_or_default()
    }

    /// Index of the node by its ids.
    pub fn names(&self) -> BTreeMap<&str, usize> {
        let ids = self.nodes.iter().enumerate().flat_map(|(n, node)| node.ids.iter().map(move |id| (id.as_str(), n)));
        ids.collect()
    }

    /// The times in which the node's processes ran: begin, and end if it has one.
    pub fn lives(&self, name: &str) -> Vec<(f64, Option<f64>)> {
        let mut lives: Vec<(f64, Option<f64>)> = Vec::new();
        for entry in self.diary.iter().filter(|e| e.node.as_deref() == Some(name)) {
            match entry.what {
                What::Started => lives.push((entry.seen, None)),
                What::Ended => {
                    if let Some(last) = lives.last_mut() {
                        last.1.get_or_insert(entry.seen);
                    }
                }
                _ => {}
            }
        }
        lives
    }

    /// Whether the node's process ran at that moment.
    pub fn lived(&self, name: &str, at: f64) -> bool {
        self.lives(name).iter().any(|(from, to)| *from <= at && to.is_none_or(|to| at < to))
    }
}

impl NodeHistory {
    fn of(name: String, text: &str) -> Self {
        // A line that a kill has cut short does not parse.
        let events: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let mut ids: Vec<String> = Vec::new();
        for id in events.iter().filter_map(|e| e["node"].as_str()) {
            if ids.last().is_none_or(|last| last != id) {
                ids.push(id.to_owned());
            }
        }
        Self { name, ids, events }
    }

    /// Events of that name.
    pub fn named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Value> {
        self.events.iter().filter(move |e| e["event"] == name)
    }

    /// Bytes that all processes of the node sent: each process counts from its own start.
    pub fn bytes_sent(&self) -> u64 {
        let (mut sum, mut last) = (0, 0);
        for event in &self.events {
            if event["event"] == "started" {
                sum += std::mem::take(&mut last);
            } else if event["event"] == "committed" {
                last = event["bytes_sent"].as_u64().unwrap_or(last);
            }
        }
        sum + last
    }
}

/// A place in a lineage, and the record that a node has there: a committed round, or one that was given up.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    pub node: usize,
    pub lineage: &'a str,
    pub seq: u64,
    pub record: &'a str,
}

impl<'a> Place<'a> {
    fn of(node: usize, event: &'a Value) -> Option<Self> {
        if event["event"] != "committed" && event["event"] != "skipped" {
            return None;
        }
        let (lineage, record) = (event["lineage"].as_str()?, event["record"].as_str()?);
        Some(Self { node, lineage, seq: event["seq"].as_u64()?, record })
    }
}

impl<'a> Commit<'a> {
    fn of(node: usize, event: &'a Value) -> Option<Self> {
        if event["event"] != "committed" {
            return None;
        }
        let contributors = event["contributors"].as_array()?.iter().filter_map(Value::as_str).collect();
        Some(Self {
            seen: event["seen"].as_f64()?,
            node,
            seq: event["seq"].as_u64()?,
            round: event["round"].as_u64()?,
            record: event["record"].as_str()?,
            lineage: event["lineage"].as_str()?,
            root: event["state_root"].as_str()?,
            contributors,
            event,
        })
    }
}
