//! The host's side of encoding dense payloads.

use super::super::error::check_length;
use super::super::{bf16, encoded_len, scale};
use super::kernel::encode::{self as kernel, BF16_BLOCK, REFUSED};
use super::*;

/// A batch of encoded blocks that is still on the device.
struct Encoded {
    /// First element of the batch in the vector.
    start: usize,
    elements: usize,
    /// One word a block.
    heads: Handle,
    /// The bytes of the values, padded to whole words.
    values: Handle,
    /// The value that the high half of each word of heads must hold.
    tag: u16,
}

impl<R: Runtime> RuntimeCodec<R> {
    /// Writes `src` as one payload into `dst` of [`encoded_len`] bytes, with the bytes of [`super::super::encode`].
    ///
    /// # Errors
    /// If a value is not finite or is too large (the error names it as on the CPU), or the device fails. `dst` then
    /// holds no payload.
    pub fn encode(&self, kind: CodecKind, src: &[f32], dst: &mut [u8]) -> Result<(), DeviceCodecError> {
        self.encode_chunks(kind, src, src.len().next_multiple_of(unit(kind)).max(unit(kind)), dst)
    }

    /// Cuts `src` into chunks of `chunk` elements, a multiple of the codec's block (the last may be shorter), and
    /// writes their payloads one after the other.
    ///
    /// # Errors
    /// Those of [`Self::encode`], and a chunk length that would split a block.
    pub fn encode_chunks(
        &self,
        kind: CodecKind,
        src: &[f32],
        chunk: usize,
        dst: &mut [u8],
    ) -> Result<(), DeviceCodecError> {
        if chunk == 0 || !chunk.is_multiple_of(unit(kind)) {
            return Err(DeviceCodecError::Chunk { chunk, block: unit(kind) });
        }
        // Whole chunks hold whole blocks, so that the sum of their lengths is that of one payload.
        check_length(src.len(), encoded_len(kind, src.len()), dst.len())?;
        let mut pending = None;
        for (index, batch) in src.chunks(BATCH_ELEMENTS).enumerate() {
            let encoded = self.launch_encoder(kind, index * BATCH_ELEMENTS, batch);
            // The device works on this batch while the host reads the previous one.
            if let Some(before) = pending.replace(encoded) {
                self.collect_encoded(kind, src, chunk, before, dst)?;
            }
        }
        match pending {
            Some(last) => self.collect_encoded(kind, src, chunk, last, dst),
            None => Ok(()),
        }
    }

    /// Sends a batch to the device and starts the kernel on it.
    fn launch_encoder(&self, kind: CodecKind, start: usize, batch: &[f32]) -> Encoded {
        let elements = batch.len();
        let blocks = elements.div_ceil(head_elements(kind));
        let words = values_len(kind, elements).div_ceil(4);
        let heads = self.client.empty(4 * blocks);
        let values = self.client.empty(4 * words);
        let input = array(&self.client.create_from_slice(bytemuck::cast_slice(batch)), elements);
        let (heads_arg, values_arg) = (array(&heads, blocks), array(&values, words));
        let tag = next_tag();
        // The device gets whole blocks, and some unit must see each element of a block.
        let padded = elements.next_multiple_of(head_elements(kind));
        match kind {
            CodecKind::Bf16 => {
                let (count, dim) = self.cubes(padded / 4);
                kernel::encode_bf16::launch::<R>(&self.client, count, dim, input, heads_arg, values_arg, tag.into());
            }
            CodecKind::Int8 => {
                let (count, dim) = self.cubes(padded / 4);
                kernel::encode_int8::launch::<R>(&self.client, count, dim, input, heads_arg, values_arg, tag.into());
            }
            CodecKind::Int4 => {
                let (count, dim) = self.cubes(padded / 8);
                kernel::encode_int4::launch::<R>(&self.client, count, dim, input, heads_arg, values_arg, tag.into());
            }
        }
        Encoded { start, elements, heads, values, tag }
    }

    /// Reads a batch of encoded blocks and puts its bytes into their places in the payload.
    fn collect_encoded(
        &self,
        kind: CodecKind,
        src: &[f32],
        chunk: usize,
        batch: Encoded,
        dst: &mut [u8],
    ) -> Result<(), DeviceCodecError> {
        let Encoded { start, elements, tag, .. } = batch;
        let heads = self.tagged(batch.heads, tag)?;
        let values = self.client.read_one(batch.values)?;
        if let Some(block) = heads.iter().position(|head| *head == REFUSED) {
            return Err(refusal(kind, src, start + block * head_elements(kind)).into());
        }
        let end = start + elements;
        let mut from = start;
        while from < end {
            let chunk_start = from - from % chunk;
            let chunk_len = chunk.min(src.len() - chunk_start);
            let to = end.min(chunk_start + chunk_len);
            let payload = encoded_len(kind, chunk_start);
            let scales = scales_len(kind, to - from);
            let at = payload + scales_len(kind, from - chunk_start);
            let first_block = (from - start) / head_elements(kind);
            for (out, scale) in dst[at..at + scales].as_chunks_mut::<2>().0.iter_mut().zip(&heads[first_block..]) {
                *out = scale.to_le_bytes();
            }
            let at = payload + scales_len(kind, chunk_len) + values_len(kind, from - chunk_start);
            let first_byte = values_len(kind, from - start);
            let bytes = values_len(kind, to - from);
            dst[at..at + bytes].copy_from_slice(&values[first_byte..first_byte + bytes]);
            from = to;
        }
        Ok(())
    }
}

/// Elements of a word of heads.
const fn head_elements(kind: CodecKind) -> usize {
    match kind {
        CodecKind::Bf16 => BF16_BLOCK,
        CodecKind::Int8 | CodecKind::Int4 => unit(kind),
    }
}

/// Names the element that keeps the block that starts at `start` from being written.
#[cold]
fn refusal(kind: CodecKind, src: &[f32], start: usize) -> CodecError {
    let rest = src.get(start..).unwrap_or_default();
    match kind {
        CodecKind::Bf16 => bf16::refusal(src),
        CodecKind::Int8 | CodecKind::Int4 => scale::refusal(&rest[..unit(kind).min(rest.len())], start),
    }
}
