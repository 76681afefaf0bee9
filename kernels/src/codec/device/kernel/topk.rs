//! Top-k: which elements of a block are kept and at which of two levels, and their decoding.
//!
//! A unit of selection has 16 neighbouring elements, so that places come out in order. The kernel searches the bound of
//! the kept magnitudes bit by bit, from the top: for each bit all units count their elements that are not below it.
//! Levels are means in f64, summed in order, as the specification says; one unit a block computes them with integers
//! ([`super::wide`]). The host codes the gaps, since the start of a code depends on all codes before it.

use super::super::super::topk::{LARGEST, LLOYD_PASSES, SMALLEST, TOPK_BLOCK};
use super::decode::finish;
use super::encode::{REFUSED, nearest};
use super::sum::add as add_f32;
use super::wide::{INFINITE, add, divide, exceeds, middle, narrow, wide};
use super::{MAGNITUDE, larger, load, smaller};
use cubecl::prelude::*;

/// Units of a cube that selects.
pub(in crate::codec::device) const SELECT_UNITS: u32 = 256;
/// The sign bit of an entry's word. The place is below it.
pub(in crate::codec::device) const NEGATIVE: u32 = 1 << 12;
pub(in crate::codec::device) const UPPER: u32 = 1 << 13;

/// Elements of a unit.
const PER_UNIT: usize = TOPK_BLOCK / SELECT_UNITS as usize;
/// Bits of a magnitude that the bound is searched in.
const BOUND_BITS: u32 = 31;

/// Selects the entries of each block, one cube a block. (WGSL has a function `select`, so that this one has another
/// name.)
///
/// `k`: at most 4096. `counts`: one word a block, with the number of its entries or [`REFUSED`] in the low half and
/// `tag` in the high half. `entries`: `stride` words a block, with the place and sign of each entry. `magnitudes`:
/// `stride` words a block, with the bits of the magnitude of each entry.
#[cube(launch)]
pub(in crate::codec::device) fn keep_largest(
    input: &Array<u32>,
    counts: &mut Array<u32>,
    entries: &mut Array<u32>,
    magnitudes: &mut Array<u32>,
    k: u32,
    stride: u32,
    tag: u32,
) {
    let unit = UNIT_POS as usize;
    let start = CUBE_POS * TOPK_BLOCK;
    let mut elements = 0u32;
    if start < input.len() {
        elements = smaller((input.len() - start) as u32, TOPK_BLOCK as u32);
    }
    let mut own = Array::<u32>::new(PER_UNIT);
    let mut largest = 0u32;
    #[unroll]
    for i in 0..PER_UNIT {
        let x = load(input, start + unit * PER_UNIT + i);
        own[i] = x;
        largest = larger(largest, x & MAGNITUDE);
    }
    let mut shared = SharedMemory::<u32>::new(SELECT_UNITS as usize);
    let too_large = total(&mut shared, u32::cast_from(largest > LARGEST)) > 0;
    let budget = (k * elements).div_ceil(TOPK_BLOCK as u32);

    let bound = bound_of(&own, &mut shared, budget);

    // All elements above the bound are kept, then the first ones at the bound. One word holds both counts.
    let mut ranks = 0u32;
    #[unroll]
    for i in 0..PER_UNIT {
        let magnitude = own[i] & MAGNITUDE;
        ranks += u32::cast_from(magnitude > bound) | (u32::cast_from(magnitude == bound) << 16);
    }
    let before = running(&mut shared, ranks);
    let all = shared[SELECT_UNITS as usize - 1];
    let equals = smaller(all >> 16, budget - (all & 0xffff));
    let mut above = before & 0xffff;
    let mut equal = before >> 16;
    #[unroll]
    for i in 0..PER_UNIT {
        let magnitude = own[i] & MAGNITUDE;
        let at = above + smaller(equal, equals);
        if magnitude > bound || (magnitude == bound && equal < equals) {
            let to = CUBE_POS * stride as usize + at as usize;
            if at < stride && to < entries.len() {
                let place = (unit * PER_UNIT + i) as u32;
                entries[to] = place | ((own[i] >> 31) * NEGATIVE);
                magnitudes[to] = magnitude;
            }
        }
        above += u32::cast_from(magnitude > bound);
        equal += u32::cast_from(magnitude == bound);
    }
    if unit == 0 && CUBE_POS < counts.len() {
        let mut count = (all & 0xffff) + equals;
        if too_large {
            count = REFUSED as u32;
        }
        counts[CUBE_POS] = count | (tag << 16);
    }
}

/// The greatest magnitude that at least `budget` elements of the block reach; `SMALLEST` if there is none.
#[cube]
fn bound_of(own: &Array<u32>, shared: &mut SharedMemory<u32>, budget: u32) -> u32 {
    let mut bound = u32::cast_from(SMALLEST);
    for bit in 0..BOUND_BITS {
        let trial = bound + (1u32 << (BOUND_BITS - 1 - bit));
        let mut reach = 0u32;
        #[unroll]
        for i in 0..PER_UNIT {
            reach += u32::cast_from((own[i] & MAGNITUDE) >= trial);
        }
        if total(shared, reach) >= budget {
            bound = trial;
        }
    }
    bound
}

/// The sum of `own` over all units.
#[cube]
fn total(shared: &mut SharedMemory<u32>, own: u32) -> u32 {
    let unit = UNIT_POS as usize;
    // All units must have read the old content first.
    sync_cube();
    shared[unit] = own;
    sync_cube();
    #[unroll]
    for halving in 0..comptime!(SELECT_UNITS.ilog2()) {
        let stride = comptime!(SELECT_UNITS as usize >> (halving + 1));
        if unit < stride {
            let own = shared[unit];
            let other = shared[unit + stride];
            shared[unit] = own + other;
        }
        sync_cube();
    }
    shared[0]
}

/// The sum of `own` over the units before this one; leaves the inclusive prefix sums in `shared` (Hillis, Steele 1986).
#[cube]
fn running(shared: &mut SharedMemory<u32>, own: u32) -> u32 {
    let unit = UNIT_POS as usize;
    sync_cube();
    shared[unit] = own;
    sync_cube();
    #[unroll]
    for doubling in 0..comptime!(SELECT_UNITS.ilog2()) {
        let stride = comptime!(1usize << doubling);
        let mut sum = shared[unit];
        if unit >= stride {
            let other = shared[unit - stride];
            sum += other;
        }
        sync_cube();
        shared[unit] = sum;
        sync_cube();
    }
    shared[unit] - own
}

/// One unit a block: computes the block's levels, and which of them each entry takes. `heads`: two words a block, that
/// of `counts` and the levels, the lower one in the low half. Entries of the higher level get [`UPPER`].
#[cube(launch)]
pub(in crate::codec::device) fn deal_levels(
    counts: &Array<u32>,
    magnitudes: &Array<u32>,
    entries: &mut Array<u32>,
    heads: &mut Array<u32>,
    stride: u32,
) {
    let block = ABSOLUTE_POS;
    if block < counts.len() {
        let head = counts[block];
        let mut count = head & 0xffff;
        if count > stride {
            count = 0u32;
        }
        let mut levels = 0u32;
        if count > 0 {
            levels = deal_block(magnitudes, entries, block * stride as usize, count);
        }
        heads[2 * block] = head;
        heads[2 * block + 1] = levels;
    }
}

/// Levels of a block of at least one entry: two passes of Lloyd's algorithm from the mean of all.
#[cube]
fn deal_block(magnitudes: &Array<u32>, entries: &mut Array<u32>, first: usize, count: u32) -> u32 {
    // The first pass counts all magnitudes as low, and so finds the mean of all.
    let mut bound_high = u32::cast_from(INFINITE);
    let mut bound_low = 0u32;
    let mut all = 0u32;
    let mut low = 0u32;
    let mut high = 0u32;
    let mut stopped = false;
    for pass in 0..comptime!(LLOYD_PASSES as u32 + 1) {
        if !stopped {
            let parts = means(magnitudes, first, count, bound_high, bound_low);
            if pass == 0 {
                all = narrow(parts.low_high, parts.low_low);
                low = all;
                high = all;
                bound_high = parts.low_high;
                bound_low = parts.low_low;
            } else if parts.lows > 0 && parts.lows < count {
                low = narrow(parts.low_high, parts.low_low);
                high = narrow(parts.high_high, parts.high_low);
                let bound = middle(parts.low_high, parts.low_low, parts.high_high, parts.high_low);
                bound_high = bound.high;
                bound_low = bound.low;
            } else {
                stopped = true;
            }
        }
    }
    // The last bound assigns the entries to levels, so a level without an entry must not be written.
    let mut uppers = 0u32;
    for i in 0..count {
        uppers += u32::cast_from(is_above(magnitudes[first + i as usize], bound_high, bound_low));
    }
    if uppers == 0 || uppers == count {
        low = all;
        high = all;
    }
    low = nearest(low);
    high = nearest(high);
    if low != high {
        for i in 0..count {
            let at = first + i as usize;
            if is_above(magnitudes[at], bound_high, bound_low) {
                entries[at] = entries[at] | UPPER;
            }
        }
    }
    low | (high << 16)
}

/// Means of the magnitudes up to a bound and of those above it. The mean of an empty part has no meaning.
#[derive(CubeType, Clone, Copy)]
struct Means {
    low_high: u32,
    low_low: u32,
    /// Number of magnitudes that are not above the bound.
    lows: u32,
    high_high: u32,
    high_low: u32,
}

#[cube]
fn means(magnitudes: &Array<u32>, first: usize, count: u32, bound_high: u32, bound_low: u32) -> Means {
    let mut low_high = 0u32;
    let mut low_low = 0u32;
    let mut high_high = 0u32;
    let mut high_low = 0u32;
    let mut lows = 0u32;
    for i in 0..count {
        let m = wide(magnitudes[first + i as usize]);
        let above = exceeds(m.high, m.low, bound_high, bound_low);
        let mut sum_high = low_high;
        let mut sum_low = low_low;
        if above {
            sum_high = high_high;
            sum_low = high_low;
        }
        let sum = add(sum_high, sum_low, m.high, m.low);
        if above {
            high_high = sum.high;
            high_low = sum.low;
        } else {
            low_high = sum.high;
            low_low = sum.low;
            lows += 1;
        }
    }
    let low = divide(low_high, low_low, lows);
    let high = divide(high_high, high_low, count - lows);
    Means { low_high: low.high, low_low: low.low, lows, high_high: high.high, high_low: high.low }
}

#[cube]
fn is_above(magnitude: u32, bound_high: u32, bound_low: u32) -> bool {
    let m = wide(magnitude);
    exceeds(m.high, m.low, bound_high, bound_low)
}

/// Writes zeros to all of a buffer.
#[cube(launch)]
pub(in crate::codec::device) fn clear(dst: &mut Array<u32>, done: &mut Array<u32>) {
    if ABSOLUTE_POS < dst.len() {
        dst[ABSOLUTE_POS] = 0u32;
    }
    finish(done);
}

/// Adds values at distinct places: each entry has a word of the place and one of the value's bits.
#[cube(launch)]
pub(in crate::codec::device) fn scatter_add(entries: &Array<u32>, dst: &mut Array<u32>, done: &mut Array<u32>) {
    if 2 * ABSOLUTE_POS + 1 < entries.len() {
        let place = entries[2 * ABSOLUTE_POS] as usize;
        if place < dst.len() {
            dst[place] = add_f32(dst[place], entries[2 * ABSOLUTE_POS + 1]);
        }
    }
    finish(done);
}
