//! S23: a lineage forks only where the run's policy allows it, and only by members that have had no quorum in reach for
//! the run's grace, or that hear from most of the others that they have waited so long.
//!
//! A node's knowledge is reconstructed here, generously. A voter counts as in reach only when its connection is up, its
//! Hello names the incarnation that votes, it is in the lineage, and it was heard within the least time after which a
//! peer can be silent.

use super::contributors::is_quorum;
use super::{Invariant, Observed, require};
use crate::engine::io::{Input, Output};
use crate::message::{Message, Phase, member_indices};
use crate::record::RecordKind;
use crate::run::Minority;
use crate::sim::SECOND;
use crate::sim::disk::Link;
use crate::sim::network::kind;
use crate::sim::world::World;
use crate::{Digest, NodeId};
use std::collections::{BTreeMap, BTreeSet};

/// A node that was heard within this time is not silent.
const HEARD: u64 = 7 * SECOND;
/// The most that a node ages between two inputs.
const STEP: u64 = SECOND;
/// A node that hears of others' forks goes along after this time without a quorum.
const CUT: u64 = 2 * SECOND;
/// A node of several rows looks at Heads together, and so may not have seen a quorum that was back for so long: to such a
/// node it was never back.
const BRIEF: u64 = SECOND / 2;

/// The offsets at which a Head names its lineage, its record and its phase: behind the envelope's header and the tag.
const LINEAGE: usize = 40;
const RECORD: usize = LINEAGE + 40;
const PHASE: usize = RECORD + 40;

/// One process of a node, as far as it knows which nodes it reaches.
#[derive(Default)]
struct Reach {
    /// Its age, and the clock time that it was last given.
    now: u64,
    clock: Option<u64>,
    /// Peers: for each the time since it is connected, its incarnation, and the time when it was heard.
    peers: BTreeMap<NodeId, Peer>,
    /// The vote state that it speaks from, as its newest Hello states.
    own: Option<u64>,
    /// Its head, whether a quorum is in reach of it, and for how long none has been.
    head: Digest,
    reaches: bool,
    /// Its head has several rows.
    rows: bool,
    lost: u64,
    /// The time since which none is in reach now.
    since: u64,
    /// Whether it goes on from a vote state, and the nodes that have told it what they know of that.
    resumed: bool,
    witnesses: BTreeSet<NodeId>,
    /// Nodes that have said that they fork from a record.
    said: BTreeSet<(NodeId, Digest)>,
    /// The record that it has left by a fork.
    forked: Option<Digest>,
    /// The fork that it has proposed itself.
    proposed: Option<(Digest, Vec<u8>)>,
}

#[derive(Default)]
struct Peer {
    connected: bool,
    incarnation: Option<u64>,
    heard: u64,
    /// The lineage of its newest Head; zero before it has a head.
    lineage: Digest,
    /// The record for which it says itself that it is without a quorum.
    quorum_lost: Option<Digest>,
}

#[derive(Default)]
pub(super) struct Forks(BTreeMap<usize, Reach>);

impl Invariant for Forks {
    fn name(&self) -> &'static str {
        "S23 forks allowed"
    }

    fn observe(&mut self, event: &Observed<'_>, world: &World) -> Result<(), String> {
        if world.spec.partition.minority != Minority::Fork {
            return never(event);
        }
        match event {
            Observed::Started { node } => {
                let resumed = world.nodes[*node].disk.vote_state.is_some();
                self.0.insert(*node, Reach { resumed, ..Reach::default() });
            }
            Observed::Input { node, input } => self.0.entry(*node).or_default().take(*node, input, world),
            Observed::Probed { node, .. } => self.0.entry(*node).or_default().age(*node, world),
            Observed::Outputs { node, outputs } => {
                let reach = self.0.entry(*node).or_default();
                for output in *outputs {
                    reach.says(*node, output, world)?;
                }
            }
            Observed::Step { node } => self.0.entry(*node).or_default().look(*node, world),
            _ => {}
        }
        Ok(())
    }
}

/// Without the policy `fork`, a node never forks.
fn never(event: &Observed<'_>) -> Result<(), String> {
    let Observed::Outputs { node, outputs } = event else { return Ok(()) };
    let forks = |output: &&Output| match output {
        Output::Send { bytes, .. } => kind(bytes) == "fork",
        Output::Commit { record, .. } => record.kind == RecordKind::Fork,
        _ => false,
    };
    require(!outputs.iter().any(|output| forks(&output)), || {
        format!("node {node} forks, and is to wait for the quorum")
    })
}

impl Reach {
    /// Ages by the time since the node was last told the time.
    fn age(&mut self, node: usize, world: &World) {
        let clock = world.now + world.nodes[node].offset;
        let passed = clock.saturating_sub(self.clock.unwrap_or(clock)).min(STEP);
        self.clock = Some(clock);
        self.now += passed;
        self.lost = if self.reaches { self.lost.saturating_sub(passed) } else { self.lost + passed };
    }

    fn take(&mut self, node: usize, input: &Input, world: &World) {
        self.age(node, world);
        match input {
            Input::PeerUp { peer } => self.peers.entry(*peer).or_default().connected = true,
            Input::PeerDown { peer } => {
                let peer = self.peers.entry(*peer).or_default();
                (peer.connected, peer.incarnation) = (false, None);
            }
            Input::Message { from, bytes } => self.hear(from, bytes, world),
            _ => {}
        }
    }

    fn hear(&mut self, from: &NodeId, bytes: &[u8], world: &World) {
        let now = self.now;
        let Some(peer) = self.peers.get_mut(from) else { return };
        match kind(bytes) {
            "hello" => {
                if let Some(Message::Hello(hello)) = world.open(bytes).map(|opened| opened.message) {
                    (peer.incarnation, peer.heard) = (Some(hello.incarnation), now);
                }
            }
            "head" => {
                peer.heard = now;
                let lineage = bytes.get(LINEAGE..LINEAGE + 32).and_then(|bytes| bytes.try_into().ok());
                peer.lineage = lineage.map_or(peer.lineage, Digest);
                let record = bytes.get(RECORD..RECORD + 32).and_then(|bytes| bytes.try_into().ok()).map(Digest);
                let quorum_lost = bytes.get(PHASE) == Some(&Phase::QuorumLost.number());
                peer.quorum_lost = record.filter(|_| quorum_lost);
            }
            "witness" => {
                peer.heard = now;
                // Nothing of a peer counts before its Hello.
                if peer.incarnation.is_some() {
                    self.witnesses.insert(*from);
                }
            }
            "leave" => peer.incarnation = None,
            "fork" => {
                peer.heard = now;
                if let Some(Message::Fork(fork)) = world.open(bytes).map(|opened| opened.message) {
                    self.said.insert((*from, fork.parent));
                }
            }
            _ => peer.heard = now,
        }
    }

    /// The time that a node of several rows, which has not seen that a quorum was back for a moment, did not take off the
    /// time without one, and added.
    fn unseen(&self) -> u64 {
        let brief = self.now - self.since;
        if self.rows && self.reaches && brief <= BRIEF { 2 * brief } else { 0 }
    }

    /// Notes whether a quorum is in reach from now on.
    fn look(&mut self, node: usize, world: &World) {
        let Some(process) = world.nodes[node].process.as_ref() else { return };
        let Some(Link { record, digest, .. }) = &process.head else { return };
        if *digest != self.head {
            (self.head, self.lost, self.since) = (*digest, 0, self.now);
        }
        self.rows = record.rows() > 1;
        let me = world.nodes[node].id;
        let here = record.voters().filter(|voter| {
            if voter.id == me {
                return self.own == Some(voter.incarnation);
            }
            let peer = self.peers.get(&voter.id);
            let here = |peer: &Peer| peer.lineage == Digest::default() || peer.lineage == record.lineage;
            let stands = |peer: &Peer| here(peer) && peer.quorum_lost != Some(*digest);
            let heard = |peer: &&Peer| peer.connected && stands(peer) && self.now - peer.heard < HEARD;
            peer.filter(heard).is_some_and(|peer| peer.incarnation == Some(voter.incarnation))
        });
        let here: BTreeSet<NodeId> = here.map(|voter| voter.id).collect();
        // A restarted voter does not vote without the word of another voter.
        let mut others = record.voters().filter(|voter| voter.id != me).peekable();
        let votes = record.voters().any(|voter| voter.id == me && self.own == Some(voter.incarnation));
        let unheard = self.resumed && votes && others.peek().is_some();
        let mute = unheard && !others.any(|voter| self.witnesses.contains(&voter.id));
        let reaches = is_quorum(record, &here) && !mute;
        if reaches != self.reaches {
            self.lost += self.unseen();
            (self.reaches, self.since) = (reaches, self.now);
        }
    }

    fn says(&mut self, node: usize, output: &Output, world: &World) -> Result<(), String> {
        match output {
            Output::Refuse { peer, .. } => {
                if let Some(peer) = self.peers.get_mut(peer) {
                    peer.incarnation = None;
                }
                Ok(())
            }
            Output::Send { bytes, .. } if kind(bytes) == "hello" => {
                if let Some(Message::Hello(hello)) = world.open(bytes).map(|opened| opened.message) {
                    self.own = Some(hello.incarnation);
                }
                Ok(())
            }
            Output::Send { bytes, .. } if kind(bytes) == "fork" => {
                let Some(Message::Fork(fork)) = world.open(bytes).map(|opened| opened.message) else { return Ok(()) };
                if self.forked == Some(fork.parent) {
                    return Ok(());
                }
                let proposal = (fork.parent, fork.members.clone());
                // An unchanged proposal is said again.
                if self.proposed.replace(proposal.clone()) == Some(proposal) {
                    return Ok(());
                }
                let head = world.nodes[node].head().filter(|head| head.digest == fork.parent);
                let member = |index: usize| head.and_then(|head| head.record.next.members.get(index));
                let members: Vec<NodeId> = member_indices(&fork.members).filter_map(member).map(|m| m.id).collect();
                self.may(node, fork.parent, &members, world)
            }
            Output::Commit { record, .. } if record.kind == RecordKind::Fork => {
                let members: Vec<NodeId> = record.members().collect();
                self.forked = Some(record.parent);
                self.may(node, record.parent, &members, world)
            }
            _ => Ok(()),
        }
    }

    fn may(&self, node: usize, parent: Digest, members: &[NodeId], world: &World) -> Result<(), String> {
        let me = world.nodes[node].id;
        let others = members.iter().filter(|id| **id != me);
        let said = others.clone().filter(|id| self.said.contains(&(**id, parent))).count();
        let goes_along = said > 1 && 2 * said > others.count() && self.now - self.since >= CUT && !self.reaches;
        let waited = self.lost + self.unseen() >= world.options.grace;
        require(self.head == parent && (waited || goes_along), || {
            let (lost, grace) = (self.lost / 1_000, world.options.grace / 1_000);
            format!(
                "node {node} forks {lost} ms after it lost the quorum, and the grace is {grace} ms; {said} others do"
            )
        })
    }
}
