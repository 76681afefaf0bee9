//! Averaging, by the protocol's own arithmetic.

use super::case::Case;
use anyhow::{Result, ensure};
use starling_kernels::codec::{offered, settle};
use starling_protocol::run::{Codec, EngineKind};
use starling_protocol::update;

/// Averages pseudo-gradients, and keeps the residuals of error feedback.
pub struct Averager {
    case: Case,
    own: Vec<Vec<f32>>,
    sums: Vec<f32>,
}

impl Averager {
    pub fn new(case: Case, members: usize, elements: usize) -> Self {
        Self { case, own: vec![vec![0.0; elements]; members], sums: vec![0.0; elements] }
    }

    /// The mean of what these members contribute. The residuals of the others stay.
    pub fn average(&mut self, deltas: &[Vec<f32>], who: &[usize]) -> Result<Vec<f32>> {
        let Case { codec, engine, .. } = self.case;
        let weight = update::weight(1, who.len() as u64);
        let mut mean = vec![0.0; self.sums.len()];
        let decay = match codec {
            Codec::Bf16 | Codec::Int8 => None,
            Codec::Int4 => Some(1.0),
            Codec::TopK { .. } => Some(0.95),
        };
        let Some(decay) = decay else {
            let reduced = match engine {
                EngineKind::Owners => {
                    let views: Vec<&[f32]> = who.iter().map(|member| deltas[*member].as_slice()).collect();
                    update::owners::reduce(codec, &vec![weight; who.len()], &views)?
                }
                EngineKind::Ring => {
                    let mut weighted: Vec<Vec<f32>> = who.iter().map(|member| deltas[*member].clone()).collect();
                    weighted.iter_mut().for_each(|delta| update::apply_weight(weight, delta));
                    update::reduce(codec, &weighted.iter().map(Vec::as_slice).collect::<Vec<_>>())?
                }
            };
            update::decode(codec, &reduced, &mut mean)?;
            return Ok(mean);
        };
        ensure!(engine == EngineKind::Owners, "{codec} goes with owners");
        let (mut offer, mut said) = (mean.clone(), mean.clone());
        let mut sum = mean.clone();
        for member in who {
            let (delta, own) = (&deltas[*member], &mut self.own[*member]);
            offered(delta, own, decay, &mut offer);
            update::decode(codec, &update::encode(codec, &offer)?, &mut said)?;
            settle(delta, own, decay, &said);
            sum.iter_mut().zip(&said).for_each(|(sum, x)| *sum += x * weight);
        }
        let without = sum.clone();
        sum.iter_mut().zip(&self.sums).for_each(|(sum, left)| *sum += left);
        update::decode(codec, &update::encode(codec, &sum)?, &mut mean)?;
        settle(&without, &mut self.sums, 1.0, &mean);
        Ok(mean)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_that_is_away_counts_for_nothing() {
        let deltas = [vec![1.0, 2.0], vec![f32::MAX, -7.0], vec![3.0, -2.0]];
        for case in ["bf16:ring", "bf16:owners", "int8:owners", "int4:owners"] {
            let case: Case = case.parse().unwrap();
            let mut averager = Averager::new(case, 3, 2);
            let mean = averager.average(&deltas, &[0, 2]).unwrap();
            assert!((mean[0] - 2.0).abs() < 0.3 && mean[1].abs() < 0.3, "{case}: {mean:?}");
            assert!(averager.own[1].iter().all(|x| *x == 0.0));
        }
    }
}
