//! The inner steps that a flock chooses (`docs/protocol/2-records.md` §2.11).

use crate::json::{Json, object};
use crate::made;
use starling_protocol::control;
use starling_protocol::record::{Measured, NextRound};

/// Steps at first, their bound, and of each round what its contributors state: microseconds of a step and of the round
/// beyond its steps.
type Course = (u32, u32, &'static [&'static [(u32, u32)]]);

const QUICK: &[(u32, u32)] = &[(50_000, 40_000), (51_000, 41_000), (50_500, 60_000), (49_000, 39_000)];
const SLOW: &[(u32, u32)] = &[(50_000, 9_000_000), (51_000, 9_100_000), (50_500, 8_900_000), (49_000, 9_050_000)];
const LIES: &[(u32, u32)] = &[(50_000, 40_000), (51_000, 41_000), (1, u32::MAX)];
const COURSES: [Course; 6] = [
    (30, 512, &[SLOW, SLOW, SLOW, SLOW, SLOW, SLOW, SLOW, QUICK, QUICK, QUICK, QUICK]),
    (30, 0, &[SLOW, SLOW, SLOW, SLOW]),
    (30, 100, &[SLOW, SLOW, SLOW, SLOW, SLOW]),
    (7, 512, &[QUICK, SLOW, QUICK, QUICK, QUICK, QUICK]),
    (32, 512, &[LIES, LIES, LIES, LIES, LIES]),
    (
        3,
        8,
        &[&[(1_000, 5_000)], &[(1_000, 0), (0, 0)], &[(0, 9), (0, 9)], &[(u32::MAX, 1), (u32::MAX, 1)], QUICK, QUICK],
    ),
];

pub fn subject() -> Json {
    Json::List(COURSES.iter().map(course).collect())
}

fn course((first, most, rounds): &Course) -> Json {
    let mut spec = made::spec();
    (spec.inner.steps, spec.sync.gap_max) = (*first, *most);
    let mut before = NextRound { inner_steps: *first, overheads: [0; 3], ..made::record().next };
    let rounds = rounds.iter().map(|stated| {
        let measured: Vec<Measured> = stated
            .iter()
            .map(|(step_us, overhead_us)| Measured {
                step_us: *step_us,
                overhead_us: *overhead_us,
                ..Measured::default()
            })
            .collect();
        (before.inner_steps, before.overheads) = control::next(&spec, &before, &measured, measured.len());
        let [step_us, overhead_us] = [|m: &Measured| m.step_us, |m: &Measured| m.overhead_us]
            .map(|field| measured.iter().map(field).collect::<Vec<u32>>());
        object! {
            "step_us": step_us, "overhead_us": overhead_us,
            "overheads": before.overheads.to_vec(), "inner_steps": before.inner_steps,
        }
    });
    let rounds: Vec<Json> = rounds.collect();
    object! {"section": "docs/protocol/2-records.md §2.11", "inner_steps": *first, "gap_max": *most, "rounds": rounds}
}
