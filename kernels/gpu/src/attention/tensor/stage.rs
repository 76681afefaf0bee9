//! Copies from global to shared memory that run beside the products.

use super::fragment::Chunk;
use super::layout::place;
use cubecl::prelude::barrier::{Barrier, copy_async_checked};
use cubecl::prelude::*;

/// Units of a cube: four planes of 32.
pub const UNITS: usize = 128;

/// Starts the copy of `rows` tokens from `first` on; tokens beyond the last become zeros.
///
/// `start` is the offset of the head's part in the sequence's first row, `pitch` the distance of rows, and `hold` the
/// place of the tile in `tile`, all in chunks.
#[cube]
pub fn fetch<A: Float>(
    source: &Array<Chunk<A>>,
    tile: &mut SharedMemory<Chunk<A>>,
    start: usize,
    pitch: usize,
    first: usize,
    tokens: usize,
    hold: usize,
    #[comptime] rows: usize,
    #[comptime] chunks: usize,
) {
    let unit = UNIT_POS_X as usize;
    let chunk = unit % chunks;
    #[unroll]
    for i in 0..comptime!(rows * chunks / UNITS) {
        let row = comptime!(i * UNITS / chunks) + unit / chunks;
        let token = first + row;
        // A copy of no bytes still takes an address; that of the last token is valid.
        let from = start + min(token, tokens - 1) * pitch + chunk;
        let length = select(token < tokens, 1usize, 0usize);
        let to = hold + place(row, chunk, chunks);
        copy_async_checked(&source.slice(from, from + length), &mut tile.slice_mut(to, to + 1), 8u32);
    }
}

/// Starts the copy of 64 numbers, one a token, by the 64 units from `leader` on; tokens beyond the last become zeros.
#[cube]
pub fn fetch_sums(
    source: &Array<f32>,
    held: &mut SharedMemory<f32>,
    start: usize,
    first: usize,
    tokens: usize,
    hold: usize,
    #[comptime] leader: usize,
) {
    let unit = UNIT_POS_X as usize;
    if unit >= leader && unit < leader + 64 {
        let place = unit - leader;
        let token = first + place;
        let from = start + min(token, tokens - 1);
        let length = select(token < tokens, 1usize, 0usize);
        let to = hold + place;
        copy_async_checked(&source.slice(from, from + length), &mut held.slice_mut(to, to + 1), 1u32);
    }
}

/// Barriers of the two stages.
#[derive(CubeType)]
pub struct Gate {
    even: Shared<Barrier>,
    odd: Shared<Barrier>,
}

/// Sets up the barriers; all units take part.
#[cube]
pub fn gate() -> Gate {
    let even = Barrier::shared(UNITS as u32, UNIT_POS == 0);
    let odd = Barrier::shared(UNITS as u32, UNIT_POS == 0);
    sync_cube();
    Gate { even, odd }
}

/// Signals to all units that this unit's copies so far are its part of the stage.
#[cube]
pub fn send(gate: &Gate, stage: usize) {
    if stage == 0 {
        gate.even.commit_copy_async();
        let _ = gate.even.arrive();
    } else {
        gate.odd.commit_copy_async();
        let _ = gate.odd.arrive();
    }
}

/// Waits for all units' copies of round `round`, which uses stage `round % 2`.
#[cube]
pub fn receive(gate: &Gate, round: usize) {
    let parity = ((round / 2) % 2) as u32;
    if round % 2 == 1 {
        gate.odd.wait_parity(parity);
    } else {
        gate.even.wait_parity(parity);
    }
}
