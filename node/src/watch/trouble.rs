//! Training that goes wrong, as its losses tell: a person is to see it without looking for it.

/// A round's loss beyond so many times the lowest one is trouble.
const GROWN: f64 = 10.0;
/// So many validations in a row, each above the one before, are trouble.
const RISES: u32 = 5;

/// The losses so far, in nats a token, and what is wrong with them.
#[derive(Debug, Default)]
pub struct Trouble {
    lowest: Option<f64>,
    validation: Option<f64>,
    rises: u32,
    own: Option<String>,
    training: Option<String>,
    held_out: Option<String>,
}

impl Trouble {
    /// Notes the loss of a step of this node. Returns a warning that was not there before.
    pub fn step(&mut self, round: u64, loss: f64) -> Option<String> {
        let wrong = || format!("this node's training loss is not a finite number (round {round}): lower inner.lr");
        replace(&mut self.own, (!loss.is_finite()).then(wrong))
    }

    /// Notes the loss of a committed round. Returns a warning that was not there before.
    pub fn committed(&mut self, round: u64, loss: f64) -> Option<String> {
        let low = self.lowest.filter(|low| *low > 0.0);
        let wrong = if !loss.is_finite() {
            Some(format!("the training loss of round {round} is not a finite number: lower inner.lr"))
        } else {
            low.filter(|low| loss > low * GROWN).map(|low| {
                format!("the training loss has grown from {low:.3} to {loss:.3} (round {round}): lower inner.lr")
            })
        };
        if loss.is_finite() {
            self.lowest = Some(self.lowest.map_or(loss, |low| low.min(loss)));
        }
        replace(&mut self.training, wrong)
    }

    /// Notes the loss on held-out text. Returns a warning that was not there before.
    pub fn validated(&mut self, round: u64, loss: f64) -> Option<String> {
        let before = self.validation.replace(loss);
        self.rises = if before.is_some_and(|before| loss > before) { self.rises + 1 } else { 0 };
        let wrong = if !loss.is_finite() {
            Some(format!("the loss on held-out text is not a finite number (round {round}): lower inner.lr"))
        } else if self.rises >= RISES {
            Some(format!("the loss on held-out text has risen {} times in a row: more rounds make it worse", self.rises))
        } else {
            None
        };
        replace(&mut self.held_out, wrong)
    }

    /// The warning that holds now.
    pub fn warning(&self) -> Option<&str> {
        let all = [&self.own, &self.training, &self.held_out];
        all.into_iter().find_map(Option::as_deref)
    }
}

/// Puts a warning in place of another; returns it if there was none.
fn replace(place: &mut Option<String>, wrong: Option<String>) -> Option<String> {
    let is_new = place.is_none();
    *place = wrong;
    place.clone().filter(|_| is_new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_that_explodes_is_told_once_and_shown_while_it_lasts() {
        let mut trouble = Trouble::default();
        assert!([5.0, 1.0, 9.9].iter().all(|loss| trouble.committed(1, *loss).is_none()));
        let said = trouble.committed(4, 10.5).expect("ten times the lowest");
        assert!(said.contains("1.000 to 10.500"), "{said}");
        assert_eq!((trouble.committed(5, 11.0), trouble.warning().is_some()), (None, true));
        assert_eq!((trouble.committed(6, 2.0), trouble.warning()), (None, None));
        assert!(trouble.committed(7, f64::NAN).is_some_and(|said| said.contains("not a finite number")));
        assert!(trouble.committed(8, 2.0).is_none() && trouble.warning().is_none(), "the lowest is still a number");
        assert!(trouble.step(9, f64::INFINITY).is_some() && trouble.step(9, f64::NAN).is_none());
        assert!(trouble.step(9, 2.0).is_none() && trouble.warning().is_none());
    }

    #[test]
    fn a_held_out_loss_that_rises_for_long_is_told() {
        let mut trouble = Trouble::default();
        let told = |trouble: &mut Trouble, losses: &[f64]| {
            losses.iter().filter_map(|loss| trouble.validated(1, *loss)).collect::<Vec<_>>()
        };
        assert!(told(&mut trouble, &[3.0, 2.0, 2.1, 2.2, 2.3, 2.4, 2.2]).is_empty(), "it fell again");
        assert_eq!(told(&mut trouble, &[2.3, 2.4, 2.5, 2.6, 2.7, 2.8]).len(), 1, "and is told once");
        assert!(trouble.warning().is_some_and(|said| said.contains("6 times in a row")));
    }
}
