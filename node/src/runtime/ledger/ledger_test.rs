use super::*;
use crate::runtime::sample_test::{chain, commit, genesis, signers, spec};
use starling_protocol::run::SyncMode;
use starling_protocol::state::State;
use starling_protocol::{Signer, sample, update, wire};
use starling_store::StoreOptions;
use tokio::sync::oneshot;

/// A ledger on a state that it has founded, which writes a snapshot after every record.
fn founded(dir: &std::path::Path) -> (Ledger, Record) {
    let (ledger, _, record) = founded_by(NodeId([1; 32]), 1, dir);
    (ledger, record)
}

fn founded_by(node: NodeId, snapshot_every: u64, dir: &std::path::Path) -> (Ledger, Arc<Store>, Record) {
    let options = StoreOptions { ballast_bytes: 0, reserve_bytes: 0, max_bytes: 0 };
    let store = Arc::new(Store::open(dir, options).expect("a folder of its own").store);
    store.bind_run(&wire::encode_spec(&spec())).expect("a new store");
    let mut record = genesis().record;
    let theta: Vec<f32> = (0..3000).map(|i| i as f32 * 0.001).collect();
    let (schema, none) = (Digest([3; 32]), Digest::default());
    let vectors = State::initial(theta, SyncMode::Rounds);
    let mut state = Canonical { record: record.clone(), digest: none, base: none, schema, state: vectors };
    record.state_root = state::root(&state.manifest().expect("of a sound size"));
    store.found(&record, &schema, &state.state).expect("an empty store");
    state.stand_on(record.clone());
    let naming = Naming { node, spec: Vec::new(), tensors: Vec::new(), extras: Vec::new() };
    (Ledger::start(store.clone(), spec(), naming, state, snapshot_every).expect("a thread"), store, record)
}

/// Replays a record that changes no state, so that no node's result would differ.
fn goes_on(ledger: &Ledger, record: &Record) -> Result<(), String> {
    let parent = crate::runtime::chain::Link { digest: record.digest(), record: record.clone(), certificate: None };
    let link = chain(&parent, 1).remove(0);
    let certificate = link.certificate.expect("it was voted for");
    let (reply, replayed) = oneshot::channel();
    let job = Job::Replay { record: link.record, certificate, update: None, reply };
    ledger.jobs.blocking_send(job).expect("the thread runs");
    replayed.blocking_recv().map_err(|e| e.to_string())?
}

#[test]
fn a_state_that_memory_has_changed_is_read_from_disk_again() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (mut ledger, record) = founded(dir.path());
    let sound = ledger.state.read().state.theta.clone();
    ledger.state.change(|state| state.state.theta[77] += 1.0);
    goes_on(&ledger, &record).expect("it follows");
    assert!(matches!(ledger.done.blocking_recv(), Some(LedgerReply::Mended { why }) if why.contains("record 1 names")));
    let state = ledger.state.read();
    assert_eq!((state.record.seq, &state.state.theta), (1, &sound));
    assert_eq!(state::root(&state.manifest().expect("of a sound size")), state.record.state_root);
}

/// A node that was left out of a round, and whose damaged state was compared with no other, does not stay behind for
/// good.
#[test]
fn a_record_that_does_not_replay_on_a_damaged_state_does_on_the_one_that_is_read_again() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (mut ledger, record) = founded(dir.path());
    let parent = crate::runtime::chain::Link { digest: record.digest(), record: record.clone(), certificate: None };
    let update = update::encode(record.next.codec, &[0.01; 3000]).expect("finite");
    let mut next = commit(&parent, update::digest(&update));
    let step = step_to(&spec(), &record, &next, (&update, 3000));
    next.state_root = state::root(&ledger.state.read().speculate(&step, None).expect("it applies"));
    ledger.state.change(|state| state.state.theta[77] += 1.0);
    let replay = |record: &Record| {
        let certificate = sample::certificate(record, 1, &signers()[..2]);
        let (reply, replayed) = oneshot::channel();
        let job = Job::Replay { record: record.clone(), certificate, update: Some(Arc::new(update.clone())), reply };
        ledger.jobs.blocking_send(job).expect("the thread runs");
        replayed.blocking_recv().expect("it answers")
    };
    let other = Record { state_root: Digest([9; 32]), ..next.clone() };
    let refused = replay(&other).expect_err("nothing leads there");
    assert_eq!(refused, "replaying record 1 gave another state root");
    assert!(matches!(ledger.done.blocking_recv(), Some(LedgerReply::Mended { why }) if why.contains("record 0 names")));
    ledger.state.change(|state| state.state.theta[78] += 1.0);
    replay(&next).expect("the state is read from disk again");
    assert!(matches!(ledger.done.blocking_recv(), Some(LedgerReply::Mended { why }) if why.contains("record 0 names")));
    let state = ledger.state.read();
    assert_eq!(state::root(&state.manifest().expect("of a sound size")), next.state_root);
}

#[test]
fn a_member_writes_a_snapshot_for_newcomers_and_nobody_else_does() {
    for (node, expected) in [(signers()[0].id(), vec![0, 1]), (NodeId([1; 32]), vec![0])] {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let (ledger, store, record) = founded_by(node, 16, dir.path());
        goes_on(&ledger, &record).expect("it follows");
        // A second one of the same state changes nothing.
        for _ in 0..2 {
            let (reply, written) = oneshot::channel();
            ledger.jobs.blocking_send(Job::Snapshot { reply }).expect("the thread runs");
            written.blocking_recv().expect("it answers");
        }
        assert_eq!(store.snapshots().iter().map(|(seq, _)| *seq).collect::<Vec<_>>(), expected);
    }
}

#[test]
fn if_the_disk_does_not_have_it_either_the_node_ends() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (mut ledger, record) = founded(dir.path());
    ledger.state.change(|state| state.state.theta[77] += 1.0);
    for chunk in walk(&dir.path().join("chunks")) {
        std::fs::write(chunk, b"nothing of the kind").expect("it may be written");
    }
    drop(goes_on(&ledger, &record));
    let Some(LedgerReply::Fatal(failure)) = ledger.done.blocking_recv() else { panic!("it goes on") };
    assert!(failure.error.to_string().contains("cannot be read from disk again"), "{:#}", failure.error);
}

fn walk(dir: &std::path::Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(dir).expect("a folder").map(|entry| entry.expect("an entry").path());
    entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
}
