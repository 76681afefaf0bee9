//! Compiles every kernel for CUDA, in bf16. Needs NVRTC and a driver, which may be a stub; results are not looked at.

use crate::optimizer::{Rule, Update};
use crate::{Batch, Device, Layout, Moment, Opened, Sizes, Ways};
use crate::{cross_entropy, embed, fill, norm, optimizer, rope, swiglu, total};
use cubecl::Runtime;
use cubecl::cuda::{CudaDevice, CudaRuntime};
use half::bf16;

type A = bf16;

#[test]
#[ignore = "needs NVRTC and a CUDA driver"]
fn all_kernels_compile() {
    let client = &CudaRuntime::client(&CudaDevice::new(0));
    let one = client.empty(1 << 28);
    let (b, tally) = (&one, &client.create_from_slice(&[0; 4]));
    for width in [768, 2048, 96, 250] {
        let (rows, vocab, size) = (4096, 256, [4096, width]);
        let tokens: Vec<u32> = (0..rows as u32).map(|i| i % 100).collect();
        let segments = embed::Segments::of(&tokens, vocab).unwrap();
        embed::forward(client, b, b, b, [rows, vocab, width], tally);
        embed::backward(client, b, (&segments, b), b, b, [rows, vocab, width], tally);
        let gain = norm::Gain { gain: b, eps: 1e-5 };
        norm::forward::<_, A>(client, b, gain, [b, b, b], size, tally);
        let sums = norm::Sums { sums: b, norms: 41 };
        for into in [norm::Into::Add, norm::Into::Replace] {
            let slopes = norm::Slopes { dx: b, copy: Some(b), into };
            norm::backward::<_, A>(client, [b, b, b, b], slopes, (sums, 1), size, tally);
        }
        norm::gains::<_, A>(client, sums, b, (b, 1 << 20), size, tally);
        swiglu::forward::<_, A>(client, b, b, size, tally);
        swiglu::backward::<_, A>(client, b, b, size, tally);
    }
    for dim in [64, 96, 6] {
        let tables = rope::Tables { cos: b.clone(), sin: b.clone(), positions: 1024 };
        let heads = rope::Heads { heads: 12, kv_heads: 4, dim };
        rope::rotate::<_, A>(client, b, &tables, heads, [4096, 1024], rope::Turn::Forward, tally);
    }
    for vocab in [256, 1000, 50_257, 200_000] {
        let part = cross_entropy::Rows { first: 0, rows: 128, vocab };
        cross_entropy::rows::<_, A>(client, b, b, b, part, None, tally);
        cross_entropy::rows::<_, A>(client, b, b, b, part, Some((b, 0.1)), tally);
    }
    for len in [1 << 20, 1001] {
        for kind in [total::Total::Sum(0.5), total::Total::Norm] {
            total::total(client, b, len, kind, b, (b, 0), tally);
        }
        for rule in optimizer::Rule::ALONE {
            let vectors = optimizer::Vectors { master: b, m: b, v: b, gradient: b, copy: Some(b), len, decayed: 512 };
            let (lr, beta1, beta2, eps, weight_decay, clip) = (1e-3, 0.9, 0.95, 1e-8, 0.1, 1.0);
            let update = Update { rule, lr, beta1, beta2, eps, weight_decay, clip, step: 1 };
            optimizer::step::<_, A>(client, vectors, &update, b, tally);
        }
        fill::zero(client, b, len, tally);
        fill::convert::<_, A>(client, b, b, len, tally);
        fill::copy::<_, A>(client, (b, 3), (b, 1), 1000, tally);
    }
    client.flush().expect("every kernel compiles");
}

/// A driver that computes nothing needs `STUB_TALLY=1`.
#[test]
#[ignore = "needs NVRTC and a CUDA driver"]
fn parameters_and_moments_come_back() {
    // Seven pieces: more than a ring of buffers has.
    let (vocab, width, tokens) = (50_000, 512, 64);
    let [layers, heads, kv_heads, ffn] = [1, 8, 4, 1000];
    let sizes = Sizes { vocab, width, layers, heads, kv_heads, ffn, tokens, tied: true, theta: 1e4, eps: 1e-5 };
    let ways = Ways { bf16: true, tensor_cores: false, cublas: false };
    let opened = Opened::new(Device::Cuda(0)).unwrap();
    let batch = Batch::new(&sizes, 1, 1, ways, Rule::AdamW);
    let mut session = opened.session(&sizes, &batch, ways).unwrap();
    assert!(!session.ways().contains("slow"), "{}", session.ways());
    session.check().unwrap();
    let values: Vec<f32> = (1..=Layout::of(&sizes).host).map(|n| n as f32).collect();
    for values in [&values, &values.iter().map(|value| -value).collect()] {
        session.load(values).unwrap();
        let mut back = vec![f32::NAN; values.len()];
        session.read(&mut back).unwrap();
        assert!(back == *values);
    }
    let (start, end) = (width + 1, vocab * width + 2000);
    session.write_moment(Moment::Second, start, &values[start..end]).unwrap();
    let mut back = vec![f32::NAN; values.len()];
    session.read_moment(Moment::Second, 0, &mut back).unwrap();
    assert!(back[start..end] == values[start..end]);
    assert!(back[..start].iter().chain(&back[end..]).all(|&number| number == 0.0));
}
