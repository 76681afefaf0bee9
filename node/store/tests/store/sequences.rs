//! Random sequences of operations, with kills between and inside them, against a model of a store.

use crate::support::{History, SCHEMA, image, open, options, scratch};
use proptest::prelude::*;
use starling_protocol::ancestry::Ancestry;
use starling_protocol::engine::VoteState;
use starling_protocol::path::Link;
use starling_protocol::record::RecordKind;
use starling_store::{Opened, Store, StoreError};
use std::fs;

const ELEMENTS: usize = 40;

#[derive(Clone, Debug)]
enum Step {
    Speak {
        attempt: u32,
        salt: u32,
    },
    /// The vote state alone.
    Sign {
        ballot: u32,
    },
    CommitNext {
        salt: u32,
    },
    /// A record that changes no state.
    Skip,
    CommitPending,
    CommitAgain,
    CommitAhead,
    Snapshot,
    /// One that is not due.
    SnapshotBetween,
    Adopt {
        rounds: u32,
        salt: u32,
    },
    Reset,
    /// Closes the store and opens it again.
    Restart,
    /// The process dies, and only the content of the disk is left.
    Kill,
    /// The process dies after the database took the next commit and before the mirror did.
    KillInCommit {
        salt: u32,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (0..4u32, 0..3u32).prop_map(|(attempt, salt)| Step::Speak { attempt, salt }),
        1 => (0..9u32).prop_map(|ballot| Step::Sign { ballot }),
        2 => Just(Step::Skip),
        5 => (0..3u32).prop_map(|salt| Step::CommitNext { salt }),
        2 => Just(Step::CommitPending),
        1 => Just(Step::CommitAgain),
        1 => Just(Step::CommitAhead),
        2 => Just(Step::Snapshot),
        2 => Just(Step::SnapshotBetween),
        1 => (1..4u32, 0..3u32).prop_map(|(rounds, salt)| Step::Adopt { rounds, salt }),
        1 => Just(Step::Reset),
        1 => Just(Step::Restart),
        2 => Just(Step::Kill),
        1 => (0..3u32).prop_map(|salt| Step::KillInCommit { salt }),
    ];
    prop::collection::vec(step, 1..24)
}

/// The expected content of the store.
struct Model {
    /// The history up to the head; none in an empty store.
    head: Option<History>,
    /// Records from the genesis on, with their votes.
    records: Vec<Link>,
    /// The last result named in each attempt, and its update.
    pending: Vec<(u32, History, Vec<u8>)>,
    snapshots: Vec<u64>,
    vote_state: Option<VoteState>,
}

impl Model {
    fn founded() -> Self {
        let head = History::genesis(ELEMENTS);
        let (records, pending, snapshots) = (vec![head.link()], Vec::new(), vec![0]);
        Self { records, head: Some(head), pending, snapshots, vote_state: None }
    }

    fn committed(&mut self, history: History) {
        self.records.push(history.link());
        self.head = Some(history);
        self.pending.clear();
    }

    fn check(&self, store: &Store) {
        assert_eq!(store.head(), self.head.as_ref().map(|h| h.record.clone()));
        let last = self.head.as_ref().map_or(0, |head| head.record.seq);
        let held = |seq| Some((store.record(seq).unwrap()?, store.certificate(seq).unwrap()));
        let expected: Vec<_> =
            self.records.iter().map(|link| (link.record.clone(), link.certificate.clone())).collect();
        assert_eq!((0..=last + 1).filter_map(held).collect::<Vec<_>>(), expected);
        assert_eq!(store.ancestry(), Ancestry::of(self.records.iter().map(|link| &link.record)));
        let whole = store.whole_from().map_or(0, |from| store.records_from(from, 1000).unwrap().len() as u64 + from);
        assert_eq!(whole, self.head.as_ref().map_or(0, |_| last + 1), "up to the head none is missing");
        assert_eq!(store.vote_state(), self.vote_state);
        assert_eq!(store.snapshots().iter().map(|(seq, _)| *seq).collect::<Vec<_>>(), self.snapshots);
        let mut pending: Vec<_> = self.pending.iter().map(|(attempt, h, _)| h.candidate(*attempt)).collect();
        pending.sort_by_key(|candidate| (candidate.key.attempt, candidate.record.digest()));
        assert_eq!(store.candidates(), pending);
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

    /// The process is gone. The folder is copied as it is, so that nothing closes it properly.
    fn kill(&mut self) {
        let copy = image(self.dir.path());
        self.store = None;
        self.dir = copy;
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Speak { attempt, salt } => self.speak(*attempt, *salt),
            Step::Sign { ballot } => {
                let Some((history, _)) = self.next(0) else { return };
                let vote_state = history.vote_state(*ballot);
                self.store().put_vote_state(&vote_state).unwrap();
                self.model.vote_state = Some(vote_state);
            }
            Step::CommitNext { salt } => {
                let Some((history, update)) = self.next(*salt) else { return };
                history.put(self.store(), &update);
                self.model.committed(history);
            }
            Step::Skip => {
                let Some(mut history) = self.model.head.clone() else { return };
                history.advance_unchanged(RecordKind::Skip);
                self.store().commit(&history.record, None, &history.certificate()).unwrap();
                self.model.committed(history);
            }
            Step::CommitPending => {
                let Some((_, history, _)) = self.model.pending.first().cloned() else { return };
                self.store().commit(&history.record, None, &history.certificate()).unwrap();
                self.model.committed(history);
            }
            Step::CommitAgain => {
                let Some(head) = &self.model.head else { return };
                let again = self.store().commit(&head.record, None, &head.certificate());
                assert!(matches!(again, Err(StoreError::AlreadyCommitted { .. })), "{again:?}");
            }
            Step::CommitAhead => {
                let Some((mut history, _)) = self.next(0) else { return };
                let update = history.advance(0);
                let ahead = self.store().commit(&history.record, Some(&update), &history.certificate());
                assert!(matches!(ahead, Err(StoreError::NotNext { .. })), "{ahead:?}");
            }
            Step::Snapshot => self.snapshot(),
            Step::SnapshotBetween => self.snapshot_between(),
            Step::Adopt { rounds, salt } => self.adopt(*rounds, *salt),
            Step::Reset => {
                self.store().reset_chain().unwrap();
                let vote_state = self.model.vote_state.take();
                let (records, pending, snapshots) = (Vec::new(), Vec::new(), Vec::new());
                self.model = Model { head: None, records, pending, snapshots, vote_state };
            }
            Step::Restart => self.store = None,
            Step::Kill => self.kill(),
            Step::KillInCommit { salt } => self.kill_in_commit(*salt),
        }
    }

    fn speak(&mut self, attempt: u32, salt: u32) {
        // One result an attempt, so that there are never more candidates than are kept.
        let Some((history, update)) = self.next(salt + 10 * attempt) else { return };
        if self.model.pending.iter().any(|(other, held, _)| *other == attempt && held.record != history.record) {
            return;
        }
        let vote_state = history.vote_state(salt);
        self.store().put_candidate(&history.candidate(attempt), &update, &vote_state).unwrap();
        self.model.pending.retain(|(other, ..)| *other != attempt);
        self.model.pending.push((attempt, history, update));
        self.model.vote_state = Some(vote_state);
    }

    fn snapshot(&mut self) {
        let Some(head) = &self.model.head else { return };
        head.snapshot(self.store());
        if !self.model.snapshots.contains(&head.record.seq) {
            self.model.snapshots.push(head.record.seq);
        }
        let surplus = self.model.snapshots.len().saturating_sub(2);
        self.model.snapshots.drain(..surplus);
    }

    fn snapshot_between(&mut self) {
        let Some(head) = &self.model.head else { return };
        head.snapshot_between(self.store());
        let snapshots = &mut self.model.snapshots;
        snapshots.truncate(2);
        snapshots.retain(|seq| *seq != head.record.seq);
        snapshots.push(head.record.seq);
    }

    fn kill_in_commit(&mut self, salt: u32) {
        let Some((history, update)) = self.next(salt) else { return };
        let path = self.dir.path().join("head");
        let mirror = fs::read(&path).unwrap();
        history.put(self.store(), &update);
        self.kill();
        fs::write(self.dir.path().join("head"), mirror).unwrap();
        self.model.committed(history);
    }

    fn adopt(&mut self, rounds: u32, salt: u32) {
        let mut history = self.model.head.clone().unwrap_or_else(|| History::genesis(ELEMENTS));
        let mut records = std::mem::take(&mut self.model.records);
        if records.is_empty() {
            records.push(history.link());
        }
        // The path begins with the head, or with the genesis in place of the whole chain.
        records.truncate(if salt == 1 { 1 } else { records.len() });
        let mut way = vec![records[records.len() - 1].clone()];
        for n in 1..=rounds {
            history.advance(salt);
            // The path has all records, or the last with its stone.
            match (salt, n) {
                (0, _) => way.push(history.link()),
                (_, n) if n == rounds => way.push(history.link()),
                (_, n) if n + 1 == rounds => way.push(history.stone()),
                _ => {}
            }
        }
        if salt == 1 && way[way.len() - 1].record.parent != way[way.len() - 2].digest {
            // The former head is a stone in that case.
            let stone = self.model.head.as_ref().unwrap().stone();
            way.insert(1, stone);
        }
        history.adopt(self.store(), &way);
        let seq = history.record.seq;
        records.extend(way.drain(1..));
        let vote_state = self.model.vote_state.take();
        self.model = Model { head: Some(history), records, pending: Vec::new(), snapshots: vec![seq], vote_state };
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
    store.found(&history.record, &SCHEMA, &history.state).unwrap();
    history.assert_loaded_from(&store);
}
