//! Snapshots, replay, adoption by a joiner, and pruning.

use crate::support::{
    ELEMENTS, History, SCHEMA, create, files, flip, image, open, outer_step, same_bits, same_state, scratch,
};
use starling_protocol::Digest;
use starling_protocol::message::Certificate;
use starling_protocol::path::Link;
use starling_protocol::record::Record;
use starling_protocol::run::SyncMode;
use starling_store::{Part, SNAPSHOT_EVERY, StoreError};
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fs, thread};

#[test]
fn two_snapshots_are_kept_and_the_updates_since_the_older_one() {
    let dir = scratch();
    let (mut history, store) = History::founded(dir.path(), 1000);
    for _ in 0..3 * SNAPSHOT_EVERY + 2 {
        history.commit(&store);
        if history.record.seq.is_multiple_of(SNAPSHOT_EVERY) {
            history.snapshot(&store);
        }
    }
    let seqs: Vec<_> = store.snapshots().iter().map(|(seq, _)| *seq).collect();
    assert_eq!(seqs, [2 * SNAPSHOT_EVERY, 3 * SNAPSHOT_EVERY]);
    for seq in 1..=history.record.seq {
        assert_eq!(store.update(seq).unwrap().is_some(), seq > 2 * SNAPSHOT_EVERY, "update {seq}");
        assert!(store.record(seq).unwrap().is_some(), "records are all kept");
    }
    // No two snapshots have the same momentum, so they share no chunks.
    assert_eq!(files(&dir.path().join("chunks")).len(), 4);
    let loaded = store.load_state(|_, update, state| outer_step(update, state)).unwrap();
    assert_eq!(loaded.replayed, 2);
    let killed = image(dir.path());
    history.assert_loaded_from(&open(killed.path()));
}

/// A member that was away for some records still finds the updates, however many newcomers have come meanwhile.
#[test]
fn snapshots_between_those_that_are_due_take_the_place_of_no_other() {
    let dir = scratch();
    let (mut history, store) = History::founded(dir.path(), 1000);
    let seqs = || store.snapshots().iter().map(|(seq, _)| *seq).collect::<Vec<_>>();
    let mut go_on = |between: bool| {
        history.commit(&store);
        match between {
            true => history.snapshot_between(&store),
            false => history.snapshot(&store),
        }
    };
    go_on(false);
    for last in 2..6 {
        go_on(true);
        assert_eq!(seqs(), [0, 1, last]);
        assert!(store.update(1).unwrap().is_some());
    }
    go_on(false);
    assert_eq!(seqs(), [5, 6]);
    history.assert_loaded_from(&open(image(dir.path()).path()));
}

#[test]
fn a_snapshot_is_of_a_record_here_and_of_its_state() {
    let dir = scratch();
    let (mut history, store) = History::founded(dir.path(), 1000);
    let mut branch = history.clone();
    history.commit(&store);
    branch.advance(9);
    let write = |h: &History| store.write_snapshot(&h.record, &SCHEMA, &h.state);
    assert!(matches!(write(&branch), Err(StoreError::NotNext { .. })));
    branch.advance(9);
    assert!(matches!(write(&branch), Err(StoreError::NotOnChain { seq: 2 })));
    let mut wrong = history.clone();
    wrong.state.moments[0][0] = f32::from_bits(wrong.state.moments[0][0].to_bits() ^ 1);
    assert!(matches!(write(&wrong), Err(StoreError::StateMismatch { seq: 1, .. })));
    write(&history).unwrap();
    write(&history).unwrap();
    assert_eq!(store.snapshots().len(), 2);
    assert!(same_bits(&store.load_snapshot(1).unwrap().state.theta, &history.state.theta));
}

#[test]
fn a_state_of_three_vectors_comes_back_from_snapshots_and_updates() {
    let dir = scratch();
    let (mut history, store) = History::founded_in(SyncMode::EveryStep, dir.path(), ELEMENTS);
    for snapshot in [false, true, false, false] {
        history.commit(&store);
        if snapshot {
            history.snapshot(&store);
        }
    }
    assert_eq!(history.manifest().chunks.len(), 6);
    history.assert_loaded_from(&store);
    drop(store);
    let store = open(dir.path());
    history.assert_loaded_from(&store);
    // The last chunk is one of the second moment.
    let of_snapshot = store.snapshots().last().unwrap().1.chunks[5];
    let name = of_snapshot.to_string();
    flip(&dir.path().join("chunks").join(&name[..2]).join(&name[2..]), 77);
    let loaded = store.load_state(|_, update, state| outer_step(update, state)).unwrap();
    assert_eq!(loaded.replayed, 4, "from the snapshot before");
    assert!(same_state(&loaded.state, &history.state));
}

#[test]
fn a_damaged_chunk_leads_to_the_older_snapshot_and_then_to_peers() {
    let dir = scratch();
    let (mut history, store) = History::founded(dir.path(), ELEMENTS);
    history.commit(&store);
    history.snapshot(&store);
    history.commit(&store);
    let newest = store.snapshots()[1].1.clone();
    let name = newest.chunks[1].to_string();
    flip(&dir.path().join("chunks").join(&name[..2]).join(&name[2..]), 99);
    match store.state_chunk(&newest.chunks[1]) {
        Err(StoreError::Damaged(damage)) => assert_eq!(damage.part, Part::State),
        other => panic!("a damaged chunk was served: {other:?}"),
    }
    history.assert_loaded_from(&store);
    assert_eq!(store.snapshots().len(), 1, "the damaged snapshot is not offered any more");
    // The same state can be written again.
    history.snapshot(&store);
    assert_eq!(store.load_state(|_, _, _| Ok(())).unwrap().replayed, 0);

    for chunk in files(&dir.path().join("chunks")) {
        fs::write(chunk, b"").unwrap();
    }
    match store.load_state(|_, update, state| outer_step(update, state)) {
        Err(e @ StoreError::Damaged(_)) => assert_eq!(e.exit_code(), 4),
        other => panic!("loaded from nothing: {:?}", other.map(|s| s.record)),
    }
}

#[test]
fn a_damaged_or_missing_update_is_never_applied() {
    let dir = scratch();
    let (mut history, store) = History::founded(dir.path(), 1000);
    (0..3).for_each(|_| history.commit(&store));
    let load = || store.load_state(|_, update, state| outer_step(update, state));
    let path = files(&dir.path().join("updates"))[1].clone();
    flip(&path, 8000);
    assert!(matches!(load(), Err(StoreError::Damaged(_))));
    assert!(!path.exists(), "a damaged update is removed");
    assert!(matches!(load(), Err(StoreError::Damaged(_))));
    assert!(matches!(store.load_state(|_, _, _| Ok(())), Err(StoreError::Damaged(_))));
}

#[test]
fn applying_something_else_does_not_pass_for_the_head() {
    let dir = scratch();
    let (mut history, store) = History::founded(dir.path(), 1000);
    history.commit(&store);
    assert!(matches!(store.load_state(|_, _, _| Ok(())), Err(StoreError::Damaged(_))));
    assert!(matches!(store.load_state(|_, _, _| Err("no".into())), Err(StoreError::Damaged(_))));
}

#[test]
fn a_joiner_takes_over_a_snapshot_and_replays() {
    let (here, there) = (scratch(), scratch());
    let (mut history, source) = History::founded(there.path(), ELEMENTS);
    (0..3).for_each(|_| history.commit(&source));
    history.snapshot(&source);
    let record = history.record.clone();
    let manifest = history.manifest();
    let votes = history.certificate();
    let stone = source.record(record.seq - 1).unwrap().unwrap();
    let stone = Link { digest: stone.digest(), record: stone, certificate: None };
    let genesis = History::genesis(ELEMENTS).link();
    let way = |record: &Record, votes: Option<&Certificate>| {
        let last = Link { digest: record.digest(), record: record.clone(), certificate: votes.cloned() };
        [genesis.clone(), stone.clone(), last]
    };
    let tail: Vec<_> = (0..2).map(|_| (history.advance(5), history.clone())).collect();

    let joiner = create(here.path());
    let missing = joiner.begin_adopt(&manifest).unwrap();
    assert_eq!(missing.len(), 4);
    let foreign = Digest([1; 32]);
    assert!(matches!(joiner.put_chunk(&foreign, b"x"), Err(StoreError::UnwantedChunk { .. })));
    assert!(matches!(joiner.put_chunk(&missing[0], b"lies"), Err(StoreError::BadChunk { .. })));
    let large = vec![0; (1 << 20) + 1];
    assert!(matches!(joiner.put_chunk(&missing[0], &large), Err(StoreError::TooLarge { .. })));
    let sound = way(&record, Some(&votes));
    match joiner.finish_adopt(&manifest, &sound) {
        Err(StoreError::MissingChunks { count: 4, first }) => assert_eq!(first, missing[0]),
        other => panic!("{other:?}"),
    }
    thread::scope(|scope| {
        for digest in &missing {
            scope.spawn(|| joiner.put_chunk(digest, &source.state_chunk(digest).unwrap().unwrap()).unwrap());
        }
    });
    // A kill here loses no fetched chunk.
    let killed = image(here.path());
    assert!(open(killed.path()).begin_adopt(&manifest).unwrap().is_empty());
    assert!(joiner.head().is_none());
    let mut other = record.clone();
    other.state_root = Digest([8; 32]);
    let names_other = Certificate { record: other.digest(), ..votes.clone() };
    let mixed = joiner.finish_adopt(&manifest, &way(&other, Some(&names_other)));
    assert!(matches!(mixed, Err(StoreError::StateMismatch { .. })));
    for votes in [None, Some(&names_other)] {
        let unproven = joiner.finish_adopt(&manifest, &way(&record, votes));
        let refused = matches!(
            unproven,
            Err(StoreError::CertificateMismatch { seq: 2 | 3 } | StoreError::NotNext { seq: 3, .. })
        );
        assert!(refused, "{unproven:?}");
    }
    let after_itself = joiner.finish_adopt(&manifest, &[genesis.clone(), sound[2].clone(), sound[2].clone()]);
    assert!(matches!(after_itself, Err(StoreError::NotNext { seq: 3, .. })));
    let rootless = joiner.finish_adopt(&manifest, &sound[1..]);
    assert!(matches!(rootless, Err(StoreError::NotNext { seq: 2, .. })), "it stands on nothing that is here");
    assert!(matches!(joiner.finish_adopt(&manifest, &[]), Err(StoreError::NoChain)));
    assert!(joiner.head().is_none());
    joiner.finish_adopt(&manifest, &sound).unwrap();
    assert_eq!(joiner.record(2).unwrap(), Some(sound[1].record.clone()), "the next joiner can check the votes, too");
    assert_eq!(joiner.certificate(3).unwrap(), Some(votes));
    for (update, after) in &tail {
        after.put(&joiner, update);
    }
    history.assert_loaded_from(&joiner);
    let killed = image(here.path());
    history.assert_loaded_from(&open(killed.path()));
}

#[test]
fn the_held_chunks_of_a_state_are_known_during_adoption_and_from_a_snapshot() {
    let (here, there) = (scratch(), scratch());
    let (mut history, source) = History::founded(there.path(), ELEMENTS);
    history.commit(&source);
    history.snapshot(&source);
    let (manifest, root) = (history.manifest(), history.record.state_root);
    assert_eq!(source.chunks_held(&root).unwrap(), Some(vec![0b1111]));
    assert_eq!((source.chunks_held(&Digest([1; 32])).unwrap(), source.chunks_adopted()), (None, 0));
    let joiner = create(here.path());
    assert_eq!(joiner.chunks_held(&root).unwrap(), None);
    joiner.begin_adopt(&manifest).unwrap();
    assert_eq!((joiner.chunks_held(&root).unwrap(), joiner.chunks_adopted()), (Some(vec![0]), 4));
    joiner.put_chunk(&manifest.chunks[2], &history.chunk(2)).unwrap();
    assert_eq!(joiner.chunks_held(&root).unwrap(), Some(vec![0b0100]));
    let (_, length) = joiner.open_state_chunk(&manifest.chunks[2]).unwrap().expect("it is served before all are here");
    assert_eq!(Some(length as usize), manifest.chunk_len(2));
    // The node is killed and begins anew.
    let killed = image(here.path());
    let joiner = open(killed.path());
    assert_eq!(joiner.chunks_held(&root).unwrap(), None);
    assert_eq!(joiner.begin_adopt(&manifest).unwrap().len(), 3);
    assert_eq!(joiner.chunks_held(&root).unwrap(), Some(vec![0b0100]));
    let way = [History::genesis(ELEMENTS).link(), history.link()];
    history.adopt(&joiner, &way);
    assert_eq!((joiner.chunks_held(&root).unwrap(), joiner.chunks_adopted()), (Some(vec![0b1111]), 0));
}

#[test]
fn adopting_replaces_a_dead_branch() {
    let dir = scratch();
    let (history, store) = History::founded(dir.path(), ELEMENTS);
    let (mut dead, mut live) = (history.clone(), history);
    for _ in 0..4 {
        let update = dead.advance(1);
        dead.put(&store, &update);
    }
    live.advance(2);
    let first = live.link();
    live.advance(2);
    let genesis = History::genesis(ELEMENTS).link();
    live.adopt(&store, &[genesis.clone(), first, live.link()]);
    assert_eq!(store.record(4).unwrap(), None);
    let records: Vec<_> = (0..3).map(|seq| store.record(seq).unwrap().unwrap().digest()).collect();
    assert_eq!(records, [genesis.digest, live.record.parent, live.record.digest()], "the branches part after genesis");
    assert!(files(&dir.path().join("updates")).is_empty());
    assert_eq!(files(&dir.path().join("chunks")).len(), 4);
    live.assert_loaded_from(&store);
    live.commit(&store);
    let killed = image(dir.path());
    live.assert_loaded_from(&open(killed.path()));
}

#[test]
fn pruning_leaves_a_running_adoption_alone() {
    let dir = scratch();
    let (mut history, store) = History::founded(dir.path(), 1000);
    let mut other = History::genesis(ELEMENTS);
    other.advance(3);
    let manifest = other.manifest();
    store.begin_adopt(&manifest).unwrap();
    store.put_chunk(&manifest.chunks[0], &other.chunk(0)).unwrap();
    history.commit(&store);
    history.snapshot(&store);
    assert_eq!(store.begin_adopt(&manifest).unwrap(), manifest.chunks[1..]);
    store.abort_adopt();
    history.commit(&store);
    history.snapshot(&store);
    assert!(store.state_chunk(&manifest.chunks[0]).unwrap().is_none());
}

#[test]
fn readers_go_on_while_the_chain_grows() {
    let dir = scratch();
    let (mut history, store) = History::founded(dir.path(), 1000);
    let done = AtomicBool::new(false);
    let read = || {
        let mut last = 0;
        while !done.load(Ordering::Relaxed) {
            let head = store.head().unwrap();
            assert!(head.seq >= last, "the head went back");
            last = head.seq;
            assert_eq!(store.record(head.seq).unwrap().unwrap(), head);
            for (_, manifest) in store.snapshots() {
                // The chunk was pruned between the two calls, or is whole.
                manifest.chunks.iter().for_each(|digest| drop(store.state_chunk(digest).unwrap()));
            }
            let records = store.records_from(0, 1000).unwrap();
            assert!(records.len() as u64 > head.seq);
            store.update(head.seq).unwrap();
        }
    };
    thread::scope(|scope| {
        scope.spawn(read);
        scope.spawn(read);
        for _ in 0..40 {
            history.commit(&store);
            if history.record.seq.is_multiple_of(8) {
                history.snapshot(&store);
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    history.assert_loaded_from(&store);
}
