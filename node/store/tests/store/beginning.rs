//! The state with which a run begins stays when the snapshot of its genesis goes.

use crate::support::{ELEMENTS, History, SCHEMA, flip, open, outer_step, same_bits, scratch, spec};
use starling_protocol::run::RunSpec;
use starling_protocol::state::{self, Manifest};
use starling_protocol::wire;
use starling_store::{Recording, StoreError};
use std::fs;
use std::path::{Path, PathBuf};

fn chunk_file(dir: &Path, manifest: &Manifest, index: usize) -> PathBuf {
    let name = manifest.chunks[index].to_string();
    dir.join("chunks").join(&name[..2]).join(&name[2..])
}

#[test]
fn a_beginning_outlasts_the_snapshot_of_its_genesis_and_is_checked() {
    let dir = scratch();
    let (mut history, store) = History::founded(dir.path(), ELEMENTS);
    let begun = history.state.clone();
    assert!(store.beginning().is_none() && store.load_beginning().unwrap().is_none());
    store.keep_beginning(&SCHEMA, &begun).unwrap();
    for _ in 0..3 {
        history.commit(&store);
        history.snapshot(&store);
    }
    assert!(store.snapshots().iter().all(|(seq, _)| *seq > 0));
    drop(store);
    let store = open(dir.path());
    let manifest = store.beginning().expect("it is kept");
    assert_eq!(state::root(&manifest), store.record(0).unwrap().expect("the genesis").state_root);
    assert!(same_bits(&store.load_beginning().unwrap().expect("it is kept"), &begun.theta));
    for digest in &manifest.chunks {
        assert!(store.open_state_chunk(digest).unwrap().is_some(), "others may fetch it");
    }
    store.reset_chain().unwrap();
    assert!(store.load_beginning().unwrap().is_some(), "it is not part of the chain");
    flip(&chunk_file(dir.path(), &manifest, 1), 1000);
    assert!(matches!(store.load_beginning(), Err(StoreError::Damaged(_))));
    store.keep_beginning(&SCHEMA, &begun).unwrap();
    assert!(same_bits(&store.load_beginning().unwrap().expect("it was written anew"), &begun.theta));
    drop(store);
    flip(&dir.path().join("beginning"), 400);
    assert!(open(dir.path()).beginning().is_none(), "a damaged list is not believed");
}

#[test]
fn a_recording_of_a_run_from_weights_has_the_state_of_the_genesis() {
    let (dir, out) = (scratch(), scratch());
    let mut history = History::genesis(40);
    let begun = RunSpec { beginning: Some(history.record.state_root), ..spec() };
    history.record.run = begun.digest();
    let store = open(dir.path());
    store.bind_run(&wire::encode_spec(&begun)).unwrap();
    store.found(&history.record, &SCHEMA, &history.state).unwrap();
    let first = history.state.clone();
    history.commit(&store);
    let to = out.path().join("recording");
    assert_eq!(store.export_chain(&to).unwrap(), Recording { first: 0, last: 1, state: 0, updates: 1 });
    let manifest = Manifest::decode(&fs::read(to.join("0000000000.manifest")).unwrap()).unwrap();
    assert_eq!(state::root(&manifest), begun.beginning.expect("it has one"));
    assert_eq!(fs::read(to.join("0000000000.chunk-000000")).unwrap(), first.chunk_bytes(0).expect("a chunk"));
    let loaded = store.load_state(|_, update, state| outer_step(update, state)).unwrap();
    assert!(same_bits(&loaded.state.theta, &history.state.theta));
}
