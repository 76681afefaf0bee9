//! The vote state, and the candidates that it names: on disk before the node sends its statement.

use crate::StoreError;
use crate::birth;
use crate::chain::not_next;
use crate::rocks::Table;
use crate::store::{Change, Store};
use crate::tip::{CANDIDATES_KEPT, Held, VOTE_STATE_KEY};
use starling_protocol::engine::{Candidate, VoteState};
use starling_protocol::{Digest, wire};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Store {
    /// Keeps the vote state that this node is about to sign; durable when this returns.
    pub fn put_vote_state(&self, vote_state: &VoteState) -> Result<(), StoreError> {
        let mut change = self.begin()?;
        change.set_vote_state(vote_state);
        change.apply()?;
        drop(change);
        self.note_birth(vote_state)
    }

    /// With the first vote state that this process writes, it makes the folder's note anew, which tells an older copy
    /// of the folder. A copied folder stays a copy as long as its vote state has the incarnation of the original.
    fn note_birth(&self, vote_state: &VoteState) -> Result<(), StoreError> {
        if self.bound.load(Ordering::Relaxed) || self.copied == Some(vote_state.incarnation) {
            return Ok(());
        }
        self.with_ballast(|| birth::note(&self.folder))?;
        self.bound.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Whether this folder is a copy of the one in which its vote state was made, as far as the file system can tell.
    /// The original may have signed more since.
    pub fn is_copied(&self) -> bool {
        self.copied.is_some()
    }

    /// Keeps the vote state that this node is about to sign, and the candidate that it names with its update, as one:
    /// durable when this returns. The newest few candidates are kept, and always this one and that of the vote state.
    ///
    /// # Errors
    /// [`StoreError::NotNext`] when the candidate's record does not follow the head, [`StoreError::UpdateMismatch`]
    /// when `update` is not the one that the record names.
    pub fn put_candidate(
        &self,
        candidate: &Candidate,
        update: &[u8],
        vote_state: &VoteState,
    ) -> Result<(), StoreError> {
        let (key, record) = (&candidate.key, &candidate.record);
        self.check_run(record.run)?;
        let mut change = self.begin()?;
        change.check_next(record)?;
        if (key.seq, key.lineage) != (record.seq, record.lineage) {
            return Err(not_next(record, "the attempt is of another lineage or number"));
        }
        self.keep_update(record, update)?;
        let (held, bytes) = Held::new(candidate);
        change.batch.put(Table::Candidates, &held.id(), bytes);
        change.set_vote_state(vote_state);
        let dropped = change.hold(Arc::new(held));
        change.apply()?;
        if dropped {
            self.prune_updates(change);
        } else {
            drop(change);
        }
        self.note_birth(vote_state)
    }

    /// The last signed vote state; `None` on a new or wiped disk, and after damage.
    pub fn vote_state(&self) -> Option<VoteState> {
        self.tip().vote_state.map(|vote_state| VoteState::clone(&vote_state))
    }

    /// The candidates on top of the head, oldest attempt first.
    pub fn candidates(&self) -> Vec<Candidate> {
        self.tip().candidates.iter().map(|held| held.candidate.clone()).collect()
    }

    /// The encoded candidate whose record has this digest.
    pub fn candidate(&self, record: &Digest) -> Result<Option<Vec<u8>>, StoreError> {
        let tip = self.tip();
        let Some(held) = tip.candidates.iter().find(|held| held.record == *record) else { return Ok(None) };
        // From the disk, so that its checksum is verified; a commit in between may have dropped it.
        self.db()?.get(Table::Candidates, &held.id())
    }
}

impl Change<'_> {
    fn set_vote_state(&mut self, vote_state: &VoteState) {
        let kept = wire::encode_vote_state(vote_state);
        self.batch.put(Table::Meta, VOTE_STATE_KEY, kept);
        self.tip.vote_state = Some(Arc::new(vote_state.clone()));
    }

    /// Adds a candidate and drops surplus ones; returns whether it dropped or replaced any. It never drops the one that
    /// the vote state names: a voter that has said that it holds the bytes must be able to serve them.
    fn hold(&mut self, held: Arc<Held>) -> bool {
        let (id, mine) = (held.id(), held.record);
        let vote_state = self.tip.vote_state.clone();
        let estimates = vote_state.iter().filter_map(|r| r.estimate.as_ref()).map(|(_, value)| value.digest);
        let votes = vote_state.iter().filter_map(|r| r.vote.as_ref()).map(|(_, value, _)| value.digest);
        let spoken: Vec<Digest> = estimates.chain(votes).collect();
        let held_before = self.tip.candidates.len();
        self.tip.candidates.retain(|other| other.id() != id);
        self.tip.candidates.push(held);
        self.tip.candidates.sort_by_key(|held| held.id());
        while self.tip.candidates.len() > CANDIDATES_KEPT {
            let spare = |held: &Arc<Held>| held.record != mine && !spoken.contains(&held.record);
            let Some(at) = self.tip.candidates.iter().position(spare) else { break };
            let dropped = self.tip.candidates.remove(at);
            self.batch.delete(Table::Candidates, &dropped.id());
        }
        self.tip.candidates.len() <= held_before
    }
}
