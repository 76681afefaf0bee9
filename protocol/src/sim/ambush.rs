//! Ambushes: the death of a node that has just said something in a vote, or has just decided, and links that stop at
//! that moment.

use super::MS;
use super::disk::Write;
use super::process::Ambush;
use super::schedule::Moment;
use super::world::{Event, Sprung, World};
use crate::message::Question;
use crate::record::RecordKind;
use std::rc::Rc;

impl World {
    /// The member for which alone a reduction among these is to end, if there is one. That member dies once it has
    /// named its result. Each of the others dies at its decision, or its links stop when it votes.
    pub(super) fn contested(&mut self, members: &[usize]) -> Option<usize> {
        if self.calm || members.len() < 3 {
            return None;
        }
        let (alone, contest) = members.iter().find_map(|node| Some((*node, self.nodes[*node].contest.take()?)))?;
        for node in members.iter().copied() {
            let moments = [Moment::HeldUp, Moment::Decision];
            let other = (self.random.pick(&moments).unwrap_or(Moment::Decision), contest.held);
            let (moment, back) = if node == alone { (Moment::Estimate, contest.back) } else { other };
            self.nodes[node].ambush = Some(Ambush { moment, forgets: false, back });
        }
        self.marks.hit("reduction for one alone");
        Some(alone)
    }

    /// Springs an ambush if the write that is about to be on the disk is its moment.
    pub(super) fn spring(&mut self, node: usize, write: &Write) {
        let Some(ambush) = self.nodes[node].ambush.filter(|_| !self.calm && self.now >= self.quiet_until) else {
            return;
        };
        let said = |vote_state: &crate::engine::VoteState, phase: u8| {
            vote_state.stamp.instance == Question::RECORD && vote_state.stamp.phase == phase
        };
        let due = match (ambush.moment, write) {
            (Moment::Estimate, Write::Vote { vote_state, .. }) => said(vote_state, 1),
            (Moment::Vote | Moment::HeldUp, Write::Vote { vote_state, .. }) => said(vote_state, 2),
            (Moment::Decision, Write::Commit { link, .. }) => {
                link.record.kind != RecordKind::Fork && !self.decided.contains_key(&link.digest)
            }
            _ => false,
        };
        if !due {
            return;
        }
        self.nodes[node].ambush = None;
        let connections = self.network.connections();
        let forgets = ambush.forgets && self.hear(node, connections);
        let disk = forgets.then(|| (self.now, connections, Rc::new(self.nodes[node].disk.clone())));
        let sprung = Sprung { back: ambush.back, disk };
        match ambush.moment {
            Moment::Decision => {
                self.marks.hit("death at a decision");
                self.schedule_own(0, node, Event::Struck { sprung });
            }
            // The node may decide by its vote while no other node hears of it.
            Moment::HeldUp => {
                self.marks.hit("vote held up");
                let until = self.now + ambush.back;
                (0..self.nodes.len()).for_each(|other| self.network.clog(node, other, until));
            }
            // Messages that waited for this write go out first.
            Moment::Estimate | Moment::Vote => self.schedule_own(MS, node, Event::Sprung { sprung }),
        }
    }

    /// The node has spoken. It dies when some nodes have heard it; if it is to forget what it said, when all have. An
    /// old disk that nobody can tell from a new one is beyond what is promised.
    pub(super) fn sprung(&mut self, node: usize, sprung: Sprung) {
        let after = match &sprung.disk {
            Some(_) => (self.network.drained(node) + MS).saturating_sub(self.now),
            // In half of the cases it dies before any node can have heard it.
            None if self.random.chance(50) => self.random.between(0, self.options.delay / 4),
            None => self.random.between(0, 2 * self.options.delay),
        };
        self.schedule_own(after, node, Event::Struck { sprung });
    }

    /// Whether all other nodes hear this one, on connections that were among the first so many.
    fn hear(&self, node: usize, connections: u64) -> bool {
        (0..self.nodes.len()).all(|other| other == node || self.network.stands_since(node, other, connections))
    }

    pub(super) fn struck(&mut self, node: usize, sprung: Sprung) {
        if self.calm {
            return;
        }
        let Some((since, connections, disk)) = sprung.disk else {
            self.marks.hit("death in a vote");
            return self.crash_and_return(node, false, sprung.back);
        };
        if self.hear(node, connections) && self.now >= self.quiet_until && self.remembered(node, since, &disk) {
            self.marks.hit("old disk in a vote");
            self.exchange_disk(node, (*disk).clone(), sprung.back);
        }
    }
}
