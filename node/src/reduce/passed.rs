//! The effect of a lineage's records on residuals: each COMMIT that averaged something of this node consumes them.

use starling_protocol::engine::io::AttemptKey;
use starling_protocol::record::Record;
use starling_protocol::run::Codec;
use starling_protocol::update::Fragments;
use starling_protocol::{Digest, NodeId};
use starling_store::{Store, StoreError};

/// Records that a start looks back through. A residual that no record of these took in is out of date.
const RECORDS_MAX: u64 = 1024;

/// A COMMIT, by what an attempt knows of it before it is made. Residuals are true after a given COMMIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    pub lineage: Digest,
    pub seq: u64,
    /// The set that it averaged, by the READYs in it.
    pub set: Digest,
}

impl From<AttemptKey> for Mark {
    fn from(AttemptKey { lineage, seq, set, .. }: AttemptKey) -> Self {
        Self { lineage, seq, set }
    }
}

/// The effect of a passed record on residuals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passed {
    pub mark: Mark,
    /// The round of the contribution of this node that it took in, if it did; the round names the fragment.
    pub taken: Option<u64>,
    /// The codec of the round after it.
    pub codec: Codec,
}

impl Passed {
    /// The effect of `record` on the residuals of `me`.
    pub fn of(record: &Record, me: &NodeId) -> Self {
        let mine = record.changes_state() && record.contributors.iter().any(|c| c.member == *me);
        let mark = Mark { lineage: record.lineage, seq: record.seq, set: record.set() };
        Self { mark, taken: mine.then_some(record.round), codec: record.next.codec }
    }
}

/// For each fragment the last COMMIT of the store's chain, up to its record `head`, that stepped it with something of
/// `me`.
///
/// # Errors
/// The store cannot be read.
pub(super) fn last_taken(
    store: &Store,
    me: &NodeId,
    head: u64,
    fragments: &Fragments,
) -> Result<Vec<Option<Mark>>, StoreError> {
    let mut marks = vec![None; fragments.count()];
    let mut child: Option<Record> = None;
    for seq in (head.saturating_sub(RECORDS_MAX - 1)..=head).rev() {
        // A record before a snapshot may be missing here, or not be an ancestor.
        let leads = |record: &Record| child.as_ref().is_none_or(|child| child.parent == record.digest());
        let Some(record) = store.record(seq)?.filter(leads) else { break };
        let Passed { mark, taken, codec } = Passed::of(&record, me);
        if !codec.feeds_back() {
            break;
        }
        if let Some(round) = taken {
            marks[fragments.turn(round)].get_or_insert(mark);
        }
        if marks.iter().all(Option::is_some) {
            break;
        }
        child = Some(record);
    }
    Ok(marks)
}
