use super::*;
use crate::net::fetch::{Answer, FetchRefusal, FetchRequest, FetchSource, decode_records, decode_start};
use crate::runtime::sample_test::{Link, commit, genesis, signers, spec};
use crate::runtime::source::Source;
use starling_protocol::run::{AdmissionMode, RunSpec, SyncMode};
use starling_protocol::state::{self, State};
use starling_protocol::{Digest, NodeId, sample, update, wire};
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

/// The request of a newcomer that knows the genesis, and goes to record `to`.
fn start(store: &Store, to: u64) -> FetchRequest {
    let genesis = store.record(0).expect("it is read").expect("it is here");
    FetchRequest::Start { to, known: Arc::from([(0, genesis.digest())]) }
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
    let store = behind(dir.path());
    let source = Source::new(store.clone(), Vec::new());
    let ask = || source.serve(&start(&store, 2));
    assert!(ask().is_ok(), "it has no ledger yet");
    source.set_ledger(&ledger);
    assert!(matches!(ask(), Err(FetchRefusal::Busy)));
    assert!(asked(&mut jobs).expect("the ledger is asked").send(SECOND).is_ok());
    let Ok(Answer::Bytes(answer)) = ask() else { panic!("it takes what there is") };
    let start = decode_start(&answer).unwrap();
    let seqs = |records: &[u8]| -> Vec<u64> {
        let links = decode_records(records).unwrap();
        links.iter().map(|(record, _)| wire::decode_record(record).unwrap().seq).collect()
    };
    assert_eq!((start.seq, seqs(&start.path), seqs(&start.records)), (0, vec![0], vec![1, 2]), "all in one answer");
    assert_eq!(start.manifest, store.snapshots()[0].1.encode());
}

/// Before, any peer that knew the run could have members write snapshots, and could keep them from it.
#[test]
fn where_members_are_chosen_strangers_have_no_snapshot_written() {
    for mode in [AdmissionMode::Open, AdmissionMode::List] {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let (ledger, mut jobs) = mpsc::channel(4);
        let (store, mut spec, is_open): (_, RunSpec, _) = (behind(dir.path()), spec(), mode == AdmissionMode::Open);
        spec.admission.mode = mode;
        spec.admission.allow.extend((!is_open).then_some(NodeId([1; 32])));
        let source = Source::new(store.clone(), wire::encode_spec(&spec));
        source.set_ledger(&ledger);
        let (asks, chunk) = (start(&store, 3), FetchRequest::StateChunk(store.snapshots()[0].1.chunks[0]));
        assert_eq!(source.minds_strangers(&asks), !is_open);
        assert!(!source.minds_strangers(&chunk));
        assert_eq!(matches!(source.serve_stranger(&asks), Err(FetchRefusal::Busy)), is_open);
        assert_eq!(asked(&mut jobs).is_some(), is_open);
        if is_open {
            continue;
        }
        assert!(source.serve_stranger(&chunk).is_ok(), "it may read, and keeps nobody waiting");
        assert!(matches!(source.serve(&asks), Err(FetchRefusal::Busy)));
        let _reply = asked(&mut jobs).expect("the run lets this one in");
        assert!(source.serve_stranger(&asks).is_ok(), "strangers take what there is");
        assert!(matches!(source.serve(&asks), Err(FetchRefusal::Busy)));
    }
}
