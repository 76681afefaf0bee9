//! Cut off from the quorum: what the run's policy makes of it (`docs/protocol/7-merging.md` §7.1, §7.2).

use super::Engine;
use super::clock::Moment;
use super::io::{Notice, Output};
use super::round::{Committing, Training};
use super::succession;
use crate::limits::VOTERS_MAX;
use crate::message::{Certificate, Fork, Message, member_bits, member_indices};
use crate::plant::{Plant, planted};
use crate::record::Record;
use crate::run::Minority;
use crate::{Digest, NodeId, ring};

/// Whether a quorum is in reach, and since when not.
#[derive(Debug, Default)]
pub(super) struct Cut {
    /// No quorum is in reach since then.
    since: Option<Moment>,
    /// One is in reach again since then.
    back: Option<Moment>,
    /// How long there was none before that, in microseconds, in the time of the same head.
    carried: u64,
    head: Digest,
    /// The user has been told.
    told: bool,
    /// The policy is in force.
    due: bool,
    policy: Option<Minority>,
}

impl Cut {
    /// Whether the policy forbids to train.
    pub fn holds_training(&self) -> bool {
        self.since.is_some() && self.policy == Some(Minority::Halt)
    }

    /// Since when no quorum is in reach.
    pub fn since(&self) -> Option<Moment> {
        self.since
    }

    /// When there has been no quorum for `grace`, if there is none until then.
    pub fn due_at(&self, grace: u64) -> Option<Moment> {
        self.since.map(|since| since.plus(grace.saturating_sub(self.carried)))
    }

    /// A quorum is in reach. What was lost is forgotten no faster than it was lost: a quorum that comes and goes, with
    /// members that are killed and start again, decides nothing either.
    fn restore(&mut self, now: Moment) {
        if let Some(since) = self.since.take() {
            (self.carried, self.back) = (self.carried.saturating_add(now.since(since)), Some(now));
        }
        (self.told, self.due) = (false, false);
    }

    /// No quorum is in reach: for how long there has been none.
    fn lose(&mut self, now: Moment) -> u64 {
        if let Some(back) = self.back.take() {
            self.carried = self.carried.saturating_sub(now.since(back));
        }
        let since = *self.since.get_or_insert(now);
        self.carried.saturating_add(now.since(since))
    }
}

impl Engine {
    /// Looks whether voters that can be heard are a quorum, and applies the policy when they are not for too long.
    pub(super) fn watch_quorum(&mut self) {
        let Some(round) = self.round.as_ref().filter(|_| self.catch_up.is_idle()) else {
            self.cut = Cut::default();
            return;
        };
        if round.committing.is_some() {
            return;
        }
        let settling = round.resumed && self.now.since(round.began) < self.timing.settle;
        if self.cut.head != round.parent {
            // A record was decided meanwhile.
            (self.cut.head, self.cut.carried, self.cut.back) = (round.parent, 0, None);
        }
        if self.quorum_in_reach() {
            let told = self.cut.told;
            self.cut.restore(self.now);
            if told {
                self.notice(Notice::Rejoined);
            }
            return;
        }
        if settling {
            return;
        }
        let policy = self.spec.partition.minority;
        let lost = self.cut.lose(self.now);
        self.cut.policy = Some(policy);
        // Connections that come back at once are not worth a word.
        let gone = self.cut.since.is_some_and(|since| self.now.since(since) >= self.timing.down_grace);
        if gone && !self.cut.told {
            self.cut.told = true;
            let (missing, grace) = (self.missing_voters(), self.fork_grace());
            self.notice(Notice::CutOff { policy, missing, grace });
            if policy == Minority::Halt {
                self.stop_training();
            }
        }
        if (policy == Minority::Fork || planted!(Plant::ForkAnyway))
            && (lost >= self.fork_grace() || gone && planted!(Plant::ForkEarly) || gone && self.others_fork())
        {
            self.cut.due = true;
            self.propose_fork();
        }
    }

    pub(super) fn fork_grace(&self) -> u64 {
        u64::from(self.spec.partition.grace_ms) * 1_000
    }

    /// Whether most of those with whom this node would fork, and more than one, have waited for the whole grace: who has
    /// just started, and is cut off as they are, does not make them wait for another one. A single word is no reason to go.
    fn others_fork(&self) -> bool {
        let members = self.fork_members();
        let said = |id: &&NodeId| {
            let fork = self.peers.get(id).and_then(|peer| peer.fork.as_ref());
            fork.zip(self.round.as_ref()).is_some_and(|((fork, _), round)| fork.parent == round.parent)
        };
        let others = members.iter().filter(|id| **id != self.me);
        let said = others.clone().filter(said).count();
        said > 1 && 2 * said > others.count() || said > 0 && planted!(Plant::ForkOnAWord)
    }

    /// Voters that cannot be heard.
    pub(super) fn missing_voters(&self) -> Vec<NodeId> {
        let voters = self.head.iter().flat_map(|head| head.quorum.voters()).map(|(id, _)| *id);
        voters.filter(|id| !self.voter_in_reach(id)).collect()
    }

    /// The members that this node would fork with: all that it can hear and that stand on the same record.
    fn fork_members(&self) -> Vec<NodeId> {
        let Some((round, head)) = self.round.as_ref().zip(self.head.as_ref()) else { return Vec::new() };
        let here = |id: &&NodeId| {
            **id == self.me
                || self.peers.get(id).is_some_and(|peer| {
                    let stands = peer.head.as_ref().is_some_and(|theirs| theirs.record == head.digest);
                    peer.present() && stands && self.now.since(peer.heard_at) < self.silence(peer)
                })
        };
        let here: Vec<NodeId> = round.members.iter().filter(here).copied().collect();
        // A fork's proof has room for so many statements: voters first, then whoever comes first in the shared order.
        // The others find a lineage that is longer than theirs, and join it.
        let votes = |id: &NodeId| head.quorum.incarnation(id).is_some();
        let (voters, others): (Vec<NodeId>, Vec<NodeId>) = ring::order(&head.digest, here).into_iter().partition(votes);
        let mut members: Vec<NodeId> = voters.into_iter().chain(others).take(VOTERS_MAX).collect();
        members.sort_unstable();
        members
    }

    /// The record of the fork of these members, each under the incarnation that it speaks from: this node's own, and
    /// those of the others' Hellos.
    fn fork_record(&self, members: &[NodeId]) -> Option<Record> {
        let head = self.head.as_ref()?;
        let speaks = |id: &NodeId| {
            let heard = || self.peers.get(id).map(|peer| peer.incarnation);
            Some((*id, if *id == self.me { self.voice.incarnation } else { heard()? }))
        };
        let going = members.iter().map(speaks).collect::<Option<Vec<(NodeId, u64)>>>()?;
        succession::fork(&head.record, head.digest, &self.spec, &going)
    }

    fn fork_statement(&self, members: &[NodeId], record: &Record) -> Option<Fork> {
        let head = self.head.as_ref()?;
        let indices = members.iter().filter_map(|id| head.record.member_index(id));
        Some(Fork {
            lineage: head.record.lineage,
            seq: record.seq,
            parent: head.digest,
            incarnation: self.voice.incarnation,
            record: record.digest(),
            members: member_bits(indices),
        })
    }

    /// Says with whom this node would go on, and goes when all of them say the same.
    fn propose_fork(&mut self) {
        let members = self.fork_members();
        let Some(record) = self.fork_record(&members).filter(|_| members.contains(&self.me)) else { return };
        let Some(fork) = self.fork_statement(&members, &record) else { return };
        let Some(bytes) = self.seal(&Message::Fork(fork.clone())) else { return };
        if self.cut_fork() != Some(&fork) {
            let targets: Vec<NodeId> = members.iter().filter(|id| **id != self.me).copied().collect();
            self.send_bytes(&targets, &bytes, None);
            if let Some(round) = &mut self.round {
                round.fork = Some(fork.clone());
            }
        }
        let said = |id: &NodeId| {
            if *id == self.me {
                return Some(bytes.clone());
            }
            let peer = self.peers.get(id)?;
            let (theirs, signed) = peer.fork.as_ref()?;
            // Of another record it is kept: whoever said it may know more, or will say this one, too.
            let same = *theirs == Fork { incarnation: peer.incarnation, ..fork.clone() };
            same.then(|| signed.clone())
        };
        if let Some(votes) = members.iter().map(said).collect::<Option<Vec<Vec<u8>>>>() {
            self.fork(record, votes);
        }
    }

    fn cut_fork(&self) -> Option<&Fork> {
        self.round.as_ref()?.fork.as_ref()
    }

    /// Goes on in a new lineage, whose members' statements are the proof.
    fn fork(&mut self, record: Record, votes: Vec<Vec<u8>>) {
        let certificate = Certificate { lineage: record.lineage, seq: record.seq, record: record.digest(), votes };
        self.stop_training();
        self.leave_attempt("this part of the flock goes on by itself", None);
        self.discard();
        let (token, since) = (self.next_token(), self.now);
        let (decided, proof) = (record.clone(), certificate.clone());
        self.out.push(Output::Commit { token, key: None, record: decided, certificate: proof, mine: true });
        if let Some(round) = &mut self.round {
            round.training = Training::Done;
            round.committing = Some(Committing { token, record, certificate, since });
        }
    }

    /// The operator's order: goes on alone from what the disk holds.
    pub(super) fn fork_alone(&mut self) {
        let me = [self.me];
        let Some(record) = self.fork_record(&me) else { return };
        let Some(fork) = self.fork_statement(&me, &record) else { return };
        if let Some(bytes) = self.seal(&Message::Fork(fork)) {
            self.fork(record, vec![bytes]);
        }
    }

    pub(super) fn hear_fork(&mut self, from: NodeId, fork: Fork, bytes: &[u8]) {
        let here = self.round.as_ref().is_some_and(|round| {
            let known = member_indices(&fork.members).all(|index| index < round.members.len());
            fork.parent == round.parent && fork.seq == round.seq && known
        });
        if !here || !self.is_member(&from) {
            return self.stale(from);
        }
        if let Some(peer) = self.peers.get_mut(&from) {
            peer.fork = Some((fork, bytes.to_vec()));
        }
    }

    /// Says the standing proposal again.
    pub(super) fn repeat_fork(&mut self, targets: &[NodeId]) {
        if let Some(fork) = self.cut_fork().filter(|_| self.cut.due).cloned() {
            self.send_to(targets, &Message::Fork(fork));
        }
    }
}
