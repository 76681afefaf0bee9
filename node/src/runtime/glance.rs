//! The content of the terminal's block, from the engine and the network, in words for a person who has not read the
//! protocol.

use super::arrival::Arrival;
use super::driver::Driver;
use super::notice::{ids, seeking_text};
use crate::watch::figures::{about, bytes};
use crate::watch::pair::{Pair, Standing};
use crate::watch::picture::Glance;
use crate::watch::words;
use starling_protocol::engine::{Hold, MemberView, QuorumView, View};
use starling_protocol::message::Phase;
use starling_protocol::record::Role;
use starling_protocol::{Digest, NodeId};
use std::time::Instant;

/// Nodes whose names one look takes.
const NAMES_MAX: usize = 256;

impl Driver {
    /// Shows the terminal what the engine and the network know, if it is time.
    pub(super) fn look_around(&mut self) {
        let now = Instant::now();
        if self.screen.wants_look(now) {
            let glance = self.glance(now);
            self.screen.look(glance, now);
        }
    }

    /// Notes the name of a peer, so that it is known when the peer is shown.
    pub(super) fn note_name(&mut self, peer: &NodeId) {
        if let Some(name) = self.net.name_of(peer) {
            self.screen.note_name(&peer.to_string(), &name);
        }
    }

    fn glance(&self, now: Instant) -> Glance {
        let view = self.engine.view();
        let counters = self.net.counters();
        let here = |peer: &&MemberView| peer.connected || peer.id == self.me;
        let other = |peer: &&MemberView| peer.connected && peer.id != self.me;
        let named = |peer: &MemberView| (peer.id.to_string(), self.net.name_of(&peer.id));
        let me = view.members.iter().find(|peer| peer.id == self.me);
        Glance {
            lineage: (view.lineage != Digest::default()).then(|| view.lineage.to_string()),
            role: me.and_then(|me| me.role).map(|role| role.to_string()),
            members: view.members.len(),
            members_here: view.members.iter().filter(here).count(),
            voters: view.quorum.voters,
            voters_here: view.quorum.here,
            quorum: view.quorum.in_reach,
            if_lost: self.if_lost(&view),
            guests: view.others.len(),
            doing: self.doing(&view, now),
            trains: view.phase == Phase::Training,
            sent: counters.bytes_sent,
            received: counters.bytes_received,
            names: view.members.iter().chain(&view.others).filter(other).map(named).take(NAMES_MAX).collect(),
        }
    }

    /// The node's work, or what it waits for.
    fn doing(&self, view: &View, now: Instant) -> String {
        let names = self.screen.names();
        let list = |nodes: &[NodeId]| names.list(&ids(nodes.to_vec()));
        let outside = matches!(view.phase, Phase::Joining | Phase::CatchingUp);
        if let Some(why) = self.gauges.barred.as_ref().filter(|_| outside) {
            return words::waiting("", why);
        }
        if let Some(hold) = &view.hold {
            return hold_sentence(hold, &list(&hold.on));
        }
        if let Some(waiting) = &view.waiting {
            let on = list(&waiting.on);
            if view.quorum.quorum_lost.is_some() && !view.quorum.frozen {
                let left = view.quorum.forks_in.map(|micros| micros as f64 / 1e6);
                let policy = self.engine.in_force().partition.minority.to_string();
                return words::cut_off(&policy, &on, left, started_again(&view.quorum, &self.me, &on));
            }
            return words::waiting(&on, waiting.why);
        }
        if view.founds {
            return "founding a flock".into();
        }
        let others = view.attempt.as_ref().map_or(0, |(_, members)| members.len().saturating_sub(1));
        let arrival = self.gauges.arrival.as_ref().map(|arrival: &Arrival| arrival.text(now));
        phase_sentence(view.phase, (others, view.others.len()), arrival)
    }

    /// The fate of a flock of two when one of them is lost, if both are here and this node is one of them.
    fn if_lost(&self, view: &View) -> Vec<String> {
        let Some((other, standing)) = one_of_two(view, &self.me) else { return Vec::new() };
        let partition = &self.engine.in_force().partition;
        let pair = Pair {
            other: &self.screen.names().label(&other.to_string()),
            standing,
            policy: &partition.minority.to_string(),
            grace_s: f64::from(partition.grace_ms) / 1e3,
        };
        pair.parts()
    }
}

/// Whether a node without a quorum would have one, had it not been started again: nobody is missing, or half of the
/// voters are in reach, and this node is the distinguished one.
fn started_again(quorum: &QuorumView, me: &NodeId, missing: &str) -> bool {
    missing.is_empty() || 2 * quorum.here == quorum.voters && quorum.distinguished == Some(*me)
}

/// The other one of two that are both here, and the part of this node `me`.
fn one_of_two(view: &View, me: &NodeId) -> Option<(NodeId, Standing)> {
    let QuorumView { voters, here, distinguished, .. } = &view.quorum;
    let votes = |member: &MemberView| member.role == Some(Role::Voter);
    let mine = view.members.iter().find(|member| member.id == *me)?;
    let standing = Standing::of((*voters, view.members.len()), votes(mine), *distinguished == Some(*me))?;
    // The other one of two voters is meant, however many learn.
    let is_it = |member: &&MemberView| member.id != *me && member.connected && (*voters == 1 || votes(member));
    let other = view.members.iter().find(is_it).filter(|_| here == voters)?;
    Some((other.id, standing))
}

/// A round that is held back until newcomers can take part.
fn hold_sentence(hold: &Hold, on: &str) -> String {
    let most = hold.patience.div_ceil(1_000_000);
    let last = format!("this round goes on without waiting further in {most} s at the latest");
    if hold.bytes == 0 {
        return format!("holding this round back for {on}: joining, with the first steps under way; {last}");
    }
    let left = hold.left.map(|micros| format!(", {}", about(micros as f64 / 1e6))).unwrap_or_default();
    format!("holding this round back for {on}: joining, with {} of the model to fetch{left}; {last}", bytes(hold.bytes))
}

/// The work of a node in a phase in which it waits for nobody: `others` are the members that average with it, and the
/// peers without a flock.
fn phase_sentence(phase: Phase, (others, peers): (usize, usize), arrival: Option<String>) -> String {
    match phase {
        Phase::Seeking => format!("looking for the flock: {}", seeking_text(peers)),
        Phase::CatchingUp => match arrival {
            Some(far) => format!("fetching the model from the flock ({far}); this node takes part once it is here"),
            None => "asking the flock for the model; this node takes part once it is here".into(),
        },
        Phase::Joining => "has the model: takes part once the flock has ended the round under way".into(),
        Phase::Training => "training".into(),
        Phase::Ready => "its steps of this round are done".into(),
        Phase::Reducing if others == 0 => "taking its own update into the model".into(),
        Phase::Reducing => format!("averaging this round's updates with {}", nodes(others)),
        Phase::Settling => "writing the result of this round, and having it confirmed by the voters".into(),
        Phase::Finished => "the run's budget is spent".into(),
        Phase::QuorumLost => "too few voters are in reach to go on".into(),
        Phase::Frozen => "stopped until a person decides: two certified records contradict each other".into(),
    }
}

fn nodes(count: usize) -> String {
    if count == 1 { "1 other node".into() } else { format!("{count} other nodes") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_of_a_wait_for_a_newcomer_say_what_goes_on() {
        let hold = Hold { on: Vec::new(), bytes: 12 << 20, left: Some(42_000_000), patience: 95_500_000 };
        assert_eq!(
            hold_sentence(&hold, "1a2b3c4d (attic)"),
            "holding this round back for 1a2b3c4d (attic): joining, with 12.0 MiB of the model to fetch, about 40 s; \
             this round goes on without waiting further in 96 s at the latest"
        );
        let trains = hold_sentence(&Hold { bytes: 0, ..hold }, "1a2b3c4d");
        assert!(trains.contains("1a2b3c4d: joining, with the first steps under way"), "{trains}");
        assert_eq!(
            phase_sentence(Phase::CatchingUp, (0, 2), Some("12.0 MiB of 24.0 MiB, about 40 s left".into())),
            "fetching the model from the flock (12.0 MiB of 24.0 MiB, about 40 s left); this node takes part once it is here"
        );
        assert!(phase_sentence(Phase::Joining, (0, 2), None).starts_with("has the model: takes part once"));
    }

    #[test]
    fn a_node_that_was_started_again_is_known() {
        let (me, other) = (NodeId([1; 32]), NodeId([2; 32]));
        let quorum = |here, distinguished| QuorumView { voters: 2, here, distinguished, ..QuorumView::default() };
        assert!(started_again(&quorum(1, Some(me)), &me, "1a2b3c4d"));
        assert!(!started_again(&quorum(1, Some(other)), &me, "1a2b3c4d"), "it is cut off from the senior one");
        assert!(started_again(&quorum(1, Some(other)), &me, ""), "nobody is missing");
    }

    #[test]
    fn an_averaging_names_the_number_of_others() {
        let said = |others| phase_sentence(Phase::Reducing, (others, 0), None);
        assert_eq!(said(0), "taking its own update into the model");
        assert_eq!(said(1), "averaging this round's updates with 1 other node");
        assert!(said(3).ends_with("with 3 other nodes"));
    }
}
