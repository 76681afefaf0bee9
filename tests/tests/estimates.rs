//! The memory and the disk that a node says at its start that it needs, beside what it comes to take: two nodes that
//! train models of real sizes on the CPU.

use starling_tests::flock::{Flock, NodeOptions, built_binaries};
use starling_tests::process::Process;
use std::path::Path;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(300);
/// Records until each file has been written that a round leaves: snapshots, updates, moments.
const RECORDS: u64 = 4;
/// Shares of what they say that these nodes take at least. It is the most that a node ever takes: of memory with copies
/// for a snapshot that steps overtake, of disk with all updates between two snapshots, candidates and checkpoints.
const LEAST: [f64; 2] = [0.4, 0.05];

fn run_toml(preset: &str) -> String {
    format!(
        "name = \"estimates\"\n[model]\npreset = \"{preset}\"\nseq_len = 128\n[data]\nsources = [\"text.txt\"]\n\
         holdout = 0.1\n[inner]\nsteps = 1\nbatch = 2\n"
    )
}

/// The most memory that the process has had, in bytes.
fn peak(node: &Process) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", node.id())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("the system tells");
    let kib: f64 = line.trim().trim_end_matches(" kB").parse().expect("a number of KiB");
    1024.0 * kib
}

fn bytes_in(folder: &Path) -> f64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    // A file may go while they are counted.
    let size = |entry: std::fs::DirEntry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => bytes_in(&entry.path()),
        _ => entry.metadata().map_or(0.0, |metadata| metadata.len() as f64),
    };
    entries.map(size).sum()
}

fn nodes_take_what_they_say(preset: &str) {
    if !cfg!(target_os = "linux") {
        eprintln!("SKIPPED: the peak of another process is read from /proc, which Linux has");
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let text: String = (0..20_000).map(|n| format!("line {n}: some text {}\n", n * 7919 % 1000)).collect();
    std::fs::write(folder.path().join("text.txt"), text).expect("write");
    let bin = built_binaries().expect("the folder of this test");
    let flock = Flock::start(&bin, folder.path(), &run_toml(preset)).expect("a bootstrap peer");
    let mut founder = flock.node("founder", &NodeOptions::small(true)).expect("a node");
    founder.wait(LIMIT, "founded", |_| true).expect("it founds");
    let mut other = flock.node("other", &NodeOptions::small(false)).expect("a node");
    let both = |e: &serde_json::Value| e["contributors"].as_array().is_some_and(|all| all.len() == 2);
    let first = other.wait(LIMIT, "committed", both).expect("both contribute")["seq"].as_u64().expect("a number");
    for (name, node) in [("founder", &mut founder), ("other", &mut other)] {
        let said = node.wait(LIMIT, "started", |_| true).expect("it has started");
        node.wait(LIMIT, "committed", |e| e["seq"].as_u64() >= Some(first + RECORDS)).expect("it goes on");
        let said = |key: &str| said[key].as_f64().expect("a number of bytes");
        let memory = ("memory", said("memory_bytes"), peak(node));
        let disk = ("disk", said("disk_bytes"), bytes_in(&flock.home(name)));
        for ((what, said, taken), least) in [memory, disk].into_iter().zip(LEAST) {
            println!("{preset}, {name}: {:.0} of {:.0} MiB of {what}", taken / 1048576.0, said / 1048576.0);
            assert!(taken <= said, "{name} takes more {what} than it says");
            assert!(taken >= least * said, "{name} says far more {what} than it takes");
        }
    }
}

#[test]
fn nodes_of_10m_take_what_they_say() {
    nodes_take_what_they_say("10m");
}

#[test]
fn nodes_of_30m_take_what_they_say() {
    nodes_take_what_they_say("30m");
}
