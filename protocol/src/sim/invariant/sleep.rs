//! S28: a node says when time alone changes something next. Until then it says nothing, asks for nothing, and shows no
//! change.

use super::{Invariant, Observed, require};
use crate::sim::world::World;

pub(super) struct Sleep;

impl Invariant for Sleep {
    fn name(&self) -> &'static str {
        "S28 nothing between wakes"
    }

    fn observe(&mut self, event: &Observed<'_>, _: &World) -> Result<(), String> {
        let Observed::Probed { node, outputs, seen } = event else { return Ok(()) };
        require(outputs.is_empty(), || format!("node {node} was asleep, and says {:?}", outputs.first()))?;
        require(seen.is_none(), || format!("node {node} was asleep, and shows {}", seen.unwrap_or_default()))
    }
}
