//! The kernels of Muon beside its products. A cube takes a piece of one matrix.

use crate::grid::UNITS;
use crate::launches::count;
use crate::optimizer::{scale, sound};
use crate::team::{Team, across, team_sum};
use cubecl::prelude::*;

/// Elements of a piece.
pub const PIECE: usize = 1 << 14;
/// The momentum of the gradient; the step looks ahead by it once more (Nesterov).
const MOMENTUM: f32 = 0.95;
/// The coefficients of the iteration. It takes every singular value near to 1, not to 1 itself.
const COEFFICIENTS: [f32; 3] = [3.4445, -4.7750, 2.0315];
/// Keeps a gradient of zeros from a division by zero.
const TINY: f32 = 1e-7;

/// The matrices of a launch, by their numbers in the list of places.
#[derive(CubeType, CubeLaunch)]
pub struct Work {
    first: usize,
    count: usize,
    /// Pieces of a matrix.
    pieces: usize,
    /// Vectors of a matrix.
    vectors: usize,
}

/// The constants of a step.
#[derive(CubeType, CubeLaunch)]
pub struct Constants {
    rate: f32,
    /// The factor that weight decay leaves.
    keep: f32,
    clip: f32,
}

/// The gradient and the momentum after it, looked ahead.
#[cube]
fn ahead<N: Size>(g: Vector<f32, N>, m: Vector<f32, N>) -> Vector<f32, N> {
    g + Vector::new(MOMENTUM) * m
}

/// Moves the momentum, unless loss or norm are not finite, and sums the squares of each piece of the directions.
#[cube(launch_unchecked)]
pub fn muon_momentum<N: Size>(
    gradient: &Array<Vector<f32, N>>,
    m: &mut Array<Vector<f32, N>>,
    starts: &Array<u32>,
    sums: &mut Array<f32>,
    report: &Array<f32>,
    work: &Work,
    constants: &Constants,
    tally: &mut Array<Atomic<u32>>,
    #[comptime] team: Team,
) {
    count(tally);
    let mut shared = SharedMemory::<f32>::new(UNITS);
    let n = N::value();
    let matrix = CUBE_POS / work.pieces;
    let mut sum = Vector::<f32, N>::new(0.0f32);
    if matrix < work.count {
        let (sound, scale) = (sound(report), scale(report, constants.clip));
        let start = starts[work.first + matrix] as usize / n;
        let first = CUBE_POS % work.pieces * comptime!(PIECE / n) + UNIT_POS as usize;
        for i in 0..comptime!(PIECE / n / UNITS) {
            let at = first + i * UNITS;
            if at < work.vectors {
                let g = gradient[start + at] * Vector::new(scale);
                let moved = Vector::new(MOMENTUM) * m[start + at] + g;
                if sound {
                    m[start + at] = moved;
                }
                let ahead = ahead::<N>(g, moved);
                sum += ahead * ahead;
            }
        }
    }
    let sum = team_sum(across::<N>(sum), &mut shared, team);
    if UNIT_POS == 0 && matrix < work.count {
        sums[CUBE_POS] = sum;
    }
}

/// Writes the directions, each divided by its norm, one after another.
#[cube(launch_unchecked)]
pub fn muon_direction<A: Float, N: Size>(
    gradient: &Array<Vector<f32, N>>,
    m: &Array<Vector<f32, N>>,
    starts: &Array<u32>,
    sums: &Array<f32>,
    directions: &mut Array<Vector<A, N>>,
    report: &Array<f32>,
    work: &Work,
    constants: &Constants,
    tally: &mut Array<Atomic<u32>>,
    #[comptime] team: Team,
) {
    count(tally);
    let mut shared = SharedMemory::<f32>::new(UNITS);
    let n = N::value();
    let matrix = CUBE_POS / work.pieces;
    let mut squares = 0.0f32;
    if matrix < work.count {
        for piece in range_stepped(UNIT_POS as usize, work.pieces, UNITS) {
            squares += sums[matrix * work.pieces + piece];
        }
    }
    let norm = team_sum(squares, &mut shared, team).sqrt() + TINY;
    if matrix < work.count {
        let scale = scale(report, constants.clip);
        let start = starts[work.first + matrix] as usize / n;
        let first = CUBE_POS % work.pieces * comptime!(PIECE / n) + UNIT_POS as usize;
        for i in 0..comptime!(PIECE / n / UNITS) {
            let at = first + i * UNITS;
            if at < work.vectors {
                let ahead = ahead::<N>(gradient[start + at] * Vector::new(scale), m[start + at]);
                directions[matrix * work.vectors + at] = Vector::cast_from(ahead / Vector::new(norm));
            }
        }
    }
}

/// `square = a I + b gram + c square`: the factor that an iteration multiplies each matrix by. `side` is counted in
/// elements, and a vector lies in one row.
#[cube(launch_unchecked)]
pub fn muon_polynomial<A: Float, N: Size>(
    gram: &Array<Vector<A, N>>,
    square: &mut Array<Vector<A, N>>,
    side: usize,
    vectors: usize,
    tally: &mut Array<Atomic<u32>>,
) {
    count(tally);
    let at = ABSOLUTE_POS;
    if at < vectors {
        let [a, b, c] = comptime!(COEFFICIENTS);
        let place = at * N::value();
        let (row, column) = (place / side % side, place % side);
        let mut one = Vector::<f32, N>::new(0.0f32);
        #[unroll]
        for i in 0..N::value() {
            one[i] = select(column + i == row, a, 0.0f32);
        }
        let gram = Vector::<f32, N>::cast_from(gram[at]);
        let squares = Vector::<f32, N>::cast_from(square[at]);
        square[at] = Vector::cast_from(one + Vector::new(b) * gram + Vector::new(c) * squares);
    }
}

/// Steps the parameters, unless loss or norm are not finite.
#[cube(launch_unchecked)]
pub fn muon_apply<A: Float, N: Size>(
    master: &mut Array<Vector<f32, N>>,
    copy: &mut ComptimeOption<Array<Vector<A, N>>>,
    starts: &Array<u32>,
    directions: &Array<Vector<A, N>>,
    report: &Array<f32>,
    work: &Work,
    constants: &Constants,
    tally: &mut Array<Atomic<u32>>,
) {
    count(tally);
    let n = N::value();
    let matrix = CUBE_POS / work.pieces;
    if matrix < work.count && sound(report) {
        let start = starts[work.first + matrix] as usize / n;
        let first = CUBE_POS % work.pieces * comptime!(PIECE / n) + UNIT_POS as usize;
        for i in 0..comptime!(PIECE / n / UNITS) {
            let at = first + i * UNITS;
            if at < work.vectors {
                let way = Vector::<f32, N>::cast_from(directions[matrix * work.vectors + at]);
                let theta = master[start + at] * Vector::new(constants.keep) - Vector::new(constants.rate) * way;
                master[start + at] = theta;
                #[comptime]
                if let ComptimeOption::Some(copy) = copy {
                    copy[start + at] = Vector::cast_from(theta);
                }
            }
        }
    }
}
