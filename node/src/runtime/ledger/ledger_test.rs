use super::*;
use crate::config::checkpoint_table::Every;
use crate::runtime::sample_test::{chain, commit, genesis, signers, spec};
use starling_protocol::engine::io::PersistToken;
use starling_protocol::run::SyncMode;
use starling_protocol::state::State;
use starling_protocol::{Signer, sample, update, wire};
use starling_store::{StoreOptions, checkpoint_path, list_checkpoints, open_checkpoint};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::oneshot;

/// A ledger on a state that it has founded, which writes a snapshot after every record.
fn founded(dir: &std::path::Path) -> (Ledger, Record) {
    let (ledger, _, record) = founded_by(NodeId([1; 32]), 1, dir);
    (ledger, record)
}

fn founded_by(node: NodeId, snapshot_every: u64, dir: &std::path::Path) -> (Ledger, Arc<Store>, Record) {
    let plan = CheckpointPlan { folder: dir.join("checkpoints"), every: Every::Never, keep: 1 };
    founded_with(node, (snapshot_every, plan), 0, dir)
}

fn founded_with(
    node: NodeId,
    plans: (u64, CheckpointPlan),
    max_bytes: u64,
    dir: &std::path::Path,
) -> (Ledger, Arc<Store>, Record) {
    let options = StoreOptions { ballast_bytes: 0, reserve_bytes: 0, max_bytes };
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
    let tensors = vec![TensorShape { name: "all".into(), shape: vec![3000] }];
    let naming = Naming { node, spec: wire::encode_spec(&spec()), tensors, extras: Vec::new(), more: None };
    (Ledger::start(store.clone(), spec(), naming, state, plans).expect("a thread"), store, record)
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
    let step = step_to(&spec(), &record, &next, 3000);
    let speculated = ledger.state.read().speculate(&step, &update, Known::default());
    next.state_root = state::root(&speculated.expect("it applies"));
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
            asks(&ledger).blocking_recv().expect("it answers");
        }
        assert_eq!(snapshots(&store), expected);
    }
}

/// Commits a record that steps the state; the ledger has acknowledged it when this returns.
fn commits(ledger: &mut Ledger, parent: &Record) -> Record {
    let link = crate::runtime::chain::Link { digest: parent.digest(), record: parent.clone(), certificate: None };
    let encoded = update::encode(parent.next.codec, &[0.01; 3000]).expect("finite");
    let mut record = commit(&link, update::digest(&encoded));
    let step = step_to(&spec(), parent, &record, 3000);
    let speculated = ledger.state.read().speculate(&step, &encoded, Known::default());
    record.state_root = state::root(&speculated.expect("it applies"));
    let (digest, token) = (record.update, PersistToken(record.seq));
    let key = AttemptKey { lineage: record.lineage, seq: record.seq, attempt: 0, set: Digest([2; 32]) };
    let bring = Job::Bring { key, update: Update { digest, bytes: Arc::new(encoded) }, ahead: None };
    let certificate = sample::certificate(&record, 1, &signers()[..2]);
    let commit = Job::Commit { token, record: Box::new(record.clone()), certificate };
    for job in [bring, commit] {
        ledger.jobs.blocking_send(job).expect("the thread runs");
    }
    assert!(matches!(ledger.done.blocking_recv(), Some(LedgerReply::Durable { token: done }) if done == token));
    record
}

fn snapshots(store: &Store) -> Vec<u64> {
    store.snapshots().iter().map(|(seq, _)| *seq).collect()
}

/// Asks for a snapshot for newcomers, and so for the end of one that is being written.
fn asks(ledger: &Ledger) -> oneshot::Receiver<Duration> {
    let (reply, written) = oneshot::channel();
    ledger.jobs.blocking_send(Job::Snapshot { reply }).expect("the thread runs");
    written
}

#[test]
fn commits_are_acknowledged_while_a_snapshot_is_held_up_and_it_is_of_its_own_record() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (mut ledger, store, record) = founded_by(NodeId([1; 32]), 1, dir.path());
    let hold = ledger.hold.clone();
    let held = hold.lock().expect("nobody has panicked");
    let mut head = commits(&mut ledger, &record);
    let of_first = ledger.state.read().state.clone();
    let mut written = asks(&ledger);
    for _ in 0..3 {
        head = commits(&mut ledger, &head);
    }
    assert_ne!(ledger.state.read().state, of_first);
    assert!(written.try_recv().is_err(), "whoever asks shares it");
    assert_eq!((head.seq, snapshots(&store)), (4, vec![0]));
    drop(held);
    written.blocking_recv().expect("it ends");
    assert_eq!(snapshots(&store), [0, 1], "those that were due meanwhile are left out");
    assert_eq!(store.load_snapshot(1).expect("it is whole").state, of_first);
    commits(&mut ledger, &head);
    asks(&ledger).blocking_recv().expect("it ends");
    assert_eq!(snapshots(&store), [1, 5], "the next one that is due");
    let state = ledger.state.read();
    assert_eq!(store.load_snapshot(5).expect("it is whole").state, state.state);
}

#[test]
fn a_snapshot_is_given_up_when_the_state_is_read_from_disk_and_the_next_one_is_written() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (mut ledger, store, record) = founded_by(NodeId([1; 32]), 1, dir.path());
    let chunks = || walk(&dir.path().join("chunks")).len();
    let (hold, of_genesis) = (ledger.hold.clone(), chunks());
    let held = hold.lock().expect("nobody has panicked");
    let head = commits(&mut ledger, &record);
    let (reply, reloaded) = oneshot::channel();
    ledger.jobs.blocking_send(Job::Reload { reply }).expect("the thread runs");
    assert_eq!(reloaded.blocking_recv().expect("it answers").expect("it is on disk"), head);
    let written = asks(&ledger);
    drop(held);
    written.blocking_recv().expect("it ends");
    assert_eq!((snapshots(&store), chunks()), (vec![0], of_genesis));
    commits(&mut ledger, &head);
    asks(&ledger).blocking_recv().expect("it ends");
    assert_eq!((snapshots(&store), chunks()), (vec![0, 2], of_genesis + 2));
}

/// A snapshot that is under way when the node ends is there or not. Nothing is left of it if not.
#[test]
fn the_thread_of_the_ledger_ends_after_that_of_the_snapshot() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (mut ledger, store, record) = founded_by(NodeId([1; 32]), 1, dir.path());
    let chunks = || walk(&dir.path().join("chunks")).len();
    let (hold, of_genesis) = (ledger.hold.clone(), chunks());
    let held = hold.lock().expect("nobody has panicked");
    commits(&mut ledger, &record);
    let Ledger { jobs, thread, .. } = ledger;
    drop(jobs);
    drop(held);
    thread.join().expect("it ends");
    let whole = [(vec![0], of_genesis), (vec![0, 1], of_genesis + 2)];
    assert!(whole.contains(&(snapshots(&store), chunks())));
    assert_eq!(Arc::strong_count(&store), 1, "nobody uses the store any more");
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

/// A ledger that has a checkpoint every second round, and its folder of checkpoints.
fn with_checkpoints(keep: usize, max_bytes: u64, dir: &Path) -> (Ledger, Record, PathBuf) {
    let folder = dir.join("checkpoints");
    let plan = CheckpointPlan { folder: folder.clone(), every: Every::Rounds(2), keep };
    let (ledger, _, record) = founded_with(NodeId([1; 32]), (16, plan), max_bytes, dir);
    (ledger, record, folder)
}

/// The outcome of the next checkpoint that the ledger reports.
fn reported(ledger: &mut Ledger) -> (CheckpointPurpose, CheckpointOutcome) {
    match ledger.done.blocking_recv() {
        Some(LedgerReply::Checkpoint { purpose, outcome }) => (purpose, outcome),
        Some(LedgerReply::Fatal(failure)) => panic!("{:#}", failure.error),
        _ => panic!("another reply"),
    }
}

/// Has a checkpoint written for somebody, and awaits both answers.
fn asked(ledger: &mut Ledger, purpose: CheckpointPurpose) -> CheckpointOutcome {
    let (asked, answer) = oneshot::channel();
    ledger.jobs.blocking_send(Job::Checkpoint { purpose, asked: Some(asked) }).expect("the thread runs");
    let (of, outcome) = reported(ledger);
    assert_eq!((of, &answer.blocking_recv().expect("it answers")), (purpose, &outcome));
    outcome
}

#[test]
fn checkpoints_are_written_beside_commits_and_the_oldest_go() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (mut ledger, record, folder) = with_checkpoints(2, 0, dir.path());
    let hold = ledger.hold.clone();
    let held = hold.lock().expect("nobody has panicked");
    let first = commits(&mut ledger, &record);
    let second = commits(&mut ledger, &first);
    let of_second = ledger.state.read().state.clone();
    // One is due while another is written: it is of the head at its turn.
    let head = (0..3).fold(second.clone(), |head, _| commits(&mut ledger, &head));
    assert_eq!(head.seq, 5);
    drop(held);
    let made = |seq: u64, is_new| CheckpointMade { path: checkpoint_path(&folder, seq), seq, round: seq, is_new };
    assert_eq!(reported(&mut ledger), (CheckpointPurpose::Due, Ok(made(2, true))));
    assert_eq!(reported(&mut ledger), (CheckpointPurpose::Due, Ok(made(5, true))));
    let written = open_checkpoint(&checkpoint_path(&folder, 2)).expect("it is whole");
    assert_eq!((written.record, written.state), (second, of_second));
    let written = open_checkpoint(&checkpoint_path(&folder, 5)).expect("it is whole");
    assert_eq!((&written.record, &written.state), (&head, &ledger.state.read().state));
    // The one that is there will do.
    ledger.jobs.blocking_send(Job::Checkpoint { purpose: CheckpointPurpose::Leaving, asked: None }).expect("it runs");
    assert_eq!(reported(&mut ledger), (CheckpointPurpose::Leaving, Ok(made(5, false))));
    let left = || -> Vec<PathBuf> { list_checkpoints(&folder).into_iter().map(|kept| kept.path).collect() };
    let path = |round: &u64| checkpoint_path(&folder, *round);
    let paths = |rounds: &[u64]| -> Vec<PathBuf> { rounds.iter().map(path).collect() };
    let mut head = commits(&mut ledger, &head);
    assert_eq!(reported(&mut ledger), (CheckpointPurpose::Due, Ok(made(6, true))));
    assert_eq!(left(), paths(&[5, 6]));
    head = commits(&mut ledger, &head);
    assert_eq!(asked(&mut ledger, CheckpointPurpose::Asked), Ok(made(7, true)));
    for due in [8, 10] {
        while head.seq < due {
            head = commits(&mut ledger, &head);
        }
        assert_eq!(reported(&mut ledger), (CheckpointPurpose::Due, Ok(made(due, true))));
    }
    assert_eq!(left(), paths(&[7, 8, 10]), "the one that was asked for stays for its reader");
}

/// The rounds of the checkpoints in a folder.
fn rounds(folder: &Path) -> Vec<u64> {
    let kept = list_checkpoints(folder).into_iter().map(|kept| kept.manifest.expect("it is whole").round);
    let mut rounds: Vec<u64> = kept.collect();
    rounds.sort_unstable();
    rounds
}

#[test]
fn those_that_somebody_asks_for_take_no_place_of_those_that_are_due() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (mut ledger, mut head, folder) = with_checkpoints(1, 0, dir.path());
    let mut left = Vec::new();
    // Every second round one is due. Somebody asks after each round but the last.
    for round in 1..=6 {
        head = commits(&mut ledger, &head);
        if round % 2 == 0 {
            let (purpose, outcome) = reported(&mut ledger);
            assert!(purpose == CheckpointPurpose::Due && outcome.is_ok_and(|made| made.is_new));
        }
        if round < 6 {
            assert!(asked(&mut ledger, CheckpointPurpose::Asked).is_ok());
        }
        left.push(rounds(&folder));
    }
    // Those of rounds 2 and 4 were due, and then asked for: they count again when two newer ones have been asked for.
    let expected: [&[u64]; 6] = [&[1], &[1, 2], &[2, 3], &[2, 3, 4], &[2, 4, 5], &[4, 5, 6]];
    assert_eq!(left, expected);
}

#[test]
fn without_room_for_a_checkpoint_the_ledger_says_so_and_goes_on() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (mut ledger, record, folder) = with_checkpoints(1, 1, dir.path());
    let first = commits(&mut ledger, &record);
    let second = commits(&mut ledger, &first);
    let (purpose, outcome) = reported(&mut ledger);
    let NotMade { why, code } = outcome.expect_err("it is over the bound");
    assert!(purpose == CheckpointPurpose::Due && why.contains("store.max_gib") && !folder.exists(), "{why}");
    assert_eq!(code, Code::DiskFull, "as the table of exit codes has it");
    commits(&mut ledger, &second);
    assert!(asked(&mut ledger, CheckpointPurpose::Leaving).is_err());
    // The model of the whole run is written all the same.
    assert!(asked(&mut ledger, CheckpointPurpose::Budget).expect("there is a disk").is_new);
}

#[test]
fn a_snapshot_that_is_due_while_a_checkpoint_is_written_comes_after_it() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let plan = CheckpointPlan { folder: dir.path().join("checkpoints"), every: Every::Never, keep: 1 };
    let (mut ledger, store, record) = founded_with(NodeId([1; 32]), (2, plan), 0, dir.path());
    let hold = ledger.hold.clone();
    let held = hold.lock().expect("nobody has panicked");
    ledger.jobs.blocking_send(Job::Checkpoint { purpose: CheckpointPurpose::Asked, asked: None }).expect("it runs");
    let head = (0..3).fold(record, |head, _| commits(&mut ledger, &head));
    assert_eq!((head.seq, snapshots(&store)), (3, vec![0]));
    drop(held);
    assert_eq!(reported(&mut ledger).1.expect("it is written").seq, 0);
    let Ledger { jobs, thread, .. } = ledger;
    drop(jobs);
    thread.join().expect("it ends");
    assert_eq!(snapshots(&store), [0, 3], "it is of the head at its turn");
}

#[test]
fn a_node_without_a_state_has_no_checkpoint() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (mut ledger, _, _) = with_checkpoints(1, 0, dir.path());
    ledger.state.change(|state| state.record.lineage = Digest::default());
    assert!(asked(&mut ledger, CheckpointPurpose::Asked).expect_err("nothing is there").why.contains("no state yet"));
}
