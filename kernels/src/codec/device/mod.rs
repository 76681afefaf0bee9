//! Codecs on the device where the model trains, so that encoded payloads cross the bus instead of floats.
//!
//! They write the same bytes as the CPU's, refuse the same vectors and payloads for the same reason, and decode to the
//! same bits. The comments of the kernels say why this holds on any device. The host checks a payload before any of it
//! goes to the device. The device checks a vector, and the host finds the reason.
//!
//! In top-k the device finds places, signs and levels, and adds values at places. The host codes the gaps between
//! places and reads them, since the start of a gap's code depends on all codes before it.

mod decode;
mod encode;
mod kernel;
mod open;
mod topk;

pub use open::{DeviceCodec, OpenCodecError};

use super::{CodecError, CodecKind, INT4_BLOCK, INT8_BLOCK};
use cubecl::Runtime;
use cubecl::prelude::{ArrayArg, ComputeClient, CubeCount, CubeDim};
use cubecl::server::{CubeCountSelection, Handle, ServerError};
use std::sync::atomic::{AtomicU16, Ordering};

/// Elements that are on the device at once. This bounds a codec's memory there to some 25 MiB for each of two batches.
const BATCH_ELEMENTS: usize = 1 << 22;

/// Counts launches. The process has one counter, since the codecs of one device share its memory.
static LAUNCHES: AtomicU16 = AtomicU16::new(0);

/// Why a device could not encode or decode.
#[derive(Debug, thiserror::Error)]
pub enum DeviceCodecError {
    #[error(transparent)]
    Codec(#[from] CodecError),
    #[error("chunks of {chunk} elements cannot be coded on their own: take a multiple of {block}")]
    Chunk { chunk: usize, block: usize },
    #[error("the device failed: {0}; code on the CPU instead, or restart the node")]
    Device(String),
    #[error("the device did not run the kernel (the log may say why); code on the CPU instead, or restart the node")]
    NoResult,
}

impl From<ServerError> for DeviceCodecError {
    fn from(error: ServerError) -> Self {
        Self::Device(error.to_string())
    }
}

/// The codecs on one cubecl runtime.
pub struct RuntimeCodec<R: Runtime> {
    client: ComputeClient<R>,
}

impl<R: Runtime> RuntimeCodec<R> {
    pub fn new(client: ComputeClient<R>) -> Self {
        Self { client }
    }

    /// As many cubes as `units` need, perhaps some more; these have nothing to do.
    fn cubes(&self, units: usize) -> (CubeCount, CubeDim) {
        let cubes = units.div_ceil(kernel::UNITS as usize) as u32;
        (CubeCountSelection::new(&self.client, cubes).cube_count(), CubeDim::new_1d(kernel::UNITS))
    }

    fn upload(&self, words: &[u32]) -> Handle {
        self.client.create_from_slice(bytemuck::cast_slice(words))
    }

    /// Reads the low half of each word, if all have `tag` in the high one.
    fn tagged(&self, handle: Handle, tag: u16) -> Result<Vec<u16>, DeviceCodecError> {
        let words = self.client.read_one(handle)?;
        let words = words.as_chunks::<4>().0.iter().map(|w| u32::from_ne_bytes(*w));
        words.map(|w| if (w >> 16) as u16 == tag { Ok(w as u16) } else { Err(DeviceCodecError::NoResult) }).collect()
    }

    /// Checks a word to which each of `launches` added 1.
    fn finished(&self, done: Handle, launches: u32) -> Result<(), DeviceCodecError> {
        let words = self.client.read_one(done)?;
        if words.first_chunk() == Some(&launches.to_ne_bytes()) { Ok(()) } else { Err(DeviceCodecError::NoResult) }
    }
}

/// A tag for a launch: never 0, which is the content of fresh memory.
fn next_tag() -> u16 {
    LAUNCHES.fetch_add(1, Ordering::Relaxed) % u16::MAX + 1
}

/// The first `words` words of a buffer that has at least as many, as an argument of a kernel.
fn array<R: Runtime>(buffer: &Handle, words: usize) -> ArrayArg<R> {
    // SAFETY: callers give the length that they allocated, and kernels check their indices.
    unsafe { ArrayArg::from_raw_parts(buffer.clone(), words) }
}

/// Elements that no chunk may part: they share a scale.
const fn unit(kind: CodecKind) -> usize {
    match kind {
        CodecKind::Bf16 => 1,
        CodecKind::Int8 => INT8_BLOCK,
        CodecKind::Int4 => INT4_BLOCK,
    }
}

/// Bytes of the scales of `elements` values.
const fn scales_len(kind: CodecKind, elements: usize) -> usize {
    match kind {
        CodecKind::Bf16 => 0,
        CodecKind::Int8 | CodecKind::Int4 => 2 * elements.div_ceil(unit(kind)),
    }
}

/// Bytes of `elements` values without their scales.
const fn values_len(kind: CodecKind, elements: usize) -> usize {
    match kind {
        CodecKind::Bf16 => 2 * elements,
        CodecKind::Int8 => elements,
        CodecKind::Int4 => elements.div_ceil(2),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DeviceChoice;

    #[test]
    fn a_kernel_that_did_not_run_is_noticed() {
        let codec = match DeviceCodec::open(&DeviceChoice::Wgpu(0)) {
            Ok(codec) => codec,
            Err(error) => return eprintln!("SKIPPED: {error}"),
        };
        let mut bytes = [0; 3];
        codec.encode(CodecKind::Int8, &[1.0], &mut bytes).unwrap();
        assert_eq!(bytes, [0x02, 0x3c, 126]);
        let mut sum = [1.0];
        codec.decode_add(CodecKind::Int8, &bytes, &mut sum).unwrap();
        assert_eq!(sum, [1.0 + 126.0 * f32::from_bits(0x3c02_0000)]);
        let codec = codec.wgpu().unwrap();
        let stale = codec.upload(&[0x0007_3f80]);
        assert_eq!(codec.tagged(stale.clone(), 7).unwrap(), [0x3f80]);
        assert!(matches!(codec.tagged(stale, 8), Err(DeviceCodecError::NoResult)));
        let once = codec.upload(&[1]);
        assert!(codec.finished(once.clone(), 1).is_ok());
        assert!(matches!(codec.finished(once, 2), Err(DeviceCodecError::NoResult)));
    }

    #[test]
    fn parts_make_a_payload() {
        for kind in [CodecKind::Bf16, CodecKind::Int8, CodecKind::Int4] {
            for elements in 0..2000 {
                let parts = scales_len(kind, elements) + values_len(kind, elements);
                assert_eq!(parts, super::super::encoded_len(kind, elements));
            }
            assert!(BATCH_ELEMENTS.is_multiple_of(unit(kind)));
        }
    }
}
