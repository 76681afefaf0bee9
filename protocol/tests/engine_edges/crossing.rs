//! Attempts of a flock of several rows: two rows of four, of whom three vote.

use crate::bench::{BOOT, Bench, INCARNATION, ME, id, spec};
use crate::stalling::blamed;
use starling_protocol::engine::io::{Input, Output};
use starling_protocol::grid::Grid;
use starling_protocol::message::{Awaited, Awaits, Head, Message, Phase, Pulse};
use starling_protocol::record::Role;
use starling_protocol::scale::{SMALL, with};

const SECOND: u64 = 1_000_000;
const VOTERS: u8 = 3;
const MEMBERS: u8 = 8;

/// A flock of two rows, and this member votes.
fn rows() -> (Bench, Grid) {
    let role = |n| if n <= VOTERS { Role::Voter } else { Role::Learner };
    let bench = Bench::flock_of(spec(), &(1..=MEMBERS).map(|n| (n, role(n))).collect::<Vec<_>>());
    let grid = bench.record().grid();
    (bench, grid)
}

fn column(grid: &Grid, n: u8) -> usize {
    grid.cell_of(&id(n)).expect("a member").column()
}

fn row(grid: &Grid, n: u8) -> usize {
    grid.cell_of(&id(n)).expect("a member").row()
}

/// Nothing moves, and some members wait for others.
fn stand_still(bench: &mut Bench, waiting: &[(u8, Awaited, u8)]) -> Vec<Output> {
    let key = bench.all_ready();
    let of = |n: u8| waiting.iter().find(|(waiter, ..)| *waiter == n);
    let of = |n: u8| of(n).map(|(_, what, from)| Awaits { what: *what, from: id(*from) });
    bench.feed(Input::ReduceProgress { key, bytes: 3, awaits: of(ME) });
    let mut outputs = Vec::new();
    for beat in 1..120 {
        for peer in (1..=MEMBERS).filter(|n| *n != ME) {
            let pulse = Pulse { boot: BOOT, incarnation: INCARNATION, beat, down: Vec::new() };
            let head = Head { awaits: of(peer), pulse, ..bench.chain_head(Phase::Reducing, 3) };
            outputs.extend(bench.say(peer, &Message::Head(head)));
        }
        outputs.extend(bench.wait(SECOND));
        if !blamed(&outputs).is_empty() {
            return outputs;
        }
    }
    panic!("the round hangs");
}

/// The whole row waits for a member that waits itself for the owner, or for a part of it.
#[test]
pub fn in_rows_the_end_of_a_chain_is_to_blame_and_no_relay() {
    with(SMALL, || {
        for what in [Awaited::Sum, Awaited::RowSum] {
            let (mut bench, grid) = rows();
            let relay = if ME == 2 { 3 } else { 2 };
            let owner =
                (VOTERS + 1..=MEMBERS).find(|n| column(&grid, *n) == column(&grid, relay) && row(&grid, *n) > 0);
            let owner = owner.expect("each column has two members");
            let mates: Vec<u8> = (1..=MEMBERS).filter(|n| row(&grid, *n) == 0 && *n != relay).collect();
            let mut waiting: Vec<(u8, Awaited, u8)> = mates.iter().map(|n| (*n, what, relay)).collect();
            waiting.push((relay, what, owner));
            let outputs = stand_still(&mut bench, &waiting);
            assert_eq!(blamed(&outputs), [Some(id(owner))], "{what}");
            // The owner waits for a part.
            let (mut bench, _) = rows();
            let other = (VOTERS + 1..=MEMBERS).find(|n| row(&grid, *n) > 0 && *n != owner).expect("a mate");
            waiting.push((owner, Awaited::Part, other));
            let outputs = stand_still(&mut bench, &waiting);
            assert!([Some(id(owner)), Some(id(other))].contains(&blamed(&outputs)[0]), "an end of that link");
        }
        // They wait in a circle: then each of them counts.
        let (mut bench, _) = rows();
        let circle = [(2, Awaited::Sum, 3), (3, Awaited::Sum, 2), (ME, Awaited::Sum, 3)];
        let outputs = stand_still(&mut bench, &circle);
        assert_eq!(blamed(&outputs), [Some(id(3))], "it is at most links");
    });
}

#[test]
pub fn a_live_set_does_without_rows_from_which_no_sum_would_come() {
    with(SMALL, || {
        let (mut bench, grid) = rows();
        let near = [column(&grid, ME), column(&grid, 2)];
        let apart = |n: &u8| row(&grid, *n) == 1 && !near.contains(&column(&grid, *n));
        let far: Vec<u8> = (1..=MEMBERS).filter(apart).collect();
        assert_eq!(far.len(), 2);
        bench.trained();
        for member in far.iter().copied().chain([2]) {
            let ready = bench.ready(member);
            bench.say(member, &Message::Ready(ready));
        }
        for _ in 0..3_000 {
            bench.wait(100_000);
            [2, 3].into_iter().for_each(|voter| drop(bench.echo(voter)));
            (2..=MEMBERS).for_each(|n| drop(bench.meet(n)));
            if bench.attempt().is_some() {
                break;
            }
        }
        let (attempt, members) = bench.engine.view().attempt.expect("an attempt runs");
        assert_eq!(attempt, 1, "none was in vain");
        assert_eq!(members, [ME, 2].map(id));
    });
}
