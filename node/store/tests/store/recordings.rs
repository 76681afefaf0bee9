//! Recordings: their files lead from their first state to the head, and no unfinished ones stay behind.

use crate::support::{ELEMENTS, History, create, flip, open, outer_step, same_state, scratch, spec_bytes};
use starling_protocol::record::{Record, RecordKind};
use starling_protocol::state::{self, Manifest, State};
use starling_protocol::wire;
use starling_store::{Recording, StoreError};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

const SMALL: usize = 40;

fn bytes(dir: &Path, seq: u64, kind: &str) -> Option<Vec<u8>> {
    fs::read(dir.join(format!("{seq:010}.{kind}"))).ok()
}

fn record(dir: &Path, seq: u64) -> Record {
    wire::decode_record(&bytes(dir, seq, "record").expect("the record is there")).unwrap()
}

/// Numbers of the files of one kind.
fn numbers(dir: &Path, kind: &str) -> BTreeSet<u64> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter_map(|name| name.strip_suffix(&format!(".{kind}"))?.parse().ok()).collect()
}

/// The state written at `seq`.
fn first_state(dir: &Path, seq: u64) -> State {
    let manifest = Manifest::decode(&bytes(dir, seq, "manifest").unwrap()).unwrap();
    assert_eq!(state::root(&manifest), record(dir, seq).state_root);
    let mut chunks = manifest.chunks.iter().enumerate().map(|(index, digest)| {
        let chunk = bytes(dir, seq, &format!("chunk-{index:06}")).unwrap();
        assert_eq!(state::chunk_digest(&chunk), *digest);
        chunk.chunks_exact(4).map(|f| f32::from_le_bytes(f.try_into().unwrap())).collect::<Vec<f32>>()
    });
    let per_vector = state::chunk_count(manifest.elements, 1);
    let mut vector = || chunks.by_ref().take(per_vector).flatten().collect::<Vec<f32>>();
    State { theta: vector(), moments: vec![vector()] }
}

/// Applies the updates of a recording to its first state.
fn replay(dir: &Path, state: &mut State, written: Recording) {
    for seq in written.state + 1..=written.last {
        if record(dir, seq).kind == RecordKind::Commit {
            outer_step(&bytes(dir, seq, "update").unwrap(), state).unwrap();
        }
    }
}

#[test]
fn a_chain_that_is_whole_is_written_from_its_genesis() {
    let (dir, out) = (scratch(), scratch());
    let (mut history, store) = History::founded(dir.path(), SMALL);
    let mut replayed = history.state.clone();
    for kind in [RecordKind::Commit, RecordKind::Skip, RecordKind::Commit, RecordKind::Fork, RecordKind::Commit] {
        match kind {
            RecordKind::Commit => history.commit(&store),
            _ => {
                history.advance_unchanged(kind);
                store.commit(&history.record, None, &history.certificate()).unwrap();
            }
        }
    }
    let to = out.path().join("recording");
    let written = store.export_chain(&to).unwrap();
    assert_eq!(written, Recording { first: 0, last: 5, state: 0, updates: 3 });
    assert_eq!(fs::read(to.join("spec")).unwrap(), spec_bytes());
    for seq in 0..=5 {
        assert_eq!(bytes(&to, seq, "record"), store.record_bytes(seq).unwrap());
        let certificate = store.certificate(seq).unwrap().map(|certificate| wire::encode_certificate(&certificate));
        assert_eq!(bytes(&to, seq, "certificate"), certificate, "a genesis has none");
        assert_eq!(bytes(&to, seq, "update"), store.update(seq).unwrap());
    }
    replay(&to, &mut replayed, written);
    assert!(same_state(&replayed, &history.state));
    // Six records, five certificates, three updates, the specification, and nothing else.
    assert_eq!(fs::read_dir(&to).unwrap().count(), 15);
    assert_eq!(fs::read_dir(out.path()).unwrap().count(), 1);
}

#[test]
fn a_pruned_chain_is_written_with_its_oldest_state() {
    let (dir, out) = (scratch(), scratch());
    let (mut history, store) = History::founded(dir.path(), ELEMENTS);
    for n in 1..=7 {
        history.commit(&store);
        if n % 2 == 0 {
            history.snapshot(&store);
        }
    }
    let to = out.path().join("recording");
    let written = store.export_chain(&to).unwrap();
    assert_eq!(written, Recording { first: 0, last: 7, state: 4, updates: 3 });
    assert_eq!(numbers(&to, "record"), (0..=7).collect());
    assert_eq!(numbers(&to, "certificate"), (1..=7).collect());
    assert_eq!(numbers(&to, "update"), (5..=7).collect());
    assert_eq!(numbers(&to, "manifest"), [4].into());
    let mut state = first_state(&to, 4);
    replay(&to, &mut state, written);
    assert!(same_state(&state, &history.state));
}

#[test]
fn a_newcomers_chain_begins_with_the_record_of_its_snapshot() {
    let (dir, out) = (scratch(), scratch());
    let mut history = History::genesis(SMALL);
    let genesis = history.link();
    for n in 1..=3 {
        history.advance(n);
    }
    let stone = history.stone();
    history.advance(4);
    let store = create(dir.path());
    history.adopt(&store, &[genesis, stone, history.link()]);
    history.commit(&store);
    let to = out.path().join("recording");
    let written = store.export_chain(&to).unwrap();
    assert_eq!(written, Recording { first: 4, last: 5, state: 4, updates: 1 });
    assert_eq!(numbers(&to, "record"), [4, 5].into());
    assert_eq!(numbers(&to, "certificate"), [5].into(), "nobody can check the votes for the first");
    let mut state = first_state(&to, 4);
    replay(&to, &mut state, written);
    assert!(same_state(&state, &history.state));
}

#[test]
fn a_recording_that_cannot_be_written_leaves_nothing_behind() {
    let (dir, out) = (scratch(), scratch());
    let to = out.path().join("recording");
    assert!(matches!(open(dir.path()).export_chain(&to), Err(StoreError::NoRun { .. })));
    assert!(matches!(create(dir.path()).export_chain(&to), Err(StoreError::NoChain)));

    let other = scratch();
    let (mut history, store) = History::founded(other.path(), SMALL);
    history.commit(&store);
    history.snapshot(&store);
    history.commit(&store);
    fs::write(&to, "somebody's file").unwrap();
    let refused = store.export_chain(&to).unwrap_err();
    assert!(matches!(&refused, StoreError::Exists { path } if *path == to), "{refused}");
    assert_eq!(fs::read(&to).unwrap(), b"somebody's file");
    fs::remove_file(&to).unwrap();

    flip(&other.path().join("updates").join(history.record.update.to_string()), 3);
    assert!(matches!(store.export_chain(&to), Err(StoreError::Damaged(_))));
    assert!(matches!(store.export_chain(&to), Err(StoreError::NoUpdate { seq: 2 })), "a damaged update is removed");
    assert_eq!(fs::read_dir(out.path()).unwrap().count(), 0);
    let nowhere = out.path().join("missing").join("recording");
    assert!(matches!(store.export_chain(&nowhere), Err(StoreError::Io { .. })));
}
