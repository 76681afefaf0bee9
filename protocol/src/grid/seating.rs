//! The members' cells: a pure function of the cells before, the members and a digest, so that all nodes give the same.

use super::{Cell, Shape};
use crate::mutation::{Mutation, mutated};
use crate::{Digest, NodeId, ring};
use std::collections::BTreeMap;

/// A member that is to have a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sitter {
    pub id: NodeId,
    pub votes: bool,
    /// Its cell in the record before; none if it has just come.
    pub before: Option<Cell>,
}

/// The cells of these members, given by ascending id, in a flock that had `rows` rows before the record with this
/// digest. Few members move: those whose cell is gone, and as many as it takes for the voters to have the first row.
pub fn cells(rows: usize, parent: &Digest, members: &[Sitter]) -> Vec<Cell> {
    let shape = Shape::after(rows, members.len());
    if shape.rows() <= 1 {
        return vec![Cell::default(); members.len()];
    }
    let mut seating = Seating { shape, members, holders: BTreeMap::new(), cells: vec![None; members.len()] };
    // In a flock of one row no member had a cell to keep.
    if rows > 1 {
        seating.keep();
    }
    if !mutated!(Mutation::VotersAnywhere) {
        (0..members.len()).for_each(|member| seating.bring_forward(member));
    }
    seating.fill(parent);
    seating.cells.into_iter().map(Option::unwrap_or_default).collect()
}

struct Seating<'a> {
    shape: Shape,
    members: &'a [Sitter],
    /// The member in each cell that is taken, by its place in `members`.
    holders: BTreeMap<Cell, usize>,
    cells: Vec<Option<Cell>>,
}

impl Seating<'_> {
    /// Leaves members where they are, if the grid still has their cells.
    fn keep(&mut self) {
        for (member, sitter) in self.members.iter().enumerate() {
            if let Some(cell) = sitter.before.filter(|cell| self.shape.holds(*cell) && !self.holders.contains_key(cell))
            {
                self.put(member, cell);
            }
        }
    }

    /// Brings a voter into the first row, into a column that all rows have, so that each row hears it through a member of
    /// its own: into the lowest hole, or else into the cell of a learner, which gets the voter's. That is the learner of
    /// its own column, which has neighbours in common with it, or else the first.
    fn bring_forward(&mut self, member: usize) {
        let from = self.cell_of(member);
        let full = self.shape.full_columns();
        if !self.votes(member) || from.is_some_and(|cell| cell.row() == 0 && cell.column() < full) {
            return;
        }
        let row: Vec<Cell> = (0..full).map(|column| Cell::at(0, column)).collect();
        if let Some(hole) = row.iter().find(|cell| !self.holders.contains_key(cell)) {
            self.leave(member);
            return self.put(member, *hole);
        }
        let own = from.and_then(|cell| row.get(cell.column())).copied();
        let learner = |cell: &Cell| self.holders.get(cell).is_some_and(|holder| !self.votes(*holder));
        let Some(cell) = own.into_iter().chain(row).find(learner) else { return };
        let Some(other) = self.holders.get(&cell).copied() else { return };
        self.leave(member);
        self.leave(other);
        self.put(member, cell);
        if let Some(from) = from {
            self.put(other, from);
        }
    }

    /// Gives those without a cell the holes. Their order is another one after each record: a member that did not reach
    /// its neighbours, and comes back, does not come to the same again.
    fn fill(&mut self, parent: &Digest) {
        let without: BTreeMap<NodeId, usize> = (self.members.iter().enumerate())
            .filter(|(member, _)| self.cell_of(*member).is_none())
            .map(|(member, sitter)| (sitter.id, member))
            .collect();
        let order: Vec<NodeId> = if mutated!(Mutation::CellsById) {
            without.keys().copied().collect()
        } else {
            ring::order(parent, without.keys().copied())
        };
        let holes: Vec<Cell> = self.shape.by_columns().filter(|cell| !self.holders.contains_key(cell)).collect();
        for (id, hole) in order.into_iter().zip(holes) {
            if let Some(member) = without.get(&id) {
                self.put(*member, hole);
            }
        }
    }

    fn votes(&self, member: usize) -> bool {
        self.members.get(member).is_some_and(|sitter| sitter.votes)
    }

    fn cell_of(&self, member: usize) -> Option<Cell> {
        self.cells.get(member).copied().flatten()
    }

    fn put(&mut self, member: usize, cell: Cell) {
        self.holders.insert(cell, member);
        if let Some(own) = self.cells.get_mut(member) {
            *own = Some(cell);
        }
    }

    fn leave(&mut self, member: usize) {
        if let Some(cell) = self.cells.get_mut(member).and_then(Option::take) {
            self.holders.remove(&cell);
        }
    }
}
