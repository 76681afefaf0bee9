//! The outer optimizer: how the decoded mean of the contributions changes the canonical state.
//!
//! In rounds it is Nesterov momentum on a mean of parameter differences (DiLoCo, arXiv 2311.08105, algorithm 1). With
//! `every-step` it is AdamW on a mean gradient ([`adamw`]). Both use plain IEEE arithmetic; each operation is rounded
//! by itself, in the order written, nothing fused: so every machine gets the same bits.

pub mod adamw;
pub mod schedule;

use crate::limits::CHUNK_ELEMENTS;
use crate::mutation::{Mutation, mutated};
use crate::record::Record;
use crate::run::{RunSpec, SyncMode};
use crate::state::State;
use adamw::AdamW;

/// One outer step, in all but its update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// Elements from `learned` on are of kind mean.
    Nesterov {
        lr: f32,
        momentum: f32,
        learned: usize,
    },
    AdamW(AdamW),
}

impl Rule {
    /// The step of a COMMIT after `parent` with so many contributors: a function of the run and of the chain.
    pub fn of(spec: &RunSpec, parent: &Record, contributors: usize) -> Self {
        match spec.sync.mode {
            SyncMode::Rounds => {
                let (lr, momentum) = (spec.outer.lr_for(contributors) as f32, spec.outer.momentum as f32);
                let learned = spec.task.as_ref().map(|task| usize::try_from(task.learned).unwrap_or(usize::MAX));
                Self::Nesterov { lr, momentum, learned: learned.unwrap_or(usize::MAX) }
            }
            SyncMode::EveryStep => Self::AdamW(AdamW::of(spec, parent)),
        }
    }

    /// Whether [`Self::scale`] needs the update's length.
    pub fn clips(&self) -> bool {
        matches!(self, Self::AdamW(adamw) if adamw.clips())
    }

    /// The factor on the update, from the squares of all of its chunks ([`adamw::squares`]), added in order.
    pub fn scale(&self, squares: f64) -> f32 {
        match self {
            Self::Nesterov { .. } => 1.0,
            Self::AdamW(adamw) => adamw.scale(squares),
        }
    }

    /// Steps a piece of the state whose first element is `first`, in place. Pieces of any partition may be stepped in
    /// any order.
    ///
    /// Returns whether all results are finite; if not, or with moments of another rule, the state is lost and the
    /// caller drops it.
    ///
    /// # Panics
    /// When the slices differ in length: the caller made them from one schema.
    pub fn step(
        &self,
        scale: f32,
        first: usize,
        theta: &mut [f32],
        moments: &mut [&mut [f32]],
        update: &[f32],
    ) -> bool {
        match (self, moments) {
            (Self::Nesterov { lr, momentum, learned }, [m]) => {
                let all = mutated!(Mutation::LearnMeans);
                let here = if all { theta.len() } else { learned.saturating_sub(first).min(theta.len()) };
                let (theta, means) = theta.split_at_mut(here);
                let (m, _) = m.split_at_mut(here);
                let (update, measured) = update.split_at(here);
                nesterov(theta, m, update, *lr, *momentum) & mean(means, measured)
            }
            (Self::AdamW(adamw), [m, v]) => adamw.step(scale, first, theta, [m, v], update),
            _ => false,
        }
    }

    /// The scalar statement of a whole step: `update` is decoded, as long as the state. Returns what [`Self::step`]
    /// returns.
    ///
    /// # Panics
    /// As [`Self::step`].
    pub fn apply(&self, state: &mut State, update: &[f32]) -> bool {
        self.apply_at(state, 0, update)
    }

    /// [`Self::apply`] of an update of some consecutive elements from `first` on, such as a fragment
    /// ([`crate::update::Fragments`]); the other elements stay.
    ///
    /// # Panics
    /// When the state ends before the last of them.
    pub fn apply_at(&self, state: &mut State, first: usize, update: &[f32]) -> bool {
        let scale = self.scale(update.chunks(CHUNK_ELEMENTS).map(adamw::squares).sum());
        let range = first..first + update.len();
        let mut moments: Vec<&mut [f32]> = state.moments.iter_mut().map(|m| &mut m[range.clone()]).collect();
        self.step(scale, first, &mut state.theta[range], &mut moments, update)
    }
}

/// One outer step in place, element by element:
///
/// ```text
/// m     <- mu * m + d
/// theta <- theta - lr * (d + mu * m)
/// ```
///
/// Plain f32; each multiplication, addition and subtraction is rounded by itself, in this order, nothing fused: so
/// every machine gets the same bits, and slices may be stepped in any partition.
///
/// Returns whether all results are finite; if not, the state is lost and the caller drops it.
///
/// # Panics
/// When the three slices differ in length: the caller made them from one schema.
pub fn nesterov(theta: &mut [f32], momentum: &mut [f32], update: &[f32], lr: f32, mu: f32) -> bool {
    assert_eq!(theta.len(), update.len(), "parameters and update are of one model");
    assert_eq!(momentum.len(), update.len(), "momentum and update are of one model");
    let mut finite = true;
    for ((theta, m), d) in theta.iter_mut().zip(momentum.iter_mut()).zip(update) {
        *m = mu * *m + *d;
        *theta -= lr * if mutated!(Mutation::PlainMomentum) { *m } else { *d + mu * *m };
        finite &= theta.is_finite() & m.is_finite();
    }
    finite
}

/// The step of elements of kind mean, in place: `theta <- theta - d`, rounded once. Their momentum stays zero.
///
/// Returns whether all results are finite; if not, the state is lost and the caller drops it.
fn mean(theta: &mut [f32], update: &[f32]) -> bool {
    let mut finite = true;
    for (theta, d) in theta.iter_mut().zip(update) {
        *theta -= *d;
        finite &= theta.is_finite();
    }
    finite
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::sample::{record, spec, spec_with_task};

    #[test]
    fn means_are_taken_as_they_are() {
        let mut spec = spec_with_task();
        let task = spec.task.as_mut().unwrap();
        (task.parameters, task.learned) = (5, 3);
        let rule = Rule::of(&spec, &record(), 1);
        let d = [0.5f32, -0.25, 1.0, 0.125, -2.0];
        let begun = State::initial(vec![1.0; 5], SyncMode::Rounds);
        let mut whole = begun.clone();
        assert!(rule.apply(&mut whole, &d) && rule.apply(&mut whole, &d));
        assert_eq!((&whole.theta[3..], &whole.moments[0][3..]), (&[0.75, 5.0][..], &[0.0; 2][..]));
        let mut learned = State::initial(vec![1.0; 3], SyncMode::Rounds);
        (0..2).for_each(|_| assert!(rule.apply(&mut learned, &d[..3])));
        assert_eq!((&whole.theta[..3], &whole.moments[0][..3]), (&learned.theta[..], &learned.moments[0][..]));
        // Pieces that begin before, at and behind the first mean.
        let mut parts = begun;
        for range in [0..2, 2..4, 4..5, 0..3, 3..5] {
            assert!(rule.apply_at(&mut parts, range.start, &d[range]));
        }
        assert_eq!(parts, whole);
        assert!(!rule.apply_at(&mut parts, 3, &[f32::INFINITY, 0.0]), "the state is lost");
        let all = Rule::Nesterov { lr: 0.9, momentum: 0.9, learned: usize::MAX };
        assert_eq!(Rule::of(&self::spec(), &record(), 1), all);
    }

    #[test]
    fn follows_the_formula_to_the_bit() {
        let (mut theta, mut m) = (vec![1.0f32, -2.5, 1e-8], vec![0.0f32, 0.125, -3.0]);
        let d = [0.1f32, -0.2, 1e-7];
        let (lr, mu) = (0.7f32, 0.9f32);
        let expect: Vec<(u32, u32)> = (0..3)
            .map(|i| {
                let kept = mu * m[i];
                let moved = kept + d[i];
                let ahead = mu * moved;
                let step = lr * (d[i] + ahead);
                ((theta[i] - step).to_bits(), moved.to_bits())
            })
            .collect();
        assert!(nesterov(&mut theta, &mut m, &d, lr, mu));
        let got: Vec<_> = theta.iter().zip(&m).map(|(t, m)| (t.to_bits(), m.to_bits())).collect();
        assert_eq!(got, expect);
        assert_eq!(got, [(0x3f5d_f3b6, 0x3dcc_cccd), (0xc013_8312, 0xbdb3_3334), (0x3fd9_ba5d, 0xc02c_cccc)]);
    }

    #[test]
    fn partitions_agree_with_the_whole() {
        let d: Vec<f32> = (0..1000).map(|i| (i as f32 - 500.0) * 1e-3).collect();
        let (mut whole, mut parts) = ((d.clone(), d.clone()), (d.clone(), d.clone()));
        for _ in 0..3 {
            nesterov(&mut whole.0, &mut whole.1, &d, 0.8, 0.85);
            for range in [0..1, 1..33, 33..1000] {
                nesterov(&mut parts.0[range.clone()], &mut parts.1[range.clone()], &d[range], 0.8, 0.85);
            }
        }
        assert_eq!(whole, parts);
    }

    #[test]
    fn says_when_the_state_is_lost() {
        assert!(!nesterov(&mut [1.0], &mut [f32::MAX], &[f32::MAX], 0.7, 0.9));
        assert!(nesterov(&mut [], &mut [], &[], 0.7, 0.9));
    }
}
