//! The reduction of a flock of several rows: parts travel in rows, sums of rows in columns
//! (`docs/protocol/3-reduction.md` §3.10).
//!
//! Each chunk has an *owner*, which adds up the sums of the rows and encodes the sum of these, and in each row an
//! *adder*, which adds up the row's parts. An adder in the owner's column is connected with the owner. Another one, the
//! heir of a member that does not contribute, has a *relay* between them, in its own column and the owner's row. So
//! data goes over connections of the grid only.
//!
//! ```text
//! part       each member of a row -> its adder
//! row sum    adder (-> relay) -> owner
//! sum        owner (-> relay) -> adders, and owner and adders -> their rows
//! ```
//!
//! Everything follows from the grid, the contributors and the number of chunks, so both ends of a stream expect the
//! same. The numbers do not depend on who computes them: the sum of a row is that of [`owners::sum`], the sum of the
//! rows is taken in their order, and only that is encoded.

use super::owners::{self, Owners, rendezvous};
use super::{assemble, chunk_elements, chunks, row_sum_bytes};
use crate::NodeId;
use crate::codec::{self, CodecError};
use crate::grid::{Cell, Grid};
use crate::mutation::{Mutation, mutated};
use crate::run::Codec;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use xxhash_rust::xxh3::xxh3_64;

/// The ways of all chunks in one attempt. Members have their places in the list of contributors by ascending id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lattice {
    cells: Vec<Cell>,
    /// The place of the contributor in each cell.
    holders: BTreeMap<Cell, usize>,
    chunks: Vec<Chunk>,
}

/// The members that add up one chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Chunk {
    owner: usize,
    /// By row; none for a row without a contributor.
    adders: Vec<Option<usize>>,
}

/// All that goes over the stream from one member to another, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cargo {
    /// The chunks of which the sender's parts go, ascending.
    pub parts: Vec<usize>,
    /// The chunks and rows of which sums go, ascending.
    pub row_sums: Vec<(usize, usize)>,
    /// The chunks of which finished sums go, ascending.
    pub sums: Vec<usize>,
}

impl Cargo {
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty() && self.row_sums.is_empty() && self.sums.is_empty()
    }
}

impl Lattice {
    /// The ways of `chunks` chunks among these contributors, by ascending id, in the grid of the head record. None if
    /// one of them has no cell there, or if there is no row that has a column in common with each other row of
    /// contributors: then this set makes no result.
    pub fn new(grid: &Grid, contributors: &[NodeId], chunks: usize) -> Option<Self> {
        let cells: Option<Vec<Cell>> = if mutated!(Mutation::CellsOfTheSet) {
            let width = grid.full_columns().max(1);
            Some((0..contributors.len()).map(|place| Cell::at(place / width, place % width)).collect())
        } else {
            contributors.iter().map(|id| grid.cell_of(id)).collect()
        };
        let cells = cells?;
        let holders = cells.iter().enumerate().map(|(place, cell)| (*cell, place)).collect();
        let columns = Columns::of(grid.rows(), &cells);
        let mut lattice = Self { cells, holders, chunks: Vec::new() };
        let dealt = Owners::new(&vec![0; grid.full_columns()], chunks);
        let dealing = Dealing { lattice: &lattice, contributors, columns: &columns, dealt: &dealt };
        let ways: Option<Vec<Chunk>> = (0..chunks).map(|chunk| dealing.ways(chunk)).collect();
        lattice.chunks = ways?;
        Some(lattice)
    }

    /// The place of the member that adds up the rows.
    pub fn owner(&self, chunk: usize) -> Option<usize> {
        self.chunks.get(chunk).map(|ways| ways.owner)
    }

    /// The place of the member that adds up the parts of a row; none for a row without a contributor.
    pub fn adder(&self, chunk: usize, row: usize) -> Option<usize> {
        self.chunks.get(chunk)?.adders.get(row).copied().flatten()
    }

    /// The rows that have a part in a chunk, ascending.
    pub fn rows(&self, chunk: usize) -> impl Iterator<Item = usize> + '_ {
        let adders = self.chunks.get(chunk).map_or(&[][..], |ways| &ways.adders);
        adders.iter().enumerate().filter(|(_, adder)| adder.is_some()).map(|(row, _)| row)
    }

    /// The places of the contributors of a row, ascending.
    pub fn row(&self, row: usize) -> impl Iterator<Item = usize> + '_ {
        self.cells.iter().enumerate().filter(move |(_, cell)| cell.row() == row).map(|(place, _)| place)
    }

    pub fn row_of(&self, place: usize) -> Option<usize> {
        self.cells.get(place).map(|cell| cell.row())
    }

    /// The place of the member between the adder of a row and the owner, if they are not connected.
    fn relay(&self, ways: &Chunk, row: usize) -> Option<usize> {
        let (adder, owner) = (self.cells.get(ways.adders.get(row).copied().flatten()?)?, self.cells.get(ways.owner)?);
        let apart = adder.row() != owner.row() && adder.column() != owner.column();
        self.holders.get(&Cell::at(owner.row(), adder.column())).copied().filter(|_| apart)
    }

    /// Whether there is a relay on any way.
    pub fn passes_on(&self) -> bool {
        let relayed = |ways: &Chunk| (0..ways.adders.len()).any(|row| self.relay(ways, row).is_some());
        self.chunks.iter().any(relayed)
    }

    /// All that one member sends to another: nothing unless they are of one row or one column.
    pub fn cargo(&self, from: usize, to: usize) -> Cargo {
        let mut cargo = Cargo::default();
        let (Some(here), Some(there)) = (self.cells.get(from), self.cells.get(to)) else { return cargo };
        if from == to || here.row() != there.row() && here.column() != there.column() {
            return cargo;
        }
        for (chunk, ways) in self.chunks.iter().enumerate() {
            let adder = |row: usize| ways.adders.get(row).copied().flatten();
            if here.row() == there.row() {
                if adder(there.row()) == Some(to) {
                    cargo.parts.push(chunk);
                }
                if ways.owner == to {
                    let passed = (0..ways.adders.len()).filter(|row| self.relay(ways, *row) == Some(from));
                    cargo.row_sums.extend(passed.map(|row| (chunk, row)));
                }
                if adder(here.row()) == Some(from) {
                    cargo.sums.push(chunk);
                }
                continue;
            }
            let leads = |end: usize, row: usize| ways.owner == end || self.relay(ways, row) == Some(end);
            if adder(here.row()) == Some(from) && leads(to, here.row()) {
                cargo.row_sums.push((chunk, here.row()));
            }
            if adder(there.row()) == Some(to) && leads(from, there.row()) {
                cargo.sums.push(chunk);
            }
        }
        cargo
    }

    /// The places of the members to which a member sends something, or from which it gets something, ascending.
    pub fn links(&self, place: usize) -> impl Iterator<Item = usize> + '_ {
        let linked =
            move |other: &usize| !self.cargo(place, *other).is_empty() || !self.cargo(*other, place).is_empty();
        (0..self.cells.len()).filter(linked)
    }
}

/// The columns of the contributors of each row, one bit a column.
struct Columns(Vec<u64>);

impl Columns {
    fn of(rows: usize, cells: &[Cell]) -> Self {
        let mut columns = vec![0u64; rows];
        for cell in cells {
            if let Some(of_row) = columns.get_mut(cell.row()) {
                *of_row |= 1 << cell.column();
            }
        }
        Self(columns)
    }

    /// Whether two rows have a column in common.
    fn meet(&self, one: usize, other: usize) -> bool {
        self.0.get(one).zip(self.0.get(other)).is_some_and(|(a, b)| a & b != 0)
    }

    fn has(&self, cell: Cell) -> bool {
        self.0.get(cell.row()).is_some_and(|columns| columns >> cell.column() & 1 == 1)
    }

    /// Whether a row has a column in common with each other row of contributors.
    fn is_central(&self, row: usize) -> bool {
        self.0.iter().enumerate().all(|(other, columns)| *columns == 0 || self.meet(row, other))
    }
}

/// All by which the ways of a chunk are chosen.
struct Dealing<'a> {
    lattice: &'a Lattice,
    contributors: &'a [NodeId],
    columns: &'a Columns,
    dealt: &'a Owners,
}

impl Dealing<'_> {
    fn ways(&self, chunk: usize) -> Option<Chunk> {
        let rows = self.columns.0.len();
        let column = self.dealt.owner(chunk)?;
        let first = self.dealt.chunks(column).first()?;
        let owner = self.owner(chunk, Cell::at((chunk - first) % rows.max(1), column))?;
        let own = *self.lattice.cells.get(owner)?;
        let adder = |row: usize| {
            let stays = self.lattice.holders.get(&Cell::at(row, own.column())).copied();
            stays.or_else(|| self.heir(chunk, row, own.row()))
        };
        Some(Chunk { owner, adders: (0..rows).map(adder).collect() })
    }

    /// The member of this cell, or else one of its column, or else any: the one with the largest claim. Only members
    /// count to which there is a way from each row.
    fn owner(&self, chunk: usize, cell: Cell) -> Option<usize> {
        let central =
            |place: &usize| self.lattice.cells.get(*place).is_some_and(|cell| self.columns.is_central(cell.row()));
        let column = || {
            let rows = 0..self.columns.0.len();
            rows.filter_map(|row| self.lattice.holders.get(&Cell::at(row, cell.column()))).copied().filter(central)
        };
        let dealt = self.lattice.holders.get(&cell).copied().filter(central);
        dealt
            .or_else(|| self.largest(chunk, column()))
            .or_else(|| self.largest(chunk, (0..self.contributors.len()).filter(central)))
    }

    /// The member that adds up a row whose member of the owner's column does not contribute. Its column has a member in
    /// the owner's row.
    fn heir(&self, chunk: usize, row: usize, owner: usize) -> Option<usize> {
        let way = |place: &usize| {
            let column = self.lattice.cells.get(*place).map(|cell| cell.column());
            let relays = column.is_some_and(|column| self.columns.has(Cell::at(owner, column)));
            relays || mutated!(Mutation::HeirWithoutWay)
        };
        self.largest(chunk, self.lattice.row(row).filter(way))
    }

    /// The member with the largest claim to a chunk; of equals the one with the smallest id.
    fn largest(&self, chunk: usize, places: impl Iterator<Item = usize>) -> Option<usize> {
        let claim = |place: &usize| (self.contributors.get(*place).map(|id| rendezvous(id, chunk)), Reverse(*place));
        places.max_by_key(claim)
    }
}

/// Whether a set of members makes a result in this grid: so that each has a cell, and a row of them has a column in
/// common with each other row.
pub fn makes_a_result(grid: &Grid, members: &[NodeId]) -> bool {
    let cells: Option<Vec<Cell>> = members.iter().map(|id| grid.cell_of(id)).collect();
    cells.is_some_and(|cells| {
        let columns = Columns::of(grid.rows(), &cells);
        cells.iter().any(|cell| columns.is_central(cell.row()))
    })
}

/// Those of some members whose row has no column in common with the first one. Without them there is a way to any
/// member of the first row, if one is left there.
pub fn without_way<'a>(grid: &Grid, members: impl Iterator<Item = &'a NodeId> + Clone) -> Vec<NodeId> {
    let cells: Vec<Cell> = members.clone().filter_map(|id| grid.cell_of(id)).collect();
    let columns = Columns::of(grid.rows(), &cells);
    let cut_off = |id: &&NodeId| grid.cell_of(id).is_none_or(|cell| !columns.meet(cell.row(), 0));
    members.filter(cut_off).copied().collect()
}

/// The sum of the sums of rows over one chunk, by ascending row: from zeros, one sum an element, rounded to f32. It is
/// equal to the first to the bit if there is no other.
pub fn total(elements: usize, rows: &[&[f32]]) -> Vec<f32> {
    let mut total = vec![0.0f32; elements];
    let add = |row: &&[f32]| total.iter_mut().zip(*row).for_each(|(sum, x)| *sum += x);
    if mutated!(Mutation::RowsByArrival) {
        rows.iter().rev().for_each(add)
    } else {
        rows.iter().for_each(add)
    }
    total
}

/// Writes the sum of a row as it travels: f32, little endian.
pub fn encode_row_sum(sum: &[f32], out: &mut Vec<u8>) {
    out.clear();
    out.extend(sum.iter().flat_map(|x| x.to_le_bytes()));
}

/// Reads the sum of a row into `sum`, which fixes its length.
///
/// # Errors
/// [`CodecError::Length`], and [`CodecError::NotFinite`] if a value is infinite or not a number; after the latter `sum`
/// is partly written.
pub fn decode_row_sum(payload: &[u8], sum: &mut [f32]) -> Result<(), CodecError> {
    let (elements, expected) = (sum.len(), row_sum_bytes(sum.len()));
    if payload.len() != expected {
        return Err(CodecError::Length { elements, expected, actual: payload.len() });
    }
    for (index, (x, bytes)) in sum.iter_mut().zip(payload.as_chunks().0).enumerate() {
        *x = f32::from_le_bytes(*bytes);
        if !x.is_finite() {
            return Err(CodecError::NotFinite { index });
        }
    }
    Ok(())
}

/// The hash by which members compare the finished sums that they hold: XXH3-64 with seed 0.
pub fn sum_hash(payload: &[u8]) -> u64 {
    xxh3_64(payload)
}

/// The update of rows of members with these weights and contributions, *not* weighted and of equal length, by ascending
/// id. With one row it is that of [`owners::reduce`].
///
/// # Errors
/// If a contribution or a sum cannot be encoded, or contributions differ in length.
pub fn reduce(codec: Codec, rows: &[Vec<(f32, &[f32])>]) -> Result<Vec<u8>, CodecError> {
    let elements = rows.iter().flatten().next().map_or(0, |(_, first)| first.len());
    if let Some((_, other)) = rows.iter().flatten().find(|(_, c)| c.len() != elements) {
        return Err(CodecError::Length { elements, expected: 4 * elements, actual: 4 * other.len() });
    }
    let mut payloads = Vec::with_capacity(chunks(elements));
    for chunk in 0..chunks(elements) {
        let range = chunk_elements(elements, chunk);
        let mut sums = Vec::with_capacity(rows.len());
        for row in rows {
            let part = |(weight, contribution): &(f32, &[f32])| {
                let mut payload = Vec::new();
                codec::encode(codec, &contribution[range.clone()], &mut payload).map(|()| (*weight, payload))
            };
            let parts: Vec<(f32, Vec<u8>)> = row.iter().map(part).collect::<Result<_, _>>()?;
            let parts: Vec<(f32, &[u8])> = parts.iter().map(|(weight, payload)| (*weight, &payload[..])).collect();
            sums.push(owners::sum(codec, &parts, range.len()).map_err(|(_, error)| error)?);
        }
        let sums: Vec<&[f32]> = sums.iter().map(Vec::as_slice).collect();
        let mut payload = Vec::new();
        codec::encode(codec, &total(range.len(), &sums), &mut payload)?;
        payloads.push(payload);
    }
    Ok(assemble(codec, payloads.iter().map(Vec::as_slice)))
}

#[cfg(test)]
#[path = "lattice_test.rs"]
mod tests;
