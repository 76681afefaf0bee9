use super::*;
use crate::runtime::canonical::Known;
use crate::runtime::outer_step::UPDATE_CHUNKS;
use crate::runtime::sample_test::{commit, genesis, spec};
use starling_protocol::limits::CHUNK_ELEMENTS;
use starling_protocol::outer::Rule;
use starling_protocol::run::{Codec, SyncMode};
use starling_protocol::state::State;
use starling_protocol::wire;
use starling_store::StoreOptions;
use std::time::Instant;

const CHUNKS: usize = CHUNKS_MIN;
/// Whole chunks of the state and a part, which ends in a part of an update's chunk.
const ELEMENTS: usize = (CHUNKS - 1) * STATE_CHUNK_ELEMENTS + CHUNK_ELEMENTS + 77;

struct Place {
    _dir: tempfile::TempDir,
    store: Arc<Store>,
    state: Arc<SharedState>,
    sums: Arc<Sums>,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let options = StoreOptions { ballast_bytes: 0, reserve_bytes: 0, max_bytes: 0 };
        let store = Arc::new(Store::open(dir.path(), options).expect("a folder of its own").store);
        store.bind_run(&wire::encode_spec(&spec())).expect("a new store");
        let theta = (0..ELEMENTS).map(|i| (i % 1009) as f32 * 1e-3 - 0.5).collect();
        let (record, vectors) = (genesis().record, State::initial(theta, SyncMode::Rounds));
        let digest = record.digest();
        let state = Canonical { record, digest, base: digest, schema: Digest([3; 32]), state: vectors };
        Self { _dir: dir, store, state: Arc::new(SharedState::new(state)), sums: Arc::default() }
    }

    fn start(&self, step: &OuterStep) -> Option<Ahead> {
        let awaited = Awaited { key: key(0), parent: genesis().digest, step: step.clone(), elements: ELEMENTS };
        Ahead::start(awaited, Arc::clone(&self.state), Arc::clone(&self.sums), &self.store)
    }

    /// Works ahead of the update that `update` would be, of which these chunks are finished.
    fn work(&self, step: &OuterStep, update: &[u8], chunks: Range<usize>) -> Ahead {
        self.sums.finish_alone(key(0), (step.codec, ELEMENTS), update, chunks);
        let ahead = self.start(step).expect("there is something to gain");
        wait("nothing is left to do", || ahead.steps.as_ref().is_some_and(JoinHandle::is_finished));
        ahead
    }

    /// The state after the update is the same with the work and without it, and the update is on the disk.
    fn assert_used(&self, step: &OuterStep, done: Done, bytes: &[u8]) {
        let state = self.state.read();
        let known = Known { present: None, stepped: &done.stepped };
        let plain = state.speculate(step, bytes, Known::default()).expect("it applies");
        assert_eq!(state.speculate(step, bytes, known).expect("it applies"), plain);
        let update = Update { digest: update::digest(bytes), bytes: Arc::new(bytes.to_vec()) };
        done.file.expect("a file was begun").stage(&self.store, &update).expect("it is written");
        assert_eq!(self.store.update_by_digest(&update.digest).expect("it is read").as_deref(), Some(bytes));
    }
}

fn key(attempt: u32) -> AttemptKey {
    AttemptKey { lineage: Digest([1; 32]), seq: 1, attempt, set: Digest([2; 32]) }
}

fn step(codec: Codec) -> OuterStep {
    OuterStep { codec, rule: Rule::of(&spec(), &genesis().record, 1), range: 0..ELEMENTS }
}

fn encoded(codec: Codec) -> Vec<u8> {
    let delta: Vec<f32> = (0..ELEMENTS).map(|i| ((i * 31) % 2001) as f32 * 1e-5 - 1e-2).collect();
    update::encode(codec, &delta).expect("finite")
}

fn wait(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what} in time");
        std::thread::yield_now();
    }
}

fn known(done: &Done) -> Vec<bool> {
    done.stepped.iter().map(Option::is_some).collect()
}

#[test]
fn what_was_done_ahead_is_not_done_again() {
    for codec in [Codec::Int8, Codec::Bf16, Codec::Int4] {
        let (place, step, update) = (Place::new(), step(codec), encoded(codec));
        let done = place.work(&step, &update, 0..update::chunks(ELEMENTS)).end(&step, &update);
        assert_eq!(known(&done), [true; CHUNKS], "{codec}");
        place.assert_used(&step, done, &update);
    }
}

#[test]
fn a_chunk_that_is_finished_otherwise_in_the_end_is_done_again() {
    let (place, step, update) = (Place::new(), step(Codec::Int8), encoded(Codec::Int8));
    let ahead = place.work(&step, &update, 0..update::chunks(ELEMENTS));
    let mut other = update.clone();
    let changed = step.bytes_of_payload(UPDATE_CHUNKS + 1);
    other[changed.clone()].copy_from_slice(&update[step.bytes_of_payload(0)]);
    assert_ne!(other, update);
    let done = ahead.end(&step, &other);
    assert_eq!(known(&done), std::array::from_fn::<_, CHUNKS, _>(|chunk| chunk != 1));
    place.assert_used(&step, done, &other);
}

#[test]
fn chunks_that_are_not_finished_are_left() {
    let (place, step, update) = (Place::new(), step(Codec::Int8), encoded(Codec::Int8));
    // One sum is missing of the second chunk of the state, and all of the others.
    place.sums.finish_alone(key(0), (step.codec, ELEMENTS), &update, 0..2 * UPDATE_CHUNKS - 1);
    let ahead = place.start(&step).expect("there is something to gain");
    wait("the first chunk is stepped", || ahead.shared.progress().stepped.iter().any(Option::is_some));
    let done = ahead.end(&step, &update);
    assert_eq!(known(&done), std::array::from_fn::<_, CHUNKS, _>(|chunk| chunk == 0));
    place.assert_used(&step, done, &update);
}

#[test]
fn work_for_another_step_or_state_is_dropped() {
    let (place, step, update) = (Place::new(), step(Codec::Int8), encoded(Codec::Int8));
    let all = 0..update::chunks(ELEMENTS);
    let ahead = place.work(&step, &update, all.clone());
    let other = OuterStep { rule: Rule::Nesterov { lr: 0.5, momentum: 0.0, learned: usize::MAX }, ..step.clone() };
    assert!(known(&ahead.end(&other, &update)).is_empty());
    let ahead = place.work(&step, &update, all.clone());
    assert!(known(&ahead.end(&step, &update[1..])).is_empty());
    // A state that was read from disk again has the same record.
    let ahead = place.work(&step, &update, all.clone());
    place.state.change(|_| ());
    assert!(known(&ahead.end(&step, &update)).is_empty());
    place.state.change(|state| state.stand_on(commit(&genesis(), Digest([2; 32]))));
    let done = place.work(&step, &update, all).end(&step, &update);
    assert_eq!(known(&done), [false; CHUNKS], "the record whose state it is for is not the head");
}

#[test]
fn there_is_no_work_ahead_of_small_models_and_of_codecs_without_places() {
    let place = Place::new();
    assert!(place.start(&step(Codec::TopK { k: 64 })).is_none());
    let mut every_step = spec();
    every_step.sync.mode = SyncMode::EveryStep;
    assert!(
        place.start(&OuterStep { rule: Rule::of(&every_step, &genesis().record, 1), ..step(Codec::Int8) }).is_none()
    );
    let elements = (CHUNKS_MIN - 1) * STATE_CHUNK_ELEMENTS;
    let step = OuterStep { range: 0..elements, ..step(Codec::Int8) };
    let awaited = Awaited { key: key(0), parent: genesis().digest, step, elements };
    assert!(Ahead::start(awaited, Arc::clone(&place.state), Arc::clone(&place.sums), &place.store).is_none());
}
