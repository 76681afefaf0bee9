//! Checkpoint folders: whole, verified, replaced as a whole, and readable by others.

use crate::support::{History, SCHEMA, files, flip, same_bits, same_state, spec};
use starling_protocol::run::{ModelSpec, OuterSpec, RunSpec, SyncMode};
use starling_protocol::wire::encode_spec;
use starling_store::{
    CheckpointSource, Part, StoreError, TensorShape, describe_checkpoint, export_checkpoint, open_checkpoint,
    read_safetensors,
};
use std::fs;
use std::path::Path;

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
                Err(StoreError::Io { .. } | StoreError::Format { .. }) => refused += 1,
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
        assert!(open_checkpoint(&dir).is_err());
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
