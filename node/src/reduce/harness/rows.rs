//! Flocks of several rows.

use super::Flock;
use starling_protocol::engine::io::Contribution;
use starling_protocol::grid::{Cell, Grid};
use starling_protocol::run::{Codec, EngineKind};
use std::collections::BTreeMap;
use std::sync::Arc;

impl Flock {
    /// A flock of so many rows: member n sits in row `n mod rows`.
    pub fn in_rows(rows: usize, codec: Codec, n: usize, elements: usize, room: usize) -> Self {
        let flock = Self::new(EngineKind::Owners, codec, n, elements, room);
        let cell = |(n, member): (usize, &Contribution)| (member.member, Cell::at(n % rows, n / rows));
        Self { grid: Arc::new(Grid::of(flock.members.iter().enumerate().map(cell))), ..flock }
    }

    /// The contributions row by row.
    pub(super) fn rows(&self, weights: &[f32]) -> Vec<Vec<(f32, &[f32])>> {
        let mut rows: BTreeMap<usize, Vec<(f32, &[f32])>> = BTreeMap::new();
        for ((member, weight), delta) in self.members.iter().zip(weights).zip(&self.deltas) {
            let row = self.grid.cell_of(&member.member).expect("a cell").row();
            rows.entry(row).or_default().push((*weight, delta.as_slice()));
        }
        rows.into_values().collect()
    }
}
