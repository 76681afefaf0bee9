//! Rings: their order, their segments, and good ones (`docs/protocol/3-reduction.md` §3.4,
//! `docs/protocol/2-records.md` §2.5.1).

use crate::json::{Json, object};
use crate::made::{self, digest, id};
use starling_protocol::record::Member;
use starling_protocol::ring::tour::{self, Costs};
use starling_protocol::ring::{self, Half, Ring};

const ORDER: &str = "docs/protocol/1-wire.md §1.1.2";
const POSITIONS: &str = "docs/protocol/3-reduction.md §3.4.1";
const SCHEDULE: &str = "docs/protocol/3-reduction.md §3.4.2";
const TOUR: &str = "docs/protocol/2-records.md §2.5.1";

fn order(record: u8, members: &[u8]) -> Json {
    let order = ring::order(&digest(record), members.iter().map(|member| id(*member)));
    object! {
        "section": ORDER, "record": digest(record), "members": members.iter().map(|m| id(*m)).collect::<Vec<_>>(),
        "order": order,
    }
}

/// Contributors under a head that lists some of its members in an order.
fn positions() -> Json {
    let mut head = made::record();
    let seat = head.next.members[0].clone();
    head.next.members = (1..=5).map(|n| Member { id: id(0x10 * n), ..seat.clone() }).collect();
    head.next.ring = vec![3, 0, 4];
    let contributors = [0x10, 0x20, 0x30, 0x40].map(id);
    let order = head.ring_of(&digest(9), contributors);
    object! {
        "section": POSITIONS, "record": digest(9), "members": head.members().collect::<Vec<_>>(),
        "ring": head.next.ring.clone(), "contributors": contributors.to_vec(), "order": order,
    }
}

/// Segments, and the segment that each position sends and receives in each step.
fn schedule(n: usize, chunks: usize) -> Json {
    let ring = Ring::new(n, chunks);
    let segments: Vec<Vec<usize>> = (0..n).map(|p| vec![ring.segment(p).start, ring.segment(p).end]).collect();
    let hops = |position: usize, half: Half| {
        let hops = ring.hops(position).filter(|hop| hop.half == half).map(|hop| vec![hop.send, hop.receive]);
        hops.collect::<Vec<_>>()
    };
    let of = |half| (0..n).map(|position| hops(position, half)).collect::<Vec<_>>();
    object! {
        "section": SCHEDULE, "positions": n, "chunks": chunks, "segments": segments,
        "reduce_scatter": of(Half::ReduceScatter), "all_gather": of(Half::AllGather),
    }
}

/// The best ring, or for many positions the ring that the draws find.
fn good(seed: u8, n: usize, cost: impl Fn(usize, usize) -> u32) -> Json {
    let costs = Costs::new(n, &cost);
    let best = tour::best(&costs, &digest(seed));
    let (largest, sum) = costs.of(&best);
    let rows: Vec<Vec<u32>> =
        (0..n).map(|from| (0..n).map(|to| if from == to { 0 } else { cost(from, to) }).collect()).collect();
    object! {
        "section": TOUR, "parent": digest(seed), "costs": rows, "ring": best, "largest_hop": largest, "sum": sum,
    }
}

pub fn subject() -> Json {
    // Places on a line, and uplinks of different width.
    let apart =
        |from: usize, to: usize| (from * 37 % 23).abs_diff(to * 37 % 23) as u32 * 1_000 + (from as u32 % 3) * 700;
    let about = "Segments are [first chunk, first chunk of the next]. A step is [segment sent, segment received]; \
                 steps are listed by position. `costs` has a row for each position that sends.";
    object! {
        "about": about,
        "order": vec![
            order(9, &[0x10]), order(9, &[0x10, 0x20, 0x30, 0x40, 0x50]), order(10, &[0x10, 0x20, 0x30, 0x40, 0x50]),
        ],
        "positions": vec![positions()],
        "schedule": vec![schedule(1, 4), schedule(2, 5), schedule(3, 3), schedule(3, 1), schedule(4, 10)],
        "tours": vec![
            good(9, 3, apart), good(9, 5, apart), good(9, 5, |_, _| 1_000), good(9, 11, apart), good(9, 13, apart),
            good(10, 13, apart),
        ],
    }
}
