//! Chunked top-k: the largest values of each block of 4096, as one of two magnitudes with a sign, at Rice-coded places.
//! The protocol crate's codec of that name states the layout.

use super::bits::{BitReader, BitWriter};
use super::error::CodecError;
use super::scale::{self, SCALE_MAX, SCALE_MIN, magnitude, nearest, widen};

/// Elements of a block, of which the `k` largest are kept.
pub const TOPK_BLOCK: usize = 4096;

/// Passes of Lloyd's algorithm over the kept magnitudes.
pub(super) const LLOYD_PASSES: usize = 2;
/// Bits of the largest and of the smallest magnitude that can be written.
pub(super) const LARGEST: u32 = (SCALE_MAX as u32) << 16;
pub(super) const SMALLEST: u32 = (SCALE_MIN as u32) << 16;
/// Magnitudes are counted by their bits without this many low ones: by exponent and two bits of mantissa.
const BIN_SHIFT: u32 = 21;
const BINS: usize = 1 << (31 - BIN_SHIFT);

/// Entries that a block of `elements` may have.
const fn budget(k: usize, elements: usize) -> usize {
    (k * elements).div_ceil(TOPK_BLOCK)
}

/// Low bits of a gap that are written as they are.
const fn rice(elements: usize, count: usize) -> u32 {
    match elements.checked_div(count) {
        Some(mean) if mean > 1 => mean.ilog2() - 1,
        _ => 0,
    }
}

/// Most bytes of a payload of `elements` values; the protocol crate says why.
pub const fn topk_encoded_max(k: usize, elements: usize) -> usize {
    let (whole, rest) = (elements / TOPK_BLOCK, elements % TOPK_BLOCK);
    whole * block_max(k, TOPK_BLOCK) + if rest == 0 { 0 } else { block_max(k, rest) }
}

const fn block_max(k: usize, elements: usize) -> usize {
    let count = budget(k, elements);
    6 + (count * (8 + rice(elements, count) as usize)).div_ceil(8)
}

/// Memory that the encoder reuses for each block: 22 KiB.
pub struct TopkScratch {
    /// Two counts of each bin, so that equal neighbours do not wait for each other.
    bins: Box<[[u16; BINS]; 2]>,
    places: Vec<u16>,
    edge: Vec<u32>,
}

impl Default for TopkScratch {
    fn default() -> Self {
        Self { bins: Box::new([[0; BINS]; 2]), places: Vec::new(), edge: Vec::new() }
    }
}

/// Replaces the content of `out` by the encoded `src`.
///
/// Refuses a value that is not finite or is too large; `out` then holds no payload.
pub fn topk_encode(k: usize, src: &[f32], scratch: &mut TopkScratch, out: &mut Vec<u8>) -> Result<(), CodecError> {
    out.clear();
    for (block, x) in src.chunks(TOPK_BLOCK).enumerate() {
        let largest = pulp::Arch::new().dispatch(
            #[inline(always)]
            || x.iter().fold(0, |m, x| m.max(magnitude(*x))),
        );
        if largest > LARGEST {
            return Err(scale::refusal(x, block * TOPK_BLOCK));
        }
        keep(budget(k, x.len()), x, largest, scratch);
        write_block(x, &scratch.places, out);
    }
    Ok(())
}

/// Finds the places of the `budget` largest magnitudes, ascending; of equal magnitudes the first. Counts magnitudes by
/// bins, down to the bin of the last one kept, collects the places of that bin and above, and selects exactly among
/// them.
fn keep(budget: usize, x: &[f32], largest: u32, scratch: &mut TopkScratch) {
    let TopkScratch { bins, places, edge } = scratch;
    places.clear();
    if largest < SMALLEST || budget == 0 {
        return;
    }
    for bins in bins.iter_mut() {
        bins.fill(0);
    }
    let (pairs, rest) = x.as_chunks::<2>();
    for [a, b] in pairs {
        bins[0][(magnitude(*a) >> BIN_SHIFT) as usize] += 1;
        bins[1][(magnitude(*b) >> BIN_SHIFT) as usize] += 1;
    }
    for a in rest {
        bins[0][(magnitude(*a) >> BIN_SHIFT) as usize] += 1;
    }
    let lowest = (SMALLEST >> BIN_SHIFT) as usize;
    let mut bin = (largest >> BIN_SHIFT) as usize;
    let mut above = 0;
    loop {
        above += usize::from(bins[0][bin]) + usize::from(bins[1][bin]);
        if above >= budget || bin == lowest {
            break;
        }
        bin -= 1;
    }
    collect(x, ((bin as u32) << BIN_SHIFT).max(SMALLEST), places);
    if places.len() > budget {
        select(budget, x, places, edge);
    }
}

/// Places of magnitudes not below `bound`. Each place is written and then kept or not: the places of large values
/// cannot be predicted, and a wrong branch prediction costs more than a store.
fn collect(x: &[f32], bound: u32, places: &mut Vec<u16>) {
    places.resize(x.len() + 1, 0);
    let mut count = 0;
    for (i, x) in x.iter().enumerate() {
        places[count] = i as u16;
        count += usize::from(magnitude(*x) >= bound);
    }
    places.truncate(count);
}

/// Leaves the `budget` largest of `places`; `budget` is at least 1 and below their number.
fn select(budget: usize, x: &[f32], places: &mut Vec<u16>, edge: &mut Vec<u32>) {
    let of = |place: &u16| magnitude(x[usize::from(*place)]);
    edge.clear();
    edge.extend(places.iter().map(of));
    let (_, least, _) = edge.select_nth_unstable_by(budget - 1, |a, b| b.cmp(a));
    let least = *least;
    let mut equal = budget - places.iter().filter(|place| of(place) > least).count();
    let mut kept = 0;
    for at in 0..places.len() {
        let place = places[at];
        let tie = usize::from(of(&place) == least) & usize::from(equal > 0);
        equal -= tie;
        places[kept] = place;
        kept += usize::from(of(&place) > least) | tie;
    }
    places.truncate(kept);
}

fn write_block(x: &[f32], places: &[u16], out: &mut Vec<u8>) {
    let (low, high, bound) = levels(x, places);
    let entries = places.iter().map(|place| {
        let x = x[usize::from(*place)];
        let upper = low != high && f64::from(x.abs()) > bound;
        Entry { place: u32::from(*place), negative: x.is_sign_negative(), upper }
    });
    pack(x.len(), low, high, entries, out);
}

/// A kept element.
pub(super) struct Entry {
    /// The place within the block.
    pub place: u32,
    pub negative: bool,
    /// Whether it takes the higher level.
    pub upper: bool,
}

/// Appends a block of `elements` with these entries, in ascending order of places. Only a block with entries has
/// levels.
#[inline(always)]
pub(super) fn pack(
    elements: usize,
    low: u16,
    high: u16,
    entries: impl ExactSizeIterator<Item = Entry>,
    out: &mut Vec<u8>,
) {
    let count = entries.len();
    out.extend_from_slice(&(count as u16).to_le_bytes());
    if count == 0 {
        return;
    }
    out.extend_from_slice(&low.to_le_bytes());
    out.extend_from_slice(&high.to_le_bytes());
    let r = rice(elements, count);
    let mut bits = BitWriter { at: out.len(), held: 0, count: 0 };
    // Space for words that are written whole, the last one beyond the end.
    out.resize(bits.at + (count * (8 + r as usize)).div_ceil(8) + 8, 0);
    let mut next = 0;
    for Entry { place, negative, upper } in entries {
        let gap = place - next;
        next = place + 1;
        let mut ones = gap >> r;
        while ones > 32 {
            bits.put(out, 0xffff_ffff, 32);
            ones -= 32;
        }
        let tail = u64::from(gap & ((1 << r) - 1)) | u64::from(negative) << r | u64::from(upper) << (r + 1);
        // At most 32 + 1 + 10 + 2 new bits, and 7 held ones.
        bits.put(out, ((1 << ones) - 1) | tail << (ones + 1), ones + r + 3);
    }
    out.truncate(bits.at + usize::from(bits.count > 0));
}

/// The two magnitudes as bf16, and the bound above which an entry takes the higher one.
fn levels(x: &[f32], places: &[u16]) -> (u16, u16, f64) {
    if places.is_empty() {
        return (0, 0, 0.0);
    }
    let magnitudes = || places.iter().map(|place| f64::from(x[usize::from(*place)].abs()));
    let all = magnitudes().fold(0.0, |sum, m| sum + m) / places.len() as f64;
    // The means of both parts, if neither is empty. Adding 0 changes no sum, and needs no branch.
    let deal = |bound: f64| {
        let (mut low, mut high, mut lows) = (0.0f64, 0.0f64, 0usize);
        for m in magnitudes() {
            let below = m <= bound;
            low += if below { m } else { 0.0 };
            high += if below { 0.0 } else { m };
            lows += usize::from(below);
        }
        let highs = places.len() - lows;
        (lows > 0 && highs > 0).then(|| (low / lows as f64, high / highs as f64))
    };
    let (mut bound, mut low, mut high) = (all, all, all);
    for _ in 0..LLOYD_PASSES {
        let Some((below, above)) = deal(bound) else { break };
        (low, high) = (below, above);
        bound = (low + high) / 2.0;
    }
    if deal(bound).is_none() {
        (low, high) = (all, all);
    }
    (nearest(low as f32), nearest(high as f32), bound)
}

/// Reads a payload into `dst`.
pub fn topk_decode(k: usize, bytes: &[u8], dst: &mut [f32]) -> Result<(), CodecError> {
    topk_check(k, bytes, dst.len())?;
    dst.fill(0.0);
    walk(k, bytes, dst.len(), |place, value| dst[place] = value)
}

/// Adds a payload's values to `dst`; elements without an entry are left alone.
pub fn topk_decode_add(k: usize, bytes: &[u8], dst: &mut [f32]) -> Result<(), CodecError> {
    topk_check(k, bytes, dst.len())?;
    walk(k, bytes, dst.len(), |place, value| dst[place] += value)
}

/// Checks that an encoder of `elements` values could have written the payload.
pub fn topk_check(k: usize, bytes: &[u8], elements: usize) -> Result<(), CodecError> {
    walk(k, bytes, elements, |_, _| {})
}

/// Calls `put` with place and value of each entry. Refuses a payload that is not canonical, perhaps after some calls.
#[inline(always)]
pub(super) fn walk(k: usize, bytes: &[u8], elements: usize, mut put: impl FnMut(usize, f32)) -> Result<(), CodecError> {
    let mut rest = bytes;
    for block in 0..elements.div_ceil(TOPK_BLOCK) {
        let start = block * TOPK_BLOCK;
        let length = TOPK_BLOCK.min(elements - start);
        let (head, body) = Head::read(k, block, rest, length)?;
        rest = match head {
            None => body,
            Some(head) => head.entries(block, body, length, |place, value| put(start + place, value))?,
        };
    }
    if rest.is_empty() { Ok(()) } else { Err(CodecError::Trailing { bytes: rest.len() }) }
}

/// The fields before a block's entries.
struct Head {
    count: usize,
    low: u16,
    high: u16,
}

impl Head {
    /// Reads the head (`None` if there are no entries) and returns the bytes after it.
    fn read(k: usize, block: usize, bytes: &[u8], elements: usize) -> Result<(Option<Self>, &[u8]), CodecError> {
        let word = |bytes: &[u8], at: usize| {
            let bytes = bytes.get(at..at + 2).and_then(|b| b.first_chunk::<2>());
            bytes.map(|b| u16::from_le_bytes(*b)).ok_or(CodecError::Truncated { block })
        };
        let count = usize::from(word(bytes, 0)?);
        if count == 0 {
            return Ok((None, &bytes[2..]));
        }
        if count > budget(k, elements) {
            return Err(CodecError::TooMany { block, entries: count });
        }
        let (low, high) = (word(bytes, 2)?, word(bytes, 4)?);
        for bits in [low, high] {
            if !scale::is_lawful(bits) || high < low {
                return Err(CodecError::BadScale { block, bits });
            }
        }
        Ok((Some(Self { count, low, high }), &bytes[6..]))
    }

    /// Reads the entries and returns the bytes after them.
    #[inline(always)]
    fn entries<'a>(
        &self,
        block: usize,
        bytes: &'a [u8],
        elements: usize,
        mut put: impl FnMut(usize, f32),
    ) -> Result<&'a [u8], CodecError> {
        let truncated = CodecError::Truncated { block };
        let r = rice(elements, self.count);
        let mut bits = BitReader { bytes, at: 0 };
        let mut next = 0;
        let mut uppers = 0;
        for _ in 0..self.count {
            let place = next + bits.rice(r, elements).ok_or(truncated)?;
            if place >= elements {
                return Err(CodecError::BadPlace { block, place });
            }
            next = place + 1;
            let tail = bits.take(2).ok_or(truncated)?;
            let upper = tail >> 1;
            uppers += upper as usize;
            let magnitude = widen(if upper == 1 { self.high } else { self.low });
            put(place, if tail & 1 == 1 { -magnitude } else { magnitude });
        }
        // An encoder writes a single level twice, and all entries take the lower. Two levels have an entry each.
        if uppers == self.count || (uppers > 0) != (self.low != self.high) {
            return Err(CodecError::BadScale { block, bits: self.high });
        }
        bits.finish().ok_or(CodecError::Padding { block })
    }
}
