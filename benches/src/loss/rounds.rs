//! The rounds of a run: how many inner steps each has, and who trains in it.

use std::fmt;
use std::str::FromStr;

/// Most inner steps of a round.
pub const STEPS_MAX: usize = 1 << 20;
/// The share of a run's steps over which rounds grow, and at the end that over which they shrink.
const PART: f64 = 0.25;

/// One round.
#[derive(Clone, Debug, PartialEq)]
pub struct Round {
    pub steps: usize,
    /// The members that train in it, by number.
    pub who: Vec<usize>,
    /// Seconds from the start of a lab's run to this round's commit, if the rounds are a lab's.
    pub seconds: Option<f64>,
}

impl Round {
    /// A round of the first so many members.
    pub fn of_all(steps: usize, members: usize) -> Self {
        Self { steps, who: (0..members).collect(), seconds: None }
    }
}

/// Rounds of `steps` steps, `total` in all; the last one has what is left.
pub fn even(total: usize, steps: usize) -> Vec<usize> {
    let mut lengths = vec![steps; total / steps.max(1)];
    lengths.extend(Some(total % steps.max(1)).filter(|rest| *rest > 0));
    lengths
}

/// Rounds that begin short. Their steps grow by a constant factor a step over the first quarter of the run, and shrink
/// so over the last quarter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Growth {
    first: usize,
    most: usize,
    last: usize,
}

impl Growth {
    /// The steps of all rounds, `total` in all.
    pub fn lengths(&self, total: usize) -> Vec<usize> {
        let (mut lengths, mut done) = (Vec::new(), 0);
        while done < total {
            let steps = self.at(done as f64 / total as f64).min(total - done);
            lengths.push(steps);
            done += steps;
        }
        lengths
    }

    /// The steps of a round that begins after this share of the run.
    fn at(&self, share: f64) -> usize {
        let between = |from: usize, to: usize, part: f64| from as f64 * (to as f64 / from as f64).powf(part);
        let (rise, fall) = ((share / PART).min(1.0), (share - (1.0 - PART)) / PART);
        let steps = if fall > 0.0 { between(self.most, self.last, fall) } else { between(self.first, self.most, rise) };
        (steps.round() as usize).max(1)
    }
}

impl fmt::Display for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.first, self.most)?;
        if self.last < self.most {
            write!(f, "..{}", self.last)?;
        }
        Ok(())
    }
}

impl FromStr for Growth {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = || format!("grow={text}: give H0..H1 or H0..H1..H2, from 1 to {STEPS_MAX} steps, such as 1..30");
        let number = |word: &str| word.parse::<usize>().ok().filter(|steps| (1..=STEPS_MAX).contains(steps));
        let numbers = text.split("..").map(number).collect::<Option<Vec<usize>>>().ok_or_else(form)?;
        let (first, most, last) = match numbers[..] {
            [first, most] => (first, most, most),
            [first, most, last] => (first, most, last),
            _ => return Err(form()),
        };
        if first > most || last > most {
            return Err(format!("grow={text}: rounds grow to the second number, so no other is above it"));
        }
        Ok(Self { first, most, last })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_rounds_have_all_steps() {
        assert_eq!(even(10, 5), [5, 5]);
        assert_eq!(even(11, 5), [5, 5, 1]);
        assert_eq!(even(3, 5), [3]);
        assert_eq!(even(0, 5), Vec::<usize>::new());
    }

    #[test]
    fn rounds_grow_over_the_first_quarter() {
        let growth: Growth = "1..32".parse().unwrap();
        let lengths = growth.lengths(4000);
        assert_eq!(lengths.iter().sum::<usize>(), 4000);
        assert_eq!((lengths[0], growth.at(0.05), growth.at(0.25), growth.at(0.99)), (1, 2, 32, 32));
        let whole = &lengths[..lengths.len() - 1];
        assert!(whole.is_sorted(), "{lengths:?}");
        let short: usize = lengths.iter().filter(|steps| **steps < 32).sum();
        assert!((950..1100).contains(&short), "{short}");
    }

    #[test]
    fn rounds_shrink_over_the_last_quarter() {
        let growth: Growth = "1..32..8".parse().unwrap();
        let lengths = growth.lengths(4000);
        assert_eq!(lengths.iter().sum::<usize>(), 4000);
        assert_eq!((growth.at(0.5), growth.at(0.875), growth.at(1.0)), (32, 16, 8));
        assert_eq!(growth.to_string().parse(), Ok(growth));
    }

    #[test]
    fn a_growth_that_is_none_is_refused() {
        for wrong in ["", "5", "0..5", "1..x", "9..3", "1..5..9", "1..2..3..4", "1..-2", "1..99999999"] {
            let refused = wrong.parse::<Growth>().unwrap_err();
            assert!(refused.starts_with(&format!("grow={wrong}: ")), "{refused}");
        }
    }
}
