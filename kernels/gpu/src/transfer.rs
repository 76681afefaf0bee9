//! Vectors between the host, where weights follow each other, and a device, where they lie apart.

use crate::fill;
use crate::launches::Tally;
use crate::sizes::{Layout, Weight};
use cubecl::prelude::*;
use cubecl::server::Handle;
use std::ops::Range;

/// Elements that cross at a time: 16 MiB.
pub const PIECE: usize = 1 << 22;

/// The places of a device's vector, in its order.
#[derive(Clone, Debug)]
pub struct Places {
    weights: Vec<Weight>,
    /// Elements on the device.
    pub elements: usize,
}

/// The same numbers in two vectors.
pub type Overlap = (Range<usize>, Range<usize>);

impl Places {
    pub fn of(layout: &Layout) -> Self {
        let mut weights = layout.weights();
        weights.sort_by_key(|weight| weight.device);
        Self { weights, elements: layout.device }
    }

    /// The places on the host of the device's numbers in `range`, each with its part of them; the rest is padding.
    pub fn overlaps(&self, range: Range<usize>) -> impl Iterator<Item = Overlap> {
        let first = self.weights.partition_point(|weight| weight.device + weight.elements() <= range.start);
        let (from, to) = (range.start, range.end);
        self.weights[first..].iter().take_while(move |weight| weight.device < to).map(move |weight| {
            let (start, end) = (weight.device.max(from), (weight.device + weight.elements()).min(to));
            let host = weight.host + start - weight.device;
            (host..host + end - start, start - from..end - from)
        })
    }

    /// The places on the device of the host's numbers from `start` on, each with its part of them.
    pub fn parts(&self, start: usize, len: usize) -> Vec<Overlap> {
        let end = start + len;
        let theirs = self.weights.iter().filter(|weight| weight.host < end && start < weight.host + weight.elements());
        let parts = theirs.map(|weight| {
            let (from, to) = (weight.host.max(start), (weight.host + weight.elements()).min(end));
            let device = weight.device + from - weight.host;
            (device..device + to - from, from - start..to - start)
        });
        parts.collect()
    }

    pub fn pieces(&self) -> impl Iterator<Item = Range<usize>> {
        let elements = self.elements;
        (0..elements).step_by(PIECE).map(move |start| start..elements.min(start + PIECE))
    }

    /// Copies the host's vector to `target`, f32 in the device's layout; its padding becomes zero.
    pub fn write<R: Runtime>(&self, client: &ComputeClient<R>, values: &[f32], target: &Handle, tally: &Tally) {
        for range in self.pieces() {
            let mut piece = vec![0.0f32; range.len()];
            for (host, part) in self.overlaps(range.clone()) {
                piece[part].copy_from_slice(&values[host]);
            }
            let source = client.create(cubecl::bytes::Bytes::from_elems(piece));
            let target = target.clone().offset_start(4 * range.start as u64);
            fill::convert::<R, f32>(client, &source, &target, range.len(), tally.of(1));
        }
    }

    /// Copies `source`, f32 in the device's layout, to the host's vector.
    ///
    /// # Errors
    /// The device's words.
    pub fn read<R: Runtime>(
        &self,
        client: &ComputeClient<R>,
        source: &Handle,
        values: &mut [f32],
    ) -> Result<(), String> {
        for range in self.pieces() {
            let bytes = floats(client, source, self.elements, range.clone())?;
            let piece: &[f32] = bytemuck::cast_slice(&bytes);
            for (host, part) in self.overlaps(range) {
                values[host].copy_from_slice(&piece[part]);
            }
        }
        Ok(())
    }
}

/// The bytes of `range` of a vector of `elements` f32.
///
/// # Errors
/// The device's words.
pub fn floats<R: Runtime>(
    client: &ComputeClient<R>,
    source: &Handle,
    elements: usize,
    range: Range<usize>,
) -> Result<cubecl::bytes::Bytes, String> {
    let after = 4 * (elements - range.end) as u64 + source.size_in_used() - 4 * elements as u64;
    let part = source.clone().offset_start(4 * range.start as u64).offset_end(after);
    let bytes = client.read_one(part).map_err(|error| crate::words::of(&error))?;
    match bytes.len() == 4 * range.len() {
        true => Ok(bytes),
        false => Err(format!("it gave {} bytes of {}", bytes.len(), 4 * range.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sizes::Sizes;

    #[test]
    fn every_number_of_the_host_is_in_one_piece() {
        let (vocab, width, layers, heads, kv_heads, ffn) = (250, 96, 3, 6, 2, 100);
        let sizes =
            Sizes { vocab, width, layers, heads, kv_heads, ffn, tokens: 33, tied: false, theta: 1e4, eps: 1e-5 };
        let layout = Layout::of(&sizes);
        let places = Places::of(&layout);
        for step in [100, 1000, layout.device] {
            let mut seen = vec![0u8; layout.host];
            for start in (0..layout.device).step_by(step) {
                let range = start..layout.device.min(start + step);
                for (host, part) in places.overlaps(range.clone()) {
                    assert_eq!(host.len(), part.len());
                    assert!(part.end <= range.len());
                    host.for_each(|at| seen[at] += 1);
                }
            }
            assert!(seen.iter().all(|&times| times == 1), "pieces of {step}");
        }
    }
}
