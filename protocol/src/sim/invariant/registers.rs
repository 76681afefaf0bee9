//! S5: what one incarnation says in votes it says once, in rising order, and has on its disk before anybody hears it.

use super::{Invariant, Observed, require};
use crate::engine::Register;
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
    /// What was on a disk, whether or not it left the node: it may be said later.
    written: BTreeMap<(Voice, Digest, Stamp), (Value, bool)>,
    newest: BTreeMap<Voice, Stamp>,
    /// The lineages of the records that votes followed, by their digests.
    lineages: BTreeMap<Digest, Digest>,
}

impl Invariant for Registers {
    fn name(&self) -> &'static str {
        "S5 monotone registers"
    }

    fn observe(&mut self, event: &Observed<'_>, world: &World) -> Result<(), String> {
        match event {
            Observed::Stored { node, write: Write::Vote { register, .. } } => {
                self.lineages.insert(register.parent, register.lineage);
                self.signed(*node, world.nodes[*node].id, register)
            }
            Observed::Sent { node, bytes, .. } if matches!(kind(bytes), "estimate" | "vote") => {
                self.heard(*node, bytes, world)
            }
            _ => Ok(()),
        }
    }
}

impl Registers {
    /// What a register holds that it did not hold before was signed now: after all that was heard of its incarnation.
    fn signed(&mut self, node: usize, id: NodeId, register: &Register) -> Result<(), String> {
        let Stamp { seq, instance, .. } = register.stamp;
        let estimate = register.estimate.iter().map(|(ballot, value)| (*ballot, 1, value, false));
        let vote = register.vote.iter().map(|(ballot, value, voted)| (*ballot, 2, value, *voted));
        let voice = (id, register.incarnation, register.lineage);
        let newest = self.newest.get(&voice).copied().unwrap_or_default();
        for (ballot, phase, value, voted) in estimate.chain(vote) {
            let stamp = Stamp { seq, instance, ballot, phase };
            let place = (voice, register.parent, stamp);
            let word = (value.clone(), voted);
            let known = self.written.get(&place) == Some(&word);
            require(known || stamp > newest, || {
                format!("node {node} signs {word:?} at {stamp:?}, and others have heard it at {newest:?}")
            })?;
            self.written.insert(place, word);
        }
        Ok(())
    }

    fn heard(&mut self, node: usize, bytes: &[u8], world: &World) -> Result<(), String> {
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
        let place = (voice, parent, stamp);
        let word = (value, voted);
        let durable = world.nodes[node].disk.register.as_ref();
        require(self.written.get(&place) == Some(&word), || {
            format!("node {node} says {word:?} at {stamp:?} before it is on its disk, which has {durable:?}")
        })?;
        let newest = self.newest.entry(voice).or_default();
        *newest = stamp.max(*newest);
        let known = self.said.entry(place).or_insert_with(|| word.clone());
        require(*known == word, || format!("node {node} says {word:?} at {stamp:?}, and said {known:?} before"))
    }
}
