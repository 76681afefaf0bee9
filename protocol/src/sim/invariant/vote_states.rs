//! S5: an incarnation makes each statement of a vote once, in rising order, and has it on disk before any node hears
//! it.
//!
//! A statement is said when it has left a node. For a node whose disk went back that is too strict: nobody can tell it
//! of statements that were lost on their way, or are still on it. For such a node the statements count that had arrived
//! somewhere when it started again.

use super::{Invariant, Observed, require};
use crate::engine::VoteState;
use crate::engine::io::Input;
use crate::message::{Message, Question, Stamp, Value};
use crate::sim::disk::Write;
use crate::sim::network::kind;
use crate::sim::world::World;
use crate::{Digest, NodeId};
use std::collections::{BTreeMap, BTreeSet};

/// The node that said it, its vote state and its lineage.
type OwnVotes = (NodeId, u64, Digest);
/// The place of a statement: the record that the voted-on record follows, and the place within the vote.
type Place = (OwnVotes, Digest, Stamp);
/// The value of a statement, and whether it is a vote for the value.
type Word = (Value, bool);

#[derive(Default)]
pub(super) struct VoteStates {
    said: BTreeMap<Place, Word>,
    /// Statements that were on a disk, whether or not they left the node: they may be said later.
    written: BTreeMap<Place, Word>,
    newest: BTreeMap<OwnVotes, Stamp>,
    /// Nodes whose disks went back, and their statements that have arrived.
    old: BTreeSet<NodeId>,
    arrived: BTreeMap<Place, Word>,
    newest_arrived: BTreeMap<OwnVotes, Stamp>,
    /// Statements of a former process with a newer disk that had not arrived when the present process started.
    late: BTreeMap<Place, Word>,
    /// The lineages of the records that votes followed, by their digests.
    lineages: BTreeMap<Digest, Digest>,
}

impl Invariant for VoteStates {
    fn name(&self) -> &'static str {
        "S5 monotone vote states"
    }

    fn observe(&mut self, event: &Observed<'_>, world: &World) -> Result<(), String> {
        match event {
            Observed::Stored { node, write: Write::Vote { vote_state, .. } } => {
                self.lineages.insert(vote_state.parent, vote_state.lineage);
                self.signed(*node, world.nodes[*node].id, vote_state)
            }
            Observed::Sent { node, bytes, .. } if matches!(kind(bytes), "estimate" | "vote") => {
                self.said(*node, bytes, world)
            }
            // A node that holds no record knows no voters, heeds no votes, and can bear no witness of them.
            Observed::Input { node, input: Input::Message { bytes, .. } }
                if matches!(kind(bytes), "estimate" | "vote") && world.nodes[*node].head().is_some() =>
            {
                self.heard(bytes, world)
            }
            Observed::Started { node } if self.old.contains(&world.nodes[*node].id) => {
                self.forget_on_the_way(&world.nodes[*node].id);
                Ok(())
            }
            Observed::LostDisk { node } => {
                self.old.insert(world.nodes[*node].id);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

impl VoteStates {
    /// Checks statements that are new in a vote state: they were signed now, after all that was heard of its
    /// incarnation.
    fn signed(&mut self, node: usize, id: NodeId, vote_state: &VoteState) -> Result<(), String> {
        let Stamp { seq, instance, .. } = vote_state.stamp;
        let estimate = vote_state.estimate.iter().map(|(ballot, value)| (*ballot, 1, value, false));
        let vote = vote_state.vote.iter().map(|(ballot, value, voted)| (*ballot, 2, value, *voted));
        let own_votes = (id, vote_state.incarnation, vote_state.lineage);
        let newest = if self.old.contains(&id) { &self.newest_arrived } else { &self.newest };
        let newest = newest.get(&own_votes).copied().unwrap_or_default();
        for (ballot, phase, value, voted) in estimate.chain(vote) {
            let stamp = Stamp { seq, instance, ballot, phase };
            let place = (own_votes, vote_state.parent, stamp);
            let word = (value.clone(), voted);
            let known = self.written.get(&place) == Some(&word);
            require(known || stamp > newest, || {
                format!("node {node} signs {word:?} at {stamp:?}, and others have heard it at {newest:?}")
            })?;
            self.written.insert(place, word);
        }
        Ok(())
    }

    fn said(&mut self, node: usize, bytes: &[u8], world: &World) -> Result<(), String> {
        let Some((place, word)) = self.word(bytes, world) else { return Ok(()) };
        let (own_votes, _, stamp) = place;
        let durable = world.nodes[node].disk.vote_state.as_ref();
        require(self.written.get(&place) == Some(&word), || {
            format!("node {node} says {word:?} at {stamp:?} before it is on its disk, which has {durable:?}")
        })?;
        if self.old.contains(&own_votes.0) {
            return Ok(());
        }
        let newest = self.newest.entry(own_votes).or_default();
        *newest = stamp.max(*newest);
        let known = self.said.entry(place).or_insert_with(|| word.clone());
        require(*known == word, || format!("node {node} says {word:?} at {stamp:?}, and said {known:?} before"))
    }

    fn heard(&mut self, bytes: &[u8], world: &World) -> Result<(), String> {
        let Some((place, word)) = self.word(bytes, world) else { return Ok(()) };
        let (own_votes, _, stamp) = place;
        if world.nodes.iter().any(|node| node.id == own_votes.0 && node.liar.is_some()) {
            return Ok(());
        }
        if self.late.get(&place) == Some(&word) {
            return Ok(());
        }
        let newest = self.newest_arrived.entry(own_votes).or_default();
        *newest = stamp.max(*newest);
        let known = self.arrived.entry(place).or_insert_with(|| word.clone());
        require(*known == word, || {
            format!("{} was heard to say {word:?} at {stamp:?}, and {known:?} before", own_votes.0.short())
        })
    }

    fn forget_on_the_way(&mut self, id: &NodeId) {
        let way = |(place, word): &(&Place, &Word)| place.0.0 == *id && self.arrived.get(place) != Some(word);
        let late: Vec<_> = self.written.iter().filter(way).map(|(place, word)| (*place, word.clone())).collect();
        self.late.extend(late);
    }

    /// The statement in a message, and its place.
    fn word(&self, bytes: &[u8], world: &World) -> Option<(Place, Word)> {
        let opened = world.open(bytes)?;
        let (question, incarnation, ballot, phase, value, voted) = match opened.message {
            Message::Estimate(said) => (said.question, said.incarnation, said.ballot, 1, said.value, false),
            Message::Vote(said) => (said.question, said.incarnation, said.ballot, 2, said.value, said.voted),
            _ => return None,
        };
        let Question { seq, parent, instance } = question;
        let lineage = self.lineages.get(&parent).copied().unwrap_or_default();
        let stamp = Stamp { seq, instance, ballot, phase };
        Some((((opened.sender, incarnation, lineage), parent, stamp), (value, voted)))
    }
}
