use super::*;
use crate::reduce::FragmentFeedback;
use crate::runtime::canonical::Canonical;
use crate::runtime::head::SharedState;
use crate::runtime::null::NullTrainer;
use crate::runtime::sample_test::{genesis, spec};
use crate::runtime::trainer::{Job, Round, Setting, TrainerEvent, TrainerHandle, course};
use starling_data::{CorpusOptions, prepare};
use starling_kernels::{DeviceInfo, DeviceKind};
use starling_protocol::limits::CHUNK_ELEMENTS;
use starling_protocol::record::Span;
use starling_protocol::run::SyncMode;
use starling_protocol::state::State;
use starling_protocol::update::Fragments;
use starling_protocol::{Digest, NodeId};
use starling_store::StoreOptions;
use std::time::Duration;
use tokio::sync::mpsc;

const SEQ_LEN: usize = 16;
const BATCH: u64 = 2;
/// Steps of a round.
const STEPS: u32 = 4;
const BASE: Digest = Digest([1; 32]);
/// The first generation of jobs: none of them is cut short.
const GENERATION: u64 = 1;

/// A trainer thread with a model whose device fails in the step after so many.
struct Bench {
    trainer: TrainerHandle,
    setting: (starling_protocol::run::InnerSpec, starling_protocol::run::Budget),
    store: Arc<Store>,
    _folder: tempfile::TempDir,
}

fn null_trainer(left: Option<u64>) -> Box<dyn Trainer> {
    let device = DeviceInfo { kind: DeviceKind::Cuda, index: 0, name: "a card".into(), why: "a test".into() };
    Box::new(NullTrainer::new(device, CHUNK_ELEMENTS, (1, SEQ_LEN), Duration::ZERO).failing_after(left))
}

fn bench(left: Option<u64>) -> Bench {
    let folder = tempfile::tempdir().expect("a folder");
    let text = folder.path().join("text.txt");
    std::fs::write(&text, "All happy families are alike.\n".repeat(500)).expect("written");
    let corpus = CorpusOptions { sources: vec![text.to_string_lossy().into()], holdout: 0.1, ..Default::default() };
    let data = prepare(&corpus, &folder.path().join("cache"), &mut |_| {}).expect("it is text");
    let options = StoreOptions { ballast_bytes: 0, reserve_bytes: 0, max_bytes: 0 };
    let store = Arc::new(Store::open(&folder.path().join("store"), options).expect("a folder of its own").store);
    let state = State::initial(vec![0.0; CHUNK_ELEMENTS], SyncMode::Rounds);
    let state = Canonical { record: genesis().record, digest: BASE, base: BASE, schema: Digest([3; 32]), state };
    let mut spec = spec();
    (spec.inner.batch, spec.inner.accumulate) = (BATCH as u32, 1);
    let fragments = Fragments::of(&spec.sync, CHUNK_ELEMENTS);
    let feedback = Arc::new(FragmentFeedback::restore(&store, &NodeId([1; 32]), 1, fragments).0);
    let task = Box::new(LanguageModel::new(null_trainer(left), Arc::new(data), SEQ_LEN));
    let (course, of_run) = (course(&spec.sync, None), (spec.inner.clone(), spec.budget.clone()));
    let setting = Setting { seed: 1, inner: spec.inner, sync: spec.sync, budget: spec.budget, feedback };
    let trainer = TrainerHandle::start(task, course, setting, Arc::new(SharedState::new(state)), store.clone());
    let trainer = trainer.expect("a thread");
    assert_eq!(trainer.next_generation(), GENERATION);
    Bench { trainer, setting: of_run, store, _folder: folder }
}

impl Bench {
    fn wants(&self, round: u64) {
        let (inner, budget) = self.setting.clone();
        let job = Round {
            round,
            base: BASE,
            lineage: Digest::default(),
            expected: Vec::new(),
            lease: Span { start: 0, count: BATCH * u64::from(STEPS) },
            inner_steps: STEPS,
            done: Default::default(),
            inner,
            budget,
            validate: None,
            generation: GENERATION,
            news: Default::default(),
        };
        self.trainer.jobs.blocking_send(Job::Round(job)).expect("the thread is there");
    }

    /// Ends the thread as a node does. Returns all that it said, and whether it kept the moments.
    fn end(mut self) -> (Vec<TrainerEvent>, bool) {
        self.trainer.jobs = mpsc::channel(1).0;
        self.trainer.thread.take().expect("it runs").join().expect("it ends");
        let said = std::iter::from_fn(|| self.trainer.events.try_recv().ok()).collect();
        (said, moments::restore(&mut *null_trainer(None), &self.store).expect("whole, if they are there"))
    }
}

fn steps(said: &[TrainerEvent]) -> usize {
    said.iter().filter(|event| matches!(event, TrainerEvent::Step { .. })).count()
}

fn contributions(said: &[TrainerEvent]) -> usize {
    said.iter().filter(|event| matches!(event, TrainerEvent::Trained(_))).count()
}

#[test]
fn a_device_that_works_gives_a_contribution_a_round() {
    let bench = bench(None);
    bench.wants(1);
    bench.wants(2);
    let (said, kept) = bench.end();
    assert_eq!((steps(&said), contributions(&said), kept), (8, 2, true));
}

/// Two steps are good, the third fails. Nothing of the round is offered, the device is asked nothing more, and what it
/// remembers is not kept.
#[test]
fn a_device_that_fails_in_mid_round_ends_it_with_one_message() {
    let bench = bench(Some(2));
    bench.wants(1);
    bench.wants(2);
    let (said, kept) = bench.end();
    assert_eq!((steps(&said), contributions(&said), kept), (2, 0, false));
    let failures = said.iter().filter_map(|event| match event {
        TrainerEvent::Failed { message, diverged: false } => Some(message),
        _ => None,
    });
    let failures: Vec<_> = failures.collect();
    assert_eq!(failures.len(), 1, "one message");
    for words in ["cuda:0 (a card)", "failed", "restart this node", "--device cpu"] {
        assert!(failures[0].contains(words), "`{words}` is missing in: {}", failures[0]);
    }
}

#[test]
fn a_step_without_numbers_is_left_out_and_a_failed_one_is_not() {
    let spoilt = TrainError::NotFinite { step: 3, loss: f64::NAN, grad_norm: 1.0 };
    assert!(matches!(learned(Err(spoilt)), Err(TaskError::NotFinite { .. })));
    let failed = TrainError::Device { device: "cuda:0 (a card)".into(), reason: "it is gone".into() };
    assert!(matches!(learned(Err(failed)), Err(TaskError::Failed(why)) if why.contains("it is gone")));
}
