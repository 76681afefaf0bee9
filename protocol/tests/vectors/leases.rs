//! Leases and the order of samples (`docs/protocol/2-records.md` §2.3, §2.4).

use crate::fields;
use crate::json::{Json, object};
use starling_protocol::lease::{self, Pool};
use starling_protocol::permutation::SampleOrder;
use starling_protocol::record::Span;

const ORDER: &str = "docs/protocol/2-records.md §2.3";
const GIVING: &str = "docs/protocol/2-records.md §2.4.1";
const TAKING: &str = "docs/protocol/2-records.md §2.4.2";
const STEPS: &str = "docs/protocol/2-records.md §2.4.3";
const END: &str = "docs/protocol/2-records.md §2.4.4";
/// Positions of a unit.
const UNIT: u64 = 8;
const FREE_SPANS_MAX: usize = starling_protocol::limits::FREE_SPANS_MAX;

fn spans(list: &[(u64, u64)]) -> Vec<Span> {
    list.iter().map(|(start, count)| Span { start: *start, count: *count }).collect()
}

/// A pool after it took these spans back.
fn returned(cursor: u64, free: &[Span], back: &[Span]) -> Json {
    let mut pool = Pool::new(cursor, free);
    back.iter().for_each(|span| pool.give_back(*span));
    let (_, after) = pool.into_parts();
    object! {
        "section": GIVING, "cursor": cursor, "free": fields::spans(free), "give_back": fields::spans(back),
        "free_after": fields::spans(&after),
    }
}

/// The leases that a pool gives for these steps, one after another; null when positions are used up.
fn taken(unit: u64, cursor: u64, free: &[Span], steps: &[u32]) -> Json {
    let mut pool = Pool::new(cursor, free);
    let mut leases = Vec::new();
    for steps in steps {
        let lease = pool.take(*steps, unit);
        leases.push(object! {"steps": *steps, "lease": lease.as_ref().map(fields::span)});
        if lease.is_none() {
            break;
        }
    }
    let (cursor_after, free_after) = pool.into_parts();
    object! {
        "section": TAKING, "unit": unit, "cursor": cursor, "free": fields::spans(free), "take": leases,
        "cursor_after": cursor_after, "free_after": fields::spans(&free_after),
    }
}

fn steps() -> Vec<Json> {
    let table = [
        (30, vec![100, 100, 100]),
        (30, vec![100, 101, 103, 200]),
        (30, vec![100, 50, 20, 97, 100]),
        (30, vec![400, 0, 100, 90]),
        (30, vec![0, 0]),
        (30, vec![1, 4_000_000_000, 100]),
        (5, vec![7, 8, 9]),
        (1, vec![1, 1_000]),
    ];
    let row = |(inner_steps, step_us): (u32, Vec<u32>)| {
        let median = lease::median(step_us.iter().copied());
        let units = |known| -> Vec<u32> {
            let most = lease::units_max(inner_steps, UNIT, known);
            step_us.iter().map(|us| lease::units_for(inner_steps, most, median, *us)).collect()
        };
        let (known, new) = (units(true), units(false));
        object! {
            "section": STEPS, "inner_steps": inner_steps, "step_us": step_us, "median": median, "units": known,
            "units_of_newcomers": new,
        }
    };
    table.into_iter().map(row).collect()
}

fn order() -> Vec<Json> {
    let positions = |seed: u64, len: u64, positions: Vec<u64>| {
        let mut order = SampleOrder::new(seed, len);
        let sequences: Vec<u64> = positions.iter().map(|position| order.sample(*position)).collect();
        object! {
            "section": ORDER, "seed": seed, "len": len, "positions": positions, "sequences": sequences,
        }
    };
    let beginning = (0..8).collect::<Vec<u64>>();
    vec![
        positions(42, 1, vec![0, 1, 99]),
        positions(42, 2, beginning.clone()),
        positions(42, 7, (0..21).collect()),
        positions(42, 1_000, [(0..8).collect::<Vec<u64>>(), (1_000..1_008).collect()].concat()),
        positions(43, 1_000, beginning.clone()),
        positions(0, 1_000_003, vec![0, 1, 1_000_002, 1_000_003, 17 * 1_000_003 + 5]),
        positions(u64::MAX, (1 << 40) - 1, vec![0, 1, (1 << 40) - 2, 1 << 44, u64::MAX]),
        positions(7, 1 << 62, vec![0, 1, (1 << 62) - 1, 1 << 62, 3 << 62]),
    ]
}

pub fn subject() -> Json {
    let many: Vec<Span> =
        (0..FREE_SPANS_MAX as u64 + 2).map(|place| Span { start: 100 * place, count: 5 + place % 2 }).collect();
    let (_, kept) = Pool::new(1 << 20, &many).into_parts();
    let pools = vec![
        taken(8, 100, &[], &[3, 1, 30]),
        taken(8, 1_000, &spans(&[(0, 100), (200, 48), (300, 40), (400, 40), (500, 30)]), &[5, 5, 5, 20, 6, 3]),
        taken(16, 1_000, &spans(&[(0, 31)]), &[4]),
        taken(8, 1_000, &spans(&[(0, 32), (100, 33)]), &[8]),
        taken(8, u64::MAX - 8, &[], &[1, 1]),
    ];
    let about = "Spans are [start, count]. Leases are taken one after another from one pool.";
    object! {
        "about": about,
        "order": order(),
        "give_back": vec![
            returned(1_000, &spans(&[(0, 10), (20, 10), (40, 10)]), &spans(&[(10, 10), (500, 0), (50, 5), (39, 1)])),
            returned(1_000, &[], &spans(&[(300, 5), (100, 5), (200, 5)])),
        ],
        "pools": pools,
        "steps": steps(),
        "end": object! {"section": END, "free": fields::spans(&many), "free_after": fields::spans(&kept)},
    }
}
