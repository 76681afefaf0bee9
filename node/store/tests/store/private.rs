//! The node's own state: written and read in pieces; the old state or the new one, never a mix.

use crate::support::{History, create, files, flip, image, open, scratch};
use starling_store::{Part, Store, StoreError};
use std::fs;
use std::path::Path;

/// Bytes that are passed at a time.
const PIECE: usize = 1 << 20;
const NAME: &str = "adamw";

/// A state that differs from piece to piece, with a short last piece.
fn state(pieces: usize, salt: usize) -> Vec<u8> {
    (0..pieces * PIECE - 13).map(|i| (i / 1000 * 7 + i + salt) as u8).collect()
}

fn write(store: &Store, bytes: &[u8]) {
    let mut writer = store.write_private(NAME, bytes.len() as u64).unwrap();
    bytes.chunks(PIECE).for_each(|piece| writer.write(piece).unwrap());
    writer.commit().unwrap();
}

fn read(store: &Store) -> Result<Option<Vec<u8>>, StoreError> {
    let Some(mut reader) = store.read_private(NAME)? else { return Ok(None) };
    let mut bytes = vec![0; reader.remaining() as usize];
    bytes.chunks_mut(PIECE).try_for_each(|piece| reader.read(piece))?;
    reader.finish()?;
    Ok(Some(bytes))
}

fn file(dir: &Path) -> std::path::PathBuf {
    dir.join("private").join(NAME)
}

#[test]
fn a_private_file_is_read_back_even_after_a_reset_of_the_chain() {
    let dir = scratch();
    let (mut history, store) = History::founded(dir.path(), 1000);
    history.commit(&store);
    assert_eq!(read(&store).unwrap(), None);
    let numbers: Vec<f32> = (0..PIECE as u32).map(|i| f32::from_bits(i.wrapping_mul(2_654_435_761))).collect();
    let mut writer = store.write_private(NAME, 4 + 4 * numbers.len() as u64).unwrap();
    writer.write(b"head").unwrap();
    writer.write_f32s(&numbers).unwrap();
    writer.commit().unwrap();
    store.reset_chain().unwrap();
    assert!(store.head().is_none() && store.run().is_some());
    let mut reader = store.read_private(NAME).unwrap().unwrap();
    let (mut head, mut back) = ([0; 4], vec![0.0; numbers.len()]);
    reader.read(&mut head).unwrap();
    reader.read_f32s(&mut back).unwrap();
    reader.finish().unwrap();
    assert_eq!(&head, b"head");
    assert!(numbers.iter().zip(&back).all(|(a, b)| a.to_bits() == b.to_bits()));
    store.remove_private(NAME).unwrap();
    store.remove_private(NAME).unwrap();
    assert_eq!(read(&store).unwrap(), None);
}

#[test]
fn a_kill_between_pieces_leaves_the_state_before() {
    let dir = scratch();
    let store = create(dir.path());
    let (old, new) = (state(2, 1), state(3, 2));
    write(&store, &old);
    let mut writer = store.write_private(NAME, new.len() as u64).unwrap();
    for piece in new.chunks(PIECE) {
        writer.write(piece).unwrap();
        let killed = image(dir.path());
        let reopened = open(killed.path());
        assert_eq!(read(&reopened).unwrap().as_ref(), Some(&old));
        assert!(files(&killed.path().join("tmp")).is_empty(), "what was half written is gone");
    }
    writer.commit().unwrap();
    let killed = image(dir.path());
    assert_eq!(read(&open(killed.path())).unwrap(), Some(new));
}

#[test]
fn a_writer_that_is_given_up_or_breaks_its_word_leaves_the_state_before() {
    let dir = scratch();
    let store = create(dir.path());
    let old = state(1, 1);
    write(&store, &old);
    let mut writer = store.write_private(NAME, 100).unwrap();
    writer.write(&[1; 60]).unwrap();
    assert!(writer.write(&[1; 60]).is_err(), "more than announced");
    drop(writer);
    let mut writer = store.write_private(NAME, 100).unwrap();
    writer.write(&[1; 60]).unwrap();
    assert!(writer.commit().is_err(), "less than announced");
    assert_eq!(read(&store).unwrap(), Some(old));
    assert!(files(&dir.path().join("tmp")).is_empty());
}

#[test]
fn smaller_state_leaves_nothing_of_the_larger() {
    let dir = scratch();
    let store = create(dir.path());
    write(&store, &state(4, 1));
    let small = state(1, 2);
    write(&store, &small);
    assert_eq!(files(&dir.path().join("private")), [file(dir.path())]);
    assert!(fs::metadata(file(dir.path())).unwrap().len() < (PIECE + 100) as u64);
    drop(store);
    assert_eq!(read(&open(dir.path())).unwrap(), Some(small));
}

#[test]
fn damage_in_any_piece_is_noticed_once() {
    let dir = scratch();
    let store = create(dir.path());
    let bytes = state(3, 1);
    write(&store, &bytes);
    let (path, length) = (file(dir.path()), fs::metadata(file(dir.path())).unwrap().len() as usize);
    // Bytes of the kind, the length, each piece, and the seal.
    for byte in [0, 9, 20, PIECE / 2, PIECE + 500, 2 * PIECE + 500, length - 1] {
        write(&store, &bytes);
        flip(&path, byte * 8 + 3);
        damaged(&store, &format!("byte {byte}"));
    }
    for cut in [0, 10, 47, PIECE, length - 1] {
        write(&store, &bytes);
        fs::write(&path, &fs::read(&path).unwrap()[..cut]).unwrap();
        damaged(&store, &format!("cut to {cut}"));
    }
}

fn damaged(store: &Store, what: &str) {
    match read(store) {
        Err(StoreError::Damaged(damage)) => assert_eq!(damage.part, Part::Private, "{what}"),
        other => panic!("{what}: {:?}", other.map(|found| found.map(|bytes| bytes.len()))),
    }
    assert_eq!(read(store).unwrap(), None, "{what}: it is not met twice");
}

#[test]
fn names_and_sizes_have_bounds() {
    let dir = scratch();
    let store = create(dir.path());
    for name in ["", "../escape", "Moments", &"x".repeat(33)] {
        assert!(matches!(store.write_private(name, 1), Err(StoreError::Malformed { .. })), "{name}");
        assert!(matches!(store.read_private(name), Err(StoreError::Malformed { .. })), "{name}");
    }
    assert!(matches!(store.write_private(NAME, 1 << 60), Err(StoreError::TooLarge { .. })));
}

#[test]
fn unsynced_state_is_sealed_too_and_all_names_are_listed() {
    let dir = scratch();
    let store = create(dir.path());
    write(&store, &state(1, 1));
    let mut writer = store.write_private("left-b", 5).unwrap();
    writer.write(b"first").unwrap();
    assert_eq!(store.private_names().unwrap(), [NAME], "what is being written has no name yet");
    writer.commit_unsynced().unwrap();
    let mut short = store.write_private("left-b", 5).unwrap();
    short.write(b"not").unwrap();
    assert!(short.commit_unsynced().is_err(), "less than announced");
    fs::write(dir.path().join("private").join("No Name"), b"of ours").unwrap();
    assert_eq!(store.private_names().unwrap(), [NAME, "left-b"]);
    let mut reader = store.read_private("left-b").unwrap().unwrap();
    let mut bytes = [0; 5];
    reader.read(&mut bytes).unwrap();
    reader.finish().unwrap();
    assert_eq!(&bytes, b"first");
    flip(&dir.path().join("private").join("left-b"), 8 * 18);
    let mut reader = store.read_private("left-b").unwrap().unwrap();
    let torn = reader.read(&mut bytes).and_then(|()| reader.finish());
    assert!(matches!(torn, Err(StoreError::Damaged(_))));
    store.remove_private("left-b").unwrap();
    assert_eq!(store.private_names().unwrap(), [NAME]);
}
