//! Differences of losses: intervals of paired seeds, the noise of null pairs, and the seeds that claims need.

/// Student's t for 95 % with 1, 2, ... degrees of freedom.
const STUDENT: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];
/// The normal distribution's 80 %: the share of tries in which a true difference is to be shown.
const POWER: f64 = 0.842;
/// Most seeds that are worth a number.
const SEEDS_MAX: usize = 1000;

/// The mean of some differences.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    pub mean: f64,
    /// Half the width of the mean's 95 % confidence interval; infinite with one difference.
    pub half: f64,
    /// The standard deviation of one difference; none with one difference.
    pub deviation: Option<f64>,
    pub count: usize,
}

impl Interval {
    /// `None` without differences.
    pub fn of(values: &[f64]) -> Option<Self> {
        let count = values.len();
        let mean = values.iter().sum::<f64>() / count as f64;
        let deviation = (count > 1).then(|| {
            let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
            (squares / (count - 1) as f64).sqrt()
        });
        let half = deviation.map_or(f64::INFINITY, |deviation| half_width(deviation, count));
        (count > 0).then_some(Self { mean, half, deviation, count })
    }

    /// Whether zero lies outside of the interval.
    pub fn shown(&self) -> bool {
        self.mean.abs() > self.half
    }
}

/// Student's t for 95 %.
fn student(freedom: usize) -> f64 {
    match freedom {
        0 => f64::INFINITY,
        // Exact to half a percent beyond the table.
        _ => STUDENT.get(freedom - 1).copied().unwrap_or(1.96 + 2.4 / freedom as f64),
    }
}

fn half_width(deviation: f64, seeds: usize) -> f64 {
    student(seeds.saturating_sub(1)) * deviation / (seeds as f64).sqrt()
}

/// The fewest seeds whose interval is at most so wide to each side; none if that takes more than a thousand.
pub fn seeds_for_width(deviation: f64, half: f64) -> Option<usize> {
    (2..=SEEDS_MAX).find(|seeds| half_width(deviation, *seeds) <= half)
}

/// The fewest seeds that show a true difference in four of five tries; none if that takes more than a thousand.
pub fn seeds_to_show(deviation: f64, difference: f64) -> Option<usize> {
    let reach = |seeds: usize| half_width(deviation, seeds) + POWER * deviation / (seeds as f64).sqrt();
    (2..=SEEDS_MAX).find(|seeds| reach(*seeds) <= difference)
}

/// The noise of runs that differ in one rounding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Noise {
    /// The standard deviation of the difference of two such runs, in percent.
    pub of_a_pair: f64,
    /// Independent differences behind it.
    pub pairs: usize,
}

impl Noise {
    /// Takes groups of losses; those of a group differ in a rounding alone. `None` if no group has two.
    pub fn of(groups: &[Vec<f64>]) -> Option<Self> {
        let (mut squares, mut pairs) = (0.0, 0);
        for group in groups.iter().filter(|group| group.len() > 1) {
            let mean = group.iter().sum::<f64>() / group.len() as f64;
            squares += group.iter().map(|loss| ((loss / mean - 1.0) * 100.0).powi(2)).sum::<f64>();
            pairs += group.len() - 1;
        }
        // The variance of a difference is twice that of a run.
        (pairs > 0).then(|| Self { of_a_pair: (2.0 * squares / pairs as f64).sqrt(), pairs })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_those_of_the_textbook() {
        let interval = Interval::of(&[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        let deviation = 2.5f64.sqrt();
        assert_eq!((interval.mean, interval.count), (3.0, 5));
        assert!((interval.deviation.unwrap() - deviation).abs() < 1e-12);
        assert!((interval.half - 2.776 * deviation / 5f64.sqrt()).abs() < 1e-12);
        assert!(interval.shown());
        assert!(!Interval::of(&[-1.0, 1.2]).unwrap().shown());
    }

    #[test]
    fn one_difference_shows_nothing() {
        let one = Interval::of(&[7.0]).unwrap();
        assert!(one.half.is_infinite() && one.deviation.is_none() && !one.shown());
        assert_eq!(Interval::of(&[]), None);
    }

    #[test]
    fn t_goes_on_beyond_its_table() {
        assert_eq!((student(1), student(4), student(30)), (12.706, 2.776, 2.042));
        // From a table: 2.021 with 40, 2.000 with 60, 1.980 with 120.
        for (freedom, wanted) in [(40, 2.021), (60, 2.000), (120, 1.980)] {
            assert!((student(freedom) - wanted).abs() < 0.01, "{freedom}");
        }
        assert!((1..200).all(|freedom| student(freedom + 1) <= student(freedom)));
        assert!(student(0).is_infinite());
    }

    #[test]
    fn a_claim_needs_the_fewest_seeds_that_carry_it() {
        for (deviation, difference) in [(1.0, 0.5), (1.0, 1.0), (3.0, 1.0), (0.5, 2.0)] {
            let width = seeds_for_width(deviation, difference).unwrap();
            assert!(half_width(deviation, width) <= difference);
            assert!(width == 2 || half_width(deviation, width - 1) > difference);
            let show = seeds_to_show(deviation, difference).unwrap();
            assert!(show >= width, "to show a difference takes no less than to know it so well");
        }
        // With one percent of noise: 18 seeds for half a percent to each side (t = 2.110), and 34 to show it.
        assert_eq!(seeds_for_width(1.0, 0.5), Some(18));
        assert!((32..=36).contains(&seeds_to_show(1.0, 0.5).unwrap()));
        assert_eq!(seeds_to_show(1.0, 0.001), None);
        assert_eq!(seeds_for_width(0.0, 0.1), Some(2));
    }

    #[test]
    fn noise_is_that_of_a_difference() {
        // Two runs 1 % to either side of their mean: a difference of 2 %.
        let noise = Noise::of(&[vec![0.99, 1.01], vec![2.02, 1.98], vec![3.0]]).unwrap();
        assert_eq!(noise.pairs, 2);
        assert!((noise.of_a_pair - 2.0).abs() < 1e-9, "{noise:?}");
        // Three runs are two independent differences.
        assert_eq!(Noise::of(&[vec![1.0, 1.0, 1.0]]).unwrap(), Noise { of_a_pair: 0.0, pairs: 2 });
        assert_eq!(Noise::of(&[vec![1.0], vec![]]), None);
    }
}
