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

    pub fn average(&mut self, deltas: &[Vec<f32>]) -> Result<Vec<f32>> {
        let Case { codec, engine, .. } = self.case;
        let weight = update::weight(1, deltas.len() as u64);
        let mut mean = vec![0.0; self.sums.len()];
        let decay = match codec {
            Codec::Bf16 | Codec::Int8 => None,
            Codec::Int4 => Some(1.0),
            Codec::TopK { .. } => Some(0.95),
        };
        let Some(decay) = decay else {
            let views: Vec<&[f32]> = deltas.iter().map(Vec::as_slice).collect();
            let reduced = match engine {
                EngineKind::Owners => update::owners::reduce(codec, &vec![weight; deltas.len()], &views)?,
                EngineKind::Ring => {
                    let mut weighted = deltas.to_vec();
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
        for (delta, own) in deltas.iter().zip(&mut self.own) {
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
