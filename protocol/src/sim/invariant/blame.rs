//! S18: no honest node is refused by another honest one, and only a node that contradicted itself is said to have done
//! so.

use super::{Invariant, Observed, require};
use crate::engine::io::{Output, Refusal};
use crate::sim::world::World;

#[derive(Default)]
pub(super) struct Blame {
    seen: u64,
}

impl Invariant for Blame {
    fn name(&self) -> &'static str {
        "S18 accuracy of blame"
    }

    fn observe(&mut self, event: &Observed<'_>, world: &World) -> Result<(), String> {
        let Observed::Outputs { node, outputs } = event else { return Ok(()) };
        if world.nodes[*node].liar.is_some() {
            return Ok(());
        }
        for output in *outputs {
            let Output::Refuse { peer, refusal } = output else { continue };
            self.seen += 1;
            let place = world.keys.index(peer);
            let honest = place.is_some_and(|peer| world.nodes[peer].liar.is_none());
            if let Refusal::NotAdmitted { why } = refusal {
                let head = world.nodes[*node].head();
                let may = head.zip(place).is_some_and(|(head, peer)| world.belongs(peer, &head.record));
                require(!honest || !may, || format!("node {node} does not admit {peer:?} ({why}), who belongs here"))?;
                continue;
            }
            let blames = !matches!(refusal, Refusal::Stale | Refusal::Full);
            require(!honest || !blames, || format!("node {node} refuses honest {peer:?}: {refusal:?}"))?;
        }
        Ok(())
    }
}
