//! S24: a COMMIT averages contributions of a quorum of the voters that decide it.

use super::{Invariant, Observed, require};
use crate::NodeId;
use crate::record::{Record, RecordKind};
use crate::sim::disk::Write;
use crate::sim::world::World;
use std::collections::BTreeSet;

pub(super) struct Contributors;

impl Invariant for Contributors {
    fn name(&self) -> &'static str {
        "S24 contributors' quorum"
    }

    fn observe(&mut self, event: &Observed<'_>, world: &World) -> Result<(), String> {
        let Observed::Stored { node, write: Write::Commit { link, .. } } = event else { return Ok(()) };
        let Some(parent) = world.nodes[*node].disk.head().filter(|_| link.record.kind == RecordKind::Commit) else {
            return Ok(());
        };
        let here: BTreeSet<NodeId> = link.record.contributors.iter().map(|c| c.member).collect();
        require(is_quorum(&parent.record, &here), || {
            let voters: Vec<NodeId> = parent.record.voters().map(|voter| voter.id).collect();
            format!("seq {}: contributions of {here:?}, voters are {voters:?}", link.record.seq)
        })
    }
}

/// Whether some of a record's voters are a quorum: counted here anew, as the specification has it.
pub(super) fn is_quorum(record: &Record, here: &BTreeSet<NodeId>) -> bool {
    let voters = record.voters().count();
    let count = record.voters().filter(|voter| here.contains(&voter.id)).count();
    if 2 * count != voters {
        return 2 * count > voters;
    }
    let distinguished = record.voters().min_by_key(|voter| (voter.absent, voter.since, voter.id));
    distinguished.is_some_and(|voter| here.contains(&voter.id))
}
