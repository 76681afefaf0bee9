//! Updates in pieces, as peers fetch them: those on the disk, and those that this node fetches itself.

use crate::StoreError;
use crate::arriving::Arriving;
use crate::holding;
use crate::pieces::Pieces;
use crate::store::{Store, lock};
use starling_protocol::Digest;
use std::fs::File;
use std::sync::Arc;

impl Store {
    /// Begins to keep the pieces of an update that this node fetches, and serves those that are here for as long as the
    /// caller holds it. The update is in memory; [`Store::commit`] writes it.
    pub fn begin_update(&self, digest: Digest, pieces: Pieces) -> Arc<Arriving> {
        let update = Arc::new(Arriving::new(digest, Arc::new(pieces)));
        lock(&self.shelf).begin(&update);
        update
    }

    /// The values of the pieces of an update that is here, or on its way. `None` for an update of one piece, too.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] when its bytes are not those that were written; the file is removed then.
    pub fn update_pieces(&self, digest: &Digest) -> Result<Option<Vec<u8>>, StoreError> {
        let arriving = lock(&self.shelf).arriving(digest);
        match arriving {
            Some(update) => Ok(Some(update.pieces().encode())),
            None => Ok(self.pieces_on_disk(digest)?.map(|pieces| pieces.encode())),
        }
    }

    /// The pieces of an update that are here: bit `piece % 8` of byte `piece / 8` for each. `None` if it is neither
    /// here nor on its way. Reads no piece.
    pub fn pieces_held(&self, digest: &Digest) -> Option<Vec<u8>> {
        let arriving = lock(&self.shelf).arriving(digest);
        match arriving {
            Some(update) => Some(update.bits()),
            None => self.updates.length(digest).map(|length| holding::all(Pieces::count_of(length))),
        }
    }

    /// The bytes of a piece of an update, if it is here.
    ///
    /// # Errors
    /// As [`Store::update_pieces`].
    pub fn update_piece(&self, digest: &Digest, piece: usize) -> Result<Option<Vec<u8>>, StoreError> {
        let arriving = lock(&self.shelf).arriving(digest);
        if let Some(update) = arriving {
            return Ok(update.piece(piece));
        }
        let Some(pieces) = self.pieces_on_disk(digest)? else { return Ok(None) };
        let range = pieces.range(piece);
        if range.is_empty() {
            return Ok(None);
        }
        match self.updates.read(digest, range) {
            Ok(Some(bytes)) if pieces.checks(piece, &bytes) => Ok(Some(bytes)),
            // The file was changed or removed since its pieces were read: a check of all of it says which.
            _ => self.updates.open(digest).map(|_| None),
        }
    }

    /// The pieces of an update on the disk. The whole file is read unless they are known.
    fn pieces_on_disk(&self, digest: &Digest) -> Result<Option<Arc<Pieces>>, StoreError> {
        let known = lock(&self.shelf).known(digest);
        if let Some(known) = known {
            return Ok(self.updates.contains(digest).then_some(known));
        }
        let mut pieces = None;
        let read = |file: &mut File, length: u64| {
            pieces = Pieces::read(file, length)?;
            // An update of one piece is served whole, and checked then.
            Ok(pieces.as_ref().map_or(Some(*digest), Pieces::root).unwrap_or_default())
        };
        self.updates.checked(digest, read)?;
        let pieces = pieces.map(Arc::new);
        if let Some(pieces) = &pieces {
            lock(&self.shelf).know(*digest, Arc::clone(pieces));
        }
        Ok(pieces)
    }
}
