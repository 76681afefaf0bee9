//! Encoded updates on their way from a reduction, or a peer, to the disk. Only the ledger holds them; other threads
//! name them by digest.

use super::ahead::Ahead;
use super::update::Update;
use crate::runtime::fetches::FETCHES_MAX;
use starling_protocol::Digest;
use starling_protocol::engine::io::AttemptKey;
use starling_protocol::record::Record;
use starling_protocol::state::Manifest;

/// The most updates that are held: that of the running attempt, and fetched ones.
const HELD_MAX: usize = FETCHES_MAX + 1;
/// The most of them that were speculated on: that of the running attempt, and a fetched one. The others are on disk.
const SPECULATED_MAX: usize = 2;

struct Held {
    key: AttemptKey,
    update: Update,
    /// The manifest of the state that the update leads to, once it was computed.
    manifest: Option<Manifest>,
    /// Work on it that was done before it was whole.
    ahead: Option<Ahead>,
}

/// The updates, the newest last.
#[derive(Default)]
pub struct Updates(Vec<Held>);

impl Updates {
    /// Holds the update in which an attempt, or a fetch for it, has ended.
    pub fn bring(&mut self, key: AttemptKey, update: Update, ahead: Option<Ahead>) {
        if let Some(held) = self.0.iter_mut().find(|held| held.update.digest == update.digest) {
            held.key = key;
            return;
        }
        self.0.push(Held { key, update, manifest: None, ahead });
        let surplus = self.0.len().saturating_sub(HELD_MAX);
        self.0.drain(..surplus);
    }

    pub fn of(&self, digest: &Digest) -> Option<Update> {
        self.0.iter().find(|held| held.update.digest == *digest).map(|held| held.update.clone())
    }

    /// Takes the work that was done ahead of this update.
    pub fn ahead(&mut self, digest: &Digest) -> Option<Ahead> {
        self.0.iter_mut().find(|held| held.update.digest == *digest)?.ahead.take()
    }

    /// Notes that the outer step with this update leads to a state of this manifest.
    pub fn speculated(&mut self, key: AttemptKey, update: Update, manifest: Manifest) {
        self.0.retain(|held| held.update.digest != update.digest);
        self.0.push(Held { key, update, manifest: Some(manifest), ahead: None });
        let mut surplus = self.0.iter().filter(|held| held.manifest.is_some()).count().saturating_sub(SPECULATED_MAX);
        self.0.retain(|held| {
            let goes = surplus > 0 && held.manifest.is_some();
            surplus -= usize::from(goes);
            !goes
        });
    }

    /// Forgets an attempt without a result. Members may still decide on an update that was speculated on, so those
    /// stay.
    pub fn abandon(&mut self, key: AttemptKey) {
        self.0.retain(|held| held.key != key || held.manifest.is_some());
    }

    /// Drops the updates for this record, which is or becomes the head, and for those before it. Returns the manifest
    /// of its state, if its update was speculated on.
    pub fn settle(&mut self, record: &Record) -> Option<Manifest> {
        let (stay, go): (Vec<_>, Vec<_>) = std::mem::take(&mut self.0)
            .into_iter()
            .partition(|held| held.manifest.is_none() && held.key.seq > record.seq);
        self.0 = stay;
        go.into_iter().find(|held| held.update.digest == record.update)?.manifest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::sample_test::{commit, genesis};
    use std::sync::Arc;

    fn key(seq: u64, attempt: u32) -> AttemptKey {
        AttemptKey { lineage: Digest([1; 32]), seq, attempt, set: Digest([2; 32]) }
    }

    fn update(n: u8) -> Update {
        Update { digest: Digest([n; 32]), bytes: Arc::new(vec![n]) }
    }

    fn manifest() -> Manifest {
        Manifest { schema: Digest([3; 32]), elements: 0, vectors: 2, chunks: Vec::new() }
    }

    fn held(updates: &Updates) -> Vec<u8> {
        updates.0.iter().map(|held| held.update.digest.0[0]).collect()
    }

    #[test]
    fn an_abandoned_attempt_leaves_what_members_may_decide_on() {
        let mut updates = Updates::default();
        updates.bring(key(4, 1), update(1), None);
        updates.bring(key(4, 1), update(2), None);
        updates.bring(key(4, 2), update(3), None);
        updates.speculated(key(4, 1), update(2), manifest());
        updates.abandon(key(4, 1));
        assert_eq!(held(&updates), [3, 2]);
        updates.bring(key(4, 2), update(2), None);
        assert!(updates.of(&Digest([2; 32])).is_some());
        assert_eq!(held(&updates), [3, 2], "once is enough");
    }

    #[test]
    fn the_newest_stay() {
        let mut updates = Updates::default();
        (0..9).for_each(|n| updates.bring(key(4, n.into()), update(n), None));
        assert_eq!(held(&updates), [4, 5, 6, 7, 8]);
        for n in 5..8 {
            updates.speculated(key(4, n.into()), update(n), manifest());
        }
        assert_eq!(held(&updates), [4, 8, 6, 7]);
    }

    #[test]
    fn a_new_head_keeps_what_is_for_records_after_it() {
        let mut record = commit(&genesis(), Digest([2; 32]));
        record.seq = 4;
        let mut updates = Updates::default();
        (1..4).for_each(|n| updates.bring(key(4, n.into()), update(n), None));
        updates.bring(key(5, 1), update(4), None);
        assert!(updates.settle(&record).is_none(), "it was not speculated on");
        assert_eq!(held(&updates), [4]);
        updates.speculated(key(4, 1), update(2), manifest());
        assert_eq!(updates.settle(&record), Some(manifest()));
        assert_eq!(held(&updates), [4]);
    }
}
