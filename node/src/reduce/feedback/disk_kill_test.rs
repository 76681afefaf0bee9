//! A process is killed at random moments, and goes on. After each kill the disk has, for each fragment, exactly the
//! residuals after its head record, or nothing; mostly the former.

use super::super::passed::Passed;
use super::alone_test::{Alone, copy, delta, fate, me, reduce, unsaid, zeros};
use starling_protocol::engine::io::AttemptKey;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

const CHILD: &str = "STARLING_RESIDUALS_TEST_CHILD";

#[test]
fn after_sigkill_residuals_are_those_of_the_head_or_none() {
    survive("after_sigkill_residuals_are_those_of_the_head_or_none", 1);
}

#[test]
fn after_sigkill_each_fragment_has_its_own() {
    survive("after_sigkill_each_fragment_has_its_own", 3);
}

fn survive(test: &str, count: u32) {
    if let Some(folder) = std::env::var_os(CHILD) {
        return fly(folder.as_ref(), count);
    }
    let folder = tempfile::tempdir().unwrap();
    let (mut exact, kills) = (0, 24);
    for kill in 0..kills {
        let begun = Alone::on(folder.path(), count);
        // The same rounds in this process, without a disk.
        let mirrors: Vec<_> = (1..=u64::from(count)).map(|round| copy(&begun.feedback.of_round(round))).collect();
        let (mut head, mut offer) = (begun.head.record.clone(), begun.delta.clone());
        drop(begun);
        kill_child(test, folder.path(), 1 + kill % 5, kill as u32 * 1_700 % 23_000);
        let after = Alone::on(folder.path(), count);
        while head.seq < after.head.record.seq {
            let record = after.store.record(head.seq + 1).unwrap().unwrap();
            let passed = Passed::of(&record, &me());
            let key = AttemptKey { lineage: record.lineage, seq: record.seq, attempt: 0, set: record.set() };
            let turn = after.fragments.turn(head.round + 1);
            reduce(&mirrors[turn], key, &offer[after.fragments.range(turn)]);
            let stepped = passed.taken.map(|round| after.fragments.turn(round));
            mirrors.iter().enumerate().for_each(|(fragment, mirror)| {
                mirror.pass(passed.mark, stepped == Some(fragment));
                mirror.settle();
            });
            if passed.taken.is_some() {
                offer = delta(record.seq + 1);
            }
            head = record;
        }
        let found = after.left();
        for (fragment, mirror) in mirrors.iter().enumerate() {
            let found = &found[after.fragments.range(fragment)];
            let same = *found == unsaid(mirror, found.len());
            assert!(zeros(found) || same, "kill {kill}, at record {}: fragment {fragment} is stale", head.seq);
            exact += usize::from(same);
        }
    }
    let all = kills * count as usize;
    assert!(exact >= all / 2, "{exact} of {all} were kept");
    println!("{exact} of {all} were kept");
}

/// The child: rounds at full speed, with files written in the background, as a node does it.
fn fly(folder: &Path, count: u32) {
    let mut node = Alone::on(folder, count);
    let mut out = std::io::stdout();
    loop {
        let seq = node.head.record.seq + 1;
        let key = node.key(0);
        node.reduce(key);
        let feedback = Arc::clone(&node.feedback);
        let staging = std::thread::spawn(move || feedback.stage(&key));
        if !seq.is_multiple_of(3) {
            // A decision takes a while, at most records.
            staging.join().unwrap();
        }
        node.decide(fate(seq));
        let feedback = Arc::clone(&node.feedback);
        std::thread::spawn(move || feedback.keep());
        writeln!(out, "\ndecided {seq}").and_then(|()| out.flush()).unwrap();
    }
}

/// Kills the child this many microseconds after it has reported its `decisions`-th decision.
fn kill_child(test: &str, folder: &Path, decisions: usize, micros: u32) {
    let name = format!("reduce::feedback::disk_kill_test::{test}");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &name, "--nocapture"])
        .env(CHILD, folder)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let said = lines.filter(|line| line.starts_with("decided ")).nth(decisions - 1);
    // The test is about an arbitrary moment in the round, so it does not wait for one.
    std::thread::sleep(Duration::from_micros(micros.into()));
    child.kill().unwrap();
    child.wait().unwrap();
    said.expect("the child ended by itself");
}
