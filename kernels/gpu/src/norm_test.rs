//! Tests of the norms against double precision.

use crate::norm::{Gain, Into, Slopes, Sums, backward, blocks, blocks_max, forward, gains};
use crate::trial::{Trial, close, noise};

const EPS: f32 = 1e-5;

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&v| f64::from(v)).collect()
}

/// Outputs and inverse norms.
fn reference(x: &[f32], gain: &[f32]) -> (Vec<f64>, Vec<f64>) {
    let (mut y, mut inverse) = (Vec::new(), Vec::new());
    for row in x.chunks(gain.len()) {
        let square: f64 = row.iter().map(|&v| f64::from(v).powi(2)).sum();
        let scale = 1.0 / (square / gain.len() as f64 + f64::from(EPS)).sqrt();
        inverse.push(scale);
        y.extend(row.iter().zip(gain).map(|(&v, &g)| f64::from(v) * scale * f64::from(g)));
    }
    (y, inverse)
}

/// Gradients of inputs and gain.
fn slopes(x: &[f32], gain: &[f32], dn: &[f32]) -> (Vec<f64>, Vec<f64>) {
    let (_, inverse) = reference(x, gain);
    let width = gain.len();
    let (mut dx, mut dgain) = (Vec::new(), vec![0.0; width]);
    for ((x, dn), scale) in x.chunks(width).zip(dn.chunks(width)).zip(inverse) {
        let terms = || x.iter().zip(dn).zip(gain).map(|((&x, &d), &g)| (f64::from(x), f64::from(d), f64::from(g)));
        let mean = terms().map(|(x, d, g)| x * d * g * scale).sum::<f64>() / width as f64;
        dx.extend(terms().map(|(x, d, g)| scale * (g * d - x * scale * mean)));
        dgain.iter_mut().zip(terms()).for_each(|(sum, (x, d, _))| *sum += x * d * scale);
    }
    (dx, dgain)
}

const SIZES: [[usize; 2]; 9] =
    [[1, 64], [17, 96], [100, 768], [33, 2], [5, 250], [7, 1023], [3, 4096], [2, 20_000], [9000, 64]];

#[test]
fn rows_are_normalised() {
    let trial = Trial::new();
    for size @ [rows, width] in SIZES {
        let (x, gain) = (noise(rows * width, 1), noise(width, 2));
        let (y, inverse, copy) = (trial.empty(rows * width), trial.empty(rows), trial.empty(rows * width));
        let gain_arg = trial.floats(&gain);
        let norm = Gain { gain: &gain_arg, eps: EPS };
        let (want, scales) = reference(&x, &gain);
        forward::<_, f32>(&trial.client, &trial.floats(&x), norm, [&copy, &y, &inverse], size, &trial.tally);
        assert_eq!(trial.read(&copy), x);
        close("y", &trial.read(&y), &want, 2e-6);
        close("inverse", &trial.read(&inverse), &scales, 1e-6);
    }
    assert_eq!(trial.ran() as usize, SIZES.len());
}

#[test]
fn gradients_of_inputs_are_right() {
    let trial = Trial::new();
    for size @ [rows, width] in SIZES {
        let (x, gain, dn) = (noise(rows * width, 1), noise(width, 2), noise(rows * width, 4));
        let (_, inverse) = reference(&x, &gain);
        let inverse: Vec<f32> = inverse.iter().map(|&s| s as f32).collect();
        let before = noise(rows * width, 5);
        let count = blocks::<_, f32>(&trial.client, size);
        assert!(count <= blocks_max(rows));
        let sums = trial.empty(count * width);
        let all = Sums { sums: &sums, norms: 1 };
        let (want, _) = slopes(&x, &gain, &dn);
        let both: Vec<f64> = want.iter().zip(wide(&before)).map(|(a, b)| a + b).collect();
        let args = [&x, &gain, &inverse, &dn].map(|values| trial.floats(values));
        for (into, want) in [(Into::Add, &both), (Into::Replace, &want)] {
            let (dx, copy) = (trial.floats(&before), trial.empty(rows * width));
            let slopes = Slopes { dx: &dx, copy: Some(&copy), into };
            backward::<_, f32>(&trial.client, args.each_ref(), slopes, (all, 0), size, &trial.tally);
            close("dx", &trial.read(&dx), want, 3e-6);
            assert_eq!(trial.read(&copy), trial.read(&dx));
        }
    }
    assert_eq!(trial.ran() as usize, 2 * SIZES.len());
}

#[test]
fn gradients_of_gains_are_added_at_their_places() {
    let trial = Trial::new();
    for size @ [rows, width] in SIZES {
        let norms = 3;
        let count = blocks::<_, f32>(&trial.client, size);
        let sums_arg = trial.empty(norms * count * width);
        let sums = Sums { sums: &sums_arg, norms };
        let places = [2 * width + 5, 0, width + 1];
        let before = noise(3 * width + 8, 6);
        let gradient = trial.floats(&before);
        let mut want = wide(&before);
        for (norm, place) in places.iter().enumerate() {
            let seed = 10 * norm as u64;
            let (x, gain, dn) = (noise(rows * width, seed), noise(width, seed + 1), noise(rows * width, seed + 2));
            let (_, dgain) = slopes(&x, &gain, &dn);
            want[*place..place + width].iter_mut().zip(dgain).for_each(|(w, d)| *w += d);
            let inverse: Vec<f32> = reference(&x, &gain).1.iter().map(|&s| s as f32).collect();
            let args = [&x, &gain, &inverse, &dn].map(|values| trial.floats(values));
            let dx = trial.empty(rows * width);
            let target = Slopes { dx: &dx, copy: None, into: Into::Replace };
            backward::<_, f32>(&trial.client, args.each_ref(), target, (sums, norm), size, &trial.tally);
        }
        let offsets = trial.words(&places.map(|place| place as u32));
        gains::<_, f32>(&trial.client, sums, &offsets, (&gradient, before.len()), size, &trial.tally);
        close("gains", &trial.read(&gradient), &want, 3e-6);
    }
    assert_eq!(trial.ran() as usize, 4 * SIZES.len());
}
