use super::*;
use crate::runtime::outer_step::UPDATE_CHUNKS;
use crate::runtime::sample_test::{genesis, spec};
use starling_protocol::limits::CHUNK_ELEMENTS;
use starling_protocol::outer::Rule;
use starling_protocol::run::{Codec, SyncMode};
use starling_protocol::update::{self, Fragments};

/// Two whole chunks of the state and a part, which ends in a part of an update's chunk.
const ELEMENTS: usize = 2 * STATE_CHUNK_ELEMENTS + CHUNK_ELEMENTS + 77;

fn canonical(mode: SyncMode) -> Canonical {
    let vector = |salt: usize| (0..ELEMENTS).map(|i| ((i * 7 + salt) % 1009) as f32 * 1e-3 - 0.5).collect();
    let record = genesis().record;
    let digest = record.digest();
    let mut state = State::initial(vector(1), mode);
    state.moments[0] = vector(500);
    Canonical { record, digest, base: digest, schema: Digest([3; 32]), state }
}

/// The first step of a run in this mode.
fn rule(mode: SyncMode) -> Rule {
    let mut spec = spec();
    spec.sync.mode = mode;
    Rule::of(&spec, &genesis().record, 1)
}

fn delta() -> Vec<f32> {
    (0..ELEMENTS).map(|i| ((i * 31) % 2001) as f32 * 1e-5 - 1e-2).collect()
}

#[test]
fn the_speculated_state_equals_the_applied_and_the_specified_state() {
    let codecs = [Codec::Int8, Codec::Bf16, Codec::Int4, Codec::TopK { k: 64 }];
    for (mode, codec) in SyncMode::ALL.iter().flat_map(|mode| codecs.map(|codec| (*mode, codec))) {
        let update = update::encode(codec, &delta()).expect("finite");
        let step = OuterStep { codec, rule: rule(mode), range: 0..ELEMENTS };
        let mut canonical = canonical(mode);
        let before = canonical.manifest().expect("of a sound size");
        let speculated =
            canonical.speculate(&step, &update, Known { present: Some(&before), stepped: &[] }).expect("it applies");
        assert_eq!(canonical.manifest().expect("of a sound size"), before, "nothing has changed");
        let (mut specified, mut decoded) = (canonical.state.clone(), delta());
        update::decode(codec, &update, &mut decoded).expect("it decodes");
        assert!(step.rule.apply(&mut specified, &decoded));
        canonical.apply(&step, &update).expect("it was speculated on");
        assert_eq!(canonical.manifest().expect("of a sound size"), speculated, "{mode}, {codec}");
        assert_eq!(specified.manifest(canonical.schema).expect("of a sound size"), speculated, "{mode}, {codec}");
        assert_ne!(speculated, before);
    }
    assert!(rule(SyncMode::EveryStep).clips() && rule(SyncMode::EveryStep).scale(100.0) < 1.0, "the norm counts");
}

#[test]
fn a_fragment_steps_its_own_elements_and_what_stays_is_not_hashed_again() {
    let mut canonical = canonical(SyncMode::Rounds);
    let fragments = Fragments::new(3, ELEMENTS, CHUNK_ELEMENTS);
    for (codec, round) in [(Codec::Int8, 1), (Codec::TopK { k: 64 }, 2), (Codec::Bf16, 3)] {
        let range = fragments.of_round(round);
        let part = &delta()[range.clone()];
        let update = update::encode(codec, part).expect("finite");
        let step = OuterStep { codec, rule: rule(SyncMode::Rounds), range: range.clone() };
        let before = canonical.manifest().expect("of a sound size");
        let speculated = canonical.speculate(&step, &update, Known::default()).expect("it applies");
        assert_eq!(
            canonical.speculate(&step, &update, Known { present: Some(&before), stepped: &[] }).expect("it applies"),
            speculated
        );
        let (mut specified, mut decoded) = (canonical.state.clone(), part.to_vec());
        update::decode(codec, &update, &mut decoded).expect("it decodes");
        assert!(step.rule.apply_at(&mut specified, range.start, &decoded));
        let others = canonical.state.theta.clone();
        canonical.apply(&step, &update).expect("it was speculated on");
        assert_eq!(canonical.manifest().expect("of a sound size"), speculated, "{codec}");
        assert_eq!(specified.manifest(canonical.schema).expect("of a sound size"), speculated, "{codec}");
        assert_eq!(canonical.state.theta[..range.start], others[..range.start]);
        assert_eq!(canonical.state.theta[range.end..], others[range.end..]);
        assert_ne!(canonical.state.theta[range.clone()], others[range]);
    }
}

#[test]
fn updates_that_do_not_apply_are_refused() {
    for mode in SyncMode::ALL {
        let mut state = canonical(*mode);
        let good = update::encode(Codec::Int8, &delta()).expect("finite");
        let said = |state: &Canonical, update: &[u8]| {
            let (codec, rule, range) = (Codec::Int8, rule(*mode), 0..ELEMENTS);
            state.speculate(&OuterStep { codec, rule, range }, update, Known::default()).map(drop)
        };
        assert!(matches!(said(&state, &good[1..]), Err(StepError::Layout(_))));
        let mut bad = good.clone();
        // A scale that no encoder writes, in the second update chunk of the second state chunk.
        let chunk = UPDATE_CHUNKS + 1;
        bad[update::chunk_range(Codec::Int8, ELEMENTS, chunk)][..2].copy_from_slice(&[0xff, 0xff]);
        assert!(matches!(said(&state, &bad), Err(StepError::Chunk { chunk: found, .. }) if found == chunk));
        state.state.theta[3 * CHUNK_ELEMENTS] = f32::NAN;
        assert!(matches!(said(&state, &good), Err(StepError::NonFinite { chunk: 3 })));
    }
}

#[test]
fn a_state_of_another_mode_is_not_stepped() {
    let update = update::encode(Codec::Bf16, &delta()).expect("finite");
    let rule = rule(SyncMode::EveryStep);
    let step = OuterStep { codec: Codec::Bf16, rule, range: 0..ELEMENTS };
    assert!(matches!(
        canonical(SyncMode::Rounds).speculate(&step, &update, Known::default()),
        Err(StepError::NonFinite { .. })
    ));
}
