use super::*;
use crate::outer::Rule;
use crate::run::{Budget, SyncMode};
use crate::state::{State, root};
use crate::wire::sample::{digest, record, spec};

fn run(clip: f64) -> RunSpec {
    let mut spec = spec();
    spec.sync.mode = SyncMode::EveryStep;
    spec.inner.steps = 1;
    (spec.inner.clip, spec.inner.warmup_steps, spec.inner.weight_decay) = (clip, 0, 0.1);
    spec.budget = Budget { rounds: 100, tokens: 0 };
    spec
}

fn after(round: u64) -> Record {
    Record { round, tokens: round * 1_000, ..record() }
}

fn gradient(elements: usize, step: u64) -> Vec<f32> {
    (0..elements as u64).map(|i| ((i * 7919 + step * 104_729) % 2003) as f32 * 1e-4 - 0.1).collect()
}

fn trained(spec: &RunSpec, steps: u64) -> State {
    let elements = spec.model.parameters() as usize;
    let theta = (0..elements).map(|i| (i % 1009) as f32 * 1e-3 - 0.5).collect();
    let mut state = State::initial(theta, SyncMode::EveryStep);
    for step in 0..steps {
        assert!(Rule::of(spec, &after(step), 3).apply(&mut state, &gradient(elements, step)));
    }
    state
}

#[test]
fn golden_state_after_ten_steps() {
    for (clip, golden) in [(1.0, GOLDEN_CLIPPED), (0.0, GOLDEN_WHOLE)] {
        let state = trained(&run(clip), 10);
        assert_eq!(root(&state.manifest(digest(3)).unwrap()).to_string(), golden, "clip {clip}");
    }
}

const GOLDEN_CLIPPED: &str = "f1817fec84b4e00bf1fb86ffee6720129bb12f128bab7ccf7a9ed147b673e098";
const GOLDEN_WHOLE: &str = "63d76dad488b9695b103cf1fa9d7a83a3472e63864545a625d518f2185e17c0f";

#[test]
fn it_follows_the_textbook_in_f64() {
    let spec = run(1.0);
    let (elements, inner) = (spec.model.parameters() as usize, &spec.inner);
    let start = trained(&spec, 0);
    let mut theta: Vec<f64> = start.theta.iter().map(|x| f64::from(*x)).collect();
    let (mut m, mut v) = (vec![0f64; elements], vec![0f64; elements]);
    let gains: Vec<bool> =
        Gains::of(&spec.model).cut(0..elements as u64).flat_map(|(r, gain)| r.map(move |_| gain)).collect();
    assert!(gains.iter().any(|gain| *gain) && gains.iter().any(|gain| !gain));
    for step in 0..10u64 {
        let g = gradient(elements, step);
        let norm = g.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        assert!(norm > 2.0, "it is clipped");
        let share = step as f64 / 100.0;
        let cosine = 0.5 * (1.0 + (std::f64::consts::PI * share).cos());
        let lr = inner.lr * (inner.lr_final + (1.0 - inner.lr_final) * cosine);
        let t = step as i32 + 1;
        for i in 0..elements {
            let g = f64::from(g[i]) / norm;
            m[i] = inner.beta1 * m[i] + (1.0 - inner.beta1) * g;
            v[i] = inner.beta2 * v[i] + (1.0 - inner.beta2) * g * g;
            let (mean, square) = (m[i] / (1.0 - inner.beta1.powi(t)), v[i] / (1.0 - inner.beta2.powi(t)));
            let decay = if gains[i] { 0.0 } else { inner.weight_decay };
            theta[i] -= lr * (mean / (square.sqrt() + inner.eps) + decay * theta[i]);
        }
    }
    let state = trained(&spec, 10);
    let furthest = |a: &[f32], b: &[f64]| a.iter().zip(b).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max);
    let moved = start.theta.iter().zip(&state.theta).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(moved > 5e-3, "{moved}");
    assert!(furthest(&state.theta, &theta) < 2e-6, "{}", furthest(&state.theta, &theta));
    assert!(furthest(&state.moments[0], &m) < 1e-8 && furthest(&state.moments[1], &v) < 1e-10);
}

#[test]
fn pieces_agree_with_the_whole() {
    let spec = run(1.0);
    let elements = spec.model.parameters() as usize;
    let (mut whole, d) = (trained(&spec, 2), gradient(elements, 2));
    let mut parts = whole.clone();
    let rule = Rule::of(&spec, &after(2), 3);
    assert!(rule.apply(&mut whole, &d));
    let chunks: Vec<f64> = d.chunks(CHUNK_ELEMENTS).map(squares).collect();
    assert!(chunks.len() > 2, "more than one chunk");
    let scale = rule.scale(chunks.iter().sum());
    assert!(rule.clips() && scale < 0.5);
    for range in [elements / 2..elements, 0..1, 1..33, 33..elements / 2] {
        let [m, v] = &mut parts.moments[..] else { panic!("two moments") };
        let moments = &mut [&mut m[range.clone()], &mut v[range.clone()]];
        assert!(rule.step(scale, range.start, &mut parts.theta[range.clone()], moments, &d[range.clone()]));
    }
    assert_eq!(whole, parts);
}

#[test]
fn an_update_that_overflows_or_lacks_a_moment_is_reported() {
    let spec = run(0.0);
    let elements = spec.model.parameters() as usize;
    let rule = Rule::of(&spec, &after(0), 1);
    let mut d = gradient(elements, 0);
    d[elements - 1] = f32::MAX;
    assert!(!rule.apply(&mut trained(&spec, 0), &d), "the second moment overflows");
    let mut rounds = State::initial(vec![0.0; elements], SyncMode::Rounds);
    assert!(!rule.apply(&mut rounds, &gradient(elements, 0)), "one moment is missing");
}

#[test]
fn powers_are_those_of_the_exponent() {
    assert_eq!([power(0.5, 0), power(0.5, 1), power(0.5, 10), power(0.0, 1)], [1.0, 0.5, 1.0 / 1024.0, 0.0]);
    for exponent in [3u64, 17, 1000, 123_456] {
        let expected = 0.999f64.powi(exponent as i32);
        assert!((power(0.999, exponent) / expected - 1.0).abs() < 1e-10, "{exponent}");
    }
    assert_eq!(power(0.999, u64::MAX), 0.0);
    assert_eq!(power(0.95, 7).to_bits(), POWER);
}

const POWER: u64 = 0x3fe658c775099758;

#[test]
fn squares_are_added_eight_by_eight() {
    let chunk: Vec<f32> = (0..100).map(|i| i as f32 * 0.1 + 0.01).collect();
    let lane = |n: usize| chunk.iter().skip(n).step_by(8).fold(0f64, |sum, x| sum + f64::from(*x) * f64::from(*x));
    assert_eq!(squares(&chunk), (0..8).map(lane).fold(0.0, |a, b| a + b));
    assert_eq!(squares(&[]), 0.0);
}
