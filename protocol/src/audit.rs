//! Proof from a chain of records that no sample was used twice in an epoch, and where each position went
//! (`docs/protocol/2-records.md` §2.4.5).
//!
//! Position `p` reads sample `P(p / len)[p mod len]` and every `P` is a bijection (see [`crate::permutation`]), so a
//! sample is used twice in an epoch exactly when a position is used twice in the chain. The audit remembers the *live*
//! positions only: those that the last record leases or holds in its pool. Positions that a record uses, leases or
//! keeps must have been live before or be fresh from the cursor, and used positions are live no more. By induction no
//! position is used twice, and memory does not grow with the chain.

use crate::permutation::LEN_MAX;
use crate::record::{Record, RecordKind, Span};
use crate::{Digest, NodeId};
use spans::Spans;
use tally::Tally;

mod spans;
mod tally;

pub use tally::{Counts, Epoch, Summary};

/// The reason why a chain of records is not in order. The audit stops there; its summary is of the records before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuditError {
    #[error("record {seq} does not follow record {before}: one is missing, or they are of two chains")]
    NotNext { seq: u64, before: u64 },
    #[error("record {seq}: the cursor goes back from {from} to {to}")]
    CursorBack { seq: u64, from: u64, to: u64 },
    #[error("record {seq}: {member} trained on {}, which had been used or given up before", shown(.span))]
    UsedTwice { seq: u64, member: NodeId, span: Span },
    #[error("record {seq}: {member} trained on {}, which had never been leased", shown(.span))]
    NeverLeased { seq: u64, member: NodeId, span: Span },
    #[error("record {seq}: {member} is leased {}, which are another's, or had been used or given up", shown(.span))]
    LeasedTwice { seq: u64, member: NodeId, span: Span },
    #[error("record {seq}: the pool holds {}, which are leased, or had been used or given up", shown(.span))]
    FreedTwice { seq: u64, span: Span },
}

fn shown(span: &Span) -> String {
    format!("positions {} to {}", span.start, span.start.saturating_add(span.count.saturating_sub(1)))
}

/// Takes the records of one chain in order.
#[derive(Clone, Debug)]
pub struct Audit {
    tally: Tally,
    last: Option<Last>,
    first_seq: u64,
    /// Whether the chain was seen from its genesis record on.
    whole: bool,
    records: u64,
    forks: u64,
}

/// The remembered parts of the last record.
#[derive(Clone, Debug)]
struct Last {
    seq: u64,
    digest: Digest,
    cursor: u64,
    leased: Vec<Span>,
    free: Vec<Span>,
}

impl Audit {
    /// An audit of a run whose epochs have `len` training sequences, at least one.
    pub fn new(len: u64) -> Self {
        let tally = Tally::new(len.clamp(1, LEN_MAX));
        Self { tally, last: None, first_seq: 0, whole: false, records: 0, forks: 0 }
    }

    /// Takes the next record, which is of valid shape. The first may be any record; the audit says nothing of those
    /// before it.
    ///
    /// # Errors
    /// The reason why it cannot follow the records before. The audit then does not take it.
    pub fn push(&mut self, record: &Record) -> Result<(), AuditError> {
        let seq = record.seq;
        let mut live = match &self.last {
            Some(last) => last.live_for(record)?,
            None => Spans::of(Span { start: 0, count: record.cursor }),
        };
        for contributor in &record.contributors {
            let (member, used) = (contributor.member, Span { start: contributor.start, count: contributor.samples });
            let leased = self.last.as_ref().map_or(record.cursor, |last| last.cursor);
            if used.end().is_none_or(|end| end > leased) {
                return Err(AuditError::NeverLeased { seq, member, span: used });
            }
            live.take(used).map_err(|span| AuditError::UsedTwice { seq, member, span })?;
        }
        if let Some(last) = self.last.as_ref().filter(|_| record.kind != RecordKind::Fork) {
            live.put(Span { start: last.cursor, count: record.cursor.saturating_sub(last.cursor) });
        }
        for member in &record.next.members {
            let (member, lease) = (member.id, member.lease);
            live.take(lease).map_err(|span| AuditError::LeasedTwice { seq, member, span })?;
        }
        for free in &record.free {
            live.take(*free).map_err(|span| AuditError::FreedTwice { seq, span })?;
        }
        self.count(record, &live);
        Ok(())
    }

    /// The findings so far.
    pub fn summary(&self) -> Summary {
        let mut tally = self.tally.clone();
        let Some(last) = &self.last else { return Summary::default() };
        for lease in &last.leased {
            tally.add(*lease, |counts| &mut counts.leased);
        }
        for free in &last.free {
            tally.add(*free, |counts| &mut counts.free);
        }
        let (epochs, older) = tally.into_epochs(last.cursor);
        let Self { first_seq, whole, records, forks, .. } = *self;
        Summary { first_seq, last_seq: last.seq, whole, records, forks, epochs, older }
    }

    /// Takes a record that is in order. `gone` holds the positions that were live before and are neither used nor live
    /// now.
    fn count(&mut self, record: &Record, gone: &Spans) {
        if self.last.is_none() {
            self.first_seq = record.seq;
            self.whole = record.kind == RecordKind::Genesis;
        }
        self.records += 1;
        self.forks += u64::from(record.kind == RecordKind::Fork);
        for contributor in &record.contributors {
            let used = Span { start: contributor.start, count: contributor.samples };
            self.tally.add(used, |counts| &mut counts.used);
        }
        // Positions before a chain's first record are unknown, and positions that a fork leaves stay with the other
        // side. Neither of these counts as given up.
        if self.last.is_some() && record.kind != RecordKind::Fork {
            gone.iter().for_each(|span| self.tally.add(span, |counts| &mut counts.given_up));
        }
        self.last = Some(Last {
            seq: record.seq,
            digest: record.digest(),
            cursor: record.cursor,
            leased: record.next.members.iter().map(|member| member.lease).collect(),
            free: record.free.clone(),
        });
    }
}

impl Last {
    /// The positions that `record`, which comes next, may use. A fork uses none: for it, those that it may lease.
    fn live_for(&self, record: &Record) -> Result<Spans, AuditError> {
        let (seq, before) = (record.seq, self.seq);
        if Some(seq) != before.checked_add(1) || record.parent != self.digest {
            return Err(AuditError::NotNext { seq, before });
        }
        let fresh = record.cursor.checked_sub(self.cursor);
        let count = fresh.ok_or(AuditError::CursorBack { seq, from: self.cursor, to: record.cursor })?;
        if record.kind == RecordKind::Fork {
            return Ok(Spans::of(Span { start: self.cursor, count }));
        }
        let mut live = Spans::default();
        self.leased.iter().chain(&self.free).for_each(|span| live.put(*span));
        Ok(live)
    }
}

#[cfg(test)]
#[path = "audit/audit_test.rs"]
mod tests;
