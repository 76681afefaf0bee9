//! Disks that lie: every kind of file with flipped bits, cut off, missing, or from another time. No acknowledged change
//! may be lost silently.

use crate::support::{History, copy_dir, create, files, flip, image, open, options, scratch, spec, spec_bytes};
use starling_protocol::path::Link;
use starling_store::{Opened, Part, Store, StoreError};
use std::fs;
use std::path::Path;

/// A store with commits in the log and in table files, a candidate, a vote state and two snapshots; closed.
fn prepared() -> (tempfile::TempDir, History) {
    let dir = scratch();
    let (mut history, store) = History::founded(dir.path(), 1000);
    (0..5).for_each(|_| history.commit(&store));
    history.snapshot(&store);
    drop(store);
    // Opening moves the log's content to a table file.
    let store = open(dir.path());
    (0..3).for_each(|_| history.commit(&store));
    let mut spoken = history.clone();
    let update = spoken.advance(0);
    store.put_candidate(&spoken.candidate(0), &update, &spoken.vote_state(0)).unwrap();
    store.put_vote_state(&spoken.vote_state(1)).unwrap();
    (dir, history)
}

/// A path to the record of [`prepared`].
fn way_from_genesis(history: &History) -> [Link; 3] {
    let mut before = History::genesis(1000);
    let genesis = before.link();
    while before.record.seq + 1 < history.record.seq {
        before.advance(0);
    }
    [genesis, before.stone(), history.link()]
}

/// Whether the damage is noticed, or everything acknowledged is there.
fn noticed_or_harmless(dir: &Path, history: &History, what: &str) -> bool {
    let opened = Store::open(dir, options());
    let Opened { store, damage } = match opened {
        Ok(opened) => opened,
        Err(e) => panic!("{what}: damage must be reported, not fail the opening: {e}"),
    };
    if let Some(damage) = damage {
        assert!(damage.chain_lost(), "{what}: {damage}");
        assert!(store.head().is_none(), "{what}");
        assert!(matches!(store.records_from(0, 10), Err(StoreError::Damaged(_))), "{what}");
        let commit = store.commit(&history.record, None, &history.certificate());
        assert!(matches!(commit, Err(StoreError::Damaged(_))), "{what}");
        assert_eq!(store.vote_state(), None, "{what}: what may be old is not shown");
        return true;
    }
    history.assert_loaded_from(&store);
    assert_eq!(store.candidates()[0].record.parent, history.record.digest(), "{what}");
    assert_eq!(store.vote_state().unwrap().stamp.ballot, 1, "{what}");
    assert_eq!(store.certificate(history.record.seq).unwrap(), Some(history.certificate()), "{what}");
    assert_eq!(store.records_from(0, 100).unwrap().len(), 9, "{what}");
    false
}

#[test]
fn flipped_bits_in_the_database_and_its_mirror_are_noticed_or_harmless() {
    let (dir, history) = prepared();
    let mut noticed = 0;
    let mut tried = 0;
    for path in files(dir.path()) {
        let name = path.strip_prefix(dir.path()).unwrap().to_owned();
        if !name.starts_with("db") && name != Path::new("head") {
            continue;
        }
        let bits = fs::metadata(&path).unwrap().len() as usize * 8;
        // The places are spread over the file, its first and its last bytes among them.
        for part in 0..6 {
            let Some(last) = bits.checked_sub(1) else { continue };
            let copy = image(dir.path());
            let bit = last * part / 5;
            flip(&copy.path().join(&name), bit);
            noticed += u32::from(noticed_or_harmless(copy.path(), &history, &format!("{} bit {bit}", name.display())));
            tried += 1;
        }
    }
    // The head file alone accounts for six; logs, tables and manifests for the rest.
    assert!(noticed >= 20, "only {noticed} of {tried} were noticed");
}

#[test]
fn truncated_and_missing_database_files_are_noticed_or_harmless() {
    let (dir, history) = prepared();
    let mut noticed = 0;
    for path in files(dir.path()) {
        let name = path.strip_prefix(dir.path()).unwrap().to_owned();
        if !name.starts_with("db") && name != Path::new("head") {
            continue;
        }
        let bytes = fs::read(&path).unwrap();
        for keep in [Some(0), Some(bytes.len() / 2), Some(bytes.len() * 3 / 4), None] {
            let copy = image(dir.path());
            match keep {
                Some(n) => fs::write(copy.path().join(&name), &bytes[..n]).unwrap(),
                None => fs::remove_file(copy.path().join(&name)).unwrap(),
            }
            noticed += u32::from(noticed_or_harmless(copy.path(), &history, &format!("{} {keep:?}", name.display())));
        }
    }
    assert!(noticed >= 10, "only {noticed} were noticed");
}

#[test]
fn every_bit_of_the_mirror_counts() {
    let (dir, history) = prepared();
    let length = fs::metadata(dir.path().join("head")).unwrap().len() as usize;
    for bit in (0..length * 8).step_by(13) {
        let copy = image(dir.path());
        flip(&copy.path().join("head"), bit);
        assert!(noticed_or_harmless(copy.path(), &history, &format!("bit {bit}")));
    }
}

#[test]
fn a_kill_between_database_and_mirror_is_no_damage_but_an_older_mirror_is() {
    let dir = scratch();
    let (mut history, store) = History::founded(dir.path(), 1000);
    let mut mirrors = Vec::new();
    for _ in 0..3 {
        mirrors.push(fs::read(dir.path().join("head")).unwrap());
        history.commit(&store);
    }
    let with_mirror = |mirror: &[u8]| {
        let copy = image(dir.path());
        fs::write(copy.path().join("head"), mirror).unwrap();
        let opened = Store::open(copy.path(), options()).unwrap();
        (copy, opened)
    };
    let (copy, opened) = with_mirror(&mirrors[2]);
    assert_eq!(opened.damage, None);
    history.assert_loaded_from(&opened.store);
    drop(opened);
    assert_eq!(fs::read(copy.path().join("head")).unwrap(), fs::read(dir.path().join("head")).unwrap());
    for mirror in &mirrors[..2] {
        assert!(with_mirror(mirror).1.damage.unwrap().chain_lost());
    }
}

#[test]
fn an_old_database_under_a_new_mirror_is_noticed() {
    let dir = scratch();
    let (mut history, store) = History::founded(dir.path(), 1000);
    history.commit(&store);
    let old = image(dir.path());
    history.commit(&store);
    let copy = image(dir.path());
    fs::remove_dir_all(copy.path().join("db")).unwrap();
    copy_dir(&old.path().join("db"), &copy.path().join("db"));
    let damage = Store::open(copy.path(), options()).unwrap().damage.unwrap();
    assert!(damage.to_string().contains("lost writes"), "{damage}");
    // The same with no database at all.
    let copy = image(dir.path());
    fs::remove_dir_all(copy.path().join("db")).unwrap();
    assert!(Store::open(copy.path(), options()).unwrap().damage.unwrap().chain_lost());
}

#[test]
fn a_database_of_another_branch_under_the_same_version_is_noticed() {
    let (here, there) = (scratch(), scratch());
    for (dir, salt) in [(here.path(), 1), (there.path(), 2)] {
        let (mut history, store) = History::founded(dir, 1000);
        let update = history.advance(salt);
        history.put(&store, &update);
    }
    fs::remove_dir_all(here.path().join("db")).unwrap();
    copy_dir(&there.path().join("db"), &here.path().join("db"));
    let damage = Store::open(here.path(), options()).unwrap().damage.unwrap();
    assert!(damage.to_string().contains("different things"), "{damage}");
}

#[test]
fn an_old_vote_state_is_noticed() {
    let dir = scratch();
    let (mut history, store) = History::founded(dir.path(), 1000);
    history.advance(0);
    store.put_vote_state(&history.vote_state(1)).unwrap();
    let old = image(dir.path());
    store.put_vote_state(&history.vote_state(2)).unwrap();
    // The earlier database under the present mirror: the node would vote a second time.
    let copy = image(dir.path());
    fs::remove_dir_all(copy.path().join("db")).unwrap();
    copy_dir(&old.path().join("db"), &copy.path().join("db"));
    assert!(Store::open(copy.path(), options()).unwrap().damage.unwrap().chain_lost());
    // Two stores that differ only in the vote state.
    let other = scratch();
    let (mut history, there) = History::founded(other.path(), 1000);
    history.advance(0);
    there.put_vote_state(&history.vote_state(1)).unwrap();
    there.put_vote_state(&history.vote_state(3)).unwrap();
    let copy = image(dir.path());
    fs::remove_dir_all(copy.path().join("db")).unwrap();
    copy_dir(&other.path().join("db"), &copy.path().join("db"));
    let damage = Store::open(copy.path(), options()).unwrap().damage.unwrap();
    assert!(damage.to_string().contains("different things"), "{damage}");
}

#[test]
fn a_torn_write_at_the_end_of_the_log_that_nobody_was_told_of_is_no_damage() {
    let dir = scratch();
    let (mut history, store) = History::founded(dir.path(), 1000);
    history.commit(&store);
    let before = history.clone();
    let mirror = fs::read(dir.path().join("head")).unwrap();
    let logs = |dir: &Path| -> Vec<_> {
        files(&dir.join("db")).into_iter().filter(|p| p.extension().is_some_and(|e| e == "log")).collect()
    };
    let acknowledged = fs::metadata(logs(dir.path()).last().unwrap()).unwrap().len();
    history.commit(&store);
    let whole = fs::metadata(logs(dir.path()).last().unwrap()).unwrap().len();
    // The power fails while the second commit is written: only a part of its log record is on the disk, or some bytes
    // are not.
    for (length, garbled) in [(acknowledged + 20, false), (whole - 1, false), (whole, true)] {
        let copy = image(dir.path());
        let log = logs(copy.path()).pop().unwrap();
        let mut bytes = fs::read(&log).unwrap();
        bytes.truncate(length as usize);
        if garbled {
            bytes[acknowledged as usize + 30..].fill(0);
        }
        fs::write(&log, bytes).unwrap();
        fs::write(copy.path().join("head"), &mirror).unwrap();
        let Opened { store, damage } = Store::open(copy.path(), options()).unwrap();
        assert_eq!(damage, None, "{length} {garbled}");
        before.assert_loaded_from(&store);
    }
}

#[test]
fn a_damaged_chain_is_set_aside_and_the_node_begins_anew() {
    let (dir, mut history) = prepared();
    fs::write(dir.path().join("head"), b"not a head").unwrap();
    let Opened { store, damage } = Store::open(dir.path(), options()).unwrap();
    assert!(damage.unwrap().chain_lost());
    assert!(store.candidates().is_empty() && store.vote_state().is_none());
    store.reset_chain().unwrap();
    assert_eq!(store.vote_state(), None, "a vote_state of a damaged disk may be an old one");
    assert!(dir.path().join("damaged/db/CURRENT").exists());
    assert_eq!(fs::read(dir.path().join("damaged/head")).unwrap(), b"not a head");
    history.adopt(&store, &way_from_genesis(&history));
    history.commit(&store);
    drop(store);
    history.assert_loaded_from(&open(dir.path()));
}

#[test]
fn adopting_repairs_a_damaged_chain_without_a_reset() {
    let (dir, history) = prepared();
    fs::remove_file(dir.path().join("db/CURRENT")).unwrap();
    let Opened { store, damage } = Store::open(dir.path(), options()).unwrap();
    assert!(damage.unwrap().chain_lost());
    history.adopt(&store, &way_from_genesis(&history));
    drop(store);
    history.assert_loaded_from(&open(dir.path()));
}

#[test]
fn a_damaged_specification_is_noticed_and_written_anew_by_its_run_only() {
    let dir = scratch();
    let (history, store) = History::founded(dir.path(), 1000);
    drop(store);
    let path = dir.path().join("run.spec");
    let good = fs::read(&path).unwrap();
    for damage in 0..12 {
        match damage {
            0 => fs::write(&path, &good[..good.len() - 3]).unwrap(),
            1 => fs::write(&path, b"").unwrap(),
            n => flip(&path, (good.len() * 8 - 1) * (n - 2) / 9),
        }
        let Opened { store, damage } = Store::open(dir.path(), options()).unwrap();
        assert_eq!(damage.unwrap().part, Part::RunSpec);
        assert_eq!((store.run(), starling_store::Run::of_folder(dir.path())), (None, None));
        let mut other = spec();
        other.name = "another".into();
        let other = starling_protocol::wire::encode_spec(&other);
        assert!(matches!(store.bind_run(&other), Err(StoreError::OtherRun { .. })));
        store.bind_run(&spec_bytes()).unwrap();
        drop(store);
        assert_eq!(fs::read(&path).unwrap(), good);
        history.assert_loaded_from(&open(dir.path()));
    }
}

#[test]
fn leftovers_of_a_kill_are_cleared_away() {
    let dir = scratch();
    let store = create(dir.path());
    drop(store);
    fs::write(dir.path().join("tmp/.tmp-1-1"), b"half a chunk").unwrap();
    fs::write(dir.path().join("lock"), b"99999999").unwrap();
    let _store = open(dir.path());
    assert!(files(&dir.path().join("tmp")).is_empty());
    let pid = fs::read_to_string(dir.path().join("lock")).unwrap();
    assert_eq!(pid.trim(), std::process::id().to_string());
}
