//! A copied folder, or one restored from a backup, is told from the one in which its vote state was made.

use crate::support::{History, open, scratch};
use starling_protocol::Digest;
use starling_protocol::engine::VoteState;
use starling_protocol::message::Stamp;
use std::fs;
use std::path::Path;

fn vote_state(incarnation: u64) -> VoteState {
    let (lineage, parent) = (Digest([2; 32]), Digest([4; 32]));
    VoteState { incarnation, lineage, parent, stamp: Stamp::default(), estimate: None, vote: None }
}

/// Copies as `cp -a`, `tar` and `rsync` do: everything but the times at which the files were born.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy(&path, &target);
        } else {
            fs::copy(&path, &target).unwrap();
        }
    }
}

#[test]
fn a_copied_folder_is_told_until_it_speaks_under_a_name_of_its_own() {
    let dir = scratch();
    let (original, other) = (dir.path().join("original"), dir.path().join("copy"));
    fs::create_dir(&original).unwrap();
    let (_, store) = History::founded(&original, 1000);
    store.put_vote_state(&vote_state(7)).unwrap();
    drop(store);
    assert!(!open(&original).is_copied(), "a restart in place");
    copy(&original, &other);
    assert!(!open(&original).is_copied(), "the original is what it was");
    let store = open(&other);
    assert!(store.is_copied());
    store.put_vote_state(&vote_state(7)).unwrap();
    drop(store);
    let store = open(&other);
    assert!(store.is_copied(), "under the original's name it stays a copy");
    store.put_vote_state(&vote_state(8)).unwrap();
    drop(store);
    assert!(!open(&other).is_copied(), "under a name of its own it is an original");
}

#[test]
fn a_backup_that_is_put_back_is_told() {
    let dir = scratch();
    let (original, backup) = (dir.path().join("original"), dir.path().join("backup"));
    fs::create_dir(&original).unwrap();
    let (_, store) = History::founded(&original, 1000);
    store.put_vote_state(&vote_state(7)).unwrap();
    drop(store);
    copy(&original, &backup);
    // The node goes on, in another process.
    let store = open(&original);
    store.put_vote_state(&vote_state(7)).unwrap();
    drop(store);
    // The backup is copied over the files that are there, which keep their times of birth.
    fs::remove_dir_all(original.join("db")).unwrap();
    copy(&backup, &original);
    assert!(open(&original).is_copied());
}

/// A folder from before there were notes and a moved folder are no copies.
#[test]
fn a_moved_folder_and_an_old_one_are_no_copies() {
    let dir = scratch();
    let (before, after) = (dir.path().join("before"), dir.path().join("after"));
    fs::create_dir(&before).unwrap();
    let (_, store) = History::founded(&before, 1000);
    assert!(!store.is_copied());
    store.put_vote_state(&vote_state(7)).unwrap();
    drop(store);
    fs::rename(&before, &after).unwrap();
    assert!(!open(&after).is_copied());
    fs::remove_file(after.join("born")).unwrap();
    let store = open(&after);
    assert!(!store.is_copied(), "of an earlier version");
    store.put_vote_state(&vote_state(7)).unwrap();
    assert!(after.join("born").exists());
}
