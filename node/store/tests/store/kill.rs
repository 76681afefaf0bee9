//! Real kills: a child process commits as fast as it can and is killed with SIGKILL; every commit that it reported is
//! there.

use crate::support::{History, SCHEMA, create, open};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

const CHILD: &str = "STARLING_STORE_TEST_CHILD";
const ELEMENTS: usize = 1000;

#[test]
fn acknowledged_commits_survive_sigkill() {
    if let Some(dir) = std::env::var_os(CHILD) {
        return commit_until_killed(dir.as_ref());
    }
    let dir = tempfile::tempdir().unwrap();
    for kill in 1..=6 {
        let acknowledged = run_and_kill(dir.path(), kill * 5);
        let store = open(dir.path());
        let head = store.head().unwrap();
        assert!(head.seq >= acknowledged, "record {acknowledged} was acknowledged and {} is the head", head.seq);
        replayed(head.seq).assert_loaded_from(&store);
    }
}

/// The child: goes on from the present state with a candidate, a commit, now and then a snapshot, and reports each.
fn commit_until_killed(dir: &std::path::Path) {
    let store = create(dir);
    let mut history = match store.head() {
        Some(head) => replayed(head.seq),
        None => {
            let history = History::genesis(ELEMENTS);
            store.found(&history.record, &SCHEMA, &history.state).unwrap();
            history
        }
    };
    let mut out = std::io::stdout();
    loop {
        let update = history.advance(0);
        store.put_candidate(&history.candidate(0), &update, &history.vote_state(0)).unwrap();
        history.put(&store, &update);
        // The test harness may write on the same line.
        writeln!(out, "\ncommitted {}", history.record.seq).and_then(|()| out.flush()).unwrap();
        if history.record.seq.is_multiple_of(7) {
            history.snapshot(&store);
        } else if history.record.seq.is_multiple_of(3) {
            history.snapshot_between(&store);
        }
    }
}

/// Kills the child after it has reported `commits` commits; returns the last reported number.
fn run_and_kill(dir: &std::path::Path, commits: usize) -> u64 {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kill::acknowledged_commits_survive_sigkill", "--nocapture"])
        .env(CHILD, dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let last = lines.filter_map(|line| line.strip_prefix("committed ")?.parse().ok()).nth(commits - 1);
    child.kill().unwrap();
    child.wait().unwrap();
    last.expect("the child ended by itself")
}

fn replayed(seq: u64) -> History {
    let mut history = History::genesis(ELEMENTS);
    (0..seq).for_each(|_| drop(history.advance(0)));
    history
}
