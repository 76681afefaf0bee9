//! `bench-codec`: codecs in GB/s of f32 read or written, each in turns with memcpy of the same f32, on one core.
//!
//! `chunk`: one chunk of an update, in the cache, as a reduction works on it. `vector`: from memory. The ratio to
//! memcpy is the median of neighbouring turns, so other load disturbs it less than the figures themselves.

use anyhow::{Result, bail};
use clap::Parser;
use serde_json::json;
use starling_benches::{append_row, json_file, median};
use starling_kernels::codec::{self, CodecKind, TOPK_BLOCK, TopkScratch};
use starling_protocol::codec as scalar;
use starling_protocol::limits::CHUNK_ELEMENTS;
use starling_protocol::run::Codec;
use std::hint::black_box;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The least duration of a turn.
const TURN: Duration = Duration::from_millis(20);

/// Time the codecs beside memcpy.
#[derive(Parser)]
struct Arguments {
    /// Size of the vector that does not fit the cache, in MiB of f32.
    #[arg(long, default_value_t = 64)]
    mib: usize,
    /// Turns of each.
    #[arg(long, default_value_t = 15)]
    turns: usize,
    /// Append one JSON object a row to this file (default: the file that the variable JSON names)
    #[arg(long)]
    json: Option<PathBuf>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if arguments.mib == 0 || arguments.turns == 0 {
        bail!("--mib and --turns: at least 1");
    }
    let head = ["size", "codec", "path", "GB/s", "of memcpy"];
    println!("{:<7} {:<22} {:<14} {:>8} {:>10}", head[0], head[1], head[2], head[3], head[4]);
    for (size, elements) in [("chunk", CHUNK_ELEMENTS), ("vector", arguments.mib << 18)] {
        let bench = Bench { arguments: &arguments, size, src: gradients(elements) };
        for kind in [CodecKind::Bf16, CodecKind::Int8, CodecKind::Int4] {
            bench.simd(kind)?;
        }
        bench.feedback()?;
        bench.topk()?;
        if size == "chunk" {
            bench.specification()?;
        }
    }
    Ok(())
}

/// Pseudo-gradients of a late round: small, of both signs, of different sizes from block to block.
fn gradients(elements: usize) -> Vec<f32> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32
    };
    (0..elements).map(|i| (next() as f32 / 2f32.powi(31) - 0.5) * 1e-4 / (1 + (i / 256) % 7) as f32).collect()
}

/// Seconds of one call: the mean over as many calls as fill a turn.
fn turn(mut call: impl FnMut()) -> f64 {
    let (start, mut calls) = (Instant::now(), 0u32);
    loop {
        call();
        calls += 1;
        if start.elapsed() >= TURN {
            return start.elapsed().as_secs_f64() / f64::from(calls);
        }
    }
}

struct Bench<'a> {
    arguments: &'a Arguments,
    size: &'static str,
    src: Vec<f32>,
}

impl Bench<'_> {
    /// Times `call`, which works on the whole vector, in turns with memcpy, and prints the row.
    fn row(&self, codec: &str, path: &str, mut call: impl FnMut()) -> Result<()> {
        let mut copy = vec![0.0f32; self.src.len()];
        let mut memcpy = || {
            copy.copy_from_slice(black_box(&self.src));
            black_box(&mut copy);
        };
        // The first call warms up pages and branch predictors.
        call();
        memcpy();
        let turns: Vec<_> = (0..self.arguments.turns).map(|_| (turn(&mut memcpy), turn(&mut call))).collect();
        let gigabytes = 4e-9 * self.src.len() as f64;
        let speed = |seconds: f64| gigabytes / seconds;
        let of = |pick: &dyn Fn(&(f64, f64)) -> f64| median(turns.iter().map(pick)).unwrap_or(f64::NAN);
        let (own, other, ratio) = (of(&|t| speed(t.1)), of(&|t| speed(t.0)), of(&|t| t.0 / t.1));
        println!("{:<7} {codec:<22} {path:<14} {own:>8.2} {ratio:>10.2}", self.size);
        let row = json!({
            "bench": "codec", "codec": codec, "path": path, "size": self.size, "bytes": self.src.len() * 4,
            "gb_per_s": own, "memcpy_gb_per_s": other, "ratio": ratio,
        });
        append_row(json_file(self.arguments.json.as_deref()).as_deref(), &row)
    }

    fn simd(&self, kind: CodecKind) -> Result<()> {
        let mut bytes = vec![0; codec::encoded_len(kind, self.src.len())];
        let mut dst = vec![0.0f32; self.src.len()];
        let id = |what: &str| format!("{kind:?} {what}").to_lowercase();
        self.row(&id("encode"), "simd", || {
            codec::encode(kind, black_box(&self.src), black_box(&mut bytes)).expect("finite");
        })?;
        self.row(&id("decode"), "simd", || {
            codec::decode(kind, black_box(&bytes), black_box(&mut dst)).expect("canonical");
        })?;
        dst.fill(0.0);
        self.row(&id("decode-add"), "simd", || {
            codec::decode_add(kind, black_box(&bytes), black_box(&mut dst)).expect("canonical");
        })
    }

    /// int4 with error feedback, chunk by chunk: the offered sum, its payload, and the residual after it.
    fn feedback(&self) -> Result<()> {
        let mut residual = vec![0.0f32; self.src.len()];
        let (mut sum, mut said) = (vec![0.0f32; CHUNK_ELEMENTS], vec![0.0f32; CHUNK_ELEMENTS]);
        let mut bytes = vec![0; codec::encoded_len(CodecKind::Int4, CHUNK_ELEMENTS)];
        self.row("int4 error feedback", "simd", || {
            for (x, e) in self.src.chunks_exact(CHUNK_ELEMENTS).zip(residual.chunks_exact_mut(CHUNK_ELEMENTS)) {
                codec::offered(black_box(x), e, 1.0, &mut sum);
                codec::encode(CodecKind::Int4, &sum, black_box(&mut bytes)).expect("finite");
                codec::decode(CodecKind::Int4, &bytes, &mut said).expect("canonical");
                codec::settle(x, e, 1.0, &said);
            }
        })
    }

    fn topk(&self) -> Result<()> {
        let mut scratch = TopkScratch::default();
        let mut dst = vec![0.0f32; CHUNK_ELEMENTS];
        for k in [16, 64, 256] {
            let mut bytes = Vec::with_capacity(codec::topk_encoded_max(k, CHUNK_ELEMENTS));
            self.row(&format!("top-{k} encode"), "simd", || {
                for x in self.src.chunks_exact(CHUNK_ELEMENTS) {
                    codec::topk_encode(k, black_box(x), &mut scratch, black_box(&mut bytes)).expect("finite");
                }
            })?;
            let chunks = self.src.len() / CHUNK_ELEMENTS;
            self.row(&format!("top-{k} decode-add"), "simd", || {
                for _ in 0..chunks {
                    codec::topk_decode_add(k, black_box(&bytes), black_box(&mut dst)).expect("canonical");
                }
            })?;
            if self.size == "chunk" {
                indices(k, bytes.len());
            }
        }
        Ok(())
    }

    /// The protocol's scalar code, which specifies the bytes.
    fn specification(&self) -> Result<()> {
        let mut dst = vec![0.0f32; self.src.len()];
        for kind in [Codec::Bf16, Codec::Int8, Codec::Int4] {
            let mut bytes = Vec::new();
            let id = |what: &str| format!("{kind:?} {what}").to_lowercase();
            self.row(&id("encode"), "specification", || {
                bytes.clear();
                scalar::encode(kind, black_box(&self.src), &mut bytes).expect("finite");
            })?;
            self.row(&id("decode"), "specification", || {
                scalar::decode(kind, black_box(&bytes), black_box(&mut dst)).expect("canonical");
            })?;
        }
        Ok(())
    }
}

/// Prints the bits of top-k's places beside their information content: log2 of (block choose k).
fn indices(k: usize, bytes: usize) {
    let blocks = (CHUNK_ELEMENTS / TOPK_BLOCK) as f64;
    let bound: f64 = (0..k).map(|i| ((TOPK_BLOCK - i) as f64 / (i + 1) as f64).log2()).sum();
    // Two bits of value each, and the block's magnitudes.
    let spent = bytes as f64 * 8.0 / blocks - 2.0 * k as f64;
    println!(
        "{:<7} top-{k}: {:.2} bits a place and its share of the block's head, by information at least {:.2}",
        "",
        spent / k as f64,
        bound / k as f64
    );
}
