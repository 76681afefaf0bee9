use super::super::arguments::Arguments;
use super::super::rounds::Round;
use super::super::schedule::Schedule;
use super::*;
use clap::Parser;

const SMALL: &str = "bench-loss --seq 16 --batch 2 --members 2 --steps 3 --rounds 4 --points 2 --threads 1";

fn arguments() -> Arguments {
    Arguments::parse_from(SMALL.split(' '))
}

fn text() -> Text {
    let lines = (0..4000).map(|n| format!("let x{} = f({}) + {};\n", n % 7, n * 31 % 97, n % 10));
    Text::new(lines.collect::<String>().into_bytes(), 16).unwrap()
}

fn setting(case: &str) -> Setting {
    Setting::of(&arguments(), case.parse().unwrap(), None).unwrap()
}

/// The outcome without the time that it took.
fn played(setting: &Setting, seed: u64) -> Outcome {
    Outcome { seconds: 0.0, ..play(setting, &DeviceChoice::Cpu, &text(), seed).unwrap() }
}

fn loss(case: &str) -> f64 {
    played(&setting(case), 1).loss.unwrap_or_else(|| panic!("{case} diverged"))
}

#[test]
fn a_run_is_the_same_whenever_it_is_played() {
    for case in ["int4:owners", "bf16:ring:every-step", "bf16:ring:inner=muon", "bf16:ring:steps=6:gossip=2"] {
        let setting = setting(case);
        let first = played(&setting, 1);
        assert_eq!(first, played(&setting, 1), "{case}");
        assert_ne!(first.loss, played(&setting, 2).loss, "{case}: another seed");
        assert_eq!(first.curve.len(), 3, "{case}: {:?}", first.curve);
        assert_eq!(first.curve[2].0, setting.tokens() as f64);
    }
}

#[test]
fn one_rounding_sends_a_run_another_way() {
    let (plain, null) = (loss("bf16:ring"), loss("bf16:ring:null"));
    assert!(plain != null && (plain / null - 1.0).abs() < 0.05, "{plain}, {null}");
    assert!(loss("bf16:ring:null=2") != null);
}

#[test]
fn every_way_to_train_learns() {
    for case in [
        "int8:ring",
        "top-1024:owners",
        "int8:owners:grow=1..4",
        "int8:owners:grow=1..4:corrected=3",
        "bf16:ring:members=1:batch=4",
        "bf16:ring:fragments=2:overlap=1:mixing=0.5",
        "bf16:ring:inner=sgd:lr=0.1",
        "bf16:ring:inner=rmsprop:lr=1e-3",
        "bf16:ring:inner=lion:lr=1e-3",
        "bf16:ring:every-step:inner=muon",
    ] {
        let outcome = played(&setting(case), 1);
        let loss = outcome.loss.unwrap_or_else(|| panic!("{case} diverged"));
        assert!(loss < outcome.curve[0].1 - 0.01, "{case}: {loss}, {:?}", outcome.curve);
    }
}

#[test]
fn moments_are_shared_after_so_many_rounds() {
    // Four rounds of two members: the moments that the fourth leaves behind are nobody's.
    let (own, never, thirds) = (loss("bf16:ring"), loss("bf16:ring:moments=4"), loss("bf16:ring:moments=3"));
    assert_eq!(own, never);
    assert!(own != thirds && (own / thirds - 1.0).abs() < 0.05, "{own}, {thirds}");
    // The mean of one member's is its own.
    assert_eq!(loss("bf16:ring:members=1"), loss("bf16:ring:members=1:moments=1"));
}

#[test]
fn one_machine_and_every_step_go_the_same_way() {
    let (one, two) = (loss("bf16:ring:every-step:members=1:batch=4"), loss("bf16:ring:every-step"));
    assert!((one / two - 1.0).abs() < 0.01, "{one}, {two}: both take the same steps but for the codec");
}

#[test]
fn a_run_that_diverges_is_an_outcome() {
    let outcome = played(&setting("bf16:ring:lr=1e300"), 1);
    assert_eq!(outcome.loss, None);
    assert!(outcome.curve.iter().all(|point| point.1.is_finite()) && !outcome.curve.is_empty());
}

#[test]
fn a_schedule_is_played_with_its_absences_and_its_time() {
    let round = |steps, who: &[usize], seconds| Round { steps, who: who.to_vec(), seconds: Some(seconds) };
    let rounds = vec![round(2, &[0], 1.0), round(3, &[0, 1, 2], 2.5), round(3, &[1, 2], 4.0)];
    let schedule = Schedule { rounds, members: 3, digest: "abc".to_owned() };
    let setting = Setting::of(&arguments(), "int4:owners".parse().unwrap(), Some(&schedule)).unwrap();
    let outcome = played(&setting, 1);
    let sequences = (2 + 3 * 3 + 3 * 2) * 2;
    assert_eq!(outcome.curve.last().map(|point| point.0), Some(f64::from(sequences * 16)));
    assert_eq!(outcome.lab_seconds.first(), Some(&0.0));
    assert_eq!(outcome.lab_seconds.last(), Some(&4.0));
    assert_eq!(outcome.lab_seconds.len(), outcome.curve.len());
    assert!(outcome.loss.is_some_and(|loss| loss < 5.6));
}

#[test]
fn a_null_beyond_the_first_layers_gains_is_refused() {
    let refused = play(&setting("bf16:ring:null=65"), &DeviceChoice::Cpu, &text(), 1).unwrap_err();
    assert_eq!(refused.to_string(), "null=65: the first layer has 64 gains");
}
