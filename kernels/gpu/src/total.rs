//! Sums over long vectors, whose order does not depend on the device: fixed pieces first, then their sums.

use crate::grid::{UNITS, array, cubes, dim, line};
use crate::launches::count;
use crate::team::{Team, across, team_sum};
use cubecl::Runtime;
use cubecl::prelude::*;
use cubecl::server::Handle;

/// Elements of a piece.
const PIECE: usize = 1 << 16;

/// Launches of [`total`].
pub const LAUNCHES: u32 = 2;
/// The slot of the report that holds the loss.
pub const LOSS: usize = 0;
/// The slot of the report that holds the norm of the gradient.
pub const NORM: usize = 1;

/// The terms of a sum, and its result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Total {
    /// The sum of the values, times this factor.
    Sum(f32),
    /// The square root of the sum of squares.
    Norm,
}

/// Bytes of scratch for a vector of `len` elements.
pub fn scratch_bytes(len: usize) -> usize {
    len.div_ceil(PIECE).max(1) * size_of::<f32>()
}

/// `report[slot]` = the total of `values` (f32, `[len]`). The report is f32, with at least `slot + 1` elements;
/// `scratch` has [`scratch_bytes`]. A value that is not finite makes the total infinite or NaN. Two launches.
pub fn total<R: Runtime>(
    client: &ComputeClient<R>,
    values: &Handle,
    len: usize,
    total: Total,
    scratch: &Handle,
    (report, slot): (&Handle, usize),
    tally: &Handle,
) {
    let n = line(size_of::<f32>(), &[len]);
    let pieces = len.div_ceil(PIECE);
    let team = Team::whole(client);
    let (squares, factor) = match total {
        Total::Sum(factor) => (false, factor),
        Total::Norm => (true, 1.0),
    };
    // SAFETY: the kernels test their indices against the lengths.
    unsafe {
        total_pieces::launch_unchecked::<R>(
            client,
            cubes(client, pieces),
            dim(),
            n,
            array(values, len),
            array(scratch, pieces.max(1)),
            len / n,
            array(tally, 1),
            squares,
            team,
        );
        total_all::launch_unchecked::<R>(
            client,
            cubes(client, 1),
            dim(),
            array(scratch, pieces.max(1)),
            array(report, slot + 1),
            pieces,
            slot,
            factor,
            array(tally, 1),
            squares,
            team,
        );
    }
}

/// Each cube sums one piece. `vectors` counts the vectors of all pieces.
#[cube(launch_unchecked)]
fn total_pieces<N: Size>(
    values: &Array<Vector<f32, N>>,
    sums: &mut Array<f32>,
    vectors: usize,
    tally: &mut Array<Atomic<u32>>,
    #[comptime] squares: bool,
    #[comptime] team: Team,
) {
    count(tally);
    let mut shared = SharedMemory::<f32>::new(UNITS);
    let n = N::value();
    let piece = comptime!(PIECE / n);
    let first = CUBE_POS * piece + UNIT_POS as usize;
    let mut sum = Vector::<f32, N>::new(0.0f32);
    if CUBE_POS * piece < vectors {
        for i in 0..comptime!(piece / UNITS) {
            let at = first + i * UNITS;
            if at < vectors {
                let value = values[at];
                if comptime!(squares) {
                    sum += value * value;
                } else {
                    sum += value;
                }
            }
        }
    }
    let sum = team_sum(across::<N>(sum), &mut shared, team);
    if UNIT_POS == 0 && CUBE_POS * piece < vectors {
        sums[CUBE_POS] = sum;
    }
}

/// The first cube sums all.
#[cube(launch_unchecked)]
fn total_all(
    sums: &Array<f32>,
    report: &mut Array<f32>,
    pieces: usize,
    slot: usize,
    factor: f32,
    tally: &mut Array<Atomic<u32>>,
    #[comptime] root: bool,
    #[comptime] team: Team,
) {
    count(tally);
    let mut shared = SharedMemory::<f32>::new(UNITS);
    let mut sum = 0.0f32;
    for at in range_stepped(UNIT_POS as usize, pieces, UNITS) {
        sum += sums[at];
    }
    let sum = team_sum(sum, &mut shared, team);
    if ABSOLUTE_POS == 0 {
        if comptime!(root) {
            report[slot] = sum.sqrt();
        } else {
            report[slot] = sum * factor;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::{Trial, noise};
    use proptest::prelude::*;

    fn totals(values: &[f32], factor: f32) -> (Vec<f32>, u32) {
        let trial = Trial::new();
        let (input, report) = (trial.floats(values), trial.empty(4));
        let scratch = trial.empty(scratch_bytes(values.len()) / 4);
        for (kind, slot) in [(Total::Sum(factor), LOSS), (Total::Norm, NORM)] {
            total(&trial.client, &input, values.len(), kind, &scratch, (&report, slot), &trial.tally);
        }
        (trial.read(&report), trial.ran())
    }

    fn check(values: &[f32]) {
        let (report, launches) = totals(values, 0.25);
        let sum: f64 = values.iter().map(|&v| f64::from(v)).sum();
        let squares: f64 = values.iter().map(|&v| f64::from(v).powi(2)).sum();
        for (got, want) in [(report[LOSS], 0.25 * sum), (report[NORM], squares.sqrt())] {
            assert!((f64::from(got) - want).abs() <= 1e-5 * want.abs(), "{got}, not {want}, of {}", values.len());
        }
        assert!(report[2].is_nan() && report[3].is_nan(), "other slots stay as they are");
        assert_eq!(launches, 4);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(6))]

        #[test]
        fn totals_agree_with_double_precision(len in 1usize..300_000, seed in any::<u64>()) {
            check(&noise(len, seed).iter().map(|v| v + 1.01).collect::<Vec<_>>());
        }
    }

    #[test]
    fn many_equal_values_do_not_lose_precision() {
        check(&[0.1; 1]);
        check(&vec![0.1; PIECE]);
        check(&vec![0.1; 40 * PIECE + 3]);
    }

    #[test]
    fn values_that_are_not_finite_show() {
        let mut values = vec![1.0; PIECE + 12];
        values[PIECE + 3] = f32::INFINITY;
        assert_eq!(totals(&values, 1.0).0[NORM], f32::INFINITY);
        values[17] = f32::NAN;
        let (report, _) = totals(&values, 1.0);
        assert!(report[LOSS].is_nan() && report[NORM].is_nan());
    }
}
