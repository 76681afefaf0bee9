//! The comparison of some cases' runs, told in lines.

use super::case::Case;
use super::statistic::{Interval, Noise, seeds_for_width, seeds_to_show};

/// A case with its losses, one a seed; none where it diverged.
pub struct Runs {
    pub case: Case,
    pub losses: Vec<(u64, Option<f64>)>,
}

/// The lines below the runs: each case against the first, the noise, and the seeds that claims need.
pub fn lines(results: &[Runs], claims: &[f64]) -> Vec<String> {
    let mut lines = Vec::new();
    let Some((first, others)) = results.split_first() else { return lines };
    for other in others {
        let said = match compared(first, other) {
            (diverged, _) if diverged > 0 => format!("diverged with {diverged} of {} seeds", other.losses.len()),
            (_, None) => "no seed has both".to_owned(),
            (_, Some(interval)) => told(&interval),
        };
        lines.push(format!("{}: {said}", other.case));
    }
    lines.extend(noise(results, claims));
    lines
}

/// How often the other case diverged, and how far it is above the first in percent, by the seeds that both have.
fn compared(first: &Runs, other: &Runs) -> (usize, Option<Interval>) {
    let diverged = other.losses.iter().filter(|(_, loss)| loss.is_none()).count();
    let base = |seed: u64| first.losses.iter().find(|(s, _)| *s == seed).and_then(|(_, loss)| *loss);
    let percent = |(seed, loss): &(u64, Option<f64>)| Some((loss.as_ref()? / base(*seed)? - 1.0) * 100.0);
    let found: Vec<f64> = other.losses.iter().filter_map(percent).collect();
    (diverged, Interval::of(&found))
}

fn told(interval: &Interval) -> String {
    let Interval { mean, half, deviation, count } = *interval;
    let Some(deviation) = deviation else { return format!("{mean:+.2} % against the first, with one seed") };
    let head = format!("{mean:+.2} % +- {half:.2} (95 %, {count} seeds) against the first");
    if interval.shown() {
        return format!("{head}: shown");
    }
    let seeds = number(seeds_to_show(deviation, mean.abs()));
    format!("{head}: not shown; if that is the difference, it takes {seeds} seeds")
}

/// The noise of null pairs, if there are any, and what follows from it.
fn noise(results: &[Runs], claims: &[f64]) -> Vec<String> {
    let Some(noise) = Noise::of(&groups(results)) else { return Vec::new() };
    let Noise { of_a_pair, pairs } = noise;
    let head = "null pairs: two runs that differ in one rounding";
    let mut lines = vec![format!("{head} end {of_a_pair:.2} % apart (sd of {pairs} pairs)")];
    for claim in claims {
        let (show, width) = (number(seeds_to_show(of_a_pair, *claim)), number(seeds_for_width(of_a_pair, *claim)));
        let how = "to show it in four of five tries";
        lines.push(format!("  {claim} %: at least {show} seeds {how}, {width} for an interval of +- {claim} %"));
    }
    lines
}

fn number(seeds: Option<usize>) -> String {
    seeds.map_or_else(|| "more than 1000".to_owned(), |seeds| seeds.to_string())
}

/// The losses of each seed of each case and of its nulls.
fn groups(results: &[Runs]) -> Vec<Vec<f64>> {
    let mut groups = Vec::new();
    for (place, result) in results.iter().enumerate() {
        let alike = |other: &&Runs| other.case.is_null_of(&result.case);
        // The first of a kind stands for it.
        if results[..place].iter().any(|other| alike(&other)) {
            continue;
        }
        for (seed, _) in &result.losses {
            let of_seed = |other: &Runs| other.losses.iter().find(|(s, _)| s == seed).and_then(|(_, loss)| *loss);
            groups.push(results.iter().filter(alike).filter_map(of_seed).collect());
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(case: &str, losses: &[Option<f64>]) -> Runs {
        Runs { case: case.parse().unwrap(), losses: (1..).zip(losses.iter().copied()).collect() }
    }

    #[test]
    fn cases_are_paired_by_seed() {
        let first = result("bf16:ring", &[Some(2.0), Some(1.0), Some(4.0)]);
        let other = result("int8:ring", &[Some(2.02), Some(1.01), Some(4.04)]);
        let (diverged, interval) = compared(&first, &other);
        let interval = interval.unwrap();
        assert_eq!((diverged, interval.count), (0, 3));
        assert!((interval.mean - 1.0).abs() < 1e-9 && interval.half < 1e-6, "{interval:?}");
        let told = lines(&[first, other], &[]);
        assert_eq!(told.len(), 1);
        assert!(told[0].starts_with("int8 ring: +1.00 % +- 0.00") && told[0].ends_with(": shown"), "{told:?}");
    }

    #[test]
    fn what_is_not_shown_says_how_many_seeds_it_takes() {
        let first = result("bf16:ring", &[Some(1.0); 4]);
        let other = result("int8:ring", &[Some(1.03), Some(0.99), Some(1.02), Some(0.98)]);
        let told = lines(&[first, other], &[]);
        assert!(told[0].contains("not shown; if that is the difference, it takes "), "{told:?}");
        assert!(!told[0].contains("takes 4 seeds"), "{told:?}");
    }

    #[test]
    fn divergence_is_told() {
        let first = result("bf16:ring", &[Some(1.0), Some(1.0)]);
        let other = result("bf16:ring:lr=9", &[None, Some(1.2)]);
        assert_eq!(lines(&[first, other], &[]), ["bf16 ring lr 9: diverged with 1 of 2 seeds"]);
    }

    #[test]
    fn null_pairs_give_the_noise_and_the_seeds() {
        let results = [
            result("bf16:ring", &[Some(0.99), Some(2.02)]),
            result("int8:ring", &[Some(1.5), Some(1.7)]),
            result("bf16:ring:null", &[Some(1.01), Some(1.98)]),
        ];
        let found = groups(&results);
        assert_eq!(found, [vec![0.99, 1.01], vec![2.02, 1.98], vec![1.5], vec![1.7]]);
        let told = lines(&results, &[1.0, 0.001]);
        assert!(told[2].contains("end 2.00 % apart (sd of 2 pairs)"), "{told:?}");
        let seeds = seeds_to_show(2.0, 1.0).unwrap();
        assert!(told[3].contains(&format!("1 %: at least {seeds} seeds")), "{told:?}");
        assert!(told[4].contains("more than 1000 seeds"), "{told:?}");
        assert!(lines(&results[..2], &[1.0]).len() == 1, "without null pairs nothing is said of noise");
    }
}
