//! Updates in pieces: on their way, on the disk, and damaged.

use crate::support::{History, scratch};
use starling_protocol::{Digest, update};
use starling_store::{Pieces, StoreError, UPDATE_PIECE_BYTES};

/// An update of three pieces.
const ELEMENTS: usize = 5 * UPDATE_PIECE_BYTES / 2;

fn pieces_of(update: &[u8]) -> Pieces {
    Pieces::read(&mut &*update, update.len() as u64).unwrap().unwrap()
}

#[test]
fn an_update_is_served_piece_by_piece_on_its_way_and_after_its_commit() {
    let dir = scratch();
    let (mut history, store) = History::founded(dir.path(), ELEMENTS);
    let bytes = history.advance(0);
    let (pieces, digest) = (pieces_of(&bytes), history.record.update);
    let of = |piece: usize| &bytes[pieces.range(piece).start as usize..pieces.range(piece).end as usize];
    assert_eq!(pieces.count(), 3);
    assert_eq!(store.update_pieces(&digest).unwrap(), None);
    assert_eq!((store.pieces_held(&digest), store.update_piece(&digest, 0).unwrap()), (None, None));

    let arriving = store.begin_update(digest, pieces.clone());
    assert!(arriving.put(1, of(1)));
    assert_eq!(store.update_pieces(&digest).unwrap(), Some(pieces.encode()));
    assert_eq!(store.pieces_held(&digest), Some(vec![0b010]));
    assert_eq!(store.update_piece(&digest, 1).unwrap().as_deref(), Some(of(1)));
    assert_eq!(store.update_piece(&digest, 0).unwrap(), None);
    assert!(arriving.put(0, of(0)) && arriving.put(2, of(2)));
    let whole = arriving.whole().unwrap();
    assert_eq!((update::digest(&whole), store.pieces_held(&digest)), (digest, Some(vec![0b111])));

    history.put(&store, &whole);
    drop(arriving);
    assert_eq!(store.pieces_held(&digest), Some(vec![0b111]), "the disk has it");
    assert_eq!(store.update_pieces(&digest).unwrap(), Some(pieces.encode()));
    assert!((0..3).all(|piece| store.update_piece(&digest, piece).unwrap().as_deref() == Some(of(piece))));
    assert_eq!(store.update_piece(&digest, 3).unwrap(), None);
    assert_eq!(store.update_piece(&Digest([9; 32]), 0).unwrap(), None);
}

#[test]
fn an_update_that_is_given_up_is_not_served() {
    let dir = scratch();
    let (mut history, store) = History::founded(dir.path(), ELEMENTS);
    let bytes = history.advance(0);
    let digest = history.record.update;
    let arriving = store.begin_update(digest, pieces_of(&bytes));
    assert!(arriving.put(2, &bytes[2 * UPDATE_PIECE_BYTES - 8..]));
    assert!(store.update_piece(&digest, 2).unwrap().is_some());
    drop(arriving);
    assert_eq!((store.pieces_held(&digest), store.update_piece(&digest, 2).unwrap()), (None, None));
    assert_eq!(store.update_pieces(&digest).unwrap(), None);
}

#[test]
fn no_piece_of_a_damaged_update_leaves_the_disk() {
    let dir = scratch();
    let (mut history, store) = History::founded(dir.path(), ELEMENTS);
    for known in [false, true] {
        let bytes = history.advance(0);
        let digest = history.record.update;
        history.put(&store, &bytes);
        if known {
            assert!(store.update_piece(&digest, 1).unwrap().is_some());
        }
        let file = dir.path().join("updates").join(digest.to_string());
        let mut damaged = bytes;
        damaged[UPDATE_PIECE_BYTES + 5] ^= 1;
        damaged.truncate(if known { UPDATE_PIECE_BYTES + 9 } else { damaged.len() });
        std::fs::write(&file, damaged).unwrap();
        assert!(matches!(store.update_piece(&digest, 1), Err(StoreError::Damaged(_))), "known before: {known}");
        assert!(!file.exists());
        assert_eq!((store.pieces_held(&digest), store.update_piece(&digest, 1).unwrap()), (None, None));
    }
}
