//! Paths from the records on disk (`starling_protocol::path`).

use crate::StoreError;
use crate::rocks::{Db, Table};
use crate::store::Store;
use crate::tip::seq_key;
use starling_protocol::ancestry::Ancestry;
use starling_protocol::path::{self, Chain, FalsePath, Link};
use starling_protocol::record::RecordKind;
use starling_protocol::{Digest, wire};
use std::cell::Cell;
use std::sync::Arc;

/// Bytes of records and certificates that are read for one path. Each step finds the furthest record that it can reach
/// by bisection, so that much more is read than returned: more than ten times the bytes of an answer. They are in
/// memory one after the other, and take some tens of milliseconds in all.
const READ_BYTES_MAX: usize = 16 << 20;

/// The chain in a store, as it was when this value was made.
struct StoredChain {
    db: Arc<Db>,
    ancestry: Ancestry,
    /// Shows only records with their votes, and a genesis: those with which other nodes may begin a path.
    certified: bool,
    /// Bytes that may still be read.
    left: Cell<usize>,
    failed: Cell<Option<StoreError>>,
}

impl Store {
    /// The records that show another node what this one holds ([`path::locator`]), newest first, and the ancestry of
    /// its head.
    pub fn locator(&self) -> Result<(Vec<(u64, Digest)>, Ancestry), StoreError> {
        let chain = StoredChain { certified: true, ..self.stored_chain()? };
        let places = path::locator(&chain);
        chain.failure()?;
        Ok((places, chain.ancestry))
    }

    /// The path to record `to` from the newest of these that is on this chain, or from its genesis ([`path::build`]). A
    /// path that would take too long to find ends early. None if there is no path.
    pub fn way(&self, known: &[(u64, Digest)], to: u64) -> Result<Option<Vec<Link>>, StoreError> {
        let chain = self.stored_chain()?;
        let path = path::build(&chain, known, to);
        chain.failure()?;
        let begins = |link: &Link| link.record.kind == RecordKind::Genesis || known.contains(&place(link));
        Ok(path.filter(|path| path.first().is_some_and(begins)))
    }

    /// Whether a path that begins on this chain keeps to it ([`path::keeps_to`]).
    pub fn keeps(&self, links: &[Link]) -> Result<Result<(), FalsePath>, StoreError> {
        // Without a limit: a record that was not read would contradict nothing.
        let chain = StoredChain { left: Cell::new(usize::MAX), ..self.stored_chain()? };
        let kept = path::keeps_to(&chain, links);
        chain.failure()?;
        Ok(kept)
    }

    fn stored_chain(&self) -> Result<StoredChain, StoreError> {
        let (db, ancestry) = (self.db()?, self.ancestry());
        Ok(StoredChain { db, ancestry, certified: false, left: Cell::new(READ_BYTES_MAX), failed: Cell::new(None) })
    }
}

fn place(link: &Link) -> (u64, Digest) {
    (link.record.seq, link.digest)
}

impl StoredChain {
    fn failure(&self) -> Result<(), StoreError> {
        self.failed.take().map_or(Ok(()), Err)
    }

    /// The result of a read; none after a failure, which is kept.
    fn read<T>(&self, result: Result<Option<T>, StoreError>) -> Option<T> {
        result.unwrap_or_else(|error| {
            self.failed.set(Some(error));
            None
        })
    }

    fn bytes(&self, table: Table, seq: u64) -> Option<Vec<u8>> {
        if self.left.get() == 0 {
            return None;
        }
        let bytes = self.read(self.db.get(table, &seq_key(seq)))?;
        self.left.set(self.left.get().saturating_sub(bytes.len()));
        Some(bytes)
    }

    fn last(&self, table: Table, seq: u64) -> Option<u64> {
        let key = self.read(self.db.last_key(table, &seq_key(seq)))?;
        Some(u64::from_be_bytes(key.try_into().ok()?))
    }
}

impl Chain for StoredChain {
    fn at(&self, seq: u64) -> Option<Link> {
        // Records of a later chain are not part of this one.
        let bytes = self.bytes(Table::Records, seq).filter(|_| Some(seq) <= self.ancestry.seq())?;
        let record = wire::decode_record(&bytes).ok()?;
        let votes = self.bytes(Table::Certificates, seq);
        let certificate = votes.and_then(|votes| wire::decode_certificate(&votes).ok());
        let proven = certificate.is_some() || record.kind == RecordKind::Genesis;
        (proven || !self.certified).then(|| Link { digest: wire::record_digest(&bytes), record, certificate })
    }

    fn newest(&self, seq: u64) -> Option<u64> {
        if !self.certified {
            return self.last(Table::Records, seq);
        }
        // A genesis is the only record that needs no votes.
        self.last(Table::Certificates, seq).or_else(|| self.at(0).map(|genesis| genesis.record.seq))
    }

    fn ancestry(&self) -> &Ancestry {
        &self.ancestry
    }

    fn is_spent(&self) -> bool {
        self.left.get() == 0
    }
}
