//! Chunked top-k: the largest values of each block, each as a sign and one of two magnitudes, at Rice-coded places.

use super::bf16::{nearest, widen};
use super::error::CodecError;
use super::scale::{self, SCALE_MIN};

/// Elements of a block, of which the `k` largest are kept.
pub const TOPK_BLOCK: usize = 4096;

/// Passes of Lloyd's algorithm (one-dimensional k-means) over the kept magnitudes.
const LLOYD_PASSES: usize = 2;

/// Entries that a block of `elements` may have: `k` in a whole one, its share, rounded up, in a short one.
pub const fn budget(k: usize, elements: usize) -> usize {
    (k * elements).div_ceil(TOPK_BLOCK)
}

/// Low bits of a gap that are written as they are, in a block with `count` entries. They follow from what the reader
/// knows by then. The code is within 2 % of the entropy of uniformly spread places.
pub(super) const fn rice(elements: usize, count: usize) -> u32 {
    match elements.checked_div(count) {
        Some(mean) if mean > 1 => mean.ilog2() - 1,
        _ => 0,
    }
}

/// The most bytes of a payload of `elements` values.
///
/// With `r = rice(n, c)`, an entry takes `r + 3` bits and the unary parts of all together less than `n / 2^r < 4 c +
/// c`; over all counts `c` up to the budget that is at most `8 + r` bits for each entry of a full budget.
pub const fn encoded_max(k: usize, elements: usize) -> usize {
    let (whole, rest) = (elements / TOPK_BLOCK, elements % TOPK_BLOCK);
    whole * block_max(k, TOPK_BLOCK) + if rest == 0 { 0 } else { block_max(k, rest) }
}

const fn block_max(k: usize, elements: usize) -> usize {
    let count = budget(k, elements);
    6 + (count * (8 + rice(elements, count) as usize)).div_ceil(8)
}

/// Appends the payload of `src` to `out`; after an error `out` is unchanged.
///
/// # Errors
/// The first value that is not finite or is above 2^120.
pub fn encode(k: usize, src: &[f32], out: &mut Vec<u8>) -> Result<(), CodecError> {
    for (block, x) in src.chunks(TOPK_BLOCK).enumerate() {
        // Magnitudes are levels here: a block that has a scale with integers up to 1 can be written.
        scale::of(x, 1.0).map_err(|refusal| refusal.shifted(block * TOPK_BLOCK))?;
    }
    let mut order = Vec::with_capacity(TOPK_BLOCK);
    for x in src.chunks(TOPK_BLOCK) {
        keep(budget(k, x.len()), x, &mut order);
        write_block(x, &order, out);
    }
    Ok(())
}

/// The places of the `budget` largest magnitudes, ascending; of equal ones the first. Values below the smallest scale
/// are not kept.
fn keep(budget: usize, x: &[f32], order: &mut Vec<u16>) {
    order.clear();
    order.extend((0..x.len() as u16).filter(|i| x[usize::from(*i)].abs() >= widen(SCALE_MIN)));
    // Magnitudes compare as their bits do; the sort is stable, so the earlier place stays in front.
    order.sort_by_key(|i| std::cmp::Reverse(x[usize::from(*i)].abs().to_bits()));
    order.truncate(budget);
    order.sort_unstable();
}

fn write_block(x: &[f32], places: &[u16], out: &mut Vec<u8>) {
    out.extend_from_slice(&(places.len() as u16).to_le_bytes());
    if places.is_empty() {
        return;
    }
    let magnitudes = || places.iter().map(|i| x[usize::from(*i)].abs());
    let (low, high, bound) = levels(magnitudes());
    out.extend_from_slice(&low.to_le_bytes());
    out.extend_from_slice(&high.to_le_bytes());
    let r = rice(x.len(), places.len());
    let mut bits = BitWriter { out, held: 0, count: 0 };
    let mut next = 0;
    for place in places {
        let gap = u32::from(*place) - next;
        next = u32::from(*place) + 1;
        (0..gap >> r).for_each(|_| bits.put(1, 1));
        bits.put(0, 1);
        bits.put(gap & ((1 << r) - 1), r);
        let x = x[usize::from(*place)];
        bits.put(u32::from(x.is_sign_negative()), 1);
        bits.put(u32::from(low != high && f64::from(x.abs()) > bound), 1);
    }
    bits.finish();
}

/// The two magnitudes as bf16, and the bound above which an entry takes the higher one. Sums run in order, in f64.
fn levels(magnitudes: impl Iterator<Item = f32> + Clone) -> (u16, u16, f64) {
    let mean = |part: &dyn Fn(f64) -> bool| {
        let (mut sum, mut count) = (0.0f64, 0u32);
        for m in magnitudes.clone().map(f64::from).filter(|m| part(*m)) {
            (sum, count) = (sum + m, count + 1);
        }
        (count > 0).then(|| sum / f64::from(count))
    };
    let all = mean(&|_| true).unwrap_or(0.0);
    let (mut bound, mut low, mut high) = (all, all, all);
    for _ in 0..LLOYD_PASSES {
        let (Some(below), Some(above)) = (mean(&|m| m <= bound), mean(&|m| m > bound)) else { break };
        (low, high) = (below, above);
        bound = (low + high) / 2.0;
    }
    // The last bound assigns the entries to levels, so a level that no entry takes must not be written.
    if mean(&|m| m <= bound).is_none() || mean(&|m| m > bound).is_none() {
        (low, high) = (all, all);
    }
    let (low, high) = (nearest(low as f32), nearest(high as f32));
    (low, high, bound)
}

/// Reads a payload into `dst`, which is unchanged after an error.
pub fn decode(k: usize, bytes: &[u8], dst: &mut [f32]) -> Result<(), CodecError> {
    check(k, bytes, dst.len())?;
    dst.fill(0.0);
    walk(k, bytes, dst.len(), |place, value| dst[place] = value)
}

/// Adds a payload's entries to `dst`, one f32 addition each; `dst` is unchanged after an error.
pub fn decode_add(k: usize, bytes: &[u8], dst: &mut [f32]) -> Result<(), CodecError> {
    check(k, bytes, dst.len())?;
    each(k, bytes, dst, |d, value| *d += value)
}

/// Calls `put` for the entries of a payload that was checked; elements without an entry are left alone.
pub(super) fn each(k: usize, bytes: &[u8], dst: &mut [f32], put: impl Fn(&mut f32, f32)) -> Result<(), CodecError> {
    walk(k, bytes, dst.len(), |place, value| put(&mut dst[place], value))
}

/// Checks that a payload of `elements` values is canonical.
pub fn check(k: usize, bytes: &[u8], elements: usize) -> Result<(), CodecError> {
    walk(k, bytes, elements, |_, _| {})
}

/// Calls `put` with place and value of each entry, in order. Refuses a payload that is not canonical, perhaps after
/// some calls.
fn walk(k: usize, bytes: &[u8], elements: usize, mut put: impl FnMut(usize, f32)) -> Result<(), CodecError> {
    let mut rest = bytes;
    for block in 0..elements.div_ceil(TOPK_BLOCK) {
        let start = block * TOPK_BLOCK;
        rest = read_block(k, block, rest, TOPK_BLOCK.min(elements - start), |place, x| put(start + place, x))?;
    }
    if rest.is_empty() { Ok(()) } else { Err(CodecError::Trailing { bytes: rest.len() }) }
}

/// Writes decoded values of one block again.
#[cfg(test)]
pub(super) fn write(values: &[f32], out: &mut Vec<u8>) {
    let places: Vec<u16> = (0..values.len() as u16).filter(|i| values[usize::from(*i)] != 0.0).collect();
    write_block(values, &places, out);
}

/// Reads one block and returns what follows it.
fn read_block(
    k: usize,
    block: usize,
    bytes: &[u8],
    elements: usize,
    mut put: impl FnMut(usize, f32),
) -> Result<&[u8], CodecError> {
    let short = CodecError::Truncated { block };
    let (count, bytes) = read_u16(bytes).ok_or(short)?;
    let count = usize::from(count);
    if count == 0 {
        return Ok(bytes);
    }
    if count > budget(k, elements) {
        return Err(CodecError::TooMany { block, entries: count });
    }
    let (low, bytes) = read_u16(bytes).ok_or(short)?;
    let (high, bytes) = read_u16(bytes).ok_or(short)?;
    for bits in [low, high] {
        if !scale::is_lawful(bits) || high < low {
            return Err(CodecError::BadScale { block, bits });
        }
    }
    let r = rice(elements, count);
    let mut bits = BitReader { bytes, at: 0 };
    let mut next = 0;
    let mut seen = [false; 2];
    for _ in 0..count {
        let gap = bits.rice(r, elements).ok_or(short)?;
        let place = next + gap;
        if place >= elements {
            return Err(CodecError::BadPlace { block, place });
        }
        next = place + 1;
        let negative = bits.take(1).ok_or(short)? == 1;
        let upper = bits.take(1).ok_or(short)? as usize;
        seen[upper] = true;
        let magnitude = widen([low, high][upper]);
        put(place, if negative { -magnitude } else { magnitude });
    }
    // A single level is written twice, and all entries take the lower one; of two different levels both have entries.
    if seen != [true, low != high] {
        return Err(CodecError::BadScale { block, bits: high });
    }
    bits.finish().ok_or(CodecError::Padding { block })
}

fn read_u16(bytes: &[u8]) -> Option<(u16, &[u8])> {
    bytes.split_first_chunk::<2>().map(|(head, rest)| (u16::from_le_bytes(*head), rest))
}

/// Appends bits, the lowest first.
struct BitWriter<'a> {
    out: &'a mut Vec<u8>,
    held: u64,
    count: u32,
}

impl BitWriter<'_> {
    /// Appends the `count` (at most 12) low bits of `bits`.
    fn put(&mut self, bits: u32, count: u32) {
        self.held |= u64::from(bits) << self.count;
        self.count += count;
        while self.count >= 8 {
            self.out.push(self.held as u8);
            (self.held, self.count) = (self.held >> 8, self.count - 8);
        }
    }

    /// Fills the last byte with zeros.
    fn finish(self) {
        if self.count > 0 {
            self.out.push(self.held as u8);
        }
    }
}

struct BitReader<'a> {
    bytes: &'a [u8],
    /// Bits that were read.
    at: usize,
}

impl<'a> BitReader<'a> {
    fn take(&mut self, count: u32) -> Option<u32> {
        let mut bits = 0;
        for i in 0..count {
            let byte = self.bytes.get(self.at / 8)?;
            bits |= u32::from(byte >> (self.at % 8) & 1) << i;
            self.at += 1;
        }
        Some(bits)
    }

    /// Reads a gap; a gap that would leave a block of `elements` is cut off there.
    fn rice(&mut self, r: u32, elements: usize) -> Option<usize> {
        let mut high = 0;
        while self.take(1)? == 1 {
            high += 1;
            if high << r >= elements {
                return Some(elements);
            }
        }
        Some((high << r) + self.take(r)? as usize)
    }

    /// The bytes after the last byte that was begun. The remaining bits of that byte must be 0.
    fn finish(mut self) -> Option<&'a [u8]> {
        while !self.at.is_multiple_of(8) {
            if self.take(1)? != 0 {
                return None;
            }
        }
        self.bytes.get(self.at / 8..)
    }
}
