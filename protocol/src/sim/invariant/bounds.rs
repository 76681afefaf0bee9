//! S11: a step moves no parameter further than its contributions can, and nothing is ever not finite.

use super::{Invariant, Observed, require};
use crate::sim::trainer::{self, State};
use crate::sim::world::World;
use std::rc::Rc;

/// Norm of the longest contribution so far.
#[derive(Default)]
pub(super) struct Bounds {
    longest: f32,
    momentum: f32,
}

impl Invariant for Bounds {
    fn name(&self) -> &'static str {
        "S11 bounded influence"
    }

    fn observe(&mut self, event: &Observed<'_>, world: &World) -> Result<(), String> {
        match event {
            Observed::Trained { offer, .. } => self.longest = self.longest.max(trainer::norm(&offer.vector)),
            Observed::Committing { node, link, state, .. } => {
                let finite = state.theta.iter().chain(&state.momentum).all(|x| x.is_finite());
                require(finite, || format!("node {node} commits what is not finite"))?;
                let norms = link.record.contributors.iter().map(|c| f32::from_bits(c.measured.norm_bits));
                require(norms.clone().all(f32::is_finite), || "a contributor's norm is not a number".to_owned())?;
                if let Some(process) = world.nodes[*node].process.as_ref() {
                    self.moved(*node, &process.state, state)?;
                }
            }
            _ => {}
        }
        Ok(())
    }
}

impl Bounds {
    /// A mean is no longer than the longest part, a momentum of 0.9 sums up to ten of them, and a block of int8 may
    /// round by a little.
    fn moved(&mut self, node: usize, before: &State, after: &Rc<State>) -> Result<(), String> {
        self.momentum = self.momentum.max(10.0 * self.longest);
        let difference: Vec<f32> = before.theta.iter().zip(&after.theta).map(|(a, b)| a - b).collect();
        let (moved, most) = (trainer::norm(&difference), 1.1 * (self.longest + self.momentum));
        require(moved <= most, || format!("node {node}: one step moves by {moved}, contributions allow {most}"))
    }
}
