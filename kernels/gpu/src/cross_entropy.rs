//! Cross-entropy of rows of logits.

use crate::grid::{UNITS, array, cubes, dim, line};
use crate::launches::count;
use crate::team::{Team, team_max, team_sum};
use cubecl::Runtime;
use cubecl::prelude::*;
use cubecl::server::Handle;

/// Bits of a quiet NaN.
const NAN: u32 = 0x7fc0_0000;

/// The rows of one call, a part of the batch's.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    /// First row in targets and losses.
    pub first: usize,
    pub rows: usize,
    pub vocab: usize,
}

/// For each row `r` of `logits` (f32, `[rows, vocab]`): `losses[first + r] = -ln softmax(logits[r])[target]`, in nats,
/// with `target = targets[first + r]` (u32). A target that is not below `vocab` makes its loss NaN.
///
/// With `gradient` (a buffer of `A`, `[rows, vocab]`, and a scale): the gradient of `scale` times the sum of these
/// losses. One launch.
pub fn rows<R: Runtime, A: Float>(
    client: &ComputeClient<R>,
    logits: &Handle,
    targets: &Handle,
    losses: &Handle,
    Rows { first, rows, vocab }: Rows,
    gradient: Option<(&Handle, f32)>,
    tally: &Handle,
) {
    let n = line(size_of::<f32>(), &[vocab]);
    let team = Team::of(client, vocab / n);
    // SAFETY: the kernel leaves out rows beyond the last and targets beyond the vocabulary.
    unsafe {
        cross_entropy_rows::launch_unchecked::<A, R>(
            client,
            cubes(client, rows.div_ceil(team.slots())),
            dim(),
            n,
            array(logits, rows * vocab),
            array(targets, first + rows),
            array(losses, first + rows),
            gradient.map(|(gradient, _)| array(gradient, rows * vocab)).into(),
            first,
            rows,
            vocab / n,
            gradient.map_or(0.0, |(_, scale)| scale),
            array(tally, 1),
            team,
        );
    }
}

/// Each team takes one row, in one pass for the loss and another one for the gradient. The sum of exponentials is kept
/// relative to the largest logit so far (Milakov and Gimelshein, arXiv 1805.02867). `vocab` is counted in vectors.
#[cube(launch_unchecked)]
fn cross_entropy_rows<A: Float, N: Size>(
    logits: &Array<Vector<f32, N>>,
    targets: &Array<u32>,
    losses: &mut Array<f32>,
    gradient: &mut ComptimeOption<Array<Vector<A, N>>>,
    first: usize,
    rows: usize,
    vocab: usize,
    scale: f32,
    tally: &mut Array<Atomic<u32>>,
    #[comptime] team: Team,
) {
    count(tally);
    let mut shared = SharedMemory::<f32>::new(UNITS);
    let lane = UNIT_POS as usize % team.lanes;
    let row = CUBE_POS * comptime!(team.slots()) + UNIT_POS as usize / team.lanes;
    // Units without a row must take part in the sums all the same.
    let end = select(row < rows, vocab, 0usize);
    let start = row * vocab;
    let mut top = f32::min_value();
    let mut sum = 0.0f32;
    for column in range_stepped(lane, end, team.lanes) {
        let values = logits[start + column];
        let high = max(top, highest::<N>(values));
        sum = sum * (top - high).exp() + exponentials::<N>(values, high);
        top = high;
    }
    let high = team_max(top, &mut shared, team);
    let sum = team_sum(sum * (top - high).exp(), &mut shared, team);
    if row < rows {
        let target = targets[first + row] as usize;
        if lane == 0 {
            losses[first + row] = loss::<N>(logits, start, target, vocab, high, sum);
        }
        #[comptime]
        if let ComptimeOption::Some(gradient) = gradient {
            let factor = scale / sum;
            for column in range_stepped(lane, end, team.lanes) {
                let mut values = logits[start + column];
                #[unroll]
                for k in 0..N::value() {
                    let share = select(column * N::value() + k == target, scale, 0.0f32);
                    values[k] = (values[k] - high).exp() * factor - share;
                }
                gradient[start + column] = Vector::cast_from(values);
            }
        }
    }
}

#[cube]
fn highest<N: Size>(values: Vector<f32, N>) -> f32 {
    let mut high = values[0];
    #[unroll]
    for k in 1..N::value() {
        high = max(high, values[k]);
    }
    high
}

/// The sum of `exp(value - high)`.
#[cube]
fn exponentials<N: Size>(values: Vector<f32, N>, high: f32) -> f32 {
    let mut sum = 0.0f32;
    #[unroll]
    for k in 0..N::value() {
        sum += (values[k] - high).exp();
    }
    sum
}

/// The loss of the row that starts at vector `start`.
#[cube]
fn loss<N: Size>(
    logits: &Array<Vector<f32, N>>,
    start: usize,
    target: usize,
    vocab: usize,
    high: f32,
    sum: f32,
) -> f32 {
    // The bits come from a variable, since some compilers refuse a constant that is NaN.
    let mut loss = f32::reinterpret(u32::cast_from(target) | NAN);
    if target < vocab * N::value() {
        let values = logits[start + target / N::value()];
        #[unroll]
        for k in 0..N::value() {
            if target % N::value() == k {
                loss = sum.ln() - (values[k] - high);
            }
        }
    }
    loss
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::{Trial, close, noise};

    fn reference(logits: &[f32], targets: &[u32], vocab: usize, scale: f64) -> (Vec<f64>, Vec<f64>) {
        let (mut losses, mut gradient) = (Vec::new(), Vec::new());
        for (row, &target) in logits.chunks(vocab).zip(targets) {
            let top = row.iter().fold(f64::MIN, |top, &x| top.max(f64::from(x)));
            let sum: f64 = row.iter().map(|&x| (f64::from(x) - top).exp()).sum();
            losses.push(sum.ln() + top - f64::from(row[target as usize]));
            gradient.extend(
                row.iter().enumerate().map(|(i, &x)| {
                    scale * ((f64::from(x) - top).exp() / sum - f64::from(u8::from(i == target as usize)))
                }),
            );
        }
        (losses, gradient)
    }

    fn check(rows_count: usize, vocab: usize, spread: f32) {
        let trial = Trial::new();
        let values: Vec<f32> = noise(rows_count * vocab, vocab as u64).iter().map(|x| spread * x).collect();
        let targets: Vec<u32> = (0..rows_count as u32).map(|i| i.wrapping_mul(2_654_435_761) % vocab as u32).collect();
        let first = 3;
        let shifted = trial.words(&[&[u32::MAX; 3], &targets[..]].concat());
        let (logits, losses) = (trial.floats(&values), trial.empty(first + rows_count));
        let gradient = trial.empty(rows_count * vocab);
        let part = Rows { first, rows: rows_count, vocab };
        let (want, slopes) = reference(&values, &targets, vocab, 1.0);
        rows::<_, f32>(&trial.client, &logits, &shifted, &losses, part, None, &trial.tally);
        let alone = trial.read(&losses);
        close("losses", &alone[first..], &want, 2e-6);
        assert!(alone[..first].iter().all(|loss| loss.is_nan()));
        rows::<_, f32>(&trial.client, &logits, &shifted, &losses, part, Some((&gradient, 0.5)), &trial.tally);
        assert_eq!(trial.read(&losses)[first..], alone[first..]);
        let half: Vec<f64> = slopes.iter().map(|s| 0.5 * s).collect();
        close("gradient", &trial.read(&gradient), &half, 2e-6);
        assert_eq!(trial.ran(), 2);
    }

    #[test]
    fn losses_and_gradients_are_right() {
        for (rows, vocab) in [(1, 2), (17, 256), (100, 1000), (5, 97), (3, 50_257), (2, 200_000)] {
            check(rows, vocab, 5.0);
        }
        check(9, 256, 500.0);
    }

    #[test]
    fn what_is_not_finite_shows() {
        let trial = Trial::new();
        let mut values = noise(4 * 256, 8);
        values[5] = f32::NAN;
        values[256 + 7] = f32::INFINITY;
        values[512 + 9] = f32::NEG_INFINITY;
        let (logits, losses) = (trial.floats(&values), trial.empty(4));
        let targets = trial.words(&[1, 2, 3, 256]);
        let part = Rows { first: 0, rows: 4, vocab: 256 };
        rows::<_, f32>(&trial.client, &logits, &targets, &losses, part, None, &trial.tally);
        let losses = trial.read(&losses);
        assert!(!losses[0].is_finite() && !losses[1].is_finite() && losses[3].is_nan(), "{losses:?}");
        assert!(losses[2].is_finite(), "{losses:?}");
    }
}
