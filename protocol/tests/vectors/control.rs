//! The inner steps and codecs that a flock chooses (`docs/protocol/2-records.md` §2.11).

use crate::json::{Json, object};
use crate::{fields, made};
use starling_protocol::control::Choice;
use starling_protocol::record::{Measured, NextRound};
use starling_protocol::run::Codec;

/// The statements of one contributor: microseconds of a step, and of the round beyond its steps; kbit/s of its uplink.
type Stated = (u32, u32, u32);

/// Steps at first, their bound, the coarsest codec, and of each round what its contributors state.
type Course = (u32, u32, Option<Codec>, &'static [&'static [Stated]]);

const QUICK: &[Stated] = &[(50_000, 40_000, 0), (51_000, 41_000, 0), (50_500, 60_000, 0), (49_000, 39_000, 0)];
const SLOW: &[Stated] =
    &[(50_000, 9_000_000, 0), (51_000, 9_100_000, 0), (50_500, 8_900_000, 0), (49_000, 9_050_000, 0)];
const LIES: &[Stated] = &[(50_000, 40_000, 0), (51_000, 41_000, 0), (1, u32::MAX, 0)];
/// A cost of which most is on the lines of the three that state any.
const NARROW: &[Stated] =
    &[(50_000, 9_000_000, 1), (51_000, 9_100_000, 2), (50_500, 8_900_000, 3), (49_000, 9_050_000, 0)];
/// The slowest line is another's.
const WIDE: &[Stated] =
    &[(50_000, 900_000, 1), (51_000, 910_000, 90_000), (50_500, 890_000, 95_000), (49_000, 900_000, 93_000)];
const COURSES: [Course; 9] = [
    (30, 512, None, &[SLOW, SLOW, SLOW, SLOW, SLOW, SLOW, SLOW, QUICK, QUICK, QUICK, QUICK]),
    (30, 0, None, &[SLOW, SLOW, SLOW, SLOW]),
    (30, 100, None, &[SLOW, SLOW, SLOW, SLOW, SLOW]),
    (7, 512, None, &[QUICK, SLOW, QUICK, QUICK, QUICK, QUICK]),
    (32, 512, None, &[LIES, LIES, LIES, LIES, LIES]),
    (
        3,
        8,
        None,
        &[
            &[(1_000, 5_000, 0)],
            &[(1_000, 0, 0), (0, 0, 0)],
            &[(0, 9, 0), (0, 9, 0)],
            &[(u32::MAX, 1, u32::MAX), (u32::MAX, 1, 1)],
            QUICK,
            QUICK,
        ],
    ),
    (30, 512, Some(Codec::Int4), &[NARROW, NARROW, NARROW, NARROW, NARROW, NARROW, NARROW, NARROW]),
    (30, 512, Some(Codec::Int4), &[WIDE, WIDE, WIDE, WIDE, NARROW, NARROW, NARROW, WIDE, WIDE, WIDE, WIDE, WIDE]),
    (30, 64, None, &[NARROW, NARROW, NARROW, NARROW, NARROW]),
];

pub fn subject() -> Json {
    Json::List(COURSES.iter().map(course).collect())
}

fn course((first, most, coarsest, rounds): &Course) -> Json {
    let mut spec = made::spec();
    (spec.inner.steps, spec.sync.gap_max, spec.sync.coarsest) = (*first, *most, *coarsest);
    let codec = spec.sync.codec;
    let mut before = NextRound { inner_steps: *first, codec, overheads: [0; 3], ..made::record().next };
    let rounds = rounds.iter().map(|stated| {
        let measured: Vec<Measured> = stated
            .iter()
            .map(|(step_us, overhead_us, upload_kbps)| Measured {
                step_us: *step_us,
                overhead_us: *overhead_us,
                upload_kbps: *upload_kbps,
                ..Measured::default()
            })
            .collect();
        let Choice { inner_steps, codec, overheads } = Choice::after(&spec, &before, &measured, measured.len());
        (before.inner_steps, before.codec, before.overheads) = (inner_steps, codec, overheads);
        let [step_us, overhead_us, upload_kbps] =
            [|m: &Measured| m.step_us, |m: &Measured| m.overhead_us, |m: &Measured| m.upload_kbps]
                .map(|field| measured.iter().map(field).collect::<Vec<u32>>());
        object! {
            "step_us": step_us, "overhead_us": overhead_us, "upload_kbps": upload_kbps,
            "overheads": overheads.to_vec(), "inner_steps": inner_steps, "codec": fields::codec(codec),
        }
    });
    let rounds: Vec<Json> = rounds.collect();
    object! {
        "section": "docs/protocol/2-records.md §2.11", "inner_steps": *first, "gap_max": *most,
        "codec": fields::codec(codec), "coarsest": coarsest.map_or(Json::Null, fields::codec),
        "parameters": spec.parameters(), "rounds": rounds,
    }
}
