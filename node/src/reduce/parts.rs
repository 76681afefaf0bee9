//! The parts that an owner was sent in the attempts of one record. When an attempt fails because a member died, the
//! others would send the same parts again: the next attempt takes them from here, and only the dead owner's chunks go
//! over the wire once more (`docs/protocol/3-reduction.md` §3.5.5).
//!
//! A part is identified by its member, the READY's payload and the chunk. It is the member's encoding for this record,
//! residuals included, so it is kept only until the record is decided.

use starling_protocol::engine::io::{AttemptKey, Contribution};
use starling_protocol::{Digest, NodeId};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Parts of the record that is being made. They take at most as much memory as one contribution of each other member to
/// this node's chunks: less than one encoded update.
#[derive(Default)]
pub struct Parts {
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    /// Lineage and number of the record.
    place: (Digest, u64),
    parts: BTreeMap<(NodeId, usize), Part>,
}

struct Part {
    /// The payload's digest in the READY.
    contribution: Digest,
    payload: Arc<Vec<u8>>,
}

impl Parts {
    /// Every step leaves the parts whole, so a holder that panicked leaves a usable lock.
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins an attempt: drops parts of other records, and of members and chunks that have no place in it.
    pub(super) fn begin(&self, key: &AttemptKey, members: &[Contribution], owned: &[usize]) {
        let mut kept = self.kept();
        if kept.place != (key.lineage, key.seq) {
            *kept = Kept { place: (key.lineage, key.seq), parts: BTreeMap::new() };
        }
        kept.parts.retain(|(member, chunk), part| {
            let said = |c: &Contribution| c.member == *member && c.payload == part.contribution;
            owned.binary_search(chunk).is_ok() && members.iter().any(said)
        });
    }

    /// Keeps a part that was checked, unless the parts are of another record by now.
    pub(super) fn keep(&self, key: &AttemptKey, from: &Contribution, chunk: usize, payload: Arc<Vec<u8>>) {
        let mut kept = self.kept();
        if kept.place == (key.lineage, key.seq) {
            let part = Part { contribution: from.payload, payload };
            kept.parts.insert((from.member, chunk), part);
        }
    }

    /// The part of `chunk` from this member, if it is kept.
    pub(super) fn get(&self, key: &AttemptKey, from: &Contribution, chunk: usize) -> Option<Arc<Vec<u8>>> {
        let kept = self.kept();
        let part = kept.parts.get(&(from.member, chunk)).filter(|part| part.contribution == from.payload);
        part.filter(|_| kept.place == (key.lineage, key.seq)).map(|part| Arc::clone(&part.payload))
    }

    /// Drops all parts: the record is decided.
    pub fn forget(&self) {
        *self.kept() = Kept::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling_protocol::update::Stated;

    const FROM: Contribution = Contribution {
        member: NodeId([1; 32]),
        stated: Stated { tokens: 5, steps: 1, norm: 1.0 },
        payload: Digest([7; 32]),
    };

    fn key(seq: u64, attempt: u32) -> AttemptKey {
        AttemptKey { lineage: Digest([2; 32]), seq, attempt, set: Digest([attempt as u8; 32]) }
    }

    #[test]
    fn parts_last_as_long_as_their_record_and_their_contribution() {
        let parts = Parts::default();
        let other = Contribution { member: NodeId([3; 32]), ..FROM };
        parts.keep(&key(0, 0), &FROM, 1, Arc::new(b"before anything began".to_vec()));
        parts.begin(&key(4, 0), &[FROM, other.clone()], &[1, 2]);
        assert_eq!(parts.get(&key(4, 0), &FROM, 1), None);
        parts.keep(&key(4, 0), &FROM, 1, Arc::new(b"a".to_vec()));
        parts.keep(&key(4, 0), &other, 2, Arc::new(b"b".to_vec()));
        parts.keep(&key(3, 0), &other, 1, Arc::new(b"of another record".to_vec()));
        // The next attempt has the parts, but not for another contribution of the same member.
        parts.begin(&key(4, 1), &[FROM, other.clone()], &[1, 2, 3]);
        assert_eq!(parts.get(&key(4, 1), &FROM, 1).as_deref(), Some(&b"a".to_vec()));
        assert_eq!(parts.get(&key(4, 1), &other, 1), None);
        assert_eq!(parts.get(&key(4, 1), &Contribution { payload: Digest([8; 32]), ..FROM }, 1), None);
        assert_eq!(parts.get(&key(5, 1), &FROM, 1), None);
        // Parts of a member that left the set, and of a chunk with another owner, are dropped.
        parts.begin(&key(4, 2), &[FROM], &[2]);
        parts.begin(&key(4, 3), &[FROM, other.clone()], &[1, 2]);
        assert!(parts.kept().parts.is_empty());
        parts.keep(&key(4, 3), &FROM, 1, Arc::new(b"a".to_vec()));
        parts.forget();
        assert_eq!(parts.get(&key(4, 3), &FROM, 1), None);
    }
}
