//! The bound on the folder's bytes: old snapshots and updates go, and never what the node needs to come back.

use crate::support::{ELEMENTS, History, SCHEMA, files, image, open, options, same_bits, scratch, spec_bytes};
use starling_store::{SnapshotKind, Store, StoreError, StoreOptions};
use std::fs;
use std::path::Path;

/// A bound that nothing fits into.
const NOTHING_FITS: u64 = 1;
const STATE: u64 = 8 * ELEMENTS as u64;

/// A founded store whose folder may take so many bytes.
fn founded(dir: &Path, max_bytes: u64, elements: usize) -> (History, Store) {
    let store = Store::open(dir, StoreOptions { max_bytes, ..options() }).unwrap().store;
    store.bind_run(&spec_bytes()).unwrap();
    let history = History::genesis(elements);
    store.found(&history.record, &SCHEMA, &history.state).unwrap();
    (history, store)
}

fn seqs(store: &Store) -> Vec<u64> {
    store.snapshots().iter().map(|(seq, _)| *seq).collect()
}

/// Bytes of the files below `dir`. RocksDB removes some meanwhile.
fn taken(dir: &Path) -> u64 {
    files(dir).iter().map(|path| fs::metadata(path).map_or(0, |file| file.len())).sum()
}

#[test]
fn the_folder_keeps_to_its_bound_and_always_leads_to_the_head() {
    let (dir, measured) = (scratch(), scratch());
    let (mut first, without) = founded(measured.path(), 0, ELEMENTS);
    let begun = taken(measured.path());
    first.commit(&without);
    let update = without.update(1).unwrap().unwrap().len() as u64;
    // Two states, the four updates between them, and no fifth beside the two that a round may write.
    let max = begun + STATE + 5 * update + update / 2;
    let (mut history, store) = founded(dir.path(), max, ELEMENTS);
    for seq in 1..=11 {
        history.commit(&store);
        assert!(taken(dir.path()) <= max, "{} of {max} after record {seq}", taken(dir.path()));
        if seq == 7 {
            assert_eq!(seqs(&store), [4]);
            assert!(store.update(1).unwrap().is_some(), "without the first snapshot there is room for its updates");
        }
        if seq % 4 == 0 {
            history.snapshot(&store);
            assert!(taken(dir.path()) <= max, "{} of {max} after snapshot {seq}", taken(dir.path()));
        }
        if seq % 2 == 1 {
            history.assert_loaded_from(&open(image(dir.path()).path()));
        }
    }
    assert_eq!(seqs(&store), [8], "without a bound it would keep 4, too");
    for seq in 1..=11 {
        assert_eq!(store.update(seq).unwrap().is_some(), seq > 4, "update {seq}");
        assert!(store.record(seq).unwrap().is_some(), "records are all kept");
    }
}

/// A member that was away for a moment still finds the updates that it lacks.
#[test]
fn updates_that_a_snapshot_makes_unnecessary_go_one_by_one_and_the_oldest_first() {
    let dir = scratch();
    let (mut history, store) = founded(dir.path(), 1 << 30, 1000);
    for _ in 0..6 {
        history.commit(&store);
    }
    history.snapshot(&store);
    history.commit(&store);
    let kept = |store: &Store| (1..=7).filter(|seq| store.update(*seq).unwrap().is_some()).collect::<Vec<u64>>();
    assert_eq!((seqs(&store), kept(&store)), (vec![0, 6], (1..=7).collect()));
    // A state of four chunks, as the manifest counts it, and then one update after the other.
    let update = store.update(1).unwrap().unwrap().len() as u64;
    let free = |store: &Store| (1 << 30) - taken(store.path());
    store.make_room(free(&store) + 1);
    assert_eq!((seqs(&store), kept(&store)), (vec![6], (1..=7).collect()));
    for gone in 1..=6 {
        store.make_room(free(&store) + update / 2);
        assert_eq!(kept(&store), (gone + 1..=7).collect::<Vec<_>>());
    }
    store.make_room(1 << 30);
    assert_eq!((seqs(&store), kept(&store)), (vec![6], vec![7]), "these lead to the head");
    history.assert_loaded_from(&open(image(dir.path()).path()));
}

#[test]
fn the_weights_that_a_run_begins_with_count_and_stay() {
    let dir = scratch();
    let (mut history, store) = founded(dir.path(), 1 << 30, ELEMENTS);
    store.keep_beginning(&SCHEMA, &history.state).unwrap();
    let begun = history.state.clone();
    history.commit(&store);
    history.snapshot(&store);
    assert_eq!(seqs(&store), [0, 1]);
    let chunks = taken(&dir.path().join("chunks"));
    // Room for both states, and for half of the weights.
    let rest = taken(dir.path()) - chunks;
    store.make_room((1 << 30) - rest - 2 * STATE - STATE / 4);
    assert_eq!(seqs(&store), [1]);
    assert!(same_bits(&store.load_beginning().unwrap().expect("they stay"), &begun.theta));
}

#[test]
fn what_recovery_needs_stays_however_small_the_bound() {
    let dir = scratch();
    let (mut history, store) = founded(dir.path(), NOTHING_FITS, 1000);
    for _ in 0..3 {
        history.commit(&store);
    }
    assert_eq!(seqs(&store), [0], "the only snapshot");
    let between = store.write_snapshot_of(SnapshotKind::Between, &history.record, &SCHEMA, &history.state);
    match between {
        Err(e @ StoreError::OverBound { needed, max, .. }) => {
            assert!(max == NOTHING_FITS && needed > max);
            assert!(e.to_string().contains("store.max_gib"), "{e}");
        }
        other => panic!("expected OverBound, got {other:?}"),
    }
    history.snapshot(&store);
    history.commit(&store);
    history.commit(&store);
    assert_eq!(seqs(&store), [3], "one that is due is written, and the one before it goes");
    let kept: Vec<_> = (1..=5).filter(|seq| store.update(*seq).unwrap().is_some()).collect();
    assert_eq!(kept, [4, 5]);
    let mut private = store.write_private("moments", 4).unwrap();
    private.write(b"okay").unwrap();
    private.commit().unwrap();
    history.assert_loaded_from(&open(image(dir.path()).path()));
}

#[test]
fn updates_of_candidates_and_staged_ones_stay() {
    let dir = scratch();
    let (mut history, store) = founded(dir.path(), NOTHING_FITS, 1000);
    history.commit(&store);
    history.snapshot(&store);
    let mut other = history.clone();
    let (voted, staged) = (history.advance(1), other.advance(2));
    store.put_candidate(&history.candidate(0), &voted, &history.vote_state(1)).unwrap();
    store.stage_update(&staged).unwrap();
    assert_eq!(seqs(&store), [0, 1], "nothing has asked for room since");
    store.make_room(1);
    assert_eq!(seqs(&store), [1]);
    assert_eq!(store.update(1).unwrap(), None);
    for (record, update) in [(&history.record, &voted), (&other.record, &staged)] {
        assert_eq!(store.update_by_digest(&record.update).unwrap().as_ref(), Some(update));
    }
    history.put(&store, &voted);
    history.assert_loaded_from(&open(image(dir.path()).path()));
}

#[test]
fn a_state_that_is_fetched_takes_the_room_of_old_ones_and_not_of_itself() {
    let (here, there) = (scratch(), scratch());
    let (mut history, store) = founded(here.path(), NOTHING_FITS, ELEMENTS);
    let (mut ahead, source) = History::founded(there.path(), ELEMENTS);
    history.commit(&store);
    history.snapshot(&store);
    let mut way = vec![ahead.link()];
    for _ in 0..3 {
        ahead.commit(&source);
        way.push(ahead.link());
    }
    let mut former = history.clone();
    former.advance(7);
    let manifest = ahead.manifest();
    store.begin_adopt(&former.manifest()).unwrap();
    assert_eq!(seqs(&store), [1], "the newest stays until the fetched one is whole");
    store.put_chunk(&former.manifest().chunks[0], &former.chunk(0)).unwrap();
    store.begin_adopt(&manifest).unwrap();
    assert!(store.state_chunk(&former.manifest().chunks[0]).unwrap().is_none(), "given up, and so removed");
    history.assert_loaded_from(&store);
    store.put_chunk(&manifest.chunks[0], &ahead.chunk(0)).unwrap();
    store.make_room(1);
    assert!(store.state_chunk(&manifest.chunks[0]).unwrap().is_some());
    ahead.adopt(&store, &way);
    ahead.assert_loaded_from(&open(image(here.path()).path()));
}
