//! The operations with activations of 16 bits. Adapters have f16 rather than bf16, so this stands for both.

use crate::optimizer::Update;
use crate::trial::{Trial, close, noise};
use crate::{cross_entropy, embed, norm, optimizer, rope, swiglu};
use cubecl::prelude::*;
use cubecl::server::Handle;
use half::f16;

type A = f16;

/// A device with arithmetic of 16 bits, if there is one.
fn device() -> Option<Trial> {
    let trial = Trial::new();
    let has = !A::supported_uses(&trial.client).is_empty();
    if !has {
        eprintln!("SKIPPED: the adapter has no f16");
    }
    has.then_some(trial)
}

fn narrow(trial: &Trial, values: &[f64]) -> Handle {
    let values: Vec<f16> = values.iter().map(|&v| f16::from_f64(v)).collect();
    trial.client.create_from_slice(bytemuck::cast_slice(&values.iter().map(|v| v.to_bits()).collect::<Vec<u16>>()))
}

fn widen(trial: &Trial, handle: &Handle) -> Vec<f32> {
    let bytes = trial.client.read_one(handle.clone()).unwrap();
    bytes.as_chunks::<2>().0.iter().map(|b| f16::from_ne_bytes(*b).to_f32()).collect()
}

/// Noise that 16 bits hold exactly.
fn exact(len: usize, seed: u64) -> Vec<f64> {
    noise(len, seed).iter().map(|&x| f64::from((x * 256.0).round()) / 256.0).collect()
}

fn empty(trial: &Trial, len: usize) -> Handle {
    narrow(trial, &vec![f64::NAN; len])
}

#[test]
fn norms_take_short_floats_and_parts_of_buffers() {
    let Some(trial) = device() else { return };
    for size @ [rows, width] in [[17, 768], [9, 96], [300, 64]] {
        let (x, dn) = (exact(rows * width, 1), exact(rows * width, 2));
        // The gain is a part of the parameters.
        let all = noise(128 + width, 3);
        let parameters = trial.floats(&all);
        let part = parameters.clone().offset_start(512);
        let gain: Vec<f64> = all[128..].iter().map(|&g| f64::from(g)).collect();
        let (y, inverse) = (empty(&trial, rows * width), trial.empty(rows));
        let (x_arg, copy) =
            (trial.floats(&x.iter().map(|&x| x as f32).collect::<Vec<_>>()), empty(&trial, rows * width));
        let with = norm::Gain { gain: &part, eps: 1e-5 };
        norm::forward::<_, A>(&trial.client, &x_arg, with, [&copy, &y, &inverse], size, &trial.tally);
        let (mut want, mut slopes) = (Vec::new(), Vec::new());
        for (x, dn) in x.chunks(width).zip(dn.chunks(width)) {
            let scale = 1.0 / (x.iter().map(|v| v * v).sum::<f64>() / width as f64 + 1e-5).sqrt();
            want.extend(x.iter().zip(&gain).map(|(x, g)| x * scale * g));
            let mean = (0..width).map(|i| gain[i] * dn[i] * x[i] * scale).sum::<f64>() / width as f64;
            slopes.extend((0..width).map(|i| scale * (gain[i] * dn[i] - x[i] * scale * mean)));
        }
        close("y", &widen(&trial, &y), &want, 1e-3);
        close("copy", &widen(&trial, &copy), &x, 0.0);
        let (dx, rounded) = (trial.empty(rows * width), empty(&trial, rows * width));
        let slopes_of = norm::Slopes { dx: &dx, copy: Some(&rounded), into: norm::Into::Replace };
        let sums = trial.empty(norm::blocks_max(rows) * width);
        let sums = (norm::Sums { sums: &sums, norms: 1 }, 0);
        let inputs = [&copy, &part, &inverse, &narrow(&trial, &dn)];
        norm::backward::<_, A>(&trial.client, inputs, slopes_of, sums, size, &trial.tally);
        close("dx", &trial.read(&dx), &slopes, 1e-3);
        close("rounded", &widen(&trial, &rounded), &slopes, 2e-3);
    }
    assert_eq!(trial.ran(), 6);
}

#[test]
fn pointwise_operations_take_short_floats() {
    let Some(trial) = device() else { return };
    let [rows, ffn] = [13, 96];
    let (gate_up, act) = (exact(2 * rows * ffn, 1), empty(&trial, rows * ffn));
    swiglu::forward::<_, A>(&trial.client, &narrow(&trial, &gate_up), &act, [rows, ffn], &trial.tally);
    let want = gate_up.chunks(2 * ffn).flat_map(|row| {
        let (gate, up) = row.split_at(ffn);
        gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect::<Vec<_>>()
    });
    close("act", &widen(&trial, &act), &want.collect::<Vec<_>>(), 1e-3);

    let values = exact(4 * 3 * 64, 2);
    let qkv = narrow(&trial, &values);
    let (cos, sin) = (trial.floats(&[0.0; 4 * 32]), trial.floats(&[1.0; 4 * 32]));
    let tables = rope::Tables { cos, sin, positions: 4 };
    let heads = rope::Heads { heads: 1, kv_heads: 1, dim: 64 };
    rope::rotate::<_, A>(&trial.client, &qkv, &tables, heads, [4, 4], rope::Turn::Forward, &trial.tally);
    let want = values.chunks(64).enumerate().flat_map(|(head, x)| {
        let turned = (0..64).map(|i| if i < 32 { -x[i + 32] } else { x[i - 32] });
        if head % 3 < 2 { turned.collect() } else { x.to_vec() }
    });
    close("qkv", &widen(&trial, &qkv), &want.collect::<Vec<_>>(), 1e-6);
    assert_eq!(trial.ran(), 2);
}

#[test]
fn tables_losses_and_copies_take_short_floats() {
    let Some(trial) = device() else { return };
    let size @ [rows, vocab, width] = [200, 3, 64];
    let tokens: Vec<u32> = (0..rows as u32).map(|i| i % 5 % 3).collect();
    let dx = exact(rows * width, 1);
    let segments = embed::Segments::of(&tokens, vocab).unwrap();
    let (plan, gradient) = (trial.words(segments.words()), trial.floats(&vec![0.0; vocab * width]));
    let scratch = trial.empty(embed::scratch_bytes(rows, width) / 4);
    let dx_arg = trial.floats(&dx.iter().map(|&d| d as f32).collect::<Vec<_>>());
    embed::backward(&trial.client, &dx_arg, (&segments, &plan), &gradient, &scratch, size, &trial.tally);
    let mut want = vec![0.0; vocab * width];
    for (row, &token) in dx.chunks(width).zip(&tokens) {
        want[token as usize * width..][..width].iter_mut().zip(row).for_each(|(w, d)| *w += d);
    }
    close("gradient", &trial.read(&gradient), &want, 1e-6);

    let (logits, losses) = (noise(5 * 256, 2), trial.empty(5));
    let slopes = empty(&trial, 5 * 256);
    let part = cross_entropy::Rows { first: 0, rows: 5, vocab: 256 };
    let targets = trial.words(&[0, 5, 255, 7, 9]);
    let target = Some((&slopes, 1.0));
    cross_entropy::rows::<_, A>(&trial.client, &trial.floats(&logits), &targets, &losses, part, target, &trial.tally);
    for (row, slopes) in logits.chunks(256).zip(widen(&trial, &slopes).chunks(256)) {
        let sum: f64 = row.iter().map(|&x| f64::from(x).exp()).sum();
        assert!(slopes.iter().sum::<f32>().abs() < 2e-3, "the slopes of a row cancel");
        let off = (0..256).filter(|i| (f64::from(row[*i]).exp() / sum - f64::from(slopes[*i])).abs() > 1e-3).count();
        assert_eq!(off, 1, "only the target's slope differs from its probability");
    }

    let [master, m, v] =
        [1, 2, 3].map(|seed| trial.floats(&noise(256, seed).iter().map(|x| x.abs()).collect::<Vec<_>>()));
    let gradient = trial.floats(&noise(256, 4));
    for rule in optimizer::Rule::ALONE {
        let (copy, report) = (empty(&trial, 256), trial.floats(&[1.0; 4]));
        let (gradient, copied) = (&gradient, Some(&copy));
        let vectors =
            optimizer::Vectors { master: &master, m: &m, v: &v, gradient, copy: copied, len: 256, decayed: 0 };
        let (lr, beta1, beta2, eps, weight_decay, clip) = (0.1, 0.9, 0.95, 1e-8, 0.0, 0.0);
        let update = Update { rule, lr, beta1, beta2, eps, weight_decay, clip, step: 5 };
        optimizer::step::<_, A>(&trial.client, vectors, &update, &report, &trial.tally);
        let want: Vec<f64> = trial.read(&master).iter().map(|&x| f64::from(x)).collect();
        close("copy", &widen(&trial, &copy), &want, 1e-3);
    }
    assert_eq!(trial.ran(), 7);
}
