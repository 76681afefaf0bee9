//! S6: in a lineage no position is trained on twice, tokens are those of the samples, and every position below the
//! cursor is used, leased or free.

use super::{Invariant, Observed, require};
use crate::limits::FREE_SPANS_MAX;
use crate::record::{Record, RecordKind};
use crate::sim::disk::Write;
use crate::sim::process::Offer;
use crate::sim::world::World;
use crate::{Digest, NodeId};
use std::collections::{BTreeMap, BTreeSet};

/// The positions that a lineage has used up to a record.
#[derive(Clone, Default)]
struct Account {
    /// Start and end of each trained range, disjoint, and the member that trained on it.
    used: BTreeMap<u64, (u64, NodeId)>,
    total: u64,
    readys: BTreeSet<Digest>,
    /// Positions below the cursor that no member accounts for: those of the parent, in a fork.
    foreign: u64,
}

#[derive(Default)]
pub(super) struct Samples(BTreeMap<Digest, Account>);

impl Invariant for Samples {
    fn name(&self) -> &'static str {
        "S6 sample accounting"
    }

    fn observe(&mut self, event: &Observed<'_>, world: &World) -> Result<(), String> {
        if let Observed::Trained { node, offer, .. } = event {
            return self.own(*node, offer, world);
        }
        let Observed::Stored { write, .. } = event else { return Ok(()) };
        let (link, parent) = match write {
            Write::Found { link, .. } => (link, None),
            Write::Commit { link, .. } => (link, self.0.get(&link.record.parent)),
            Write::Vote { .. } => return Ok(()),
        };
        if self.0.contains_key(&link.digest) {
            return Ok(());
        }
        let mut account = parent.cloned().unwrap_or_default();
        account.take(&link.record, u64::from(world.spec.sample_weight()))?;
        if matches!(link.record.kind, RecordKind::Fork | RecordKind::Genesis) {
            account.foreign = unaccounted(&link.record, account.total);
        }
        let full = link.record.free.len() >= FREE_SPANS_MAX;
        let lost = unaccounted(&link.record, account.total);
        require(full || lost == account.foreign, || {
            format!(
                "seq {}: {} positions are neither used, leased nor free",
                link.record.seq,
                lost.wrapping_sub(account.foreign)
            )
        })?;
        self.0.insert(link.digest, account);
        Ok(())
    }
}

impl Samples {
    /// Checks that a trainer that keeps parameters of its own has stepped once on its offer, and beside that only on
    /// contributions that were taken in from it.
    fn own(&self, node: usize, offer: &Offer, world: &World) -> Result<(), String> {
        let machine = &world.nodes[node];
        let Some((process, own)) = machine.process.as_ref().and_then(|p| Some((p, p.own.as_ref()?))) else {
            return Ok(());
        };
        let Some(account) = process.head.as_ref().and_then(|head| self.0.get(&head.digest)) else { return Ok(()) };
        let (mut at, end) = (offer.span.start, offer.span.start + offer.span.count);
        for step in &own.steps {
            let before = account.used.range(..=step.start).next_back();
            let taken = before.is_some_and(|(_, (end, by))| *by == machine.id && step.start + step.count <= *end);
            if !taken {
                require(step.start == at && step.start + step.count <= end, || {
                    format!("node {node} has {step:?} in its own parameters, and offers {:?}", offer.span)
                })?;
                at += step.count;
            }
        }
        require(at == end, || format!("node {node} offers {:?}, and has stepped on it up to {at}", offer.span))
    }
}

/// Positions below the cursor that are not used, leased or free.
fn unaccounted(record: &Record, used: u64) -> u64 {
    let leased: u64 = record.next.members.iter().map(|member| member.lease.count).sum();
    let free: u64 = record.free.iter().map(|span| span.count).sum();
    record.cursor.wrapping_sub(leased).wrapping_sub(free).wrapping_sub(used)
}

impl Account {
    fn take(&mut self, record: &Record, weight: u64) -> Result<(), String> {
        let seq = record.seq;
        for contributor in &record.contributors {
            let (start, end) = (contributor.start, contributor.start + contributor.samples);
            require(contributor.tokens == contributor.samples * weight, || {
                format!("seq {seq}: {} tokens for {} samples", contributor.tokens, contributor.samples)
            })?;
            require(self.readys.insert(contributor.ready), || format!("seq {seq}: a READY counts twice"))?;
            let before = self.used.range(..end).next_back().is_some_and(|(_, (other, _))| *other > start);
            require(!before, || format!("seq {seq}: positions {start}..{end} are trained on twice"))?;
            self.used.insert(start, (end, contributor.member));
            self.total += end - start;
        }
        for span in record.next.members.iter().map(|member| &member.lease).chain(&record.free) {
            let end = span.start + span.count;
            let used = self.used.range(..end).next_back().is_some_and(|(_, (other, _))| *other > span.start);
            require(!used || span.count == 0, || format!("seq {seq}: {span:?} is to be trained on again"))?;
        }
        Ok(())
    }
}
