//! The host's side of decoding dense payloads.

use super::super::check;
use super::kernel::decode as kernel;
use super::*;
use cubecl::bytes::Bytes;

/// A batch of decoded elements that is still on the device.
pub(super) struct Decoded {
    pub values: Handle,
    /// Counts the launches that ran.
    pub done: Handle,
    /// Number of launches that were started.
    pub launches: u32,
}

impl<R: Runtime> RuntimeCodec<R> {
    /// Reads a payload of [`super::super::encoded_len`] bytes into `dst`, as [`super::super::decode`] does.
    ///
    /// # Errors
    /// If the payload is not canonical (the error names the same reason as on the CPU), or the device fails. `dst` is
    /// then as it was.
    pub fn decode(&self, kind: CodecKind, bytes: &[u8], dst: &mut [f32]) -> Result<(), DeviceCodecError> {
        self.decode_dense(kind, bytes, dst, false)
    }

    /// Adds a payload's values to `dst`, one f32 addition an element, as [`super::super::decode_add`] does.
    ///
    /// An infinity in `dst` stays one. A NaN there stays one too; the CPU does not fix its bits either.
    ///
    /// # Errors
    /// Those of [`Self::decode`].
    pub fn decode_add(&self, kind: CodecKind, bytes: &[u8], dst: &mut [f32]) -> Result<(), DeviceCodecError> {
        self.decode_dense(kind, bytes, dst, true)
    }

    fn decode_dense(&self, kind: CodecKind, bytes: &[u8], dst: &mut [f32], adds: bool) -> Result<(), DeviceCodecError> {
        check(kind, bytes, dst.len())?;
        let (scales, values) = bytes.split_at(scales_len(kind, dst.len()));
        let results = self.in_batches(dst, |start, batch| {
            let part = |all: &[u8], len: fn(CodecKind, usize) -> usize| {
                let at = len(kind, start);
                words(&all[at..at + len(kind, batch.len())])
            };
            self.launch_decoder(kind, &part(scales, scales_len), &part(values, values_len), batch, adds)
        })?;
        put_back(results, dst);
        Ok(())
    }

    /// Starts a batch on the device while the previous one is read; `dst` does not change before all batches succeed.
    pub(super) fn in_batches(
        &self,
        dst: &[f32],
        mut launch: impl FnMut(usize, &[f32]) -> Decoded,
    ) -> Result<Vec<Bytes>, DeviceCodecError> {
        let mut results = Vec::with_capacity(dst.len().div_ceil(BATCH_ELEMENTS));
        let mut pending = None;
        let mut collect = |batch: Decoded| -> Result<(), DeviceCodecError> {
            self.finished(batch.done, batch.launches)?;
            results.push(self.client.read_one(batch.values)?);
            Ok(())
        };
        for (index, batch) in dst.chunks(BATCH_ELEMENTS).enumerate() {
            if let Some(before) = pending.replace(launch(index * BATCH_ELEMENTS, batch)) {
                collect(before)?;
            }
        }
        pending.map_or(Ok(()), collect)?;
        Ok(results)
    }

    fn launch_decoder(&self, kind: CodecKind, scales: &[u32], values: &[u32], batch: &[f32], adds: bool) -> Decoded {
        let target = match adds {
            true => self.client.create_from_slice(bytemuck::cast_slice(batch)),
            false => self.client.empty(4 * batch.len()),
        };
        let done = self.upload(&[0]);
        let (count, dim) = self.cubes(values.len());
        let values_arg = array(&self.upload(values), values.len());
        let (target_arg, done_arg) = (array(&target, batch.len()), array(&done, 1));
        let client = &self.client;
        match kind {
            CodecKind::Bf16 => {
                kernel::decode_bf16::launch::<R>(client, count, dim, values_arg, target_arg, done_arg, adds);
            }
            CodecKind::Int8 => {
                let scales_arg = array(&self.upload(scales), scales.len());
                kernel::decode_int8::launch::<R>(
                    client, count, dim, scales_arg, values_arg, target_arg, done_arg, adds,
                );
            }
            CodecKind::Int4 => {
                let scales_arg = array(&self.upload(scales), scales.len());
                kernel::decode_int4::launch::<R>(
                    client, count, dim, scales_arg, values_arg, target_arg, done_arg, adds,
                );
            }
        }
        Decoded { values: target, done, launches: 1 }
    }
}

/// Copies the batches into `dst`, one after the other.
pub(super) fn put_back(batches: Vec<Bytes>, dst: &mut [f32]) {
    for (out, batch) in dst.chunks_mut(BATCH_ELEMENTS).zip(batches) {
        for (out, bytes) in out.iter_mut().zip(batch.as_chunks::<4>().0) {
            *out = f32::from_ne_bytes(*bytes);
        }
    }
}

/// Bytes as words, the first of a word in its low byte, zeros after the end.
fn words(bytes: &[u8]) -> Vec<u32> {
    let (whole, rest) = bytes.as_chunks::<4>();
    let mut words: Vec<u32> = whole.iter().map(|w| u32::from_le_bytes(*w)).collect();
    if !rest.is_empty() {
        words.push(rest.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte)));
    }
    words
}
