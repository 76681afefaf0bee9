//! Decoders of dense payloads: each unit handles one word of values, and writes f32 to the device's memory, or adds to
//! f32 there, as bits. Payloads were checked on the host. An integer times its scale is exact in f32, so that each
//! device has the same bits.
//!
//! `done`: one word, to which each launch that ran adds 1.

use super::super::super::{INT4_BLOCK, INT8_BLOCK};
use super::sum::add;
use super::{load, smaller, widen};
use cubecl::prelude::*;

/// Elements of a word of values, and words of a block.
const INT8_WORD: usize = 4;
const INT4_WORDS: usize = INT4_BLOCK / 8;

/// `values`: two bf16 a word, the first in the low half.
#[cube(launch)]
pub(in crate::codec::device) fn decode_bf16(
    values: &Array<u32>,
    dst: &mut Array<u32>,
    done: &mut Array<u32>,
    #[comptime] adds: bool,
) {
    let word = ABSOLUTE_POS;
    let pair = load(values, word);
    put(dst, 2 * word, pair << 16, adds);
    put(dst, 2 * word + 1, pair & 0xffff_0000u32, adds);
    finish(done);
}

/// `scales`: two bf16 a word, the first in the low half. `values`: four integers a word, the first in the low byte.
#[cube(launch)]
pub(in crate::codec::device) fn decode_int8(
    scales: &Array<u32>,
    values: &Array<u32>,
    dst: &mut Array<u32>,
    done: &mut Array<u32>,
    #[comptime] adds: bool,
) {
    let word = ABSOLUTE_POS;
    let first = word * INT8_WORD;
    let scale = scale_of(scales, first / INT8_BLOCK);
    let quad = load(values, word);
    #[unroll]
    for i in 0..INT8_WORD {
        put(dst, first + i, product(quad << comptime!(24 - 8 * i as u32), 24u32, scale), adds);
    }
    finish(done);
}

/// `scales` as for int8. `values`: the bytes of the payload, the first of a word in its low byte.
#[cube(launch)]
pub(in crate::codec::device) fn decode_int4(
    scales: &Array<u32>,
    values: &Array<u32>,
    dst: &mut Array<u32>,
    done: &mut Array<u32>,
    #[comptime] adds: bool,
) {
    let word = ABSOLUTE_POS;
    let block = word / INT4_WORDS;
    let start = block * INT4_BLOCK;
    if start < dst.len() {
        let members = smaller((dst.len() - start) as u32, INT4_BLOCK as u32) as usize;
        let half = members.div_ceil(2);
        let scale = scale_of(scales, block);
        let pairs = load(values, word);
        #[unroll]
        for i in 0..4usize {
            let at = 4 * (word % INT4_WORDS) + i;
            if at < half {
                put(dst, start + at, product(pairs << comptime!(28 - 8 * i as u32), 28u32, scale), adds);
            }
            if half + at < members {
                put(dst, start + half + at, product(pairs << comptime!(24 - 8 * i as u32), 28u32, scale), adds);
            }
        }
    }
    finish(done);
}

/// Bits of the product of a scale with the integer in the high bits of `word`; `unused` is the number of bits below it.
#[cube]
fn product(word: u32, unused: u32, scale: f32) -> u32 {
    let q = i32::cast_from(word) >> i32::cast_from(unused);
    u32::reinterpret(f32::cast_from(q) * scale)
}

#[cube]
fn scale_of(scales: &Array<u32>, block: usize) -> f32 {
    widen((load(scales, block / 2) >> (16 * (block as u32 % 2))) & 0xffff)
}

/// Writes or adds a value, unless it lies beyond the end.
#[cube]
fn put(dst: &mut Array<u32>, at: usize, value: u32, #[comptime] adds: bool) {
    if at < dst.len() {
        if comptime!(adds) {
            dst[at] = add(dst[at], value);
        } else {
            dst[at] = value;
        }
    }
}

/// Tells the host that this launch ran.
#[cube]
pub(super) fn finish(done: &mut Array<u32>) {
    if ABSOLUTE_POS == 0 {
        done[0] += 1;
    }
}
