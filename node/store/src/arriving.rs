//! Updates that are on their way to this node piece by piece, for peers that fetch the same ones.

use crate::pieces::Pieces;
use starling_protocol::Digest;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Updates on their way at once that peers are served from. A catch-up has fewer.
const ARRIVING_MAX: usize = 8;
/// Updates on the disk whose pieces are known without reading them again.
const KNOWN_MAX: usize = 4;

/// An update of which some pieces are here. It is in memory, and peers see it, as long as its fetcher holds it.
pub struct Arriving {
    digest: Digest,
    pieces: Arc<Pieces>,
    held: Mutex<Held>,
}

struct Held {
    /// A bit for each piece: bit `piece % 8`, from the lowest, of byte `piece / 8`.
    bits: Vec<u8>,
    /// Pieces that are not here.
    left: usize,
    /// The update; zeros where a piece is not here.
    bytes: Arc<Vec<u8>>,
}

impl Arriving {
    pub(crate) fn new(digest: Digest, pieces: Arc<Pieces>) -> Self {
        let bytes = Arc::new(vec![0; usize::try_from(pieces.length()).unwrap_or(0)]);
        let (bits, left) = (vec![0; pieces.count().div_ceil(8)], pieces.count());
        Self { digest, pieces, held: Mutex::new(Held { bits, left, bytes }) }
    }

    /// The values of its pieces.
    pub fn pieces(&self) -> &Arc<Pieces> {
        &self.pieces
    }

    /// Keeps a piece whose bytes have passed [`Pieces::checks`], and serves it from now on. Returns whether it is new
    /// and has its length.
    pub fn put(&self, piece: usize, bytes: &[u8]) -> bool {
        let Some(place) = self.place(piece) else { return false };
        let held = &mut *self.held();
        let (Some(bits), bit) = (held.bits.get_mut(piece / 8), 1u8 << (piece % 8)) else { return false };
        // Once the update is whole, others hold its bytes and nothing can be put.
        let room = Arc::get_mut(&mut held.bytes).and_then(|all| all.get_mut(place));
        let Some(room) = room.filter(|room| *bits & bit == 0 && room.len() == bytes.len()) else { return false };
        room.copy_from_slice(bytes);
        *bits |= bit;
        held.left -= 1;
        true
    }

    /// The bytes, once all pieces are here.
    pub fn whole(&self) -> Option<Arc<Vec<u8>>> {
        let held = self.held();
        (held.left == 0).then(|| Arc::clone(&held.bytes))
    }

    /// A bit for each piece that is here.
    pub(crate) fn bits(&self) -> Vec<u8> {
        self.held().bits.clone()
    }

    /// The bytes of a piece that is here.
    pub(crate) fn piece(&self, piece: usize) -> Option<Vec<u8>> {
        let place = self.place(piece)?;
        let held = self.held();
        let is_here = held.bits.get(piece / 8).is_some_and(|byte| byte >> (piece % 8) & 1 == 1);
        if is_here { held.bytes.get(place).map(<[u8]>::to_vec) } else { None }
    }

    /// No statement leaves it half-changed, so a poisoned lock is still good.
    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The place of a piece, if there is such a piece.
    fn place(&self, piece: usize) -> Option<Range<usize>> {
        let range = self.pieces.range(piece);
        let place = usize::try_from(range.start).ok()?..usize::try_from(range.end).ok()?;
        (!place.is_empty()).then_some(place)
    }
}

/// The updates on their way, and the pieces of some that are on the disk.
#[derive(Default)]
pub(crate) struct Shelf {
    arriving: Vec<Weak<Arriving>>,
    /// The last one asked for is last.
    known: Vec<(Digest, Arc<Pieces>)>,
}

impl Shelf {
    /// Serves the pieces of this update from now on, until its fetcher drops it.
    pub fn begin(&mut self, update: &Arc<Arriving>) {
        self.arriving.retain(|other| other.strong_count() > 0);
        let surplus = (self.arriving.len() + 1).saturating_sub(ARRIVING_MAX);
        self.arriving.drain(..surplus);
        self.arriving.push(Arc::downgrade(update));
        // Peers ask for it on, once it is on the disk.
        self.know(update.digest, Arc::clone(&update.pieces));
    }

    /// The update of this digest that is on its way, the last one first.
    pub fn arriving(&self, digest: &Digest) -> Option<Arc<Arriving>> {
        self.arriving.iter().rev().filter_map(Weak::upgrade).find(|update| update.digest == *digest)
    }

    pub fn know(&mut self, digest: Digest, pieces: Arc<Pieces>) {
        self.known.retain(|(known, _)| *known != digest);
        let surplus = (self.known.len() + 1).saturating_sub(KNOWN_MAX);
        self.known.drain(..surplus);
        self.known.push((digest, pieces));
    }

    pub fn known(&self, digest: &Digest) -> Option<Arc<Pieces>> {
        self.known.iter().find(|(known, _)| known == digest).map(|(_, pieces)| Arc::clone(pieces))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pieces::UPDATE_PIECE_BYTES;
    use starling_protocol::update;

    #[test]
    fn pieces_are_here_once_they_are_put_and_the_whole_is_their_sum() {
        let sample: Vec<u8> = (0..2 * UPDATE_PIECE_BYTES + 9).map(|i| (i * 7) as u8).collect();
        let length = sample.len() as u64;
        let pieces = Pieces::read(&mut &*sample, length).expect("it is in memory").expect("it has three");
        let digest = update::digest(&sample);
        let arriving = Arc::new(Arriving::new(digest, Arc::new(pieces.clone())));
        let bytes = |piece| &sample[pieces.range(piece).start as usize..pieces.range(piece).end as usize];
        assert!(arriving.piece(2).is_none() && arriving.whole().is_none());
        assert!(!arriving.put(2, bytes(0)) && !arriving.put(3, &[]) && !arriving.put(9, bytes(2)), "of another length");
        assert!(arriving.put(2, bytes(2)) && !arriving.put(2, bytes(2)), "once");
        assert_eq!((arriving.bits(), arriving.piece(2)), (vec![0b100], Some(bytes(2).to_vec())));
        assert!(arriving.piece(0).is_none() && arriving.piece(3).is_none());
        assert!(arriving.put(0, bytes(0)) && arriving.whole().is_none() && arriving.put(1, bytes(1)));
        assert!(arriving.whole().is_some_and(|whole| *whole == sample));
        assert_eq!(arriving.piece(1).as_deref(), Some(bytes(1)), "it is served on");
    }

    #[test]
    fn an_update_is_on_its_way_as_long_as_its_fetcher_holds_it() {
        let sample = vec![5u8; UPDATE_PIECE_BYTES];
        let pieces = Pieces::read(&mut &*sample, sample.len() as u64).expect("it is in memory").expect("it has two");
        let (pieces, mut shelf) = (Arc::new(pieces), Shelf::default());
        let update = |n| Arc::new(Arriving::new(Digest([n; 32]), Arc::clone(&pieces)));
        let updates: Vec<_> = (0..12).map(update).collect();
        updates.iter().for_each(|update| shelf.begin(update));
        let there = |shelf: &Shelf, n: u8| shelf.arriving(&Digest([n; 32])).is_some();
        assert!((0..12).all(|n| there(&shelf, n) == (n >= 4)), "{ARRIVING_MAX} at most");
        drop(updates);
        assert!(!(0..12).any(|n| there(&shelf, n)));
        let is_known = |n: u8| shelf.known(&Digest([n; 32])).is_some();
        assert!((0..12).all(|n| is_known(n) == (n >= 8)), "{KNOWN_MAX} at most");
    }
}
