//! Codecs on the device where the model trains, so that a quarter of the bytes crosses the bus.

mod kernel;
mod open;

pub use open::{Int8Encoder, OpenEncoderError};

use super::int8::refusal;
use super::{CodecError, CodecKind, INT8_BLOCK, check_length, encoded_len};
use cubecl::Runtime;
use cubecl::prelude::{ArrayArg, ComputeClient, CubeDim};
use cubecl::server::{CubeCountSelection, Handle, ServerError};
use std::sync::atomic::{AtomicU16, Ordering};

/// Counts launches. One for the process, since encoders of one device share its memory.
static LAUNCHES: AtomicU16 = AtomicU16::new(0);

/// Elements that are on the device at once: bounds the memory that an encoder takes to 21 MiB for each of two batches.
const BATCH_ELEMENTS: usize = 1 << 22;

/// Why a device could not encode.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    #[error(transparent)]
    Codec(#[from] CodecError),
    #[error("chunks of {0} elements cannot be coded on their own: take a multiple of {INT8_BLOCK}")]
    Chunk(usize),
    #[error("the device failed while encoding: {0}; encode on the CPU instead, or restart the node")]
    Device(String),
    #[error("the device did not run the kernel (the log may say why); encode on the CPU instead, or restart the node")]
    NoResult,
}

impl From<ServerError> for EncodeError {
    fn from(error: ServerError) -> Self {
        Self::Device(error.to_string())
    }
}

/// A batch of encoded blocks that is still on the device.
struct Encoded {
    /// First element of the batch in the vector.
    start: usize,
    elements: usize,
    /// One word a block.
    scales: Handle,
    /// One byte an element, padded to whole words.
    values: Handle,
    /// What the high half of each scale's word must hold.
    tag: u16,
}

/// The int8 encoder on one cubecl runtime. It writes the same bytes as [`super::int8_encode`].
pub struct RuntimeEncoder<R: Runtime> {
    client: ComputeClient<R>,
}

impl<R: Runtime> RuntimeEncoder<R> {
    pub fn new(client: ComputeClient<R>) -> Self {
        Self { client }
    }

    /// Writes `src` as one payload into `dst` of [`encoded_len`] bytes.
    pub fn encode(&self, src: &[f32], dst: &mut [u8]) -> Result<(), EncodeError> {
        self.encode_chunks(src, src.len().next_multiple_of(INT8_BLOCK).max(INT8_BLOCK), dst)
    }

    /// Cuts `src` into chunks of `chunk` elements, a multiple of [`INT8_BLOCK`] (the last may be shorter), and writes
    /// their payloads one after the other.
    ///
    /// Refuses what is not finite or too large; `dst` then holds no payload.
    pub fn encode_chunks(&self, src: &[f32], chunk: usize, dst: &mut [u8]) -> Result<(), EncodeError> {
        if chunk == 0 || !chunk.is_multiple_of(INT8_BLOCK) {
            return Err(EncodeError::Chunk(chunk));
        }
        // Whole chunks hold whole blocks, so that the sum of their lengths is that of one payload.
        check_length(CodecKind::Int8, src.len(), dst.len())?;
        let mut pending = None;
        for (index, batch) in src.chunks(BATCH_ELEMENTS).enumerate() {
            let encoded = self.launch(index * BATCH_ELEMENTS, batch);
            // The device works on this batch while the one before is read.
            if let Some(before) = pending.replace(encoded) {
                self.collect(src, chunk, before, dst)?;
            }
        }
        match pending {
            Some(last) => self.collect(src, chunk, last, dst),
            None => Ok(()),
        }
    }

    /// Sends a batch to the device and starts the kernel on it.
    fn launch(&self, start: usize, batch: &[f32]) -> Encoded {
        let elements = batch.len();
        let input = self.client.create_from_slice(bytemuck::cast_slice(batch));
        let blocks = elements.div_ceil(INT8_BLOCK);
        let words = elements.div_ceil(4);
        let scales = self.client.empty(4 * blocks);
        let values = self.client.empty(4 * words);
        // Never 0, which is what fresh memory holds.
        let tag = LAUNCHES.fetch_add(1, Ordering::Relaxed) % u16::MAX + 1;
        // SAFETY: each length is that of the allocation above in 4-byte words, and the kernel checks its indices.
        let (input, scales_arg, values_arg) = unsafe {
            (
                ArrayArg::from_raw_parts(input, elements),
                ArrayArg::from_raw_parts(scales.clone(), blocks),
                ArrayArg::from_raw_parts(values.clone(), words),
            )
        };
        kernel::encode_blocks::launch::<R>(
            &self.client,
            CubeCountSelection::new(&self.client, blocks as u32).cube_count(),
            CubeDim::new_1d(kernel::UNITS),
            input,
            scales_arg,
            values_arg,
            u32::from(tag),
        );
        Encoded { start, elements, scales, values, tag }
    }

    /// Reads a batch of `src` and puts its bytes where they belong.
    fn collect(&self, src: &[f32], chunk: usize, batch: Encoded, dst: &mut [u8]) -> Result<(), EncodeError> {
        let Encoded { start, elements, tag, .. } = batch;
        let scales = self.scales(batch.scales, tag)?;
        let values = self.client.read_one(batch.values)?;
        if let Some(block) = scales.iter().position(|s| *s == kernel::REFUSED) {
            return Err(refusal(src, start / INT8_BLOCK + block).into());
        }
        let end = start + elements;
        let mut from = start;
        while from < end {
            let chunk_start = from - from % chunk;
            let chunk_len = chunk.min(src.len() - chunk_start);
            let to = end.min(chunk_start + chunk_len);
            let payload = encoded_len(CodecKind::Int8, chunk_start);
            let first_block = (from - start) / INT8_BLOCK;
            let blocks = (to - from).div_ceil(INT8_BLOCK);
            let at = payload + 2 * ((from - chunk_start) / INT8_BLOCK);
            let out = dst[at..at + 2 * blocks].as_chunks_mut::<2>().0;
            for (out, scale) in out.iter_mut().zip(&scales[first_block..]) {
                *out = scale.to_le_bytes();
            }
            let at = payload + 2 * chunk_len.div_ceil(INT8_BLOCK) + (from - chunk_start);
            dst[at..at + (to - from)].copy_from_slice(&values[from - start..to - start]);
            from = to;
        }
        Ok(())
    }

    /// Reads a batch's scales after checking that the kernel really wrote them.
    fn scales(&self, handle: Handle, tag: u16) -> Result<Vec<u16>, EncodeError> {
        let words = self.client.read_one(handle)?;
        let words = words.as_chunks::<4>().0.iter().map(|w| u32::from_ne_bytes(*w));
        words.map(|w| if (w >> 16) as u16 == tag { Ok(w as u16) } else { Err(EncodeError::NoResult) }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DeviceChoice;

    #[test]
    fn a_kernel_that_did_not_run_is_noticed() {
        let encoder = match Int8Encoder::open(&DeviceChoice::Wgpu(0)) {
            Ok(encoder) => encoder,
            Err(error) => return eprintln!("SKIPPED: {error}"),
        };
        let mut bytes = [0; 3];
        encoder.encode(&[1.0], &mut bytes).unwrap();
        assert_eq!(bytes, [0x02, 0x3c, 126]);
        let encoder = encoder.wgpu().unwrap();
        let stale = encoder.client.create_from_slice(bytemuck::bytes_of(&[0x0007_3f80u32]));
        assert_eq!(encoder.scales(stale.clone(), 7).unwrap(), [0x3f80]);
        assert!(matches!(encoder.scales(stale, 8), Err(EncodeError::NoResult)));
    }
}
