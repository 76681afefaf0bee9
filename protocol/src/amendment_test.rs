use super::*;
use crate::NodeId;
use crate::identity::{Ed25519Signer, Ed25519Verifier};
use crate::wire::sample::{digest, signer, spec};

fn longer() -> Changes {
    Changes { rounds: Some(4_000), lr: Some(1e-3), ..Changes::default() }
}

#[test]
fn the_terms_in_force_are_those_of_the_run_with_all_changes_the_later_over_the_earlier() {
    let (spec, run) = (spec(), digest(1));
    let first = Amendment::next(&Settings::default(), 0, longer());
    let settings = Settings::default().after(&first, &run);
    assert_eq!((settings.amendments, settings.newest), (1, first.name(&run)));
    let clip = Changes { lr: Some(2e-3), clip: Some(0.5), ..Changes::default() };
    let second = Amendment::next(&settings, 0, clip);
    let terms = settings.after(&second, &run).in_force(&spec);
    assert_eq!((terms.budget.rounds, terms.inner.lr, terms.inner.clip), (4_000, 2e-3, 0.5));
    let untouched = RunSpec { budget: spec.budget.clone(), inner: spec.inner.clone(), ..terms };
    assert_eq!(untouched, spec);
    assert_eq!(Settings::default().in_force(&spec), spec);
}

#[test]
fn an_amendment_stands_after_the_one_that_it_names_and_nowhere_else() {
    let (spec, run) = (spec(), digest(1));
    let first = Amendment::next(&Settings::default(), 0, longer());
    let settings = Settings::default().after(&first, &run);
    assert_eq!(first.check(&spec, &Settings::default()), Ok(()));
    assert_eq!(first.check(&spec, &settings), Err(NotAmended::NotNext { number: 1, next: 2 }), "it is past");
    let second = Amendment::next(&settings, 0, longer());
    assert_eq!(second.check(&spec, &settings), Ok(()));
    let other = Settings { newest: digest(9), ..settings };
    assert!(second.check(&spec, &other).is_err(), "another amendment is the first one there");
    let last = Settings { amendments: u32::MAX, ..settings };
    assert!(Amendment::next(&last, 0, longer()).check(&spec, &last).is_err());
}

#[test]
fn terms_that_a_run_may_not_have_are_refused() {
    let check = |changes| Amendment::next(&Settings::default(), 0, changes).check(&spec(), &Settings::default());
    assert_eq!(check(Changes::default()), Err(NotAmended::Empty));
    let bad = [
        Changes { lr: Some(0.0), ..longer() },
        Changes { lr: Some(f64::NAN), ..longer() },
        Changes { lr_final: Some(1.5), ..longer() },
        Changes { grace_ms: Some(1), ..longer() },
        Changes { share: Some(51), ..longer() },
    ];
    for changes in bad {
        let why = check(changes);
        assert!(matches!(&why, Err(NotAmended::Values(text)) if text.contains("must be")), "{why:?}");
    }
}

#[test]
fn only_the_creator_signs_and_a_run_without_one_takes_no_signature() {
    let (spec, run) = (spec(), digest(1));
    let plain = Amendment::next(&Settings::default(), 0, longer());
    let signed = plain.clone().sign(&signer(), &run);
    let holds = |amendment: &Amendment, spec: &RunSpec| amendment.is_authorised(&Ed25519Verifier, spec, &run);
    assert!(holds(&signed, &spec));
    assert!(!holds(&plain, &spec));
    assert!(!holds(&plain.clone().sign(&Ed25519Signer::from_secret(&[8; 32]), &run), &spec));
    assert!(!holds(&plain.clone().sign(&signer(), &digest(2)), &spec), "it is another run's");
    let twisted = Amendment { changes: Changes { rounds: Some(4_001), ..longer() }, ..signed.clone() };
    assert!(!holds(&twisted, &spec));
    let nobodys = RunSpec { creator: None::<NodeId>, ..spec };
    assert!(holds(&plain, &nobodys) && !holds(&signed, &nobodys));
}

#[test]
fn it_waits_for_the_round_before_its_first() {
    let amendment = Amendment { from: 9, ..Amendment::next(&Settings::default(), 0, longer()) };
    assert_eq!([6, 7, 8, 9].map(|round| amendment.is_due(round)), [false, false, true, true]);
    assert!(Amendment { from: 0, ..amendment }.is_due(1));
}

#[test]
fn bytes_are_canonical_and_within_the_limit() {
    let all = Changes {
        rounds: Some(1),
        tokens: Some(2),
        lr: Some(0.1),
        lr_final: Some(0.2),
        warmup_steps: Some(3),
        weight_decay: Some(0.3),
        clip: Some(1.0),
        minority: Some(Minority::Wait),
        grace_ms: Some(2_000),
        patience_ms: Some(4),
        share: Some(5),
    };
    let full = Amendment::next(&Settings::default(), 7, all).sign(&signer(), &digest(1));
    let bytes = encode_amendment(&full);
    assert!(bytes.len() <= AMENDMENT_BYTES_MAX);
    assert_eq!(decode_amendment(&bytes), Ok(full.clone()));
    assert!(decode_amendment(&[&bytes[..], &[0]].concat()).is_err());
    let minus = Amendment { changes: Changes { clip: Some(-0.0), ..all }, ..full.clone() };
    let empty = Amendment { changes: Changes::default(), ..full.clone() };
    for bad in [minus, empty, Amendment { number: 0, ..full }] {
        assert!(decode_amendment(&encode_amendment(&bad)).is_err(), "{bad:?}");
    }
    assert_eq!(all.entries().len(), 11);
    assert_eq!(longer().entries(), [("budget.rounds", "4000".to_owned()), ("inner.lr", "0.001".to_owned())]);
}
