//! Checkpoint folders: whole, verified, replaced as a whole, and readable by others.

use crate::support::{History, SCHEMA, files, flip, options, same_bits, same_state, spec, spec_bytes};
use starling_protocol::run::{ModelSpec, OuterSpec, RunSpec, SyncMode};
use starling_protocol::wire::encode_spec;
use starling_store::{
    CheckpointSource, Part, StateChunks, Store, StoreError, StoreOptions, TensorShape, checkpoint_path,
    describe_checkpoint, export_checkpoint, is_checkpoint_of, keep_checkpoints, list_checkpoints, newest_checkpoint,
    open_checkpoint, read_safetensors, remove_checkpoint,
};
use std::fs;
use std::path::{Path, PathBuf};

const ELEMENTS: usize = 1000;

fn tensors() -> Vec<TensorShape> {
    let tensor = |name: &str, shape: &[usize]| TensorShape { name: name.into(), shape: shape.to_vec() };
    // The names are not in alphabetical order: the order is the schema's.
    vec![tensor("model.embed_tokens.weight", &[20, 30]), tensor("lm_head.weight", &[13, 30]), tensor("b", &[10])]
}

fn export(dir: &Path, history: &History) -> Result<(), StoreError> {
    export_checkpoint(
        dir,
        &CheckpointSource {
            record: &history.record,
            spec: &encode_spec(&spec_in(history)),
            schema: SCHEMA,
            tensors: &tensors(),
            state: &history.state,
            extras: &[("tokenizer.json", b"{}")],
        },
    )
}

/// The specification of a run with such a state.
fn spec_in(history: &History) -> RunSpec {
    let mut spec = spec();
    if history.state.moments.len() > 1 {
        (spec.sync.mode, spec.inner.steps, spec.outer) = (SyncMode::EveryStep, 1, OuterSpec::unused());
    }
    spec
}

fn history(rounds: u32) -> History {
    let mut history = History::genesis(ELEMENTS);
    (0..rounds).for_each(|_| drop(history.advance(0)));
    history
}

#[test]
fn an_exported_checkpoint_is_opened_exact_to_the_bit() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("checkpoint");
    let history = history(3);
    export(&dir, &history).unwrap();
    let checkpoint = open_checkpoint(&dir).unwrap();
    assert_eq!((&checkpoint.record, checkpoint.schema), (&history.record, SCHEMA));
    assert_eq!(checkpoint.spec, spec());
    assert!(same_state(&checkpoint.state, &history.state));
    assert_eq!(checkpoint.extras["tokenizer.json"], b"{}");
    let manifest = describe_checkpoint(&dir).unwrap();
    assert_eq!(manifest, checkpoint.manifest);
    assert_eq!((manifest.run.as_str(), manifest.round, manifest.tokens), ("tiny-flock", 3, 3000));
    assert_eq!(manifest.state_root, history.record.state_root);
    let ModelSpec { vocab, layers, .. } = manifest.model;
    assert_eq!((vocab, layers), (256, 2));
    let weights = read_safetensors(&dir.join("model.safetensors")).unwrap();
    assert_eq!(
        weights.iter().map(|t| (t.name.as_str(), t.shape.as_slice())).collect::<Vec<_>>(),
        [("model.embed_tokens.weight", &[20, 30][..]), ("lm_head.weight", &[13, 30]), ("b", &[10])]
    );
    assert!(same_bits(&weights[1].values, &history.state.theta[600..990]));
    assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 1, "nothing is left beside it");
}

#[test]
fn every_file_of_a_checkpoint_is_held_to_its_bytes() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("checkpoint");
    export(&dir, &history(2)).unwrap();
    for path in files(&dir) {
        let good = fs::read(&path).unwrap();
        let bits = good.len() * 8;
        let mut refused = 0;
        let places = 40;
        for place in 0..places {
            flip(&path, (bits - 1) * place / (places - 1));
            match open_checkpoint(&dir) {
                Err(StoreError::Damaged(damage)) => {
                    assert_eq!(damage.part, Part::Checkpoint);
                    refused += 1;
                }
                Err(StoreError::Io { .. } | StoreError::CheckpointFormat { .. }) => refused += 1,
                // Hex digits in JSON mean the same in upper case.
                Ok(_) if path.ends_with("manifest.json") => {}
                other => panic!("{} opened with a flipped bit: {:?}", path.display(), other.map(|c| c.record)),
            }
            fs::write(&path, &good).unwrap();
        }
        assert!(refused * 10 >= places * 8, "{}: {refused} of {places}", path.display());
        for length in [0, 1, good.len() / 2, good.len() - 1] {
            fs::write(&path, &good[..length]).unwrap();
            // The last byte of manifest.json is its final line break.
            let harmless = path.ends_with("manifest.json") && length == good.len() - 1;
            assert_eq!(open_checkpoint(&dir).is_ok(), harmless, "{} cut to {length}", path.display());
        }
        fs::remove_file(&path).unwrap();
        let missing = open_checkpoint(&dir).unwrap_err();
        // Without its list a folder is no checkpoint at all.
        let damaged = matches!(missing, StoreError::Damaged(_));
        assert!(damaged || path.ends_with("manifest.json"), "{}: {missing}", path.display());
        fs::write(&path, &good).unwrap();
        open_checkpoint(&dir).unwrap();
    }
}

#[test]
fn files_of_two_checkpoints_do_not_mix() {
    let parent = tempfile::tempdir().unwrap();
    let (a, b) = (parent.path().join("a"), parent.path().join("b"));
    export(&a, &history(1)).unwrap();
    export(&b, &history(2)).unwrap();
    for name in ["model.safetensors", "state.starling", "manifest.json"] {
        let good = fs::read(a.join(name)).unwrap();
        fs::copy(b.join(name), a.join(name)).unwrap();
        match open_checkpoint(&a) {
            Err(StoreError::Damaged(damage)) => assert!(damage.to_string().contains("export"), "{damage}"),
            other => panic!("{name}: {:?}", other.map(|c| c.record)),
        }
        fs::write(a.join(name), good).unwrap();
    }
}

#[test]
fn a_checkpoint_is_replaced_but_nothing_else_is() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("checkpoint");
    export(&dir, &history(1)).unwrap();
    // The remains of a killed export do not hinder the next one.
    fs::create_dir(parent.path().join(".checkpoint.new")).unwrap();
    fs::write(parent.path().join(".checkpoint.new/model.safetensors"), b"half").unwrap();
    export(&dir, &history(2)).unwrap();
    assert_eq!(open_checkpoint(&dir).unwrap().record.round, 2);
    assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 1);

    let precious = parent.path().join("precious");
    fs::create_dir(&precious).unwrap();
    export(&precious, &history(1)).unwrap();
    fs::remove_file(precious.join("manifest.json")).unwrap();
    fs::write(precious.join("thesis.txt"), b"years of work").unwrap();
    assert!(matches!(export(&precious, &history(1)), Err(StoreError::NotACheckpoint { .. })));
    assert!(precious.join("thesis.txt").exists());
}

#[test]
fn a_state_of_three_vectors_is_exported_whole() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("checkpoint");
    let mut history = History::genesis_in(SyncMode::EveryStep, ELEMENTS);
    history.advance(0);
    export(&dir, &history).unwrap();
    let checkpoint = open_checkpoint(&dir).unwrap();
    assert!(same_state(&checkpoint.state, &history.state));
    assert!(checkpoint.state.moments[1].iter().any(|x| *x > 0.0));
    let mut wrong = history.clone();
    wrong.state.moments.pop();
    assert!(matches!(export(&dir, &wrong), Err(StoreError::StateMismatch { .. })));
}

#[test]
fn a_state_that_is_not_the_records_is_not_exported() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("checkpoint");
    let mut wrong = history(1);
    wrong.state.theta[0] = f32::from_bits(wrong.state.theta[0].to_bits() ^ 1);
    assert!(matches!(export(&dir, &wrong), Err(StoreError::StateMismatch { .. })));
    let mut short = history(1);
    short.state.theta.pop();
    assert!(matches!(export(&dir, &short), Err(StoreError::Malformed { .. })));
    assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
}

#[test]
fn a_file_list_cannot_reach_outside() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("checkpoint");
    export(&dir, &history(1)).unwrap();
    let path = dir.join("manifest.json");
    let text = fs::read_to_string(&path).unwrap();
    for byzantine in ["../../etc/passwd", "/etc/passwd", ".hidden", "a/b", ""] {
        fs::write(&path, text.replace("tokenizer.json", byzantine)).unwrap();
        assert!(matches!(open_checkpoint(&dir), Err(StoreError::Damaged(_))), "{byzantine}");
    }
}

#[test]
fn the_oldest_checkpoints_give_way_and_nothing_else_does() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("checkpoints");
    assert!(list_checkpoints(&folder).is_empty() && newest_checkpoint(&folder).is_none());
    // The one of round 2 is written last: it is the newest, whatever its number.
    let written_at = |path: &Path, seconds: u64| {
        let manifest = fs::File::options().write(true).open(path.join("manifest.json")).unwrap();
        manifest.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds)).unwrap();
    };
    for (order, round) in [(1, 1), (2, 5), (3, 2)] {
        let path = checkpoint_path(&folder, round.into());
        export(&path, &history(round)).unwrap();
        written_at(&path, order);
    }
    export(&folder.join("mine"), &history(3)).unwrap();
    written_at(&folder.join("mine"), 4);
    let damaged = checkpoint_path(&folder, 9);
    fs::create_dir(&damaged).unwrap();
    let newest = newest_checkpoint(&folder).unwrap();
    assert_eq!((newest.0, newest.1.round), (folder.join("mine"), 3));
    let [one, five, two] = [1, 5, 2].map(|round| checkpoint_path(&folder, round));
    let keep =
        |keep, written: &Path, spared: &[PathBuf]| keep_checkpoints(&folder, keep, written, (spared, &[])).unwrap();
    assert_eq!(keep(2, &two, std::slice::from_ref(&one)), 0, "the one that is spared does not count");
    assert_eq!(keep(3, &one, &[]), 0);
    assert_eq!(keep(2, &two, &[]), 1);
    assert_eq!(keep(2, &two, &[]), 0);
    let left: Vec<_> = list_checkpoints(&folder).into_iter().map(|kept| kept.path).collect();
    assert_eq!(left.len(), 4, "{left:?}");
    for path in [five, two, folder.join("mine"), damaged] {
        assert!(left.contains(&path), "{} is gone", path.display());
    }
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 4, "nothing hidden is left");
}

#[test]
fn some_give_way_before_older_ones_and_one_is_removed_by_its_name() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("checkpoints");
    let [one, two, three] = [1, 2, 3].map(|round| checkpoint_path(&folder, round));
    for (round, path) in [(1, &one), (2, &two), (3, &three)] {
        export(path, &history(round)).unwrap();
    }
    assert_eq!(keep_checkpoints(&folder, 2, &three, (&[], std::slice::from_ref(&two))).unwrap(), 1);
    assert!(one.exists() && !two.exists());
    let mine = folder.join("mine");
    fs::create_dir(&mine).unwrap();
    for path in [&one, &one, &mine] {
        remove_checkpoint(path).unwrap();
    }
    assert!(!one.exists() && mine.exists());
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 2, "nothing hidden is left");
}

#[test]
fn a_checkpoint_is_known_by_its_record_and_by_the_length_of_its_files() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("checkpoint");
    let history = history(2);
    assert!(!is_checkpoint_of(&dir, &history.record.digest()));
    export(&dir, &history).unwrap();
    assert!(is_checkpoint_of(&dir, &history.record.digest()));
    assert!(!is_checkpoint_of(&dir, &history.record.parent));
    let model = dir.join("model.safetensors");
    let good = fs::read(&model).unwrap();
    fs::write(&model, &good[1..]).unwrap();
    assert!(!is_checkpoint_of(&dir, &history.record.digest()));
}

#[test]
fn a_checkpoint_of_another_format_is_named_so_whatever_its_fields() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("checkpoint");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("manifest.json"), br#"{"format": 7, "shards": []}"#).unwrap();
    let refused = open_checkpoint(&dir).unwrap_err();
    assert!(matches!(refused, StoreError::CheckpointFormat { found: 7, .. }), "{refused}");
    assert!(refused.to_string().contains("starling checkpoint now"), "{refused}");
}

/// A state that nobody wants any more after its first chunk was read for writing.
struct GivenUp<'a>(&'a History, std::sync::atomic::AtomicUsize);

impl StateChunks for GivenUp<'_> {
    fn elements(&self) -> u64 {
        StateChunks::elements(&self.0.state)
    }

    fn vectors(&self) -> u8 {
        StateChunks::vectors(&self.0.state)
    }

    fn read(&self, index: usize, read: &mut dyn FnMut(&[f32])) -> bool {
        // Each of the two chunks is read once to be hashed.
        let reads = self.1.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        reads < 3 && StateChunks::read(&self.0.state, index, read)
    }
}

fn source<'a>(
    history: &'a History,
    (spec, tensors): (&'a [u8], &'a [TensorShape]),
    state: &'a dyn StateChunks,
) -> CheckpointSource<'a> {
    CheckpointSource { record: &history.record, spec, schema: SCHEMA, tensors, state, extras: &[] }
}

#[test]
fn a_store_writes_checkpoints_within_its_bound_and_leaves_none_half_written() {
    let parent = tempfile::tempdir().unwrap();
    let home = parent.path().join("node");
    let (history, spec, tensors) = (history(1), spec_bytes(), tensors());
    let whole = source(&history, (&spec, &tensors), &history.state);
    let folder = home.join("checkpoints");
    let dir = checkpoint_path(&folder, 1);
    {
        let store = Store::open(&home, StoreOptions { max_bytes: 1, ..options() }).unwrap().store;
        let over = store.write_checkpoint(&dir, &whole, false);
        assert!(matches!(over, Err(StoreError::OverBound { .. })), "{over:?}");
        assert!(!folder.exists());
        store.write_checkpoint(&dir, &whole, true).unwrap();
    }
    let store = Store::open(&home, options()).unwrap().store;
    let given_up = GivenUp(&history, std::sync::atomic::AtomicUsize::new(0));
    let rest = folder.join(".round-000007.new");
    fs::create_dir(&rest).unwrap();
    let half = source(&history, (&spec, &tensors), &given_up);
    let ended = store.write_checkpoint(&checkpoint_path(&folder, 2), &half, false);
    assert!(matches!(ended, Err(StoreError::GivenUp { .. })), "{ended:?}");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "neither a half nor the rest of a killed process");
    assert_eq!(open_checkpoint(&dir).unwrap().record, history.record);
}

#[test]
fn a_checkpoint_that_cannot_fit_costs_no_history() {
    let home = tempfile::tempdir().unwrap();
    let (mut history, store) = History::founded(home.path(), ELEMENTS);
    for _ in 0..3 {
        history.commit(&store);
    }
    history.snapshot(&store);
    history.commit(&store);
    drop(store);
    let taken: u64 = files(home.path()).iter().map(|path| fs::metadata(path).map_or(0, |file| file.len())).sum();
    let store = Store::open(home.path(), StoreOptions { max_bytes: taken, ..options() }).unwrap().store;
    let kept = || {
        let snapshots: Vec<u64> = store.snapshots().iter().map(|(seq, _)| *seq).collect();
        (snapshots, (1..=4).filter(|seq| store.update(*seq).unwrap().is_some()).collect::<Vec<u64>>())
    };
    let all = (vec![0, 3], vec![1, 2, 3, 4]);
    assert_eq!(kept(), all);
    let (spec, tensors) = (spec_bytes(), tensors());
    let whole = source(&history, (&spec, &tensors), &history.state);
    let over = store.write_checkpoint(&checkpoint_path(&home.path().join("checkpoints"), 4), &whole, false);
    assert!(matches!(over, Err(StoreError::OverBound { .. })), "{over:?}");
    assert_eq!(kept(), all);
}
