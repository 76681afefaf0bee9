//! Codecs in GB/s of f32 against memcpy of the same f32, in one run: compare the throughputs within a group.
//!
//! `chunk`: one chunk of an update, in the cache, as the ring works on it. `vector`: 64 MiB, from memory.

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput};
use starling_kernels::codec::{self, CodecKind, TopkScratch};
use starling_protocol::codec as scalar;
use starling_protocol::limits::CHUNK_ELEMENTS;
use starling_protocol::run::Codec;
use std::hint::black_box;
use std::time::Duration;

/// Pseudo-gradients of a late round: small, of both signs, of different sizes from block to block.
fn gradients(elements: usize) -> Vec<f32> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32
    };
    (0..elements).map(|i| (next() as f32 / 2f32.powi(31) - 0.5) * 1e-4 / (1 + (i / 256) % 7) as f32).collect()
}

fn memcpy(group: &mut BenchmarkGroup<WallTime>, src: &[f32]) {
    let mut dst = vec![0.0f32; src.len()];
    group.bench_function("memcpy", |b| {
        b.iter(|| {
            dst.copy_from_slice(black_box(src));
            black_box(&mut dst);
        });
    });
}

fn fast(group: &mut BenchmarkGroup<WallTime>, kind: CodecKind, src: &[f32]) {
    let mut bytes = vec![0; codec::encoded_len(kind, src.len())];
    let mut dst = vec![0.0f32; src.len()];
    let id = |what: &str| format!("{kind:?}/{what}").to_lowercase();
    group.bench_function(id("encode"), |b| {
        b.iter(|| codec::encode(kind, black_box(src), black_box(&mut bytes)).expect("finite"));
    });
    group.bench_function(id("decode"), |b| {
        b.iter(|| codec::decode(kind, black_box(&bytes), black_box(&mut dst)).expect("canonical"));
    });
    dst.fill(0.0);
    group.bench_function(id("decode_add"), |b| {
        b.iter(|| codec::decode_add(kind, black_box(&bytes), black_box(&mut dst)).expect("canonical"));
    });
    dst.copy_from_slice(src);
    group.bench_function(id("hop"), |b| {
        b.iter(|| {
            dst.copy_from_slice(black_box(src));
            codec::decode_add(kind, black_box(&bytes), &mut dst).expect("canonical");
            codec::encode(kind, &dst, black_box(&mut bytes)).expect("finite");
            // Halved as a weight would, so that the sum does not grow from pass to pass.
            codec::scale(&mut dst, 0.5);
            codec::encode(kind, &dst, black_box(&mut bytes)).expect("finite");
        });
    });
}

fn topk(group: &mut BenchmarkGroup<WallTime>, src: &[f32]) {
    let mut scratch = TopkScratch::default();
    let mut dst = vec![0.0f32; src.len()];
    for k in [16, 64, 256] {
        let mut bytes = Vec::with_capacity(codec::topk_encoded_max(k, src.len()));
        group.bench_function(format!("topk{k}/encode"), |b| {
            b.iter(|| codec::topk_encode(k, black_box(src), &mut scratch, black_box(&mut bytes)).expect("finite"));
        });
        group.bench_function(format!("topk{k}/decode_add"), |b| {
            b.iter(|| codec::topk_decode_add(k, black_box(&bytes), black_box(&mut dst)).expect("canonical"));
        });
    }
}

/// int4 with error feedback, chunk by chunk: what is offered, its payload, and the residual after it.
fn feedback(group: &mut BenchmarkGroup<WallTime>, src: &[f32]) {
    let mut residual = vec![0.0f32; src.len()];
    let (mut sum, mut said) = (vec![0.0f32; CHUNK_ELEMENTS], vec![0.0f32; CHUNK_ELEMENTS]);
    let mut bytes = vec![0; codec::encoded_len(CodecKind::Int4, CHUNK_ELEMENTS)];
    group.bench_function("int4/feedback", |b| {
        b.iter(|| {
            for (x, e) in src.chunks_exact(CHUNK_ELEMENTS).zip(residual.chunks_exact_mut(CHUNK_ELEMENTS)) {
                codec::offered(black_box(x), e, 1.0, &mut sum);
                codec::encode(CodecKind::Int4, &sum, black_box(&mut bytes)).expect("finite");
                codec::decode(CodecKind::Int4, &bytes, &mut said).expect("canonical");
                codec::settle(x, e, 1.0, &said);
            }
        });
    });
}

fn specification(group: &mut BenchmarkGroup<WallTime>, kind: Codec, src: &[f32]) {
    let mut bytes = Vec::new();
    let mut dst = vec![0.0f32; src.len()];
    let id = |what: &str| format!("specification/{kind:?}/{what}").to_lowercase();
    group.bench_function(id("encode"), |b| {
        b.iter(|| {
            bytes.clear();
            scalar::encode(kind, black_box(src), &mut bytes).expect("finite");
        });
    });
    group.bench_function(id("decode"), |b| {
        b.iter(|| scalar::decode(kind, black_box(&bytes), black_box(&mut dst)).expect("canonical"));
    });
}

fn arithmetic(group: &mut BenchmarkGroup<WallTime>, src: &[f32]) {
    let mut dst = vec![0.0f32; src.len()];
    group.bench_function("add_scaled", |b| {
        b.iter(|| codec::add_scaled(black_box(&mut dst), black_box(src), 0.25));
    });
}

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .without_plots()
        .configure_from_args();
    for (name, elements) in [("chunk", CHUNK_ELEMENTS), ("vector", 16 << 20)] {
        let src = gradients(elements);
        let mut group = criterion.benchmark_group(name);
        group.throughput(Throughput::Bytes(4 * elements as u64));
        memcpy(&mut group, &src);
        for kind in [CodecKind::Int8, CodecKind::Int4, CodecKind::Bf16] {
            fast(&mut group, kind, &src);
        }
        topk(&mut group, &src);
        feedback(&mut group, &src);
        arithmetic(&mut group, &src);
        if elements == CHUNK_ELEMENTS {
            for kind in [Codec::Int8, Codec::Int4, Codec::Bf16] {
                specification(&mut group, kind, &src);
            }
        }
        group.finish();
    }
    criterion.final_summary();
}
