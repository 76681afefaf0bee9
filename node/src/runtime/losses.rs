//! Whether the training goes wrong, by the losses that this node sees.

use std::path::Path;

/// A loss of so many times the best smoothed one is that of a training which diverges, if guessing is better, too.
const GROWTH: f64 = 10.0;
/// Rounds in a row with such a loss: one alone may be a bad batch.
const ROUNDS: u32 = 3;
/// The share of the smoothed loss that stays with each round.
const SMOOTH: f64 = 0.9;
/// Validations in a row without a better one, the last of which is worse than the best by this factor.
const VALIDATIONS: u32 = 20;
const RISE: f64 = 1.1;

/// The losses so far.
#[derive(Default)]
pub struct Losses {
    smoothed: Option<f64>,
    best: Option<f64>,
    /// Rounds in a row with a loss that is too high.
    high: u32,
    best_validation: Option<f64>,
    /// Validations since then.
    since: u32,
    /// That validations rise has been said.
    said: bool,
}

impl Losses {
    /// Takes the loss of a round; `guessing` is that of a model which knows nothing, in nats per token. Without it no
    /// number is too high, and none has a unit. Returns why the training diverges, once for each time that it does.
    pub fn trained(&mut self, loss: f64, guessing: Option<f64>) -> Option<String> {
        let most = |best: f64| guessing.map_or(f64::INFINITY, |guessing| (GROWTH * best).max(guessing));
        let limit = self.best.map_or(f64::INFINITY, most);
        // A comparison that takes what is no number for too high.
        if loss.is_finite() && loss <= limit {
            let smoothed = self.smoothed.map_or(loss, |smoothed| SMOOTH * smoothed + (1.0 - SMOOTH) * loss);
            self.smoothed = Some(smoothed);
            self.best = Some(self.best.map_or(smoothed, |best| best.min(smoothed)));
            self.high = 0;
            return None;
        }
        self.high = self.high.saturating_add(1);
        let best = self.best.map(|best| format!(", and {best:.3} at its best")).unwrap_or_default();
        let unit = if guessing.is_some() { " nats per token" } else { "" };
        (self.high == ROUNDS)
            .then(|| format!("the loss is {loss:.3}{unit}{best}: {ROUNDS} rounds in a row were far too high"))
    }

    /// Takes a validation. Returns why the training diverges, once for each best value that is not reached again.
    pub fn validated(&mut self, loss: f64) -> Option<String> {
        let Some(best) = self.best_validation.filter(|best| loss.is_nan() || loss >= *best) else {
            self.best_validation = Some(loss).filter(|loss| !loss.is_nan());
            (self.since, self.said) = (0, false);
            return None;
        };
        self.since = self.since.saturating_add(1);
        let rises = self.since >= VALIDATIONS && (loss.is_nan() || loss > RISE * best);
        (rises && !std::mem::replace(&mut self.said, true)).then(|| {
            let since = self.since;
            format!("the validation rises: it is {loss:.3} nats per token, and was {best:.3} {since} validations ago")
        })
    }
}

/// The ways out for an operator of a node that has ended because its training diverges.
pub fn ways_out(home: &Path) -> String {
    format!(
        "lower the rate of the stopped node (`starling change lr=RATE --home {}`) and start it again, or begin a new \
         run with an older checkpoint (`starling train --run NEW.toml --from CHECKPOINT`)",
        home.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::Parser;

    const GUESSING: Option<f64> = Some(5.5);

    /// The number of the first loss at which something is said, from 1.
    fn said_at(losses: impl IntoIterator<Item = f64>) -> Option<usize> {
        let mut seen = Losses::default();
        losses.into_iter().position(|loss| seen.trained(loss, GUESSING).is_some()).map(|at| at + 1)
    }

    #[test]
    fn a_loss_that_grows_tenfold_is_said_in_its_third_round() {
        let falling = || (0..50).map(|round| 5.5 - 0.06 * f64::from(round));
        assert_eq!(said_at(falling()), None);
        assert_eq!(said_at(falling().chain([60.0, 70.0, 80.0, 90.0])), Some(53));
        assert_eq!(said_at(falling().chain([60.0, 70.0, 2.6, 60.0, 70.0, 2.6])), None, "single bad batches");
        assert_eq!(said_at(falling().chain([24.0; 20])), None, "less than tenfold");
        assert_eq!(said_at(falling().chain([f64::NAN; 3])), Some(53));
        assert_eq!(said_at([f64::INFINITY; 3]), Some(3));
        // A text that is known by heart: ten times almost nothing is little.
        assert_eq!(said_at([0.01; 40].into_iter().chain([0.5; 20])), None);
    }

    #[test]
    fn of_another_task_only_what_is_no_number_is_too_high() {
        let mut seen = Losses::default();
        assert!([-3.0, 1.0, 1e30].into_iter().all(|loss| seen.trained(loss, None).is_none()));
        let said: Vec<_> = [f64::NAN; 3].into_iter().filter_map(|loss| seen.trained(loss, None)).collect();
        assert!(
            said.len() == 1 && said[0].starts_with("the loss is NaN, and ") && !said[0].contains("nats"),
            "{said:?}"
        );
    }

    #[test]
    fn it_is_said_once_for_each_time() {
        let mut seen = Losses::default();
        let mut said = |loss: f64, times: usize| (0..times).filter(|_| seen.trained(loss, GUESSING).is_some()).count();
        assert_eq!((said(2.0, 10), said(50.0, 30), said(2.0, 1), said(50.0, 30)), (0, 1, 0, 1));
    }

    #[test]
    fn a_validation_that_rises_for_long_is_said_and_one_that_stays_is_not() {
        let mut seen = Losses::default();
        let mut said = |losses: &[f64]| losses.iter().filter(|loss| seen.validated(**loss).is_some()).count();
        assert_eq!(said(&[3.0, 2.5, 2.0]), 0);
        assert_eq!(said(&[2.1; 100]), 0, "hardly worse");
        assert_eq!((said(&[2.3]), said(&[2.4; 50])), (1, 0), "said once");
        assert_eq!((said(&[1.9]), said(&[2.2; 19]), said(&[2.2]), said(&[2.3])), (0, 0, 1, 0), "from the new best");
        assert_eq!((said(&[1.8]), said(&[f64::NAN; 20])), (0, 1));
    }

    /// The commands that are advised are commands.
    #[test]
    fn the_ways_out_of_a_divergence_can_be_typed() {
        let said = ways_out(Path::new("runs/a"));
        let commands: Vec<_> = said.split('`').skip(1).step_by(2).collect();
        assert!(commands.len() == 2 && commands[0].ends_with("--home runs/a"), "{said}");
        for command in commands {
            let typed = command.replace("RATE", "1e-4");
            assert!(Cli::try_parse_from(typed.split(' ')).is_ok(), "{typed}");
        }
    }
}
