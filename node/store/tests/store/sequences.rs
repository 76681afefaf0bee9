//! Any sequence of operations, with kills between and inside them, against a model of what a store is.

use crate::support::{History, SCHEMA, image, open, options, scratch};
use proptest::prelude::*;
use starling_protocol::record::Record;
use starling_store::{Opened, Store, StoreError};
use std::fs;

const ELEMENTS: usize = 40;

#[derive(Clone, Debug)]
enum Step {
    Report {
        attempt: u32,
        salt: u32,
    },
    CommitNext {
        salt: u32,
    },
    CommitPending,
    CommitAgain,
    CommitAhead,
    Snapshot,
    Adopt {
        rounds: u32,
        salt: u32,
    },
    Reset,
    /// Close and open.
    Restart,
    /// The process dies and what is on the disk is all that is left.
    Kill,
    /// The process dies after the database took the next commit and before the mirror did.
    KillInCommit {
        salt: u32,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (0..4u32, 0..3u32).prop_map(|(attempt, salt)| Step::Report { attempt, salt }),
        5 => (0..3u32).prop_map(|salt| Step::CommitNext { salt }),
        2 => Just(Step::CommitPending),
        1 => Just(Step::CommitAgain),
        1 => Just(Step::CommitAhead),
        2 => Just(Step::Snapshot),
        1 => (1..4u32, 0..3u32).prop_map(|(rounds, salt)| Step::Adopt { rounds, salt }),
        1 => Just(Step::Reset),
        1 => Just(Step::Restart),
        2 => Just(Step::Kill),
        1 => (0..3u32).prop_map(|salt| Step::KillInCommit { salt }),
    ];
    prop::collection::vec(step, 1..24)
}

/// What should be in the store.
struct Model {
    /// The history up to the head; none in an empty store.
    head: Option<History>,
    /// Records from the first one held here.
    records: Vec<Record>,
    /// The attempt, record and update reported last by the highest attempt.
    pending: Vec<(u32, History, Vec<u8>)>,
    snapshots: Vec<u64>,
}

impl Model {
    fn founded() -> Self {
        let head = History::genesis(ELEMENTS);
        Self { records: vec![head.record.clone()], head: Some(head), pending: Vec::new(), snapshots: vec![0] }
    }

    fn committed(&mut self, history: History) {
        self.records.push(history.record.clone());
        self.head = Some(history);
        self.pending.clear();
    }

    fn check(&self, store: &Store) {
        assert_eq!(store.head(), self.head.as_ref().map(|h| h.record.clone()));
        let records = store.records_from(0, 1000).unwrap();
        let expected: Vec<_> = self.records.iter().map(starling_protocol::wire::encode_record).collect();
        assert_eq!(records, expected);
        assert_eq!(store.snapshots().iter().map(|(seq, _)| *seq).collect::<Vec<_>>(), self.snapshots);
        let newest = self.pending.iter().max_by_key(|(attempt, ..)| *attempt);
        assert_eq!(store.pending_report().map(|(_, record)| record), newest.map(|(_, h, _)| h.record.clone()));
        for (_, history, update) in &self.pending {
            assert_eq!(store.update_by_digest(&history.record.update).unwrap().as_ref(), Some(update));
        }
        if let Some(head) = &self.head {
            head.assert_loaded_from(store);
        }
    }
}

struct Run {
    dir: tempfile::TempDir,
    store: Option<Store>,
    model: Model,
}

impl Run {
    fn store(&self) -> &Store {
        self.store.as_ref().unwrap()
    }

    fn next(&self, salt: u32) -> Option<(History, Vec<u8>)> {
        let mut history = self.model.head.clone()?;
        let update = history.advance(salt);
        Some((history, update))
    }

    /// The process is gone; its folder is copied as it lies, so that no closing hand touches it.
    fn kill(&mut self) {
        let copy = image(self.dir.path());
        self.store = None;
        self.dir = copy;
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Report { attempt, salt } => {
                let Some((history, update)) = self.next(*salt) else { return };
                self.store().put_report(history.attempt(*attempt), &history.record, &update).unwrap();
                self.model.pending.retain(|(other, ..)| other != attempt);
                self.model.pending.push((*attempt, history, update));
            }
            Step::CommitNext { salt } => {
                let Some((history, update)) = self.next(*salt) else { return };
                self.store().commit(&history.record, &update).unwrap();
                self.model.committed(history);
            }
            Step::CommitPending => {
                let Some((_, history, update)) = self.model.pending.first().cloned() else { return };
                self.store().commit(&history.record, &update).unwrap();
                self.model.committed(history);
            }
            Step::CommitAgain => {
                let Some(head) = &self.model.head else { return };
                let again = self.store().commit(&head.record, b"");
                assert!(matches!(again, Err(StoreError::AlreadyCommitted { .. })), "{again:?}");
            }
            Step::CommitAhead => {
                let Some((mut history, _)) = self.next(0) else { return };
                let update = history.advance(0);
                let ahead = self.store().commit(&history.record, &update);
                assert!(matches!(ahead, Err(StoreError::NotNext { .. })), "{ahead:?}");
            }
            Step::Snapshot => {
                let Some(head) = &self.model.head else { return };
                head.snapshot(self.store());
                if !self.model.snapshots.contains(&head.record.seq) {
                    self.model.snapshots.push(head.record.seq);
                }
                let surplus = self.model.snapshots.len().saturating_sub(2);
                self.model.snapshots.drain(..surplus);
            }
            Step::Adopt { rounds, salt } => self.adopt(*rounds, *salt),
            Step::Reset => {
                self.store().reset_chain().unwrap();
                self.model = Model { head: None, records: Vec::new(), pending: Vec::new(), snapshots: Vec::new() };
            }
            Step::Restart => self.store = None,
            Step::Kill => self.kill(),
            Step::KillInCommit { salt } => {
                let Some((history, update)) = self.next(*salt) else { return };
                let path = self.dir.path().join("head");
                let mirror = fs::read(&path).unwrap();
                self.store().commit(&history.record, &update).unwrap();
                self.kill();
                fs::write(self.dir.path().join("head"), mirror).unwrap();
                self.model.committed(history);
            }
        }
    }

    fn adopt(&mut self, rounds: u32, salt: u32) {
        let mut history = self.model.head.clone().unwrap_or_else(|| History::genesis(ELEMENTS));
        (0..rounds).for_each(|_| drop(history.advance(salt)));
        let manifest = history.manifest();
        let missing = self.store().begin_adopt(&manifest).unwrap();
        for (index, digest) in manifest.chunks.iter().enumerate().filter(|(_, digest)| missing.contains(digest)) {
            self.store().put_chunk(digest, &history.chunk(index)).unwrap();
        }
        self.store().finish_adopt(&manifest, &history.record).unwrap();
        let seq = history.record.seq;
        let records = vec![history.record.clone()];
        self.model = Model { head: Some(history), records, pending: Vec::new(), snapshots: vec![seq] };
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_steps_keeps_what_it_acknowledged(steps in steps()) {
        let dir = scratch();
        let model = Model::founded();
        let (_, store) = History::founded(dir.path(), ELEMENTS);
        let mut run = Run { dir, store: Some(store), model };
        for step in &steps {
            run.take(step);
            if run.store.is_none() {
                let Opened { store, damage } = Store::open(run.dir.path(), options()).unwrap();
                prop_assert_eq!(damage, None);
                run.store = Some(store);
            }
            run.model.check(run.store());
        }
        run.kill();
        run.model.check(&open(run.dir.path()));
    }
}

#[test]
fn an_empty_store_after_a_reset_is_founded_like_a_new_one() {
    let dir = scratch();
    let (history, store) = History::founded(dir.path(), ELEMENTS);
    store.reset_chain().unwrap();
    store.found(&history.record, &SCHEMA, &history.theta, &history.momentum).unwrap();
    history.assert_loaded_from(&store);
}
