use super::*;
use crate::net::fetch::{Answer, FetchRefusal, FetchRequest, FetchSource, decode_snapshots};
use crate::runtime::sample_test::{Link, commit, genesis, signers, spec};
use crate::runtime::source::Source;
use starling_protocol::run::SyncMode;
use starling_protocol::state::{self, State};
use starling_protocol::{Digest, sample, update, wire};
use starling_store::StoreOptions;
use std::sync::Arc;
use tokio::sync::mpsc;

const SECOND: Duration = Duration::from_secs(1);

/// A store whose only snapshot is that of its genesis.
fn store(dir: &std::path::Path) -> (Arc<Store>, Link) {
    let options = StoreOptions { ballast_bytes: 0, reserve_bytes: 0, max_bytes: 0 };
    let store = Arc::new(Store::open(dir, options).expect("a folder of its own").store);
    store.bind_run(&wire::encode_spec(&spec())).expect("a new store");
    let (mut record, state) = (genesis().record, State::initial(vec![0.5; 3000], SyncMode::Rounds));
    let schema = Digest([3; 32]);
    record.state_root = state::root(&state.manifest(schema).expect("of a sound size"));
    store.found(&record, &schema, &state).expect("an empty store");
    (store, Link { digest: record.digest(), record, certificate: None })
}

fn goes_on(store: &Store, head: &Link) -> Link {
    let update = update::encode(head.record.next.codec, &[0.01; 3000]).expect("finite");
    let record = commit(head, update::digest(&update));
    let certificate = sample::certificate(&record, 1, &signers()[..2]);
    store.commit(&record, Some(&update), &certificate).expect("it follows");
    Link { digest: record.digest(), record, certificate: Some(certificate) }
}

/// A store whose head is so far from its snapshot that a newcomer had better wait for another.
fn behind(dir: &std::path::Path) -> Arc<Store> {
    let (store, mut head) = store(dir);
    (0..=BEHIND_MAX).for_each(|_| head = goes_on(&store, &head));
    store
}

/// The snapshot that the ledger was asked for.
fn asked(jobs: &mut mpsc::Receiver<Job>) -> Option<oneshot::Sender<Duration>> {
    match jobs.try_recv() {
        Ok(Job::Snapshot { reply }) => Some(reply),
        Ok(_) => panic!("another job"),
        Err(_) => None,
    }
}

#[test]
fn a_snapshot_is_written_when_the_newest_is_far_behind() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (near, now, (ledger, mut jobs)) = (Near::default(), Instant::now(), mpsc::channel(4));
    near.set_ledger(&ledger);
    let (store, mut head) = store(dir.path());
    for behind in 0..=BEHIND_MAX {
        assert!(!near.is_awaited(&store, now).unwrap() && asked(&mut jobs).is_none(), "{behind} behind");
        head = goes_on(&store, &head);
    }
    assert!(near.is_awaited(&store, now).unwrap());
    let reply = asked(&mut jobs).expect("the ledger is asked");
    assert!(near.is_awaited(&store, now + SECOND).unwrap(), "it is being written");
    assert!(reply.send(SECOND).is_ok());
    assert!(!near.is_awaited(&store, now + 2 * SECOND).unwrap(), "it is there");
    assert!(asked(&mut jobs).is_none(), "once");
    drop(ledger);
    assert!(!near.is_awaited(&store, now + 99 * SECOND).unwrap(), "it does not keep the ledger alive");
    assert!(jobs.blocking_recv().is_none());
}

#[test]
fn however_many_ask_snapshots_are_far_between() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (near, start, (ledger, mut jobs)) = (Near::default(), Instant::now(), mpsc::channel(4));
    near.set_ledger(&ledger);
    let store = behind(dir.path());
    let mut asked_in = |seconds: std::ops::Range<u32>, took: Duration| {
        let awaited = seconds.filter(|second| {
            let awaited = near.is_awaited(&store, start + SECOND * *second).unwrap();
            asked(&mut jobs).is_some_and(|reply| reply.send(took).is_ok()) && awaited
        });
        awaited.count()
    };
    assert_eq!(asked_in(0..90, SECOND), 3);
    assert_eq!(asked_in(90..180, 3 * SECOND), 2, "the first of them took a twentieth of the time to the second");
}

#[test]
fn nobody_waits_for_ever_and_a_state_that_is_fetched_stays() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (near, now, (ledger, mut jobs)) = (Near::default(), Instant::now(), mpsc::channel(4));
    near.set_ledger(&ledger);
    let store = behind(dir.path());
    near.fetched(now);
    assert!(!near.is_awaited(&store, now + FETCHED / 2).unwrap());
    let later = now + FETCHED;
    assert!(near.is_awaited(&store, later).unwrap());
    let _reply = asked(&mut jobs).expect("nobody fetches the old one");
    assert!(near.is_awaited(&store, later + WAIT_MAX / 2).unwrap());
    assert!(!near.is_awaited(&store, later + WAIT_MAX).unwrap(), "it takes what there is");
    assert!(!near.is_awaited(&store, later + 2 * EVERY).unwrap() && asked(&mut jobs).is_none(), "one at a time");
}

#[test]
fn a_reader_that_asks_a_source_for_snapshots_is_told_to_come_back() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (ledger, mut jobs) = mpsc::channel(4);
    let source = Source::new(behind(dir.path()), Vec::new());
    let ask = || source.serve(&FetchRequest::SnapshotManifests);
    assert!(ask().is_ok(), "it has no ledger yet");
    source.set_ledger(&ledger);
    assert!(matches!(ask(), Err(FetchRefusal::Busy)));
    assert!(asked(&mut jobs).expect("the ledger is asked").send(SECOND).is_ok());
    let Ok(Answer::Bytes(answer)) = ask() else { panic!("it takes what there is") };
    assert_eq!(decode_snapshots(&answer).unwrap().len(), 1);
}
