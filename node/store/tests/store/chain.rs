//! What a node promised and what the flock decided: order, exactly once, across restarts.

use crate::support::{ELEMENTS, History, SCHEMA, create, files, image, open, options, scratch, spec, spec_bytes};
use starling_protocol::{Digest, update};
use starling_store::{Store, StoreError};

const SMALL: usize = 1000;

#[test]
fn a_chain_survives_a_kill_after_each_step() {
    let dir = scratch();
    let (mut history, store) = History::founded(dir.path(), SMALL);
    for round in 0..5 {
        let update = history.advance(round);
        let key = history.attempt(round);
        store.put_report(key, &history.record, &update).unwrap();
        let killed = image(dir.path());
        let revived = open(killed.path());
        assert_eq!(revived.pending_report(), Some((key, history.record.clone())));
        assert_eq!(revived.head().unwrap().digest(), history.record.parent);
        assert_eq!(revived.update_by_digest(&history.record.update).unwrap(), Some(update.clone()));
        // What was reported before the kill can be committed after it.
        revived.commit(&history.record, &update).unwrap();
        history.assert_loaded_from(&revived);

        store.commit(&history.record, &update).unwrap();
        let killed = image(dir.path());
        let revived = open(killed.path());
        assert_eq!(revived.pending_report(), None);
        history.assert_loaded_from(&revived);
    }
}

#[test]
fn a_commit_happens_once_and_only_on_its_parent() {
    let dir = scratch();
    let (mut history, store) = History::founded(dir.path(), SMALL);
    let genesis = history.clone();
    let first = history.advance(1);
    let record = history.record.clone();
    let mut ahead = history.clone();
    let second = ahead.advance(1);
    assert!(matches!(store.commit(&ahead.record, &second), Err(StoreError::NotNext { seq: 2, .. })));
    store.commit(&record, &first).unwrap();
    assert!(matches!(store.commit(&record, &first), Err(StoreError::AlreadyCommitted { seq: 1 })));

    // The same number on another branch, and the next number on another parent.
    let mut other = genesis;
    let update = other.advance(2);
    assert!(matches!(store.commit(&other.record, &update), Err(StoreError::NotNext { seq: 1, .. })));
    let update = other.advance(2);
    assert!(matches!(store.commit(&other.record, &update), Err(StoreError::NotNext { seq: 2, .. })));
    assert!(matches!(
        store.put_report(other.attempt(0), &other.record, &update),
        Err(StoreError::NotNext { seq: 2, .. })
    ));
    assert!(matches!(store.commit(&ahead.record, &first), Err(StoreError::UpdateMismatch { .. })));
    let mut alien = ahead.record.clone();
    alien.run = Digest([9; 32]);
    assert!(matches!(store.commit(&alien, &second), Err(StoreError::OtherRun { .. })));
    assert_eq!(store.head(), Some(record));
    store.commit(&ahead.record, &second).unwrap();
    ahead.assert_loaded_from(&store);
}

#[test]
fn founding_wants_an_empty_store_a_genesis_and_its_state() {
    let dir = scratch();
    let history = History::genesis(SMALL);
    let unbound = open(dir.path());
    let found =
        |store: &Store, history: &History| store.found(&history.record, &SCHEMA, &history.theta, &history.momentum);
    assert!(matches!(found(&unbound, &history), Err(StoreError::NoRun { .. })));
    assert!(matches!(unbound.load_state(|_, _, _, _| Ok(())), Err(StoreError::NoChain)));
    unbound.bind_run(&spec_bytes()).unwrap();
    let mut wrong = history.clone();
    wrong.theta[5] += 1.0;
    assert!(matches!(found(&unbound, &wrong), Err(StoreError::StateMismatch { .. })));
    wrong.theta.pop();
    assert!(matches!(found(&unbound, &wrong), Err(StoreError::Malformed { .. })));
    let mut later = history.clone();
    later.advance(0);
    assert!(matches!(found(&unbound, &later), Err(StoreError::NotNext { .. })));
    assert!(unbound.head().is_none());
    found(&unbound, &history).unwrap();
    assert!(matches!(found(&unbound, &history), Err(StoreError::NotNext { .. })));
    history.assert_loaded_from(&unbound);
}

#[test]
fn a_store_belongs_to_one_run_and_one_process() {
    let dir = scratch();
    let store = create(dir.path());
    match Store::open(dir.path(), options()).map(|_| ()) {
        Err(e @ StoreError::InUse { .. }) => {
            assert_eq!(e.exit_code(), 6);
            assert!(e.to_string().contains(&format!("pid {}", std::process::id())), "{e}");
        }
        other => panic!("expected InUse, got {other:?}"),
    }
    store.bind_run(&spec_bytes()).unwrap();
    let mut other = spec();
    other.seed += 1;
    let other = starling_protocol::wire::encode_spec(&other);
    assert!(matches!(store.bind_run(&other), Err(StoreError::OtherRun { .. })));
    assert!(matches!(store.bind_run(b"nonsense"), Err(StoreError::Malformed { .. })));
    drop(store);
    let store = open(dir.path());
    let run = store.run().unwrap();
    assert_eq!((run.digest, run.spec), (spec().digest(), spec_bytes()));
    assert!(matches!(store.bind_run(&other), Err(StoreError::OtherRun { .. })));
}

#[test]
fn the_newest_report_counts_and_a_commit_ends_them_all() {
    let dir = scratch();
    let (history, store) = History::founded(dir.path(), SMALL);
    let mut branches = Vec::new();
    for attempt in 0..6 {
        let mut branch = history.clone();
        let update = branch.advance(10 + attempt);
        store.put_report(branch.attempt(attempt), &branch.record, &update).unwrap();
        // Reporting the same attempt again changes nothing.
        store.put_report(branch.attempt(attempt), &branch.record, &update).unwrap();
        branches.push((branch, update));
    }
    let (newest, _) = &branches[5];
    assert_eq!(store.pending_report(), Some((newest.attempt(5), newest.record.clone())));
    // An older attempt may turn out to be what the flock committed.
    let (decided, update) = &branches[4];
    store.commit(&decided.record, update).unwrap();
    assert_eq!(store.pending_report(), None);
    assert_eq!(store.update(1).unwrap().as_ref(), Some(update));
    for (other, _) in branches.iter().filter(|(branch, _)| branch.record != decided.record) {
        assert_eq!(store.update_by_digest(&other.record.update).unwrap(), None, "dropped reports take no space");
    }
    decided.assert_loaded_from(&store);
}

#[test]
fn records_are_handed_out_in_order_and_bounded() {
    let dir = scratch();
    let (mut history, store) = History::founded(dir.path(), SMALL);
    (0..9).for_each(|_| history.commit(&store));
    let seqs = |from, max| -> Vec<u64> {
        let records = store.records_from(from, max).unwrap();
        records.iter().map(|bytes| starling_protocol::wire::decode_record(bytes).unwrap().seq).collect()
    };
    assert_eq!(seqs(0, 4), [0, 1, 2, 3]);
    assert_eq!(seqs(7, 100), [7, 8, 9]);
    assert!(seqs(10, 100).is_empty() && seqs(0, 0).is_empty());
    assert_eq!(store.record(9).unwrap(), store.head());
    assert_eq!(store.head_digest(), Some(history.record.digest()));
    assert_eq!(store.update(0).unwrap(), None, "a genesis has no update");
}

#[test]
fn an_update_may_be_staged_and_what_nothing_names_goes_in_time() {
    let dir = scratch();
    let (mut history, store) = History::founded(dir.path(), SMALL);
    let given_up = history.clone().advance(1);
    let update = history.advance(0);
    for staged in [&given_up, &update] {
        store.stage_update(staged).unwrap();
        let killed = image(dir.path());
        assert_eq!(open(killed.path()).head().unwrap().seq, 0, "staged is not committed");
    }
    store.put_report(history.attempt(0), &history.record, &update).unwrap();
    let killed = image(dir.path());
    let reopened = open(killed.path());
    assert_eq!(reopened.pending_report().unwrap().1, history.record);
    assert_eq!(reopened.update_by_digest(&history.record.update).unwrap().unwrap(), update);
    store.commit(&history.record, &update).unwrap();
    // Staged while a snapshot is pruned.
    let next = history.clone().advance(0);
    store.stage_update(&next).unwrap();
    history.snapshot(&store);
    assert_eq!(store.update_by_digest(&update::digest(&given_up)).unwrap(), None);
    history.commit(&store);
    assert_eq!(store.update(2).unwrap().unwrap(), next);
    history.assert_loaded_from(&store);
}

#[test]
fn a_reset_chain_can_be_founded_again_and_leaves_nothing_behind() {
    let dir = scratch();
    let (mut history, store) = History::founded(dir.path(), ELEMENTS);
    (0..3).for_each(|_| history.commit(&store));
    store.reset_chain().unwrap();
    assert!(files(&dir.path().join("chunks")).is_empty());
    assert!(files(&dir.path().join("updates")).is_empty());
    drop(store);
    let store = open(dir.path());
    assert!(store.head().is_none());
    let history = History::genesis(SMALL);
    store.found(&history.record, &SCHEMA, &history.theta, &history.momentum).unwrap();
    history.assert_loaded_from(&store);
}
