use super::*;
use crate::net::fetch::is_held;
use starling_protocol::update;
use starling_store::{Pieces, StoreOptions, UPDATE_PIECE_BYTES};

#[test]
fn a_peer_has_each_piece_of_an_update_that_this_node_still_fetches() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let options = StoreOptions { ballast_bytes: 0, reserve_bytes: 0, max_bytes: 0 };
    let store = Arc::new(Store::open(dir.path(), options).expect("a folder of its own").store);
    let source = Source::new(store.clone(), Vec::new());
    let ask = |request: FetchRequest| match source.serve(&request) {
        Ok(Answer::Bytes(bytes)) => Some(bytes.to_vec()),
        Ok(Answer::File { .. }) => panic!("a piece is in memory"),
        Err(FetchRefusal::NotFound) => None,
        Err(refusal) => panic!("{refusal}"),
    };
    let bytes: Vec<u8> = (0..2 * UPDATE_PIECE_BYTES + 9).map(|i| (i * 7) as u8).collect();
    let pieces = Pieces::read(&mut &*bytes, bytes.len() as u64).expect("in memory").expect("more than one");
    let digest = update::digest(&bytes);
    let of = |piece: usize| &bytes[pieces.range(piece).start as usize..pieces.range(piece).end as usize];
    let piece = |piece: u32| ask(FetchRequest::UpdatePiece { update: digest, piece });
    assert_eq!((ask(FetchRequest::ChunksHeld(digest)), ask(FetchRequest::UpdatePieces(digest))), (None, None));

    let arriving = store.begin_update(digest, pieces.clone());
    assert_eq!(ask(FetchRequest::UpdatePieces(digest)), Some(pieces.encode()), "before the first of them is here");
    assert_eq!(piece(2), None);
    assert!(arriving.put(2, of(2)));
    let held = ask(FetchRequest::ChunksHeld(digest)).expect("it fetches the update");
    assert_eq!((0..8).filter(|piece| is_held(&held, *piece)).collect::<Vec<_>>(), [2]);
    assert_eq!(piece(2).as_deref(), Some(of(2)));
    assert_eq!((piece(0), piece(3), piece(u32::MAX)), (None, None, None));

    drop(arriving);
    assert_eq!((ask(FetchRequest::ChunksHeld(digest)), piece(2)), (None, None), "it has given the update up");
}
