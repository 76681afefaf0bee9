//! S7: a contribution is taken in by one commit, or still held, or lost with the node's process or seat.

use super::{Invariant, Observed, require};
use crate::Digest;
use crate::message::Message;
use crate::run::SyncMode;
use crate::sim::disk::Write;
use crate::sim::network::kind;
use crate::sim::process::Offer;
use crate::sim::world::World;
use std::collections::BTreeMap;

/// Payloads by READY, and those that a commit took in.
#[derive(Default)]
pub(super) struct Mass {
    payloads: BTreeMap<Digest, Digest>,
    taken: BTreeMap<(Digest, Digest), Digest>,
}

impl Invariant for Mass {
    fn name(&self) -> &'static str {
        "S7 mass conservation"
    }

    fn observe(&mut self, event: &Observed<'_>, world: &World) -> Result<(), String> {
        match event {
            Observed::Sent { bytes, .. } if kind(bytes) == "ready" => {
                if let Some(opened) = world.open(bytes)
                    && let Message::Ready(ready) = opened.message
                {
                    self.payloads.insert(opened.digest, ready.payload);
                }
                Ok(())
            }
            Observed::Training { node, base, lease } => {
                let held = world.nodes[*node].process.as_ref().and_then(|process| process.offer.as_ref());
                // A gradient of another state is of no use any more, nor is more work than a new seat leases there.
                let stale = |offer: &Offer| world.spec.sync.mode == SyncMode::EveryStep && offer.base != *base;
                let fits = |offer: &Offer| offer.span.start == lease.start && offer.span.count <= lease.count;
                let kept = held.is_some_and(|offer| fits(offer) && !stale(offer));
                require(!kept, || format!("node {node} trains on a lease again whose contribution it holds"))
            }
            Observed::Committing { node, link, mine, .. } => {
                let (id, record) = (world.nodes[*node].id, &link.record);
                let own = record.contributors.iter().find(|contributor| contributor.member == id);
                let forks = record.kind == crate::record::RecordKind::Fork;
                require(*mine == own.is_some() || forks, || {
                    let verb = if *mine { "drops" } else { "keeps" };
                    format!("node {node} {verb} what the record at seq {} says otherwise of", record.seq)
                })?;
                let held = world.nodes[*node].process.as_ref().and_then(|process| process.offer.as_ref());
                let Some((own, offer)) = own.zip(held) else { return Ok(()) };
                let payload = self.payloads.get(&own.ready).copied().unwrap_or(offer.payload);
                // After a node's restart, a commit may take in what its former process trained on the same lease; the
                // new contribution is not needed then.
                let same_lease = own.start == offer.span.start;
                require(payload == offer.payload || same_lease, || {
                    format!("node {node} drops {:?}, the record takes {payload:?} in", offer.payload)
                })?;
                Ok(())
            }
            Observed::Stored { write: Write::Commit { link, .. }, .. } => {
                for contributor in &link.record.contributors {
                    let Some(payload) = self.payloads.get(&contributor.ready) else { continue };
                    let taken = *self.taken.entry((link.record.lineage, *payload)).or_insert(link.digest);
                    require(taken == link.digest, || format!("{payload:?} is taken in twice"))?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
