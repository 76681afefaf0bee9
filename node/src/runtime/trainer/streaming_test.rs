use super::super::task::Learned;
use super::super::worker::Setting;
use super::*;
use crate::reduce::FragmentFeedback;
use crate::runtime::canonical::Canonical;
use crate::runtime::head::SharedState;
use crate::runtime::sample_test::{genesis, spec};
use starling_protocol::limits::CHUNK_ELEMENTS;
use starling_protocol::run::SyncMode;
use starling_protocol::state::State;
use starling_store::{Store, StoreOptions};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tokio::sync::mpsc;

/// Four fragments of one chunk.
const ELEMENTS: usize = 4 * CHUNK_ELEMENTS;
const BATCH: u64 = 2;

/// A task whose steps take 1 from every parameter, and are counted, as its loads are.
struct Counting {
    parameters: Vec<f32>,
    steps: Arc<AtomicU64>,
    loads: Arc<AtomicU64>,
}

impl Task for Counting {
    fn samples(&self) -> Option<u64> {
        Some(100)
    }

    fn load(&mut self, parameters: &[f32]) -> Result<(), TaskError> {
        self.loads.fetch_add(1, Ordering::Relaxed);
        self.parameters = parameters.to_vec();
        Ok(())
    }

    fn read(&mut self, out: &mut [f32]) -> Result<(), TaskError> {
        out.copy_from_slice(&self.parameters);
        Ok(())
    }

    fn amend(&mut self, _weight_decay: f64, _clip: f64) {}

    fn step(&mut self, samples: &[u64], _at: StepAt) -> Result<Learned, TaskError> {
        self.steps.fetch_add(1, Ordering::Relaxed);
        self.parameters.iter_mut().for_each(|x| *x -= 1.0);
        assert!(samples.len() as u64 == BATCH && samples.iter().all(|sample| *sample < 100));
        Ok(Learned { loss: 1.0, weight: 8 * BATCH })
    }

    fn gradient(&mut self, _samples: &[u64], _out: &mut [f32]) -> Result<Learned, TaskError> {
        Ok(Learned { loss: 1.0, weight: 1 })
    }

    fn evaluate(&mut self, _samples: usize) -> Result<Option<(f64, u64)>, TaskError> {
        Ok(None)
    }

    fn restore(&mut self, _store: &Store) {}

    fn save(&mut self, _store: &Store) {}
}

struct Bench {
    own: Own,
    worker: Worker,
    steps: Arc<AtomicU64>,
    loads: Arc<AtomicU64>,
    _events: mpsc::Receiver<TrainerEvent>,
    _folder: tempfile::TempDir,
}

fn base(n: u8) -> Digest {
    Digest([n; 32])
}

fn lease(start: u64) -> Span {
    Span { start, count: 4 * BATCH }
}

/// A worker whose canonical parameters are zeros, made by record 1.
fn bench(fragments: u32, mixing: f64) -> Bench {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let options = StoreOptions { ballast_bytes: 0, reserve_bytes: 0, max_bytes: 0 };
    let store = Store::open(&folder.path().join("store"), options).expect("a folder of its own").store;
    let record = genesis().record;
    let state = State::initial(vec![0.0; ELEMENTS], SyncMode::Rounds);
    let state = Canonical { record, digest: base(1), base: base(1), schema: Digest([3; 32]), state };
    let mut spec = spec();
    (spec.sync.fragments, spec.sync.overlap, spec.sync.mixing) = (fragments, 2, mixing);
    (spec.inner.batch, spec.inner.accumulate) = (BATCH as u32, 1);
    let (steps, loads, (sender, events)) = (Arc::default(), Arc::default(), mpsc::channel(64));
    let task = Counting { parameters: vec![0.0; ELEMENTS], steps: Arc::clone(&steps), loads: Arc::clone(&loads) };
    let store = Arc::new(store);
    let fragments = Fragments::of(&spec.sync, ELEMENTS);
    let feedback = Arc::new(FragmentFeedback::restore(&store, &starling_protocol::NodeId([1; 32]), 1, fragments).0);
    let worker = Worker {
        reached: 0,
        signs: 0,
        waited: std::time::Duration::ZERO,
        not_finite: false,
        task: Box::new(task),
        setting: Setting { seed: 1, inner: spec.inner, sync: spec.sync, budget: spec.budget, feedback },
        state: Arc::new(SharedState::new(state)),
        store,
        events: sender,
        generation: Arc::new(AtomicU64::new(1)),
        cut: Arc::new(AtomicU64::new(0)),
        spare: None,
    };
    Bench { own: Own::default(), worker, steps, loads, _events: events, _folder: folder }
}

impl Bench {
    /// Trains a round; returns the steps made, the steps that count, and the contribution's value, which is the same
    /// everywhere.
    fn round(&mut self, round: u64, on: u8, lease: Span) -> (u64, u32, f32) {
        let before = self.steps.load(Ordering::Relaxed);
        let (inner_steps, generation, news) = (4, 1, FragmentEvent::default());
        let job = Round {
            round,
            base: base(on),
            lease,
            inner_steps,
            done: Default::default(),
            validate: None,
            generation,
            news,
            inner: self.worker.setting.inner.clone(),
            budget: self.worker.setting.budget.clone(),
            lineage: Digest::default(),
            expected: Vec::new(),
        };
        let Ok(TrainerEvent::Trained(trained)) = self.worker.round(&mut self.own, &job) else {
            panic!("it is trained")
        };
        assert_eq!(trained.delta.len(), CHUNK_ELEMENTS, "one fragment");
        assert!(trained.delta.iter().all(|x| *x == trained.delta[0]));
        assert_eq!(trained.samples, 4 * BATCH);
        (self.steps.load(Ordering::Relaxed) - before, trained.steps, trained.delta[0])
    }

    fn ahead(&mut self, round: u64, on: u8, lease: Span) {
        let (inner_steps, steps, generation, news) = (4, 2, 1, FragmentEvent::default());
        let job =
            Ahead { round, base: base(on), lease, inner_steps, steps, done: Default::default(), generation, news };
        assert!(matches!(self.own.go_ahead(&mut self.worker, &job), Ok(TrainerEvent::WentAhead { .. })));
    }

    /// Commits: every parameter of a round's fragment becomes `value`.
    fn commit(&mut self, round: u64, after: u8, value: f32) {
        let range = fragments(&self.worker).of_round(round);
        self.worker.state.change(|state| {
            state.state.theta[range].fill(value);
            state.base = base(after + 1);
        });
        let stepped = [fragments(&self.worker).turn(round)].into();
        self.own.hear(FragmentEvent { start_over: false, stepped, before: Some(base(after)) });
    }
}

#[test]
fn steps_ahead_count_as_the_first_of_the_round_that_they_were_for() {
    let mut bench = bench(4, 0.5);
    assert_eq!(bench.round(1, 1, lease(0)), (4, 4, 4.0));
    bench.ahead(2, 1, lease(8));
    bench.ahead(2, 1, lease(8));
    assert_eq!(bench.steps.load(Ordering::Relaxed), 6, "once");
    bench.commit(1, 1, -1.0);
    // The parameters are -6 after the steps ahead; then two more steps follow.
    assert_eq!(bench.round(2, 2, lease(8)), (2, 4, 8.0));
    // The first fragment was mixed once: (-6 - 1) / 2, then ten steps until its next turn.
    bench.commit(2, 2, 0.0);
    bench.round(3, 3, lease(16));
    bench.commit(3, 3, 0.0);
    bench.round(4, 4, lease(24));
    bench.commit(4, 4, 0.0);
    assert_eq!(bench.round(5, 5, lease(32)), (4, 4, -1.0 + 3.5 + 14.0));
}

#[test]
fn steps_ahead_of_another_lease_round_or_chain_are_dropped() {
    for (foreseen, round, on) in [(lease(80), 2, 1), (lease(8), 3, 1), (lease(8), 2, 9)] {
        let mut bench = bench(4, 0.5);
        bench.round(1, 1, lease(0));
        if on == 1 {
            bench.ahead(round, on, foreseen);
        } else {
            bench.worker.state.change(|state| state.base = base(9));
            bench.ahead(round, on, foreseen);
        }
        bench.commit(1, 1, -1.0);
        assert_eq!(bench.round(2, 2, lease(8)), (4, 4, 8.0), "all four steps, from where it was READY");
    }
}

#[test]
fn a_fragment_is_taken_again_without_steps_and_without_those_ahead() {
    let mut bench = bench(4, 0.0);
    bench.round(1, 1, lease(0));
    bench.ahead(2, 1, lease(8));
    bench.commit(1, 1, -1.0);
    let loads = bench.loads.load(Ordering::Relaxed);
    let made =
        bench.own.retake(&mut bench.worker, 2, base(2)).expect("it works").expect("there is something to take it from");
    assert!(made.delta.len() == CHUNK_ELEMENTS && made.delta.iter().all(|x| *x == 4.0));
    assert_eq!(bench.steps.load(Ordering::Relaxed), 6);
    assert_eq!(bench.loads.load(Ordering::Relaxed), loads, "a task that is gone is not needed");
    bench.own.hear(FragmentEvent { start_over: true, ..FragmentEvent::default() });
    assert!(bench.own.retake(&mut bench.worker, 2, base(2)).expect("it works").is_none(), "nothing of its own is left");
    assert_eq!(bench.round(2, 2, lease(8)), (4, 4, 4.0), "from the canonical parameters");
}

#[test]
fn a_round_that_is_stopped_leaves_nothing_behind() {
    let mut bench = bench(4, 0.5);
    bench.round(1, 1, lease(0));
    bench.ahead(2, 1, lease(8));
    bench.commit(1, 1, -1.0);
    bench.worker.generation.store(2, Ordering::Release);
    let (inner_steps, generation, news) = (4, 1, FragmentEvent::default());
    let job = Round {
        round: 2,
        base: base(2),
        lease: lease(8),
        inner_steps,
        done: Default::default(),
        validate: None,
        generation,
        news,
        inner: bench.worker.setting.inner.clone(),
        budget: bench.worker.setting.budget.clone(),
        lineage: Digest::default(),
        expected: Vec::new(),
    };
    assert!(matches!(bench.worker.round(&mut bench.own, &job), Ok(TrainerEvent::Stopped)));
    bench.worker.generation.store(1, Ordering::Release);
    assert_eq!(bench.round(2, 2, lease(8)), (4, 4, 8.0));
}

#[test]
fn steps_ahead_are_lost_with_what_they_were_made_on() {
    let mut bench = bench(4, 0.5);
    bench.round(1, 1, lease(0));
    bench.ahead(2, 1, lease(8));
    bench.commit(1, 1, -1.0);
    bench.own.lose();
    assert_eq!(bench.round(2, 2, lease(8)), (4, 4, 8.0), "all four steps, from where it was READY");
}
