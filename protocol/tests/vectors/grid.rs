//! Cells of the members of a large flock (`docs/protocol/2-records.md` §2.10.2).

use crate::json::{Json, object};
use crate::made::{digest, id};
use starling_protocol::grid::{self, Cell, Grid, Sitter};

const SECTION: &str = "docs/protocol/2-records.md §2.10.2";
/// Voters of a large flock.
const VOTERS: u8 = 31;

/// A member: the byte that its id repeats, whether it votes, and its cell in the record before.
type Seat = (u8, bool, Option<Cell>);

/// A flock in which cells are given again and again.
struct Course {
    rows: usize,
    seats: Vec<Seat>,
    cases: Vec<Json>,
}

impl Course {
    /// Gives these members cells after a record whose digest repeats this byte.
    fn record(&mut self, name: &'static str, parent: u8, seats: Vec<Seat>) {
        let sitters: Vec<Sitter> = seats
            .iter()
            .map(|(fill, votes, before)| Sitter { id: id(*fill), votes: *votes, before: *before })
            .collect();
        let cells = grid::cells(self.rows, &digest(parent), &sitters);
        let member = |(fill, votes, before): &Seat| {
            Json::from(vec![
                Json::Number((*fill).into()),
                Json::Bool(*votes),
                before.map_or(Json::Null, |cell| Json::Number(cell.number().into())),
            ])
        };
        self.cases.push(object! {
            "case": name, "section": SECTION, "rows": self.rows, "digest": digest(parent),
            "members": seats.iter().map(member).collect::<Vec<_>>(),
            "cells": cells.iter().map(|cell| u64::from(cell.number())).collect::<Vec<_>>(),
        });
        self.rows = Grid::of(sitters.iter().map(|sitter| sitter.id).zip(cells.iter().copied())).rows();
        self.seats = seats.into_iter().zip(cells).map(|((fill, votes, _), cell)| (fill, votes, Some(cell))).collect();
    }

    /// The members with changes: those without these, and with a vote for the one of this id.
    fn without(&self, gone: &[u8], raised: &[u8]) -> Vec<Seat> {
        let stays = self.seats.iter().filter(|(fill, ..)| !gone.contains(fill));
        stays.map(|(fill, votes, cell)| (*fill, *votes || raised.contains(fill), *cell)).collect()
    }
}

pub fn subject() -> Json {
    let mut course = Course { rows: 1, seats: Vec::new(), cases: Vec::new() };
    let new = |from: u8, to: u8| (from..=to).map(|fill| (fill, fill <= VOTERS, None));
    course.record("63 members are one row", 0xa1, new(1, 63).collect());
    let more: Vec<Seat> = course.seats.iter().copied().chain(new(64, 64)).collect();
    course.record("one more, and there are two rows", 0xa2, more);
    let gone = course.without(&[3, 40], &[]);
    course.record("two leave, and the two rows stay", 0xa3, gone);
    // 3 was a voter, so a learner may vote: some learner that does not sit in the first row.
    let back = course.seats.iter().find(|(_, votes, cell)| !votes && cell.is_some_and(|cell| cell.row() == 1));
    let raised = back.map_or(0, |(fill, ..)| *fill);
    let next = course.without(&[], &[raised]).into_iter().chain(new(65, 66)).collect();
    course.record("a learner of the second row votes, and two come", 0xa4, next);
    let crowd: Vec<Seat> = course.seats.iter().copied().chain(new(67, 98)).collect();
    course.record("a third row", 0xa5, crowd);
    let left: Vec<u8> = (62..=98).collect();
    let few = course.without(&left, &[]);
    course.record("too few for two rows", 0xa6, few);
    object! {
        "about": "Each case gives the members of a record, by ascending id, their cells. `rows` is the number of rows of \
                  its parent, and `digest` the parent's digest. A member is [byte, votes, cell]: its id repeats the byte, \
                  and the cell is that in the parent, or null.",
        "cases": course.cases,
    }
}
