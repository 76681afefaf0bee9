use super::*;
use crate::runtime::sample_test::{genesis, signers, spec};
use starling_protocol::Signer;
use starling_protocol::record::{NextRound, RecordKind};
use starling_protocol::run::SyncMode;
use starling_protocol::state::State;
use starling_store::StoreOptions;
use std::path::Path;

fn store(dir: &Path) -> Store {
    let options = StoreOptions { ballast_bytes: 0, reserve_bytes: 0, max_bytes: 0 };
    Store::open(dir, options).expect("a folder of its own").store
}

fn me() -> NodeId {
    signers()[1].id()
}

/// Keeps the difference of a run that begins as its seed says.
fn keep(store: &Store, spec: &RunSpec, me: &NodeId, last: &Canonical) -> Result<Difference, Lost> {
    super::keep(store, spec, me, last, None)
}

/// The state of this record with these parameters.
fn standing(mut record: Record, theta: Vec<f32>) -> Canonical {
    let schema = Digest([3; 32]);
    let mut state = Canonical {
        record: record.clone(),
        digest: Digest::default(),
        base: Digest::default(),
        schema,
        state: State::initial(theta, SyncMode::Rounds),
    };
    record.state_root = state::root(&state.manifest().expect("of a sound size"));
    state.stand_on(record);
    state
}

fn initial() -> Vec<f32> {
    super::initial(&spec())
}

fn trained(by: f32) -> Vec<f32> {
    initial().iter().enumerate().map(|(i, x)| x + if i % 2 == 0 { by } else { 0.0 }).collect()
}

fn founded(tokens: u64) -> Record {
    Record { tokens, ..genesis().record }
}

fn fork(tokens: u64) -> Record {
    let parent = genesis().record;
    let merged = vec![parent.lineage];
    let next = NextRound { merge_tokens: 0, merge_norm_bits: 0, ..parent.next.clone() };
    Record {
        kind: RecordKind::Fork,
        lineage: Digest([9; 32]),
        parent: parent.digest(),
        base: parent.digest(),
        seq: 1,
        tokens,
        merged,
        next,
        ..parent
    }
}

fn merge(lineage: Digest, tokens: u64) -> Merge {
    Merge { lineage, tokens, norm_bits: f32::MAX.to_bits() }
}

#[test]
fn the_difference_of_a_founded_lineage_is_kept_and_mixed() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = store(dir.path());
    assert_eq!(held(&store), None);
    let last = standing(founded(1_000), trained(-0.5));
    let kept = keep(&store, &spec(), &me(), &last).expect("kept");
    assert_eq!((kept.lineage, kept.tokens, kept.place, kept.of), (last.record.lineage, 1_000, 1, 3));
    assert_eq!(held(&store), Some(kept));
    let own = vec![0.25; last.elements()];
    let Made { delta: mixed, payload, norm } = mix(&store, &own, 300, &merge(kept.lineage, 100)).expect("whole");
    let squares: f64 = mixed.iter().map(|x| f64::from(*x).powi(2)).sum();
    assert!((f64::from(norm) - squares.sqrt()).abs() < 1e-6, "{norm}");
    assert_eq!(payload, update::contribution_digest(&mixed));
    for (i, x) in mixed.iter().enumerate() {
        let difference = initial()[i] - trained(-0.5)[i];
        assert_eq!(*x, 0.75 * 0.25 + 0.25 * difference, "element {i}");
    }
    let again = mix(&store, &own, 300, &merge(kept.lineage, 100)).expect("it stays").payload;
    assert_eq!(again, payload);
    drop_held(&store, &Digest([8; 32]));
    assert_eq!(held(&store), Some(kept), "another's is not dropped");
    drop_held(&store, &kept.lineage);
    assert_eq!(held(&store), None);
}

#[test]
fn a_fork_is_measured_from_where_it_began_also_after_a_restart() {
    let dir = tempfile::tempdir().expect("a folder");
    let last = standing(fork(700), trained(0.75));
    {
        let store = store(dir.path());
        let lost = keep(&store, &spec(), &me(), &last).expect_err("the base is not here");
        assert!(matches!(lost, Lost::Nothing(Nothing::NoBase)) && lost.is_a_loss(), "{lost}");
        keep_base(&store, &fork(200), &trained(0.5)).expect("kept");
    }
    let store = store(dir.path());
    let kept = keep(&store, &spec(), &me(), &last).expect("kept");
    assert_eq!((kept.lineage, kept.tokens), (Digest([9; 32]), 500));
    let own = vec![0.0; last.elements()];
    let Made { delta: mixed, .. } = mix(&store, &own, 1, &merge(kept.lineage, 1)).expect("whole");
    assert!(mixed.iter().step_by(2).all(|x| (x + 0.125).abs() < 1e-6), "half of what the fork has trained");
    assert!(mixed.iter().skip(1).step_by(2).all(|x| *x == 0.0));
    forget_base(&store, &last.record.lineage);
    let more = keep(&store, &spec(), &me(), &standing(fork(800), trained(0.75))).expect("it went on and leaves again");
    assert_eq!(more.tokens, 600);
    forget_base(&store, &Digest([7; 32]));
    assert_eq!(held(&store), Some(more), "what was kept stays");
    let lost = keep(&store, &spec(), &me(), &last).expect_err("another lineage's state is here now");
    assert!(matches!(lost, Lost::Nothing(Nothing::NoBase)), "{lost}");
}

#[test]
fn a_run_from_weights_is_measured_from_them() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = store(dir.path());
    let begun = RunSpec { beginning: Some(Digest([4; 32])), ..spec() };
    let last = standing(founded(1_000), trained(0.5));
    assert!(needs_weights(&store, &begun, &me(), &last.record) && !needs_weights(&store, &spec(), &me(), &last.record));
    let lost = keep(&store, &begun, &me(), &last).expect_err("the weights are not here");
    assert!(matches!(lost, Lost::NoWeights) && lost.is_a_loss(), "{lost}");
    let kept = super::keep(&store, &begun, &me(), &last, Some(trained(0.75))).expect("kept");
    let own = vec![0.0; last.elements()];
    let Made { delta: mixed, .. } = mix(&store, &own, 1, &merge(kept.lineage, 1)).expect("whole");
    assert!(mixed.iter().step_by(2).all(|x| (x - 0.125).abs() < 1e-6), "half of what was trained since");
    let damaged = super::keep(&store, &begun, &me(), &last, Some(vec![0.0; 3])).expect_err("of another size");
    assert!(matches!(damaged, Lost::Nothing(Nothing::Damaged)), "{damaged}");
    keep_base(&store, &fork(0), &initial()).expect("kept");
    assert!(!needs_weights(&store, &begun, &me(), &fork(700)), "a fork has parameters of its own");
}

#[test]
fn the_one_with_more_work_behind_it_stays() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = store(dir.path());
    let first = keep(&store, &spec(), &me(), &standing(founded(1_000), trained(0.5))).expect("kept");
    keep_base(&store, &fork(0), &initial()).expect("kept");
    let lost = keep(&store, &spec(), &me(), &standing(fork(1_000), trained(0.5))).expect_err("no more than that");
    assert!(matches!(lost, Lost::Outweighed), "{lost}");
    assert_eq!(held(&store), Some(first));
    let newer = keep(&store, &spec(), &me(), &standing(founded(900), trained(0.25)));
    assert_eq!(newer.map(|kept| kept.tokens).ok(), Some(900), "of one lineage the newer");
    let more = keep(&store, &spec(), &me(), &standing(fork(901), trained(0.5)));
    assert_eq!(held(&store), more.ok());
}

#[test]
fn a_damaged_difference_is_lost_and_reported_as_a_loss() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = store(dir.path());
    let mut last = standing(founded(1_000), trained(0.5));
    let kept = keep(&store, &spec(), &me(), &last).expect("kept");
    let own = vec![0.0; last.elements()];
    let path = dir.path().join("private").join(DIFFERENCE);
    let good = std::fs::read(&path).expect("it is there");
    let mut bad = good.clone();
    let middle = bad.len() / 2;
    bad[middle] ^= 1;
    std::fs::write(&path, bad).expect("written");
    assert!(mix(&store, &own, 1, &merge(kept.lineage, 1)).is_err_and(|lost| lost.is_a_loss()));
    assert_eq!(held(&store), None, "it is removed");
    assert!(matches!(mix(&store, &own, 1, &merge(kept.lineage, 1)), Err(Lost::Gone)));
    std::fs::write(&path, good).expect("written");
    assert!(mix(&store, &own[1..], 1, &merge(kept.lineage, 1)).is_err(), "another model");
    last.state.theta[0] += 1.0;
    let lost = keep(&store, &spec(), &me(), &last).expect_err("not the state of its record");
    assert!(matches!(lost, Lost::Nothing(Nothing::Damaged)), "{lost}");
    let stranger = keep(&store, &spec(), &NodeId([7; 32]), &last).expect_err("it did not vote");
    assert!(!stranger.is_a_loss(), "{stranger}");
}
