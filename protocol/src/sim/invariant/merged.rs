//! S7, of lineages: the difference of a lineage that gave way is taken in once along a chain, from a member that may
//! offer it, and the records list exactly that.

use super::{Invariant, Observed, require};
use crate::Digest;
use crate::limits::MERGED_MAX;
use crate::message::Message;
use crate::record::{Record, RecordKind};
use crate::sim::disk::{Link, Write};
use crate::sim::network::kind;
use crate::sim::world::World;
use std::collections::{BTreeMap, BTreeSet};

/// The lineages that READYs merge, and those whose work is in the state of a record.
#[derive(Default)]
pub(super) struct Merged {
    readys: BTreeMap<Digest, (Digest, u64)>,
    within: BTreeMap<Digest, BTreeSet<Digest>>,
}

impl Invariant for Merged {
    fn name(&self) -> &'static str {
        "S7 mass conservation"
    }

    fn observe(&mut self, event: &Observed<'_>, world: &World) -> Result<(), String> {
        match event {
            Observed::Sent { bytes, .. } if kind(bytes) == "ready" => self.note(bytes, world),
            Observed::Stored { write: Write::Vote { candidate: Some(held), .. }, .. } => {
                held.candidate.readys.iter().for_each(|bytes| self.note(bytes, world));
            }
            Observed::Stored { write: Write::Found { link, .. }, .. } => self.add(link, BTreeSet::new())?,
            Observed::Stored { node, write: Write::Commit { link, .. } } if !self.within.contains_key(&link.digest) => {
                let Some(parent) = world.nodes[*node].disk.head() else { return Ok(()) };
                let before = self.within.get(&link.record.parent).cloned().unwrap_or_default();
                let after = self.after(&link.record, &parent.record, before)?;
                self.add(link, after)?;
            }
            _ => {}
        }
        Ok(())
    }
}

impl Merged {
    fn note(&mut self, bytes: &[u8], world: &World) {
        let Some(opened) = world.open(bytes) else { return };
        if let Message::Ready(ready) = opened.message
            && let Some(lineage) = ready.merges
        {
            self.readys.insert(opened.digest, (lineage, ready.merged_tokens));
        }
    }

    fn after(
        &self,
        record: &Record,
        parent: &Record,
        mut within: BTreeSet<Digest>,
    ) -> Result<BTreeSet<Digest>, String> {
        if record.kind == RecordKind::Fork && within.len() < MERGED_MAX {
            within.insert(parent.lineage);
        }
        let most = parent.next.merge_tokens;
        for contributor in &record.contributors {
            let Some((lineage, tokens)) = self.readys.get(&contributor.ready) else { continue };
            let new = *lineage != record.lineage && within.insert(*lineage);
            require(new, || format!("seq {}: {lineage:?} is merged a second time", record.seq))?;
            require(*tokens <= most, || {
                format!("seq {}: {lineage:?} counts for {tokens} tokens, {most} allowed", record.seq)
            })?;
        }
        Ok(within)
    }

    fn add(&mut self, link: &Link, within: BTreeSet<Digest>) -> Result<(), String> {
        let listed = link.record.merged.iter().eq(&within);
        require(listed, || format!("seq {} lists {:?}, merged are {within:?}", link.record.seq, link.record.merged))?;
        self.within.insert(link.digest, within);
        Ok(())
    }
}
