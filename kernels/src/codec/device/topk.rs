//! The host's side of top-k: it codes the gaps between the places that the device finds, and reads them.

use super::super::scale;
use super::super::topk::{self, Entry, TOPK_BLOCK};
use super::decode::{Decoded, put_back};
use super::kernel::encode::REFUSED;
use super::kernel::topk as kernel;
use super::*;

/// A batch of blocks whose entries are still on the device.
struct Selected {
    /// First element of the batch in the vector.
    start: usize,
    elements: usize,
    /// Two words a block.
    heads: Handle,
    /// `stride` words a block.
    entries: Handle,
    stride: usize,
    tag: u16,
}

impl<R: Runtime> RuntimeCodec<R> {
    /// Replaces the content of `out` by the encoded `src`, with at most `k` entries of each [`TOPK_BLOCK`] elements and
    /// the bytes of [`super::super::topk_encode`]. The device finds entries and levels, the host codes the gaps.
    ///
    /// # Errors
    /// If a value is not finite or is above 2^120 (the error names it as on the CPU), or the device fails. `out` then
    /// holds no payload.
    pub fn topk_encode(&self, k: usize, src: &[f32], out: &mut Vec<u8>) -> Result<(), DeviceCodecError> {
        out.clear();
        let mut pending = None;
        for (index, batch) in src.chunks(BATCH_ELEMENTS).enumerate() {
            let selected = self.launch_selection(k, index * BATCH_ELEMENTS, batch);
            if let Some(before) = pending.replace(selected) {
                self.collect_selected(src, before, out)?;
            }
        }
        pending.map_or(Ok(()), |last| self.collect_selected(src, last, out))
    }

    fn launch_selection(&self, k: usize, start: usize, batch: &[f32]) -> Selected {
        let elements = batch.len();
        let blocks = elements.div_ceil(TOPK_BLOCK);
        // A block has no more entries than elements; buffers are never empty.
        let k = k.min(TOPK_BLOCK);
        let stride = k.max(1);
        let words = blocks * stride;
        let (counts, heads) = (self.client.empty(4 * blocks), self.client.empty(8 * blocks));
        let (entries, magnitudes) = (self.client.empty(4 * words), self.client.empty(4 * words));
        let input = self.client.create_from_slice(bytemuck::cast_slice(batch));
        let tag = next_tag();
        kernel::keep_largest::launch::<R>(
            &self.client,
            CubeCountSelection::new(&self.client, blocks as u32).cube_count(),
            CubeDim::new_1d(kernel::SELECT_UNITS),
            array(&input, elements),
            array(&counts, blocks),
            array(&entries, words),
            array(&magnitudes, words),
            k as u32,
            stride as u32,
            tag.into(),
        );
        let (count, dim) = self.cubes(blocks);
        kernel::deal_levels::launch::<R>(
            &self.client,
            count,
            dim,
            array(&counts, blocks),
            array(&magnitudes, words),
            array(&entries, words),
            array(&heads, 2 * blocks),
            stride as u32,
        );
        Selected { start, elements, heads, entries, stride, tag }
    }

    /// Reads a batch of `src` and appends its blocks.
    fn collect_selected(&self, src: &[f32], batch: Selected, out: &mut Vec<u8>) -> Result<(), DeviceCodecError> {
        let heads = self.client.read_one(batch.heads)?;
        let entries = self.client.read_one(batch.entries)?;
        let entries = entries.as_chunks::<4>().0;
        let blocks = src[batch.start..batch.start + batch.elements].chunks(TOPK_BLOCK);
        for ((index, x), head) in blocks.enumerate().zip(heads.as_chunks::<8>().0) {
            let [count, tag, low, high] = [0, 2, 4, 6].map(|at| u16::from_ne_bytes([head[at], head[at + 1]]));
            // Words have the byte order of the machine, and so have their halves.
            let [count, tag, low, high] = match cfg!(target_endian = "little") {
                true => [count, tag, low, high],
                false => [tag, count, high, low],
            };
            if tag != batch.tag {
                return Err(DeviceCodecError::NoResult);
            }
            if count == REFUSED {
                out.clear();
                return Err(scale::refusal(x, batch.start + index * TOPK_BLOCK).into());
            }
            let at = index * batch.stride;
            let found = entries.get(at..at + usize::from(count)).ok_or(DeviceCodecError::NoResult)?;
            let found = found.iter().map(|word| {
                let word = u32::from_ne_bytes(*word);
                let place = word % TOPK_BLOCK as u32;
                Entry { place, negative: word & kernel::NEGATIVE != 0, upper: word & kernel::UPPER != 0 }
            });
            topk::pack(x.len(), low, high, found, out);
        }
        Ok(())
    }

    /// Reads a payload into `dst`, as [`super::super::topk_decode`] does.
    ///
    /// # Errors
    /// If the payload is not canonical (the error names the same reason as on the CPU), or the device fails. `dst` is
    /// then as it was.
    pub fn topk_decode(&self, k: usize, bytes: &[u8], dst: &mut [f32]) -> Result<(), DeviceCodecError> {
        self.scatter(k, bytes, dst, false)
    }

    /// Adds a payload's values to `dst`, as [`super::super::topk_decode_add`] does; elements without an entry are left
    /// alone. [`Self::decode_add`] says what becomes of infinities and NaN in `dst`.
    ///
    /// # Errors
    /// Those of [`Self::topk_decode`].
    pub fn topk_decode_add(&self, k: usize, bytes: &[u8], dst: &mut [f32]) -> Result<(), DeviceCodecError> {
        self.scatter(k, bytes, dst, true)
    }

    fn scatter(&self, k: usize, bytes: &[u8], dst: &mut [f32], adds: bool) -> Result<(), DeviceCodecError> {
        // Each batch has place and value of its entries, alternating. The walk refuses a payload that is not canonical.
        let mut entries = vec![Vec::new(); dst.len().div_ceil(BATCH_ELEMENTS)];
        topk::walk(k, bytes, dst.len(), |place, value| {
            entries[place / BATCH_ELEMENTS].extend([(place % BATCH_ELEMENTS) as u32, value.to_bits()]);
        })?;
        let results =
            self.in_batches(dst, |start, batch| self.launch_scatter(&entries[start / BATCH_ELEMENTS], batch, adds))?;
        put_back(results, dst);
        Ok(())
    }

    fn launch_scatter(&self, entries: &[u32], batch: &[f32], adds: bool) -> Decoded {
        let done = self.upload(&[0]);
        let mut launches = 0;
        let values = if adds {
            self.client.create_from_slice(bytemuck::cast_slice(batch))
        } else {
            let values = self.client.empty(4 * batch.len());
            let (count, dim) = self.cubes(batch.len());
            kernel::clear::launch::<R>(&self.client, count, dim, array(&values, batch.len()), array(&done, 1));
            launches += 1;
            values
        };
        if !entries.is_empty() {
            let (count, dim) = self.cubes(entries.len() / 2);
            kernel::scatter_add::launch::<R>(
                &self.client,
                count,
                dim,
                array(&self.upload(entries), entries.len()),
                array(&values, batch.len()),
                array(&done, 1),
            );
            launches += 1;
        }
        Decoded { values, done, launches }
    }
}
