//! The least work of a reduction, each part measured alone on one core: encryption, the kernel's copies, the codec.

use anyhow::{Context, Result};
use aws_lc_rs::aead::{AES_128_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use starling_benches::way::Way;
use starling_bootstrap::tls::has_aes;
use starling_kernels::codec::{self, CodecKind};
use starling_protocol::run::EngineKind;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

/// Most bytes of a TLS record.
const RECORD_BYTES: usize = 16 * 1024;
/// Bytes of a write to a socket.
const WRITE_BYTES: usize = 64 * 1024;

/// Seconds of each part on one core.
#[derive(Clone, Copy, Debug)]
pub struct Floor {
    pub encryption: f64,
    pub copies: f64,
    pub codec: f64,
}

impl Floor {
    /// The work of a reduction by `nodes` over `elements` values, on `cores` cores; none for codecs whose payloads
    /// depend on the values.
    ///
    /// # Errors
    /// If the system refuses a socket.
    pub fn of(way: Way, elements: usize, nodes: usize, cores: usize) -> Result<Option<Self>> {
        let Some(kind) = way.kind() else { return Ok(None) };
        // Each byte of the encoded vector travels over n - 1 links twice: around the ring, or to its owner and back.
        let bytes = codec::encoded_len(kind, elements) * 2 * (nodes - 1);
        let spread = |seconds: f64| seconds / cores as f64;
        let codec = match way.engine {
            EngineKind::Ring => ring_codec,
            EngineKind::Owners => owners_codec,
        };
        Ok(Some(Self {
            encryption: spread(quickest(|| encryption(bytes))?),
            copies: spread(quickest(|| copies(bytes))?),
            codec: spread(quickest(|| codec(kind, elements, nodes))?),
        }))
    }

    pub fn sum(&self) -> f64 {
        self.encryption + self.copies + self.codec
    }
}

/// The least of three measurements: a floor must not include other load of the machine.
fn quickest(mut measure: impl FnMut() -> Result<f64>) -> Result<f64> {
    let mut least = measure()?;
    for _ in 0..2 {
        least = least.min(measure()?);
    }
    Ok(least)
}

/// Sealing and opening `bytes` with the cipher that connections use on this processor.
fn encryption(bytes: usize) -> Result<f64> {
    let refused = |_| anyhow::anyhow!("the cipher refuses");
    let cipher = if has_aes() { &AES_128_GCM } else { &CHACHA20_POLY1305 };
    let key = LessSafeKey::new(UnboundKey::new(cipher, &[7; 32][..cipher.key_len()]).map_err(refused)?);
    let nonce = || Nonce::assume_unique_for_key([0; 12]);
    let plain = vec![1u8; RECORD_BYTES];
    let (mut message, mut left) = (Vec::with_capacity(RECORD_BYTES + cipher.tag_len()), bytes);
    let start = Instant::now();
    while left > 0 {
        let part = left.min(plain.len());
        message.clear();
        message.extend_from_slice(&plain[..part]);
        key.seal_in_place_append_tag(nonce(), Aad::empty(), &mut message).map_err(refused)?;
        key.open_in_place(nonce(), Aad::empty(), &mut message).map_err(refused)?;
        left -= part;
    }
    Ok(start.elapsed().as_secs_f64())
}

/// Writing `bytes` to a socket and reading them from it, in turns on one thread.
fn copies(bytes: usize) -> Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0").context("a socket on loopback")?;
    let mut sender = TcpStream::connect(listener.local_addr()?)?;
    let (mut receiver, _) = listener.accept()?;
    let (out, mut back) = (vec![1u8; WRITE_BYTES], vec![0u8; WRITE_BYTES]);
    let (start, mut left) = (Instant::now(), bytes);
    while left > 0 {
        let part = left.min(WRITE_BYTES);
        sender.write_all(&out[..part])?;
        receiver.read_exact(&mut back[..part])?;
        left -= part;
    }
    Ok(start.elapsed().as_secs_f64())
}

/// All members' codec work: every chunk is encoded once, decoded, added to and encoded by each further member, and
/// decoded by all others at the end.
fn ring_codec(kind: CodecKind, elements: usize, nodes: usize) -> Result<f64> {
    let values = vec![1e-3f32; elements.min(1 << 18)];
    let (mut bytes, mut sum) = (vec![0; codec::encoded_len(kind, values.len())], values.clone());
    let hops = nodes - 1;
    let (start, mut left) = (Instant::now(), elements);
    while left > 0 {
        codec::encode(kind, &values, &mut bytes)?;
        for _ in 0..hops {
            sum.copy_from_slice(&values);
            codec::decode_add(kind, &bytes, &mut sum)?;
            codec::scale(&mut sum, 0.5);
            codec::encode(kind, &sum, &mut bytes)?;
        }
        for _ in 0..hops {
            codec::decode(kind, &bytes, &mut sum)?;
        }
        left -= left.min(values.len());
    }
    Ok(start.elapsed().as_secs_f64())
}

/// All members' codec work: every chunk is encoded by each member, decoded and added by its owner, encoded once as a
/// sum, and checked by all others.
fn owners_codec(kind: CodecKind, elements: usize, nodes: usize) -> Result<f64> {
    let values = vec![1e-3f32; elements.min(1 << 18)];
    let (mut bytes, mut part) = (vec![0; codec::encoded_len(kind, values.len())], values.clone());
    let (start, mut left) = (Instant::now(), elements);
    while left > 0 {
        let mut sum = vec![0.0; values.len()];
        for _ in 0..nodes {
            codec::encode(kind, &values, &mut bytes)?;
            codec::decode(kind, &bytes, &mut part)?;
            codec::add_scaled(&mut sum, &part, 1.0 / nodes as f32);
        }
        codec::encode(kind, &sum, &mut bytes)?;
        for _ in 1..nodes {
            codec::check(kind, &bytes, values.len())?;
        }
        left -= left.min(values.len());
    }
    Ok(start.elapsed().as_secs_f64())
}
