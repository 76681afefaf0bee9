//! Optimizers over the flat vectors, in one launch each, with the formulas of the CPU's and in their order. Muon takes
//! more: see [`crate::muon`].
//!
//! Weight decay is apart from the gradient in all of them.

use crate::grid::{array, dim, line, units};
use crate::launches::count;
use crate::total::{LOSS, NORM};
use cubecl::Runtime;
use cubecl::prelude::*;
use cubecl::server::Handle;

/// The slot of the report that tells whether the step was applied: 1 or 0.
pub const APPLIED: usize = 2;
/// The slot of the report that holds the number of the step. It is written also if nothing was applied.
pub const STEP: usize = 3;
/// Least length of a report, in elements.
pub const REPORT: usize = 4;
/// Bits of a float's exponent: all of them are set in infinities and NaN, and in nothing else.
const EXPONENT: u32 = 0x7f80_0000;

/// An optimizer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Rule {
    /// Loshchilov and Hutter, arXiv 1711.05101.
    #[default]
    AdamW,
    /// Momentum `beta1`.
    Sgd,
    /// Mean square with `beta2`, without a correction of its bias.
    RmsProp,
    /// Chen et al., arXiv 2302.06675.
    Lion,
    /// [`crate::muon`] on the matrices of the layers, AdamW on the rest.
    Muon,
}

/// Constants of one optimizer step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Update {
    pub rule: Rule,
    pub lr: f64,
    pub beta1: f64,
    pub beta2: f64,
    pub eps: f64,
    pub weight_decay: f64,
    /// Largest global norm of a gradient that is applied as it is; larger ones are scaled down to it. 0: no limit.
    pub clip: f64,
    /// Number of this step, from 1: corrects the bias of the moments.
    pub step: u64,
}

#[cfg(test)]
impl Rule {
    /// Those of one launch.
    pub const ALONE: [Self; 4] = [Self::AdamW, Self::Sgd, Self::RmsProp, Self::Lion];
}

/// The flat vectors, all of one length, in elements.
#[derive(Clone, Copy, Debug)]
pub struct Vectors<'a> {
    /// f32 each. A moment that the rule does not have is neither read nor written.
    pub master: &'a Handle,
    pub m: &'a Handle,
    pub v: &'a Handle,
    pub gradient: &'a Handle,
    /// `A`; receives the new parameters. None if the products read the master.
    pub copy: Option<&'a Handle>,
    pub len: usize,
    /// Weight decay applies to the elements before this index. It is a multiple of 4.
    pub decayed: usize,
}

/// Updates parameters and moments, if loss and norm in `report` (f32, at least [`REPORT`] elements) are finite; else
/// nothing but the report changes. Writes [`APPLIED`] and [`STEP`] of the report. One launch. Of Muon this is the part
/// that is AdamW's.
pub fn step<R: Runtime, A: Float>(
    client: &ComputeClient<R>,
    vectors: Vectors<'_>,
    update: &Update,
    report: &Handle,
    tally: &Handle,
) {
    let Vectors { master, m, v, gradient, copy, len, decayed } = vectors;
    let n = line(size_of::<f32>(), &[len, decayed]);
    let exponent = i32::try_from(update.step).unwrap_or(i32::MAX);
    let rate = match update.rule {
        Rule::AdamW | Rule::Muon => update.lr / (1.0 - update.beta1.powi(exponent)),
        Rule::Sgd | Rule::RmsProp | Rule::Lion => update.lr,
    };
    // SAFETY: the kernel tests its indices against the length.
    unsafe {
        apply::launch_unchecked::<A, R>(
            client,
            units(client, len / n),
            dim(),
            n,
            array(master, len),
            array(m, len),
            array(v, len),
            array(gradient, len),
            copy.map(|copy| array(copy, len)).into(),
            array(report, REPORT),
            FactorsLaunch::new(
                update.beta1 as f32,
                update.beta2 as f32,
                (1.0 - update.beta1) as f32,
                (1.0 - update.beta2) as f32,
                rate as f32,
                (1.0 / (1.0 - update.beta2.powi(exponent)).sqrt()) as f32,
                (1.0 - update.lr * update.weight_decay) as f32,
                update.eps as f32,
                update.clip as f32,
                update.step as f32,
                decayed / n,
                len / n,
            ),
            array(tally, 1),
            update.rule,
        );
    }
}

/// [`Update`] as the kernel needs it. Lengths are counted in vectors.
#[derive(CubeType, CubeLaunch)]
struct Factors {
    beta1: f32,
    beta2: f32,
    c1: f32,
    c2: f32,
    rate: f32,
    root: f32,
    keep: f32,
    eps: f32,
    clip: f32,
    step: f32,
    decayed: usize,
    len: usize,
}

/// All units take the same decision: nobody writes the slots of the report that they read.
#[cube(launch_unchecked)]
fn apply<A: Float, N: Size>(
    master: &mut Array<Vector<f32, N>>,
    m: &mut Array<Vector<f32, N>>,
    v: &mut Array<Vector<f32, N>>,
    gradient: &Array<Vector<f32, N>>,
    copy: &mut ComptimeOption<Array<Vector<A, N>>>,
    report: &mut Array<f32>,
    factors: &Factors,
    tally: &mut Array<Atomic<u32>>,
    #[comptime] rule: Rule,
) {
    count(tally);
    let sound = sound(report);
    if ABSOLUTE_POS == 0 {
        report[APPLIED] = select(sound, 1.0f32, 0.0f32);
        report[STEP] = factors.step;
    }
    if sound && ABSOLUTE_POS < factors.len {
        let keep = select(ABSOLUTE_POS < factors.decayed, factors.keep, 1.0f32);
        let g = gradient[ABSOLUTE_POS] * Vector::new(scale(report, factors.clip));
        let moved = if comptime!(matches!(rule, Rule::AdamW | Rule::Muon)) {
            adamw::<N>(m, v, g, factors)
        } else if comptime!(rule == Rule::Sgd) {
            sgd::<N>(m, g, factors)
        } else if comptime!(rule == Rule::RmsProp) {
            rms_prop::<N>(v, g, factors)
        } else {
            lion::<N>(m, g, factors)
        };
        let theta = master[ABSOLUTE_POS] * Vector::new(keep) - moved;
        master[ABSOLUTE_POS] = theta;
        #[comptime]
        if let ComptimeOption::Some(copy) = copy {
            copy[ABSOLUTE_POS] = Vector::cast_from(theta);
        }
    }
}

/// The amount that AdamW takes from the parameters; writes both moments.
#[cube]
fn adamw<N: Size>(
    m: &mut Array<Vector<f32, N>>,
    v: &mut Array<Vector<f32, N>>,
    g: Vector<f32, N>,
    factors: &Factors,
) -> Vector<f32, N> {
    let first = Vector::new(factors.beta1) * m[ABSOLUTE_POS] + Vector::new(factors.c1) * g;
    let second = Vector::new(factors.beta2) * v[ABSOLUTE_POS] + Vector::new(factors.c2) * g * g;
    m[ABSOLUTE_POS] = first;
    v[ABSOLUTE_POS] = second;
    Vector::new(factors.rate) * first / (second.sqrt() * Vector::new(factors.root) + Vector::new(factors.eps))
}

/// The amount that SGD with momentum takes from the parameters; writes the first moment.
#[cube]
fn sgd<N: Size>(m: &mut Array<Vector<f32, N>>, g: Vector<f32, N>, factors: &Factors) -> Vector<f32, N> {
    let first = Vector::new(factors.beta1) * m[ABSOLUTE_POS] + g;
    m[ABSOLUTE_POS] = first;
    Vector::new(factors.rate) * first
}

/// The amount that RMSprop takes from the parameters; writes the second moment.
#[cube]
fn rms_prop<N: Size>(v: &mut Array<Vector<f32, N>>, g: Vector<f32, N>, factors: &Factors) -> Vector<f32, N> {
    let second = Vector::new(factors.beta2) * v[ABSOLUTE_POS] + Vector::new(factors.c2) * g * g;
    v[ABSOLUTE_POS] = second;
    Vector::new(factors.rate) * g / (second.sqrt() + Vector::new(factors.eps))
}

/// The amount that Lion takes from the parameters; writes the first moment. The sign of zero is zero, so that padding
/// stays.
#[cube]
fn lion<N: Size>(m: &mut Array<Vector<f32, N>>, g: Vector<f32, N>, factors: &Factors) -> Vector<f32, N> {
    let before = m[ABSOLUTE_POS];
    let ahead = Vector::new(factors.beta1) * before + Vector::new(factors.c1) * g;
    m[ABSOLUTE_POS] = Vector::new(factors.beta2) * before + Vector::new(factors.c2) * g;
    let (zero, rate) = (Vector::new(0.0f32), Vector::new(factors.rate));
    select_many(ahead.greater_than(zero), rate, zero) - select_many(ahead.less_than(zero), rate, zero)
}

/// Whether loss and norm of a step are finite.
#[cube]
pub fn sound(report: &Array<f32>) -> bool {
    finite(report[LOSS]) && finite(report[NORM])
}

/// The factor on the gradient that keeps its norm to `clip`, unless that is 0.
#[cube]
pub fn scale(report: &Array<f32>, clip: f32) -> f32 {
    let norm = report[NORM];
    let mut scale = 1.0f32;
    if clip > 0.0f32 && norm > clip {
        scale = clip / norm;
    }
    scale
}

/// By the bits, since a device may assume that there are no NaN.
#[cube]
fn finite(x: f32) -> bool {
    u32::reinterpret(x) & EXPONENT != EXPONENT
}
