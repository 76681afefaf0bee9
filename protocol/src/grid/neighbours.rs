//! Neighbours of a member in a grid, and which ways a relayed word may take.

use super::Cell;
use crate::NodeId;
use std::collections::{BTreeMap, BTreeSet};

/// The members of a record in their cells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grid {
    rows: usize,
    cells: BTreeMap<NodeId, Cell>,
    /// The members in each cell; empty in a flock of one row.
    holders: BTreeMap<Cell, NodeId>,
}

impl Grid {
    /// The grid of these members: as many rows as their cells show.
    pub fn of(members: impl IntoIterator<Item = (NodeId, Cell)>) -> Self {
        let cells: BTreeMap<NodeId, Cell> = members.into_iter().collect();
        let rows = cells.values().map(|cell| cell.row() + 1).max().unwrap_or(1);
        let holders = if rows > 1 { cells.iter().map(|(id, cell)| (*cell, *id)).collect() } else { BTreeMap::new() };
        Self { rows, cells, holders }
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Whether all members are neighbours.
    pub fn is_one_row(&self) -> bool {
        self.rows <= 1
    }

    /// The number of columns that all rows have: no member's cell is beyond the shape of its flock.
    pub fn full_columns(&self) -> usize {
        self.cells.len() / self.rows.max(1)
    }

    pub fn cell_of(&self, id: &NodeId) -> Option<Cell> {
        self.cells.get(id).copied()
    }

    /// Whether both are members, of one row. A member shares its row with itself.
    pub fn share_a_row(&self, one: &NodeId, other: &NodeId) -> bool {
        self.cell_of(one).zip(self.cell_of(other)).is_some_and(|(a, b)| a.row() == b.row())
    }

    /// Whether two members are of one row or one column. Nobody is its own neighbour.
    pub fn are_neighbours(&self, one: &NodeId, other: &NodeId) -> bool {
        let both = self.cell_of(one).zip(self.cell_of(other));
        one != other && both.is_some_and(|(a, b)| self.is_one_row() || a.row() == b.row() || a.column() == b.column())
    }

    /// The members of a member's row and of its column, by ascending id.
    pub fn neighbours(&self, id: &NodeId) -> impl Iterator<Item = NodeId> + use<> {
        let near: BTreeSet<NodeId> = self.around(id).copied().collect();
        near.into_iter()
    }

    /// The same, by ascending cell: first those of the row.
    pub fn around<'a>(&'a self, id: &'a NodeId) -> impl Iterator<Item = &'a NodeId> {
        let own = self.cell_of(id);
        let all = own.filter(|_| self.is_one_row()).map(|_| self.cells.keys());
        let own = own.filter(|_| !self.is_one_row());
        let row = own.map(|own| self.holders.range(Cell::at(own.row(), 0)..Cell::at(own.row() + 1, 0)));
        let others = move |own: Cell| (0..self.rows).filter(move |row| *row != own.row()).map(move |row| (row, own));
        let column = own.into_iter().flat_map(others);
        let column = column.filter_map(|(row, own)| self.holders.get(&Cell::at(row, own.column())));
        let row = row.into_iter().flatten().map(|(_, other)| other);
        all.into_iter().flatten().chain(row).chain(column).filter(move |other| *other != id)
    }

    /// The member of the first row in a member's column; itself if it is of that row.
    pub fn head_of(&self, id: &NodeId) -> Option<NodeId> {
        let cell = self.cell_of(id)?;
        self.holders.get(&Cell::at(0, cell.column())).copied()
    }

    /// The other members of a member's row, from the one behind it on, in a circle; nobody in a flock of one row.
    pub fn after(&self, id: &NodeId) -> Vec<NodeId> {
        let Some(own) = self.cell_of(id).filter(|_| !self.is_one_row()) else { return Vec::new() };
        let row = Cell::at(own.row(), 0)..Cell::at(own.row() + 1, 0);
        let mates: Vec<(Cell, NodeId)> = self.holders.range(row).map(|(cell, id)| (*cell, *id)).collect();
        let (behind, before) =
            (mates.iter().filter(|(cell, _)| *cell > own), mates.iter().filter(|(cell, _)| *cell < own));
        behind.chain(before).map(|(_, id)| *id).collect()
    }
}
