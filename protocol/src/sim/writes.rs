//! Writes on their way to a disk, and the messages that wait for them.

use super::MS;
use super::disk::Write;
use super::invariant::Observed;
use super::world::{Event, World};
use crate::engine::io::{Input, PersistToken};
use crate::mutation::{Mutation, mutated};

impl World {
    pub(super) fn write(&mut self, node: usize, token: PersistToken, write: Write) {
        self.process(node, |process| process.writes.push_back((token, write)));
        let slow = self.nodes[node].slow_disk_until > self.now && self.random.chance(50);
        let after = if slow { self.random.between(200, 4_000) * MS } else { self.random.between(1, 20) * MS };
        let after = if self.options.steady { 1 } else { after };
        if mutated!(Mutation::SyncLies) && self.random.chance(50) {
            self.release(node, token);
            return self.schedule_own(after * 20, node, Event::Written { token });
        }
        self.schedule_own(after, node, Event::Written { token });
    }

    /// Writes on their way reach the disk in order.
    pub(super) fn written(&mut self, node: usize, token: PersistToken) {
        let Some(process) = self.nodes[node].process.as_mut() else { return };
        let Some(place) = process.writes.iter().position(|(waiting, _)| *waiting == token) else { return };
        let done: Vec<(PersistToken, Write)> = process.writes.drain(..=place).collect();
        for (token, write) in done {
            self.store(node, write);
            self.release(node, token);
        }
    }

    pub(super) fn store(&mut self, node: usize, write: Write) {
        self.observe(&Observed::Stored { node, write: &write });
        self.spring(node, &write);
        match &write {
            Write::Commit { link, .. } if !self.decided.contains_key(&link.digest) => {
                self.decided.insert(link.digest, (link.record.kind, self.now));
                self.mark_decision(node, link);
            }
            Write::Vote { vote_state, .. } => {
                // From now on the vote state is of this disk.
                self.nodes[node].copied = false;
                if vote_state.stamp.ballot > 0 {
                    self.marks.hit("two ballots");
                }
                if vote_state.vote.as_ref().is_some_and(|(.., voted)| !voted) {
                    self.marks.hit("vote against");
                }
            }
            _ => {}
        }
        self.nodes[node].disk.apply(write);
    }

    /// Sends the messages that waited for a write.
    fn release(&mut self, node: usize, token: PersistToken) {
        let mut released = Vec::new();
        self.process(node, |process| {
            released = process.waiting.extract_if(.., |(after, _, _)| *after == token).collect();
        });
        for (_, to, bytes) in released {
            self.post(node, to, bytes);
        }
        self.feed(node, Input::Durable { token });
    }
}
