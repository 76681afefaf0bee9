//! Tests of the optimizers against double precision.

use crate::optimizer::Update;
use crate::optimizer::{APPLIED, REPORT, Rule, STEP, Vectors, step};
use crate::trial::{Trial, close, noise};
use proptest::prelude::*;

const UPDATE: Update =
    Update { rule: Rule::AdamW, lr: 0.01, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1, clip: 1.0, step: 1 };

/// Parameters and moments.
#[derive(Clone)]
struct State([Vec<f32>; 3]);

fn start(len: usize, seed: u64) -> State {
    let v = noise(len, seed + 2).iter().map(|x| x * x * 0.01).collect();
    State([noise(len, seed), noise(len, seed + 1).iter().map(|x| 0.1 * x).collect(), v])
}

/// The state, the copy and the report after a step.
fn run(
    state: &State,
    gradient: &[f32],
    (update, decayed): (Update, usize),
    [loss, norm]: [f32; 2],
    copies: bool,
) -> (State, Vec<f32>, Vec<f32>) {
    let trial = Trial::new();
    let [master, m, v] = state.0.each_ref().map(|values| trial.floats(values));
    let (gradient, copy) = (trial.floats(gradient), trial.empty(state.0[0].len()));
    let report = trial.floats(&[loss, norm, f32::NAN, f32::NAN, 42.0]);
    let vectors = Vectors {
        master: &master,
        m: &m,
        v: &v,
        gradient: &gradient,
        copy: copies.then_some(&copy),
        len: state.0[0].len(),
        decayed,
    };
    step::<_, f32>(&trial.client, vectors, &update, &report, &trial.tally);
    assert_eq!(trial.ran(), 1);
    let after = State([&master, &m, &v].map(|handle| trial.read(handle)));
    (after, trial.read(&copy), trial.read(&report))
}

/// The length that a rule takes from a parameter of gradient `g`; it changes its moments.
fn way(update: &Update, [m, v]: [&mut f64; 2], g: f64) -> f64 {
    let Update { lr, beta1, beta2, eps, .. } = *update;
    let exponent = i32::try_from(update.step).unwrap();
    match update.rule {
        Rule::AdamW | Rule::Muon => {
            *m = beta1 * *m + (1.0 - beta1) * g;
            *v = beta2 * *v + (1.0 - beta2) * g * g;
            lr * (*m / (1.0 - beta1.powi(exponent))) / ((*v / (1.0 - beta2.powi(exponent))).sqrt() + eps)
        }
        Rule::Sgd => {
            *m = beta1 * *m + g;
            lr * *m
        }
        Rule::RmsProp => {
            *v = beta2 * *v + (1.0 - beta2) * g * g;
            lr * g / (v.sqrt() + eps)
        }
        Rule::Lion => {
            let ahead = beta1 * *m + (1.0 - beta1) * g;
            *m = beta2 * *m + (1.0 - beta2) * g;
            // Rounding may give either sign to numbers near zero: the tests have none of them, but zero itself.
            if ahead == 0.0 { 0.0 } else { lr * ahead.signum() }
        }
    }
}

fn reference(state: &State, gradient: &[f32], (update, decayed): (Update, usize), norm: f64) -> [Vec<f64>; 3] {
    let scale = if update.clip > 0.0 && norm > update.clip { update.clip / norm } else { 1.0 };
    let mut out = [Vec::new(), Vec::new(), Vec::new()];
    for (i, &g) in gradient.iter().enumerate() {
        let [theta, mut m, mut v] = state.0.each_ref().map(|values| f64::from(values[i]));
        let moved = way(&update, [&mut m, &mut v], f64::from(g) * scale);
        let decay = if i < decayed { update.weight_decay } else { 0.0 };
        let theta = theta * (1.0 - update.lr * decay) - moved;
        out.iter_mut().zip([theta, m, v]).for_each(|(out, x)| out.push(x));
    }
    out
}

/// Takes the first moment away from where Lion's sign would be a matter of rounding.
fn decide(state: &mut State, gradient: &[f32], update: &Update, scale: f64) {
    for (m, &g) in state.0[1].iter_mut().zip(gradient) {
        let ahead = update.beta1 * f64::from(*m) + (1.0 - update.beta1) * f64::from(g) * scale;
        if ahead.abs() < 1e-6 {
            *m += 1e-3;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn steps_follow_the_formula(len in 1usize..3000, number in 1u64..500, clip in 0..3, seed in 0u64..1 << 60) {
        let gradient = noise(len, seed + 3);
        let norm = gradient.iter().map(|&g| f64::from(g).powi(2)).sum::<f64>().sqrt();
        let clip = [0.0, 0.5 * norm, 2.0 * norm][clip as usize];
        for rule in Rule::ALONE {
            let (update, decayed) = (Update { rule, clip, step: number, ..UPDATE }, len / 8 * 4);
            let mut state = start(len, seed);
            decide(&mut state, &gradient, &update, if clip > 0.0 && norm > clip { 0.5 } else { 1.0 });
            let (after, copy, report) = run(&state, &gradient, (update, decayed), [2.0, norm as f32], true);
            let want = reference(&state, &gradient, (update, decayed), norm);
            for (name, (got, want)) in ["parameters", "m", "v"].iter().zip(after.0.iter().zip(&want)) {
                close(&format!("{rule:?}'s {name}"), got, want, 2e-6);
            }
            prop_assert_eq!(&copy, &after.0[0]);
            prop_assert_eq!(report, vec![2.0, norm as f32, 1.0, number as f32, 42.0]);
        }
    }
}

#[test]
fn a_step_without_a_sound_loss_or_norm_changes_nothing() {
    let (state, gradient) = (start(100, 1), noise(100, 4));
    let reports = [[f32::NAN, 1.0], [1.0, f32::NAN], [f32::INFINITY, 1.0], [1.0, f32::INFINITY]];
    for (rule, report) in Rule::ALONE.into_iter().flat_map(|rule| reports.map(|report| (rule, report))) {
        let update = (Update { rule, ..UPDATE }, 0);
        let (after, copy, told) = run(&state, &gradient, update, report, true);
        assert_eq!(after.0, state.0);
        assert!(copy.iter().all(|c| c.is_nan()));
        assert_eq!((told[APPLIED], told[STEP], told[REPORT]), (0.0, 1.0, 42.0));
    }
}

#[test]
fn a_copy_is_optional() {
    let (state, gradient) = (start(128, 9), noise(128, 5));
    let (with, ..) = run(&state, &gradient, (UPDATE, 0), [1.0, 3.0], true);
    let (without, copy, _) = run(&state, &gradient, (UPDATE, 0), [1.0, 3.0], false);
    assert_eq!(with.0, without.0);
    assert!(copy.iter().all(|c| c.is_nan()));
}

#[test]
fn decay_ends_at_its_index() {
    let (state, gradient) = (start(256, 3), vec![0.0; 256]);
    let state = State([state.0[0].clone(), vec![0.0; 256], vec![0.0; 256]]);
    for rule in Rule::ALONE {
        let (after, ..) = run(&state, &gradient, (Update { rule, ..UPDATE }, 128), [1.0, 0.0], false);
        for (i, (before, after)) in state.0[0].iter().zip(&after.0[0]).enumerate() {
            let want = if i < 128 { before * 0.999 } else { *before };
            assert!((after - want).abs() <= 1e-6 * before.abs(), "{rule:?}, {i}: {after}, not {want}");
        }
    }
}
