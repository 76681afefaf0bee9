//! Kills the lab in the middle of a scenario: nothing that it made outlives it, and it plays again in the same folder.
#![cfg(target_os = "linux")]

use starling_tests::flock::built_binaries;
use starling_tests::process::{Process, run};
use starling_tests::skips::skipped;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Longest time for one step on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

#[test]
fn nothing_outlives_a_lab_that_is_killed_and_the_next_one_clears_its_files() {
    let lab = built_binaries().expect("a folder").join("starling-lab");
    let folder = TempDir::new().expect("a temporary folder");
    let (scenario, out) = (folder.path().join("short.toml"), folder.path().join("out"));
    let play = ["run", &scenario.to_string_lossy(), "--quiet", "--out", &out.to_string_lossy()].map(String::from);

    // One node has a mount of its own, and one is frozen, when the lab dies.
    write(&scenario, 600, "[[faults]]\nkind = \"freeze\"\nat_s = 0\nnodes = [\"a\"]\n");
    let mut first = Process::start("lab", &lab, &play, folder.path()).expect("the lab starts");
    let diary = out.join("short/lab.jsonl");
    wait(|| first.has_exited() || told(&diary).contains("fault-began"), "the fault begins");
    if first.has_exited() {
        let words = first.last_words();
        assert!(words.contains("--plain"), "the lab ended by itself:\n{words}");
        return skipped(format_args!("no network can be emulated here: {words}"));
    }
    let made = descendants(first.id());
    let namespaces: BTreeSet<PathBuf> = made.iter().filter_map(|p| p.namespace.clone()).collect();
    assert!(made.len() >= 3, "two nodes and a bootstrap peer: {made:?}");
    assert!(namespaces.len() >= 3, "each has a network of its own: {namespaces:?}");
    let mounts: BTreeSet<String> = made.iter().flat_map(|p| p.mounts(&out)).collect();
    assert!(!mounts.is_empty(), "a node has a disk of its own");

    first.kill();
    wait(|| made.iter().all(|p| !p.is_there()), "no process is left");
    let left: Vec<PathBuf> = everybody().into_iter().filter_map(namespace_of).collect();
    assert!(left.iter().all(|n| !namespaces.contains(n)), "a namespace outlives the lab");
    let left = std::fs::read_to_string("/proc/self/mountinfo").expect("own mounts");
    assert!(!left.contains(&*out.to_string_lossy()), "a mount outlives the lab: {left}");

    write(&scenario, 1, "");
    let second = run(&lab, &play, LIMIT).expect("the lab ends");
    assert_eq!(second.code, Some(0), "{}{}", second.stdout, second.stderr);
    assert!(!out.join("short/nodes").exists(), "the nodes' folders, of both runs, are gone");

    // A failed scenario keeps the files of a node's own disk, so that its failure can be examined.
    write(&scenario, 1, "max_gap_s = 0\n");
    let red = run(&lab, &play, LIMIT).expect("the lab ends");
    assert_eq!(red.code, Some(1), "{}{}", red.stdout, red.stderr);
    assert!(out.join("short/nodes/b/home/run.spec").exists(), "the nodes' folders are kept");
    assert!(!out.join("short/nodes/b.kept").exists());
}

fn write(path: &Path, end_s: u32, more: &str) {
    let text = format!(
        "end_s = {end_s}\nlimit_s = 900\n[run.inner]\nsteps = 4\n\
         [[nodes]]\nname = \"a\"\nsite = \"room\"\n[[nodes]]\nname = \"b\"\nsite = \"room\"\ndisk_mib = 96\n[expect]\nrounds = 1\n{more}"
    );
    std::fs::write(path, text).expect("write");
}

fn told(diary: &Path) -> String {
    std::fs::read_to_string(diary).unwrap_or_default()
}

fn wait(mut until: impl FnMut() -> bool, what: &str) {
    let deadline = Instant::now() + LIMIT;
    while !until() {
        assert!(Instant::now() < deadline, "{what}: not within {} s", LIMIT.as_secs());
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

/// A process. The time of its start distinguishes it from a later one with the same number.
#[derive(Debug)]
struct Made {
    id: u32,
    began: String,
    namespace: Option<PathBuf>,
}

impl Made {
    fn is_there(&self) -> bool {
        stat(self.id).is_some_and(|stat| stat.began == self.began && stat.state != "Z")
    }

    /// Mounts below `folder` that the process sees.
    fn mounts(&self, folder: &Path) -> Vec<String> {
        let text = std::fs::read_to_string(format!("/proc/{}/mountinfo", self.id)).unwrap_or_default();
        text.lines().filter(|line| line.contains(&*folder.to_string_lossy())).map(String::from).collect()
    }
}

struct Stat {
    state: String,
    parent: u32,
    began: String,
}

/// Fields 3, 4 and 22 of proc(5)'s `stat`; the second field, a name in brackets, may contain any character.
fn stat(id: u32) -> Option<Stat> {
    let text = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    Some(Stat {
        state: fields.first()?.to_string(),
        parent: fields.get(1)?.parse().ok()?,
        began: fields.get(19)?.to_string(),
    })
}

fn everybody() -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").expect("processes").flatten();
    entries.filter_map(|e| e.file_name().to_str()?.parse().ok()).collect()
}

fn namespace_of(id: u32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{id}/ns/net")).ok()
}

/// All descendants of the process `root`.
fn descendants(root: u32) -> Vec<Made> {
    let all: Vec<(u32, Stat)> = everybody().into_iter().filter_map(|id| Some((id, stat(id)?))).collect();
    let mut known = vec![root];
    let mut at = 0;
    while at < known.len() {
        let parent = known[at];
        known.extend(all.iter().filter(|(_, stat)| stat.parent == parent).map(|(id, _)| id));
        at += 1;
    }
    let made = |(id, stat): (u32, Stat)| Made { id, began: stat.began, namespace: namespace_of(id) };
    all.into_iter().filter(|(id, _)| known[1..].contains(id)).map(made).collect()
}
