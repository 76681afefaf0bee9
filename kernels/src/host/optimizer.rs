//! Inner optimizers over flat vectors: AdamW, SGD with momentum, RMSprop, Lion and Muon.
//!
//! Weight decay is apart from the gradient in all of them and applies to matrices alone, as with AdamW.

use super::adamw::{self, Update};
use super::muon;
use super::simd::vectorized;
use super::team::{Shared, Team};
use crate::schema::{Schema, TensorSpec};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// An inner optimizer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rule {
    #[default]
    AdamW,
    /// Muon on the matrices of the layers; AdamW on embedding, output projection and gains.
    Muon,
    /// Momentum `beta1`.
    Sgd,
    /// Mean square with `beta2`, without a correction of its bias.
    RmsProp,
    /// Chen et al., arXiv 2302.06675.
    Lion,
}

impl Rule {
    pub const ALL: [Self; 5] = [Self::AdamW, Self::Muon, Self::Sgd, Self::RmsProp, Self::Lion];

    pub const fn name(self) -> &'static str {
        match self {
            Self::AdamW => "adamw",
            Self::Muon => "muon",
            Self::Sgd => "sgd",
            Self::RmsProp => "rmsprop",
            Self::Lion => "lion",
        }
    }

    /// Whether there is a first moment, and a second.
    const fn moments(self) -> [bool; 2] {
        match self {
            Self::AdamW | Self::Muon => [true, true],
            Self::Sgd | Self::Lion => [true, false],
            Self::RmsProp => [false, true],
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Rule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|rule| rule.name() == text).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("there is no inner optimizer {text:?}: use one of {names}")
        })
    }
}

/// An optimizer with its moments.
#[derive(Clone, Debug)]
pub struct Optimizer {
    rule: Rule,
    /// Empty where the rule has none.
    moments: [Vec<f32>; 2],
    steps: u64,
}

impl Optimizer {
    pub fn new(rule: Rule, elements: usize) -> Self {
        let moments = rule.moments().map(|kept| vec![0.0; if kept { elements } else { 0 }]);
        Self { rule, moments, steps: 0 }
    }

    /// Steps `theta`, which is laid out by `schema`, by its gradient. The step counts by itself: that of `update` does
    /// not matter.
    pub fn step(&mut self, team: &Team, update: Update, schema: &Schema, theta: &mut [f32], gradient: &[f32]) {
        self.steps += 1;
        let update = Update { step: self.steps, ..update };
        let [m, v] = &mut self.moments;
        step(self.rule, team, update, schema, theta, [m, v], gradient);
    }
}

/// Steps `theta`, which is laid out by `schema`, and the moments by the gradient; all are f32 of one length. A moment
/// that the rule lacks is not touched, and may be empty.
pub fn step(
    rule: Rule,
    team: &Team,
    update: Update,
    schema: &Schema,
    theta: &mut [f32],
    [m, v]: [&mut [f32]; 2],
    gradient: &[f32],
) {
    let all = |t: &TensorSpec| (t.range(), t.decays());
    match rule {
        Rule::AdamW => {
            let ranges: Vec<_> = schema.tensors.iter().map(all).collect();
            adamw::step(team, update, &ranges, theta, [m, v], gradient);
        }
        Rule::Muon => {
            let (inner, rest): (Vec<_>, Vec<_>) = schema.tensors.iter().partition(|t| is_inner_matrix(t));
            let ranges: Vec<_> = rest.into_iter().map(all).collect();
            adamw::step(team, update, &ranges, theta, [&mut *m, v], gradient);
            matrices(team, update, &inner, theta, m, gradient);
        }
        Rule::Sgd | Rule::RmsProp | Rule::Lion => {
            for tensor in &schema.tensors {
                let range = tensor.range();
                let constants = Constants::of(update, tensor);
                let (theta, g) = (&mut theta[range.clone()], &gradient[range.clone()]);
                match rule {
                    Rule::Sgd => constants.sgd(theta, &mut m[range], g),
                    Rule::Lion => constants.lion(theta, &mut m[range], g),
                    _ => constants.rms_prop(theta, &mut v[range], g),
                }
            }
        }
    }
}

/// Whether this is a matrix between hidden values; embedding and output projection are not.
pub(crate) fn is_inner_matrix(tensor: &TensorSpec) -> bool {
    tensor.shape.len() == 2 && tensor.name.contains(".layers.")
}

/// Steps matrices by Muon, each as one task of the team.
fn matrices(team: &Team, update: Update, inner: &[&TensorSpec], theta: &mut [f32], m: &mut [f32], gradient: &[f32]) {
    let (theta, m) = (Shared::new(theta), Shared::new(m));
    team.each(inner.len(), |i| {
        let (tensor, range) = (inner[i], inner[i].range());
        // SAFETY: tensors do not overlap, and each is one task's.
        let (theta, m) = unsafe { (theta.part(range.clone()), m.part(range.clone())) };
        let Constants { rate, keep, scale, .. } = Constants::of(update, tensor);
        muon::step([rate, keep, scale], tensor.shape[0], theta, m, &gradient[range]);
    });
}

/// The constants of one step of one tensor.
#[derive(Clone, Copy)]
struct Constants {
    rate: f32,
    /// The factor that weight decay leaves.
    keep: f32,
    /// The factor on the gradient.
    scale: f32,
    beta1: f32,
    rest1: f32,
    beta2: f32,
    rest2: f32,
    eps: f32,
}

impl Constants {
    fn of(update: Update, tensor: &TensorSpec) -> Self {
        let decay = if tensor.decays() { update.weight_decay } else { 0.0 };
        Self {
            rate: update.lr as f32,
            keep: (1.0 - update.lr * decay) as f32,
            scale: update.gradient_scale as f32,
            beta1: update.beta1 as f32,
            rest1: (1.0 - update.beta1) as f32,
            beta2: update.beta2 as f32,
            rest2: (1.0 - update.beta2) as f32,
            eps: update.eps as f32,
        }
    }

    fn sgd(self, theta: &mut [f32], m: &mut [f32], gradient: &[f32]) {
        let Self { rate, keep, scale, beta1, .. } = self;
        vectorized(
            #[inline(always)]
            || {
                for ((t, m), &g) in theta.iter_mut().zip(m).zip(gradient) {
                    let moved = beta1 * *m + scale * g;
                    *m = moved;
                    *t = *t * keep - rate * moved;
                }
            },
        );
    }

    fn rms_prop(self, theta: &mut [f32], v: &mut [f32], gradient: &[f32]) {
        let Self { rate, keep, scale, beta2, rest2, eps, .. } = self;
        vectorized(
            #[inline(always)]
            || {
                for ((t, v), &g) in theta.iter_mut().zip(v).zip(gradient) {
                    let g = scale * g;
                    let square = beta2 * *v + rest2 * g * g;
                    *v = square;
                    *t = *t * keep - rate * g / (square.sqrt() + eps);
                }
            },
        );
    }

    fn lion(self, theta: &mut [f32], m: &mut [f32], gradient: &[f32]) {
        let Self { rate, keep, scale, beta1, rest1, beta2, rest2, .. } = self;
        vectorized(
            #[inline(always)]
            || {
                for ((t, m), &g) in theta.iter_mut().zip(m).zip(gradient) {
                    let g = scale * g;
                    let ahead = beta1 * *m + rest1 * g;
                    *m = beta2 * *m + rest2 * g;
                    // `signum` of zero is one.
                    let sign = f32::from(u8::from(ahead > 0.0)) - f32::from(u8::from(ahead < 0.0));
                    *t = *t * keep - rate * sign;
                }
            },
        );
    }
}

#[cfg(test)]
#[path = "optimizer_test.rs"]
mod tests;
