//! A node's promises and the flock's decisions: in order, exactly once, across restarts.

use crate::support::{
    ELEMENTS, History, SCHEMA, create, files, image, open, options, outer_step, scratch, spec, spec_bytes,
};
use starling_protocol::record::RecordKind;
use starling_protocol::{Digest, update, wire};
use starling_store::{Store, StoreError};

const SMALL: usize = 1000;

#[test]
fn a_chain_survives_a_kill_after_each_step() {
    let dir = scratch();
    let (mut history, store) = History::founded(dir.path(), SMALL);
    for round in 0..5 {
        let update = history.advance(round);
        let candidate = history.candidate(round);
        store.put_candidate(&candidate, &update, &history.vote_state(round)).unwrap();
        let killed = image(dir.path());
        let revived = open(killed.path());
        assert_eq!(revived.candidates(), [candidate]);
        assert_eq!(revived.vote_state(), Some(history.vote_state(round)));
        assert_eq!(revived.head().unwrap().digest(), history.record.parent);
        assert_eq!(revived.update_by_digest(&history.record.update).unwrap(), Some(update.clone()));
        // A candidate from before the kill can be committed after it, with the update that is here.
        revived.commit(&history.record, None, &history.certificate()).unwrap();
        history.assert_loaded_from(&revived);

        history.put(&store, &update);
        let killed = image(dir.path());
        let revived = open(killed.path());
        assert!(revived.candidates().is_empty());
        assert_eq!(revived.vote_state(), Some(history.vote_state(round)), "a commit does not unsign anything");
        assert_eq!(revived.certificate(history.record.seq).unwrap(), Some(history.certificate()));
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
    let commit = |h: &History, update: &[u8]| store.commit(&h.record, Some(update), &h.certificate());
    assert!(matches!(commit(&ahead, &second), Err(StoreError::NotNext { seq: 2, .. })));
    let votes = ahead.certificate();
    let other_votes = store.commit(&record, Some(&first), &votes);
    assert!(matches!(other_votes, Err(StoreError::CertificateMismatch { seq: 1 })));
    let no_update = store.commit(&record, None, &history.certificate());
    assert!(matches!(no_update, Err(StoreError::NoUpdate { seq: 1 })));
    commit(&history, &first).unwrap();
    assert!(matches!(commit(&history, &first), Err(StoreError::AlreadyCommitted { seq: 1 })));

    // A record with the same number on another branch, and one with the next number on another parent.
    let mut other = genesis;
    let update = other.advance(2);
    assert!(matches!(commit(&other, &update), Err(StoreError::NotNext { seq: 1, .. })));
    let update = other.advance(2);
    assert!(matches!(commit(&other, &update), Err(StoreError::NotNext { seq: 2, .. })));
    let spoken = store.put_candidate(&other.candidate(0), &update, &other.vote_state(0));
    assert!(matches!(spoken, Err(StoreError::NotNext { seq: 2, .. })));
    assert_eq!(store.vote_state(), None, "a candidate that is refused leaves no trace");
    assert!(matches!(commit(&ahead, &first), Err(StoreError::UpdateMismatch { .. })));
    let mut alien = ahead.clone();
    alien.record.run = Digest([9; 32]);
    assert!(matches!(commit(&alien, &second), Err(StoreError::OtherRun { .. })));
    assert_eq!(store.head(), Some(record));
    commit(&ahead, &second).unwrap();
    ahead.assert_loaded_from(&store);
}

#[test]
fn founding_wants_an_empty_store_a_genesis_and_its_state() {
    let dir = scratch();
    let history = History::genesis(SMALL);
    let unbound = open(dir.path());
    let found = |store: &Store, history: &History| store.found(&history.record, &SCHEMA, &history.state);
    assert!(matches!(found(&unbound, &history), Err(StoreError::NoRun { .. })));
    assert!(matches!(unbound.load_state(|_, _, _| Ok(())), Err(StoreError::NoChain)));
    unbound.bind_run(&spec_bytes()).unwrap();
    let mut wrong = history.clone();
    wrong.state.theta[5] += 1.0;
    assert!(matches!(found(&unbound, &wrong), Err(StoreError::StateMismatch { .. })));
    wrong.state.theta.pop();
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
    let other = wire::encode_spec(&other);
    assert!(matches!(store.bind_run(&other), Err(StoreError::OtherRun { .. })));
    assert!(matches!(store.bind_run(b"nonsense"), Err(StoreError::Malformed { .. })));
    drop(store);
    let store = open(dir.path());
    let run = store.run().unwrap();
    assert_eq!(starling_store::Run::of_folder(dir.path()), Some(run.clone()), "also while the store is open");
    assert_eq!(starling_store::Run::of_folder(&dir.path().join("nothing")), None);
    assert_eq!((run.digest, run.spec), (spec().digest(), spec_bytes()));
    assert!(matches!(store.bind_run(&other), Err(StoreError::OtherRun { .. })));
}

#[test]
fn the_newest_candidates_are_kept_and_a_commit_ends_them_all() {
    let dir = scratch();
    let (history, store) = History::founded(dir.path(), SMALL);
    let mut branches = Vec::new();
    for attempt in 0..6 {
        let mut branch = history.clone();
        let update = branch.advance(10 + attempt);
        store.put_candidate(&branch.candidate(attempt), &update, &branch.vote_state(attempt)).unwrap();
        // A repetition changes nothing.
        store.put_candidate(&branch.candidate(attempt), &update, &branch.vote_state(attempt)).unwrap();
        branches.push((branch, update));
    }
    let kept = |store: &Store| store.candidates().iter().map(|c| c.key.attempt).collect::<Vec<_>>();
    assert_eq!(kept(&store), [2, 3, 4, 5]);
    let (newest, _) = &branches[5];
    let bytes = store.candidate(&newest.record.digest()).unwrap().unwrap();
    assert_eq!(wire::decode_candidate(&bytes).unwrap(), newest.candidate(5));
    assert_eq!(store.candidate(&branches[0].0.record.digest()).unwrap(), None);
    // The flock may have committed an older attempt.
    let (decided, update) = &branches[4];
    decided.put(&store, update);
    assert!(store.candidates().is_empty());
    assert_eq!(store.update(1).unwrap().as_ref(), Some(update));
    for (other, _) in branches.iter().filter(|(branch, _)| branch.record != decided.record) {
        assert_eq!(store.update_by_digest(&other.record.update).unwrap(), None, "dropped candidates take no space");
    }
    decided.assert_loaded_from(&store);
}

#[test]
fn the_candidate_that_the_vote_state_speaks_of_is_never_dropped() {
    let dir = scratch();
    let (history, store) = History::founded(dir.path(), SMALL);
    let mut spoken = history.clone();
    let update = spoken.advance(1);
    store.put_candidate(&spoken.candidate(0), &update, &spoken.vote_state(0)).unwrap();
    for attempt in 1..7 {
        let mut branch = history.clone();
        let update = branch.advance(10 + attempt);
        store.put_candidate(&branch.candidate(attempt), &update, &spoken.vote_state(attempt)).unwrap();
    }
    let kept: Vec<_> = store.candidates().iter().map(|c| c.key.attempt).collect();
    assert_eq!(kept, [0, 4, 5, 6]);
    // A candidate that has just been written is kept as well, however old its attempt is.
    let mut late = history.clone();
    let late_update = late.advance(50);
    store.put_candidate(&late.candidate(1), &late_update, &spoken.vote_state(9)).unwrap();
    let kept: Vec<_> = store.candidates().iter().map(|c| c.key.attempt).collect();
    assert_eq!(kept, [0, 1, 5, 6]);
    assert_eq!(store.update_by_digest(&spoken.record.update).unwrap().as_ref(), Some(&update));
}

#[test]
fn two_results_of_one_attempt_are_both_kept() {
    let dir = scratch();
    let (history, store) = History::founded(dir.path(), SMALL);
    for salt in [1, 2] {
        let mut branch = history.clone();
        let update = branch.advance(salt);
        store.put_candidate(&branch.candidate(0), &update, &branch.vote_state(salt)).unwrap();
    }
    assert_eq!(store.candidates().len(), 2);
    assert_eq!(open(image(dir.path()).path()).candidates().len(), 2);
}

#[test]
fn the_vote_state_outlives_commits_resets_and_adoptions_but_not_the_disk() {
    let dir = scratch();
    let (mut history, store) = History::founded(dir.path(), SMALL);
    assert_eq!(store.vote_state(), None);
    let mut next = history.clone();
    next.advance(0);
    let vote_state = next.vote_state(3);
    store.put_vote_state(&vote_state).unwrap();
    assert_eq!(open(image(dir.path()).path()).vote_state(), Some(vote_state.clone()));
    history.commit(&store);
    assert_eq!(store.vote_state(), Some(vote_state.clone()));
    history.adopt(&store, &[history.link()]);
    assert_eq!(store.vote_state(), Some(vote_state.clone()));
    store.reset_chain().unwrap();
    assert_eq!(store.vote_state(), Some(vote_state.clone()));
    assert_eq!(open(image(dir.path()).path()).vote_state(), Some(vote_state));
}

#[test]
fn records_without_an_update_move_the_head_and_not_the_state() {
    let dir = scratch();
    let (mut history, store) = History::founded(dir.path(), SMALL);
    let kinds = [RecordKind::Skip, RecordKind::Skip, RecordKind::Commit, RecordKind::Fork, RecordKind::Skip];
    for kind in kinds {
        if kind == RecordKind::Commit {
            history.commit(&store);
        } else {
            let mut dropped = history.clone();
            let update = dropped.advance(77);
            store.put_candidate(&dropped.candidate(0), &update, &dropped.vote_state(0)).unwrap();
            history.advance_unchanged(kind);
            store.commit(&history.record, None, &history.certificate()).unwrap();
            assert!(store.candidates().is_empty());
            assert_eq!(store.update_by_digest(&dropped.record.update).unwrap(), None);
            assert_eq!(store.update(history.record.seq).unwrap(), None);
        }
        history.assert_loaded_from(&store);
        history.assert_loaded_from(&open(image(dir.path()).path()));
    }
    let loaded = store.load_state(|_, update, state| outer_step(update, state)).unwrap();
    assert_eq!(loaded.replayed, 1, "one update in five records");
    // A snapshot may also be of such a record.
    history.snapshot(&store);
    history.commit(&store);
    history.assert_loaded_from(&open(image(dir.path()).path()));
}

#[test]
fn records_are_handed_out_in_order_and_bounded() {
    let dir = scratch();
    let (mut history, store) = History::founded(dir.path(), SMALL);
    (0..9).for_each(|_| history.commit(&store));
    let seqs = |from, max| -> Vec<u64> {
        let records = store.records_from(from, max).unwrap();
        for (record, certificate) in &records {
            let record = wire::decode_record(record).unwrap();
            if record.kind == RecordKind::Genesis {
                assert!(certificate.is_empty(), "nobody decided a genesis");
            } else {
                assert_eq!(wire::decode_certificate(certificate).unwrap().record, record.digest());
            }
        }
        records.iter().map(|(bytes, _)| wire::decode_record(bytes).unwrap().seq).collect()
    };
    assert_eq!(seqs(0, 4), [0, 1, 2, 3]);
    assert_eq!(seqs(7, 100), [7, 8, 9]);
    assert!(seqs(10, 100).is_empty() && seqs(0, 0).is_empty());
    let within = |bytes| store.records_within(0, 100, bytes).unwrap();
    let length = |links: &[(Vec<u8>, Vec<u8>)]| links.iter().map(|link| 8 + link.0.len() + link.1.len()).sum::<usize>();
    let three = length(&store.records_from(0, 3).unwrap());
    assert_eq!([0, three - 1, three, usize::MAX].map(|bytes| within(bytes).len()), [1, 2, 3, 10]);
    assert_eq!(store.record(9).unwrap(), store.head());
    assert_eq!(store.head_digest(), Some(history.record.digest()));
    assert_eq!(store.update(0).unwrap(), None, "a genesis has no update");
    assert_eq!(store.certificate(9).unwrap(), Some(history.certificate()));
    assert_eq!((store.certificate(0).unwrap(), store.certificate(10).unwrap()), (None, None));
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
    store.put_candidate(&history.candidate(0), &update, &history.vote_state(0)).unwrap();
    let killed = image(dir.path());
    let reopened = open(killed.path());
    assert_eq!(reopened.candidates(), [history.candidate(0)]);
    assert_eq!(reopened.update_by_digest(&history.record.update).unwrap().unwrap(), update);
    history.put(&store, &update);
    // This update is staged while a snapshot is pruned.
    let next = history.clone().advance(0);
    store.stage_update(&next).unwrap();
    history.snapshot(&store);
    assert_eq!(store.update_by_digest(&update::digest(&given_up)).unwrap(), None);
    history.commit(&store);
    assert_eq!(store.update(2).unwrap().unwrap(), next);
    history.assert_loaded_from(&store);
}

#[test]
fn an_update_is_staged_from_pieces_that_come_in_any_order_and_again() {
    let dir = scratch();
    let (mut history, store) = History::founded(dir.path(), SMALL);
    let update = history.advance(0);
    let digest = update::digest(&update);
    let abandoned = store.draft_update(update.len() as u64).unwrap();
    let mut draft = store.draft_update(update.len() as u64).unwrap();
    let (front, back) = update.split_at(update.len() / 3);
    draft.write(front.len() as u64, back).unwrap();
    draft.write(0, &vec![7; front.len()]).unwrap();
    draft.write(0, front).unwrap();
    assert_eq!(store.update_by_digest(&digest).unwrap(), None, "it has no name yet");
    store.stage_draft(draft, &digest).unwrap();
    drop(abandoned);
    let files = std::fs::read_dir(dir.path().join("tmp")).unwrap().count();
    assert_eq!(files, 0, "a draft leaves nothing behind");
    let reopened = image(dir.path());
    assert_eq!(open(reopened.path()).update_by_digest(&digest).unwrap().unwrap(), update);
    // The commit finds it and writes nothing.
    history.put(&store, &update);
    history.assert_loaded_from(&store);
}

#[test]
fn a_draft_of_other_bytes_than_its_digest_names_counts_as_missing() {
    let dir = scratch();
    let (mut history, store) = History::founded(dir.path(), SMALL);
    let update = history.advance(0);
    let digest = update::digest(&update);
    let mut draft = store.draft_update(update.len() as u64).unwrap();
    draft.write(0, &update[1..]).unwrap();
    store.stage_draft(draft, &digest).unwrap();
    assert!(matches!(store.update_by_digest(&digest), Err(StoreError::Damaged(_))));
    assert_eq!(store.update_by_digest(&digest).unwrap(), None);
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
    store.found(&history.record, &SCHEMA, &history.state).unwrap();
    history.assert_loaded_from(&store);
}
