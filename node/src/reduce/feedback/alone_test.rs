//! For tests: a node that is alone, so that it contributes, owns all chunks, and decides.

use super::super::FragmentFeedback;
use super::super::fragments::Restored;
use super::super::passed::{Mark, Passed};
use super::disk::Held;
use super::{Feedback, Terms};
use crate::coding::Coder;
use crate::runtime::sample_test::{Link, commit, genesis, skip, spec};
use starling_protocol::engine::io::AttemptKey;
use starling_protocol::limits::CHUNK_ELEMENTS;
use starling_protocol::message::Certificate;
use starling_protocol::record::Record;
use starling_protocol::run::{Codec, SyncMode};
use starling_protocol::state::{self, State};
use starling_protocol::update::Fragments;
use starling_protocol::{Digest, NodeId, sample, update, wire};
use starling_store::{Store, StoreOptions};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub const ELEMENTS: usize = 12 * CHUNK_ELEMENTS + 77;

pub fn me() -> NodeId {
    member(0)
}

pub fn member(place: usize) -> NodeId {
    genesis().record.next.members[place].id
}

/// This many fragments of the test's model.
pub fn fragments(count: u32) -> Fragments {
    Fragments::new(count, ELEMENTS, CHUNK_ELEMENTS)
}

pub fn open(folder: &Path) -> Arc<Store> {
    Arc::new(Store::open(folder, StoreOptions { ballast_bytes: 0, reserve_bytes: 0, max_bytes: 0 }).unwrap().store)
}

pub fn delta(seq: u64) -> Vec<f32> {
    (0..ELEMENTS as u64).map(|i| ((i * 31 + seq * 977) % 1999) as f32 * 1e-6 - 1e-3).collect()
}

/// The outcome of a round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fate {
    Taken,
    Skipped,
    LeftOut,
}

pub fn fate(seq: u64) -> Fate {
    match seq {
        seq if seq.is_multiple_of(5) => Fate::Skipped,
        seq if seq % 7 == 4 => Fate::LeftOut,
        _ => Fate::Taken,
    }
}

pub struct Alone {
    pub store: Arc<Store>,
    pub head: Link,
    pub feedback: Arc<FragmentFeedback>,
    pub fragments: Fragments,
    /// The contribution to the whole model, the same until a record takes some of it in.
    pub delta: Vec<f32>,
    /// Two starts of a node never sign the same READY.
    boot: u64,
}

fn linked(record: Record) -> Link {
    Link { digest: record.digest(), record, certificate: None }
}

impl Alone {
    /// Starts from the content of the folder.
    pub fn on(folder: &Path, count: u32) -> Self {
        let store = open(folder);
        let head = match store.head() {
            Some(head) => linked(store.record(head.seq).unwrap().unwrap()),
            None => {
                store.bind_run(&wire::encode_spec(&spec())).unwrap();
                let state = State::initial(vec![0.5; 100], SyncMode::Rounds);
                let schema = Digest([3; 32]);
                let mut record = genesis().record;
                record.state_root = state::root(&state.manifest(schema).unwrap());
                store.found(&record, &schema, &state).unwrap();
                linked(record)
            }
        };
        let (seq, fragments) = (head.record.seq, fragments(count));
        let feedback = Arc::new(FragmentFeedback::restore(&store, &me(), seq, fragments).0);
        static STARTS: AtomicU64 = AtomicU64::new(0);
        let boot = u64::from(std::process::id()) << 32 | STARTS.fetch_add(1, Ordering::Relaxed);
        Self { store, delta: delta(seq + 1), head, feedback, fragments, boot }
    }

    /// The next record with this fate.
    pub fn next(&self, fate: Fate) -> Record {
        let mut record = commit(&self.head, update::digest(b"update"));
        // A codec that leaves something out.
        record.next.codec = Codec::Int4;
        match fate {
            Fate::Taken => {
                let said = [record.seq.to_le_bytes(), self.boot.to_le_bytes()];
                record.contributors[0].ready = Digest::of("starling test ready", &[&said[0], &said[1]]);
            }
            Fate::LeftOut => {
                let other = &self.head.record.next.members[1];
                (record.contributors[0].member, record.contributors[0].start) = (other.id, other.lease.start);
            }
            Fate::Skipped => return skip(&self.head, 2).record,
        }
        sample::count(&mut record, &self.head.record);
        record
    }

    pub fn passing(&self, fate: Fate) -> Passed {
        Passed::of(&self.next(fate), &me())
    }

    pub fn key(&self, attempt: u32) -> AttemptKey {
        let record = self.next(Fate::Taken);
        AttemptKey { lineage: record.lineage, seq: record.seq, attempt, set: record.set() }
    }

    /// The elements whose turn it is.
    pub fn turn(&self) -> Range<usize> {
        self.fragments.of_round(self.head.record.round + 1)
    }

    /// The residuals whose turn it is.
    pub fn of_turn(&self) -> Arc<Feedback> {
        self.feedback.of_round(self.head.record.round + 1)
    }

    /// Contributes and adds up without sending; returns the update's values.
    pub fn reduce(&self, key: AttemptKey) -> Vec<f32> {
        reduce(&self.of_turn(), key, &self.delta[self.turn()])
    }

    pub fn decide(&mut self, fate: Fate) {
        let record = self.next(fate);
        let (lineage, seq, digest) = (record.lineage, record.seq, record.digest());
        let certificate = Certificate { lineage, seq, record: digest, votes: vec![] };
        let update = record.changes_state().then_some(&b"update"[..]);
        self.feedback.pass(&Passed::of(&record, &me()));
        self.store.commit(&record, update, &certificate).unwrap();
        self.head = linked(record);
        if fate == Fate::Taken {
            self.delta = delta(seq + 1);
        }
    }

    /// Another process of this node, with what it finds on the disk.
    pub fn restart(&self) -> (FragmentFeedback, Restored) {
        FragmentFeedback::restore(&self.store, &me(), self.head.record.seq, self.fragments)
    }

    pub fn restarted(&self) -> FragmentFeedback {
        self.restart().0
    }

    pub fn left(&self) -> Vec<f32> {
        left(&self.feedback, &self.fragments)
    }

    pub fn left_of(&self, feedback: &FragmentFeedback) -> Vec<f32> {
        left(feedback, &self.fragments)
    }
}

pub fn reduce(feedback: &Arc<Feedback>, key: AttemptKey, delta: &[f32]) -> Vec<f32> {
    let chunks = update::chunks(delta.len());
    let delta = Arc::new(delta.to_vec());
    let terms =
        Terms { codec: Codec::Int4, weight: 1.0, norm: f32::MAX, scale: 1.0, owned: (0..chunks).collect(), delta };
    let share = feedback.join(key, terms);
    let (mut coder, mut payload, mut update) = (Coder::new(Codec::Int4), Vec::new(), Vec::new());
    for chunk in 0..chunks {
        let mut sum = Vec::new();
        share.offer(chunk, &mut sum);
        coder.encode(&sum, &mut payload).unwrap();
        coder.decode(&payload, &mut sum).unwrap();
        share.mend(chunk, &mut sum);
        coder.encode(&sum, &mut payload).unwrap();
        share.stage(chunk, &sum, &payload, &coder);
        coder.decode(&payload, &mut sum).unwrap();
        update.extend(sum);
    }
    update
}

/// All residuals, the node's own and those of sums; for a node that is alone the two count alike.
pub fn unsaid(feedback: &Feedback, elements: usize) -> Vec<f32> {
    feedback.settle();
    let (mut left, residuals) = (vec![0.0; elements], feedback.residuals());
    left.iter_mut().zip(&residuals.own).for_each(|(left, own)| *left += own);
    for (chunk, sums) in &residuals.sums {
        left[update::chunk_elements(elements, *chunk)].iter_mut().zip(sums).for_each(|(left, sum)| *left += sum);
    }
    left
}

fn left(feedback: &FragmentFeedback, fragments: &Fragments) -> Vec<f32> {
    let of = |fragment| unsaid(&feedback.of_round(fragment as u64 + 1), fragments.range(fragment).len());
    (0..fragments.count()).flat_map(of).collect()
}

pub fn zeros(left: &[f32]) -> bool {
    left.iter().all(|x| *x == 0.0)
}

/// The same residuals without those of a lost fragment.
pub fn without(left: &[f32], lost: Range<usize>) -> Vec<f32> {
    let mut left = left.to_vec();
    assert!(!zeros(&left[lost.clone()]), "there is something to lose");
    left[lost].fill(0.0);
    left
}

/// A node after three turns of each fragment, the last of them committed and on the disk, and the next one reduced.
pub fn begun(folder: &Path, count: u32) -> (Alone, AttemptKey) {
    let mut node = Alone::on(folder, count);
    for _ in 0..3 * count {
        node.reduce(node.key(0));
        node.feedback.stage(&node.key(0));
        node.decide(Fate::Taken);
        node.feedback.keep();
    }
    let left = node.left();
    assert!((0..count as usize).all(|fragment| !zeros(&left[node.fragments.range(fragment)])));
    let key = node.key(0);
    node.reduce(key);
    (node, key)
}

/// The COMMIT after which residuals are true.
pub fn mark(feedback: &Feedback) -> Option<Mark> {
    feedback.residuals().mark
}

/// A copy of these residuals without a disk.
pub fn copy(feedback: &Feedback) -> Arc<Feedback> {
    let copy = Feedback::default();
    {
        let residuals = feedback.residuals();
        if let Some(mark) = residuals.mark {
            copy.residuals().take_up(Held { mark, own: residuals.own.clone(), sums: residuals.sums.clone() });
        }
    }
    Arc::new(copy)
}
