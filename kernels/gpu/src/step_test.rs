//! Tests of the optimizer against double precision.

use crate::adamw::{APPLIED, REPORT, STEP, Update, Vectors, step};
use crate::trial::{Trial, close, noise};
use proptest::prelude::*;

const UPDATE: Update =
    Update { lr: 0.01, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1, clip: 1.0, step: 1, decayed: 0 };

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
    update: Update,
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
    };
    step::<_, f32>(&trial.client, vectors, update, &report, &trial.tally);
    assert_eq!(trial.ran(), 1);
    let after = State([&master, &m, &v].map(|handle| trial.read(handle)));
    (after, trial.read(&copy), trial.read(&report))
}

fn reference(state: &State, gradient: &[f32], update: Update, norm: f64) -> [Vec<f64>; 3] {
    let scale = if update.clip > 0.0 && norm > update.clip { update.clip / norm } else { 1.0 };
    let exponent = i32::try_from(update.step).unwrap();
    let mut out = [Vec::new(), Vec::new(), Vec::new()];
    for (i, &g) in gradient.iter().enumerate() {
        let [theta, m, v] = state.0.each_ref().map(|values| f64::from(values[i]));
        let g = f64::from(g) * scale;
        let m = update.beta1 * m + (1.0 - update.beta1) * g;
        let v = update.beta2 * v + (1.0 - update.beta2) * g * g;
        let decay = if i < update.decayed { update.weight_decay } else { 0.0 };
        let below = (v / (1.0 - update.beta2.powi(exponent))).sqrt() + update.eps;
        let theta = theta * (1.0 - update.lr * decay) - update.lr * (m / (1.0 - update.beta1.powi(exponent))) / below;
        out.iter_mut().zip([theta, m, v]).for_each(|(out, x)| out.push(x));
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn steps_follow_the_formula(len in 1usize..3000, number in 1u64..500, clip in 0..3, seed in 0u64..1 << 60) {
        let (state, gradient) = (start(len, seed), noise(len, seed + 3));
        let norm = gradient.iter().map(|&g| f64::from(g).powi(2)).sum::<f64>().sqrt();
        let clip = [0.0, 0.5 * norm, 2.0 * norm][clip as usize];
        let update = Update { clip, step: number, decayed: len / 8 * 4, ..UPDATE };
        let (after, copy, report) = run(&state, &gradient, update, [2.0, norm as f32], true);
        let want = reference(&state, &gradient, update, norm);
        for (name, (got, want)) in ["parameters", "m", "v"].iter().zip(after.0.iter().zip(&want)) {
            close(name, got, want, 2e-6);
        }
        prop_assert_eq!(&copy, &after.0[0]);
        prop_assert_eq!(report, vec![2.0, norm as f32, 1.0, number as f32, 42.0]);
    }
}

#[test]
fn a_step_without_a_sound_loss_or_norm_changes_nothing() {
    let (state, gradient) = (start(100, 1), noise(100, 4));
    for report in [[f32::NAN, 1.0], [1.0, f32::NAN], [f32::INFINITY, 1.0], [1.0, f32::INFINITY]] {
        let (after, copy, told) = run(&state, &gradient, UPDATE, report, true);
        assert_eq!(after.0, state.0);
        assert!(copy.iter().all(|c| c.is_nan()));
        assert_eq!((told[APPLIED], told[STEP], told[REPORT]), (0.0, 1.0, 42.0));
    }
}

#[test]
fn a_copy_is_optional() {
    let (state, gradient) = (start(128, 9), noise(128, 5));
    let (with, ..) = run(&state, &gradient, UPDATE, [1.0, 3.0], true);
    let (without, copy, _) = run(&state, &gradient, UPDATE, [1.0, 3.0], false);
    assert_eq!(with.0, without.0);
    assert!(copy.iter().all(|c| c.is_nan()));
}

#[test]
fn decay_ends_at_its_index() {
    let (state, gradient) = (start(256, 3), vec![0.0; 256]);
    let state = State([state.0[0].clone(), vec![0.0; 256], vec![0.0; 256]]);
    let (after, ..) = run(&state, &gradient, Update { decayed: 128, ..UPDATE }, [1.0, 0.0], false);
    for (i, (before, after)) in state.0[0].iter().zip(&after.0[0]).enumerate() {
        let want = if i < 128 { before * 0.999 } else { *before };
        assert!((after - want).abs() <= 1e-6 * before.abs(), "{i}: {after}, not {want}");
    }
}
