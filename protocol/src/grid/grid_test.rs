use super::*;
use crate::limits::{MEMBERS_MAX, ROW_MEMBERS, VOTERS_MAX};
use crate::{Digest, NodeId};
use std::collections::BTreeSet;

/// Connections that a member of any flock has at most.
const DEGREE_MAX: usize = 62;

fn id(n: usize) -> NodeId {
    NodeId(Digest::of("a member", &[&n.to_le_bytes()]).0)
}

/// A flock through its records.
struct Flock {
    rows: usize,
    /// By ascending id.
    members: Vec<Sitter>,
    records: usize,
    came: usize,
}

impl Flock {
    fn new() -> Self {
        Self { rows: 1, members: Vec::new(), records: 0, came: 0 }
    }

    /// A record by which so many come, and after which the first of all members by `voters` vote.
    fn record(&mut self, come: usize, gone: &[usize], voters: usize) -> usize {
        let mut place = 0;
        self.members.retain(|_| (place += 1, !gone.contains(&(place - 1))).1);
        for _ in 0..come {
            self.came += 1;
            self.members.push(Sitter { id: id(self.came), votes: false, before: None });
        }
        let mut left = voters.saturating_sub(self.members.iter().filter(|member| member.votes).count());
        for member in self.members.iter_mut().filter(|member| !member.votes) {
            member.votes = left > 0;
            left = left.saturating_sub(1);
        }
        self.members.sort_by_key(|member| member.id);
        self.records += 1;
        let digest = Digest::of("a record", &[&self.records.to_le_bytes()]);
        let cells = cells(self.rows, &digest, &self.members);
        assert_eq!(cells.len(), self.members.len());
        let moved = |(member, cell): &(&Sitter, &Cell)| member.before.is_some_and(|before| before != **cell);
        let moved = self.members.iter().zip(&cells).filter(moved).count();
        for (member, cell) in self.members.iter_mut().zip(cells) {
            member.before = Some(cell);
        }
        self.rows = self.grid().rows();
        self.check();
        moved
    }

    fn grid(&self) -> Grid {
        Grid::of(self.members.iter().map(|member| (member.id, member.before.unwrap())))
    }

    fn check(&self) {
        let shape = Shape::of(self.rows, self.members.len()).expect("a flock may have this shape");
        let cells: BTreeSet<Cell> = self.members.iter().filter_map(|member| member.before).collect();
        if self.rows == 1 {
            assert!(cells.iter().all(|cell| *cell == Cell::default()) && self.members.len() < 2 * ROW_MEMBERS);
        } else {
            assert_eq!(cells.len(), self.members.len(), "each has a cell of its own");
            assert!(cells.iter().all(|cell| shape.holds(*cell)));
            let last = shape.rows() - 1;
            let first = |cell: Cell| cell.row() == 0 && shape.holds(Cell::at(last, cell.column()));
            let seated = |member: &Sitter| !member.votes || member.before.is_some_and(first);
            assert!(self.members.iter().all(seated), "voters have the first row, in columns that all rows have");
        }
    }
}

#[test]
fn a_flock_that_grows_by_one_has_bounded_degree_and_moves_nobody_but_for_a_new_row() {
    let mut flock = Flock::new();
    for members in 1..=MEMBERS_MAX {
        let moved = flock.record(1, &[], members.min(VOTERS_MAX));
        let rows = Shape::after(1, members).rows();
        let new = members % ROW_MEMBERS == 0;
        assert!(moved <= if new { 2 * ROW_MEMBERS } else { 0 }, "{moved} of {members} moved");
        assert_eq!(flock.rows, rows);
        if members % 97 == 0 || new || members == MEMBERS_MAX {
            let grid = flock.grid();
            let degree = flock.members.iter().map(|member| grid.neighbours(&member.id).count()).max();
            assert!(degree <= Some(DEGREE_MAX), "{degree:?} connections at {members}");
        }
        let shape = Shape::after(rows, members);
        assert!(shape.length(0) + rows <= DEGREE_MAX + 2, "the degree for any number");
    }
}

#[test]
fn deaths_and_joins_move_few() {
    let mut flock = Flock::new();
    flock.record(1_000, &[], VOTERS_MAX);
    let mut all = 0;
    for record in 0..200usize {
        let gone = [record * 7 % 900, record * 13 % 900 + 50];
        all += flock.record(1 + record % 3, &gone[..1 + record % 2], VOTERS_MAX - record % 4);
    }
    assert!(all < 5 * 200, "{all} moves in 200 records");
}

#[test]
fn a_row_is_kept_while_the_rows_have_room_for_all_voters() {
    let rows = |before, members| Shape::after(before, members).rows();
    assert_eq!((rows(1, 63), rows(1, 64), rows(2, 62), rows(2, 61), rows(31, 1_024)), (1, 2, 2, 1, 32));
    assert_eq!((Shape::of(2, 62).is_some(), Shape::of(2, 61), Shape::of(1, 64)), (true, None, None));
    let mut flock = Flock::new();
    flock.record(64, &[], VOTERS_MAX);
    assert_eq!(flock.rows, 2);
    flock.record(0, &[0, 1], VOTERS_MAX);
    assert_eq!(flock.rows, 2);
    flock.record(0, &[0], VOTERS_MAX);
    assert_eq!(flock.rows, 1);
}

#[test]
fn a_voter_takes_a_hole_of_the_first_row_or_changes_places_with_the_learner_of_its_column() {
    let mut flock = Flock::new();
    flock.record(100, &[], 3);
    let cell = |flock: &Flock, id: &NodeId| flock.grid().cell_of(id).unwrap();
    let back = flock.members.iter().find(|member| member.before.unwrap().row() == 2).unwrap().id;
    let from = cell(&flock, &back);
    let head = flock.grid().head_of(&back).unwrap();
    let learner = flock.members.iter().any(|member| member.id == head && !member.votes);
    flock.members.iter_mut().for_each(|member| member.votes |= member.id == back);
    assert_eq!(flock.record(0, &[], 4), 2);
    assert_eq!(cell(&flock, &back).row(), 0);
    if learner {
        assert_eq!((cell(&flock, &back), cell(&flock, &head)), (Cell::at(0, from.column()), from));
    }
}

#[test]
fn members_without_a_cell_come_in_ring_order() {
    let mut flock = Flock::new();
    flock.record(80, &[], 0);
    let digest = Digest::of("a record", &[&1usize.to_le_bytes()]);
    let order = crate::ring::order(&digest, flock.members.iter().map(|member| member.id));
    let mut cells: Vec<_> = flock.members.iter().map(|member| (member.before.unwrap(), member.id)).collect();
    cells.sort_by_key(|(cell, _)| (cell.column(), cell.row()));
    assert_eq!(cells.into_iter().map(|(_, id)| id).collect::<Vec<_>>(), order);
}

#[test]
fn words_travel_over_two_edges() {
    let mut flock = Flock::new();
    flock.record(97, &[], VOTERS_MAX);
    let grid = flock.grid();
    let at = |row, column| flock.members.iter().find(|m| m.before == Some(Cell::at(row, column))).unwrap().id;
    let (signer, me) = (at(1, 4), at(2, 7));
    assert!(!grid.are_neighbours(&signer, &me) && !grid.are_neighbours(&me, &me));
    let between = |p: &NodeId| grid.are_neighbours(&signer, p) && grid.are_neighbours(p, &me);
    let relays: BTreeSet<NodeId> = flock.members.iter().map(|m| m.id).filter(between).collect();
    assert_eq!(relays, BTreeSet::from([at(1, 7), at(2, 4)]), "two ways that share nobody");
    assert_eq!((grid.head_of(&me), grid.head_of(&at(0, 7))), (Some(at(0, 7)), Some(at(0, 7))));
    let row = grid.after(&at(2, 30));
    assert_eq!((row.len(), row[0], row[1], row.last()), (31, at(2, 31), at(2, 0), Some(&at(2, 29))));
    let stranger = id(9_999);
    assert!(!grid.are_neighbours(&stranger, &me) && grid.after(&stranger).is_empty());
}

#[test]
fn a_small_flock_is_one_row_of_neighbours() {
    let mut flock = Flock::new();
    flock.record(63, &[], VOTERS_MAX);
    let grid = flock.grid();
    assert!(grid.is_one_row() && flock.members.iter().all(|m| grid.neighbours(&m.id).count() == 62));
    assert!(grid.after(&flock.members[0].id).is_empty() && grid.head_of(&flock.members[0].id).is_none());
}

#[test]
fn cells_have_numbers() {
    let cell = Cell::at(31, 63);
    assert_eq!((cell.number(), cell.row(), cell.column()), (31 * 64 + 63, 31, 63));
    assert_eq!(Cell::at(0, 64), Cell::default());
}
