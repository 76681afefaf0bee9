//! The grid of a large flock: each member has a cell in a row and a column, and connects to the members of both
//! (`docs/protocol/2-records.md` §2.10, `docs/large-flocks.md`).
//!
//! Rows times columns make at least the number of members, so a member has at most about twice the root of their number
//! of neighbours: 62 in a flock of 1,024. The first row holds the voters, so they all are neighbours. A flock below
//! [`crate::limits::ROW_MEMBERS`] times two is one row: all its members are neighbours, and none has a cell.

use crate::scale::scale;
use serde::{Deserialize, Serialize};

mod neighbours;
mod seating;

pub use neighbours::Grid;
pub use seating::{Sitter, cells};

/// Columns that the number of a cell has room for; rows have room for as many members.
const COLUMNS: u16 = 64;

/// The place of a member in the grid of its flock: row times 64 and column. It is zero for all members of one row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cell(u16);

impl Cell {
    /// The cell of this row and column; the first one if there is none such.
    pub fn at(row: usize, column: usize) -> Self {
        let row = u16::try_from(row).ok().and_then(|row| row.checked_mul(COLUMNS));
        let column = u16::try_from(column).ok().filter(|column| *column < COLUMNS);
        Self(row.zip(column).and_then(|(row, column)| row.checked_add(column)).unwrap_or_default())
    }

    /// The number on the wire.
    pub fn number(self) -> u16 {
        self.0
    }

    pub fn row(self) -> usize {
        usize::from(self.0 / COLUMNS)
    }

    pub fn column(self) -> usize {
        usize::from(self.0 % COLUMNS)
    }
}

/// The number of rows of a flock, and of its members. Rows differ in length by one at most, the longer ones come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    rows: usize,
    members: usize,
}

impl Shape {
    /// The shape of a flock of `members` members that had `rows` rows before. It keeps a row until the rows would be too
    /// short for the voters, so that a flock whose number goes up and down does not change its shape each time.
    pub fn after(rows: usize, members: usize) -> Self {
        let least = least(members);
        let rows = if rows > least && members >= rows.saturating_mul(scale().row_least) { rows } else { least };
        Self { rows, members }
    }

    /// The shape of so many rows and members, if a flock may have it.
    pub fn of(rows: usize, members: usize) -> Option<Self> {
        let shape = Self::after(rows, members);
        (shape.rows == rows).then_some(shape)
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Members of a row.
    pub fn length(&self, row: usize) -> usize {
        if row >= self.rows {
            return 0;
        }
        self.members / self.rows + usize::from(row < self.members % self.rows)
    }

    /// Columns that all rows have.
    pub fn full_columns(&self) -> usize {
        self.members / self.rows
    }

    /// Whether the grid has this cell.
    pub fn holds(&self, cell: Cell) -> bool {
        cell.column() < self.length(cell.row())
    }

    /// All cells, by column and then by row.
    pub fn by_columns(self) -> impl Iterator<Item = Cell> {
        let columns = 0..self.length(0);
        let all = columns.flat_map(move |column| (0..self.rows).map(move |row| Cell::at(row, column)));
        all.filter(move |cell| self.holds(*cell))
    }
}

/// The least number of rows of so many members.
fn least(members: usize) -> usize {
    (members / scale().row).max(1)
}

#[cfg(test)]
#[path = "grid/grid_test.rs"]
mod tests;
