//! S16: what is a lie, or stale, ends in a counted refusal and in nothing else.

use super::{Invariant, Observed, require};
use crate::engine::io::{Notice, Output, Refusal};
use crate::sim::world::World;

pub(super) struct Refusals;

impl Invariant for Refusals {
    fn name(&self) -> &'static str {
        "S16 stale rejection"
    }

    fn observe(&mut self, event: &Observed<'_>, world: &World) -> Result<(), String> {
        let Observed::Junk { node, from, outputs } = event else { return Ok(()) };
        if world.nodes[*node].process.as_ref().is_none_or(|process| process.finished) {
            return Ok(());
        }
        let refused = outputs.iter().any(|output| matches!(output, Output::Refuse { .. }));
        let counted = |output: &Output| matches!(output, Output::Notice(Notice::Refused { .. }));
        let some = refused || outputs.iter().any(counted);
        require(some, || format!("node {node} takes a lie of node {from}: {outputs:?}"))?;
        // Whoever refuses a peer loses it: that may change what the round needs.
        let harmless = |output: &Output| match output {
            Output::Notice(Notice::Refused { refusal: Refusal::Stale, .. }) | Output::Send { .. } => true,
            Output::Notice(_) => true,
            _ => refused,
        };
        let harm = outputs.iter().find(|output| !harmless(output));
        require(harm.is_none(), || format!("a stale message of node {from} makes node {node} do {harm:?}"))
    }
}
