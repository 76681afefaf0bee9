//! S5: what one incarnation says in votes it says once, in rising order, and has on its disk before anybody hears it.

use super::{Invariant, Observed, require};
use crate::message::{Message, Question, Stamp, Value};
use crate::sim::disk::Write;
use crate::sim::world::{World, kind};
use crate::{Digest, NodeId};
use std::collections::BTreeMap;

/// Who said it, from which register and in which lineage.
type Voice = (NodeId, u64, Digest);

#[derive(Default)]
pub(super) struct Registers {
    said: BTreeMap<(Voice, Digest, Stamp), (Value, bool)>,
    newest: BTreeMap<Voice, Stamp>,
    /// The lineages of the records that votes followed, by their digests.
    lineages: BTreeMap<Digest, Digest>,
}

impl Invariant for Registers {
    fn name(&self) -> &'static str {
        "S5 monotone registers"
    }

    fn observe(&mut self, event: &Observed<'_>, world: &World) -> Result<(), String> {
        if let Observed::Stored { write: Write::Vote { register, .. }, .. } = event {
            self.lineages.insert(register.parent, register.lineage);
        }
        let Observed::Sent { node, bytes, .. } = event else { return Ok(()) };
        if !matches!(kind(bytes), "estimate" | "vote") {
            return Ok(());
        }
        let Some(opened) = world.open(bytes) else { return Ok(()) };
        let (question, incarnation, ballot, phase, value, voted) = match opened.message {
            Message::Estimate(said) => (said.question, said.incarnation, said.ballot, 1, said.value, false),
            Message::Vote(said) => (said.question, said.incarnation, said.ballot, 2, said.value, said.voted),
            _ => return Ok(()),
        };
        let Question { seq, parent, instance } = question;
        let lineage = self.lineages.get(&parent).copied().unwrap_or_default();
        let stamp = Stamp { seq, instance, ballot, phase };
        let voice = (opened.sender, incarnation, lineage);
        let written = world.nodes[*node].disk.register.as_ref();
        let durable = written.is_some_and(|r| {
            let same = r.incarnation == incarnation && r.lineage == lineage;
            // A register moves on to the next place while the one before is said again.
            same && (r.stamp >= stamp || r.stamp.seq > seq)
        });
        require(durable, || {
            format!("node {node} says {stamp:?} before it is on its disk, which has {:?}", written.map(|r| r.stamp))
        })?;
        if let Some(known) = self.said.get(&(voice, parent, stamp)) {
            return require(*known == (value.clone(), voted), || {
                format!("node {node} says {value:?} {voted} at {stamp:?}, and said {known:?} before")
            });
        }
        let newest = self.newest.entry(voice).or_default();
        let rises = stamp > *newest || stamp.seq == newest.seq && stamp.instance == newest.instance;
        let before = *newest;
        *newest = before.max(stamp);
        self.said.insert((voice, parent, stamp), (value, voted));
        require(rises, || format!("node {node} says {stamp:?} for the first time after {before:?}"))
    }
}
