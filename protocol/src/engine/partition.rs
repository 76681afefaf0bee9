//! Quorum loss, and the run's policy for it (`docs/protocol/7-merging.md` §7.1, §7.2).

use super::ctx::Ctx;
use super::io::Notice;
use super::offer::Offer;
use super::outbox::Out;
use super::peer::Peer;
use super::round::{Round, Training};
use super::succession;
use crate::limits::VOTERS_MAX;
use crate::message::{Certificate, Fork, Message, member_bits, member_indices};
use crate::mutation::{Mutation, mutated};
use crate::record::Record;
use crate::run::Minority;
use crate::{Digest, NodeId, ring};

/// A fork's first record, and the statements of its members.
type Certified = (Record, Vec<Vec<u8>>);

impl Round {
    /// Looks whether voters that can be heard are a quorum, and applies the policy when they have been none for too
    /// long. Returns the record of the fork in which this node is to go on, with the statements that prove it.
    pub fn watch_quorum(&mut self, ctx: &Ctx, out: &mut Out) -> Option<Certified> {
        if self.committing.is_some() {
            return None;
        }
        if ctx.quorum_in_reach() {
            if self.quorum_loss.restore(ctx.now) {
                out.notice(Notice::Rejoined);
            }
            return None;
        }
        if ctx.is_settling(self) {
            return None;
        }
        let (policy, grace) = (ctx.rules.partition.minority, ctx.fork_grace());
        if self.quorum_loss.since().is_none() {
            ctx.mark();
        }
        let since = self.quorum_loss.lose(ctx.now);
        self.quorum_loss.policy = Some(policy);
        // The user is not told of connections that come back at once.
        let gone = ctx.is_quorum_lost(since);
        if gone && !std::mem::replace(&mut self.quorum_loss.told, true) {
            out.notice(Notice::QuorumLost { policy, missing: ctx.missing_voters(), grace });
            if policy == Minority::Halt {
                self.stop_training(out);
            }
        }
        let forks = policy == Minority::Fork || mutated!(Mutation::ForkAnyway);
        let over = || self.quorum_loss.due_at(grace).is_some_and(|ends| ctx.is_grace_over(ends));
        let due = || over() || gone && mutated!(Mutation::ForkEarly) || gone && self.others_fork(ctx);
        if !(forks && due()) {
            return None;
        }
        self.quorum_loss.due = true;
        self.propose_fork(ctx, out)
    }

    /// Whether most of the members with which this node would fork, and more than one, have waited for the whole grace.
    /// A node that has just started, and has lost the quorum as they have, does not make them wait for another one. A
    /// single statement is no reason to go.
    fn others_fork(&self, ctx: &Ctx) -> bool {
        let members = ctx.fork_members(self.quorum_loss.fork.as_ref());
        let said = |id: &&NodeId| {
            let fork = ctx.peers.get(id).and_then(|peer| peer.said.fork.as_ref());
            fork.is_some_and(|(fork, _)| fork.parent == self.head.digest)
        };
        let others = members.iter().filter(|id| **id != ctx.me);
        let said = others.clone().filter(said).count();
        said > 1 && 2 * said > others.count() || said > 0 && mutated!(Mutation::ForkOnAWord)
    }

    /// Says with which members this node would go on. Returns the fork when all of them say the same.
    fn propose_fork(&mut self, ctx: &Ctx, out: &mut Out) -> Option<Certified> {
        let members = ctx.fork_members(self.quorum_loss.fork.as_ref());
        let record = ctx.fork_record(&members).filter(|_| members.contains(&ctx.me))?;
        let fork = ctx.fork_statement(&members, &record)?;
        let bytes = ctx.seal(&Message::Fork(fork.clone()))?;
        if self.quorum_loss.fork.as_ref() != Some(&fork) {
            let targets: Vec<NodeId> = members.iter().filter(|id| **id != ctx.me).copied().collect();
            out.send_bytes(&targets, &bytes, None);
            self.quorum_loss.fork = Some(fork.clone());
            // Members that stand on the Fork that this one replaces do not count any more.
            ctx.watch.begin();
        }
        let said = |id: &NodeId| {
            if *id == ctx.me {
                return Some(bytes.clone());
            }
            let peer = ctx.peers.get(id)?;
            let (theirs, signed) = peer.said.fork.as_ref()?;
            // A statement about another record is kept: its sender may know more, or will sign this record, too.
            let same = *theirs == Fork { incarnation: peer.vote_state.incarnation, ..fork.clone() };
            same.then(|| signed.clone())
        };
        Some((record, members.iter().map(said).collect::<Option<_>>()?))
    }

    /// Goes on in a new lineage. The statements of its members are the proof.
    pub fn fork(&mut self, (record, votes): Certified, offer: &mut Offer, ctx: &Ctx, out: &mut Out) {
        let certificate = Certificate { lineage: record.lineage, seq: record.seq, record: record.digest(), votes };
        self.stop_training(out);
        self.leave_attempt("this part of the flock goes on by itself", None, out);
        offer.discard(ctx, out);
        self.part.training = Training::Done;
        self.write(None, record, certificate, true, ctx, out);
    }

    /// Whether this is the record of the fork that this node has signed last.
    pub fn forks_to(&self, record: &Digest) -> bool {
        self.quorum_loss.fork.as_ref().is_some_and(|fork| fork.record == *record)
    }

    /// Whether a proposal to fork is about this round.
    pub fn heeds_fork(&self, fork: &Fork) -> bool {
        let known = member_indices(&fork.members).all(|index| index < self.task.members.len());
        fork.parent == self.head.digest && fork.seq == self.task.seq && known
    }

    /// Repeats the proposal to fork that is in force.
    pub fn repeat_fork(&self, targets: &[NodeId], ctx: &Ctx, out: &mut Out) {
        if let Some(fork) = self.quorum_loss.fork.as_ref().filter(|_| self.quorum_loss.due) {
            out.send_to(ctx, targets, &Message::Fork(fork.clone()));
        }
    }
}

impl Ctx {
    /// Goes on alone from what the disk holds, at the operator's order.
    pub fn fork_alone(&self) -> Option<Certified> {
        let me = [self.me];
        let record = self.fork_record(&me)?;
        let fork = self.fork_statement(&me, &record)?;
        Some((record, vec![self.seal(&Message::Fork(fork))?]))
    }

    pub fn fork_grace(&self) -> u64 {
        u64::from(self.rules.partition.grace_ms) * 1_000
    }

    /// Voters that cannot be heard.
    pub fn missing_voters(&self) -> Vec<NodeId> {
        let voters = self.head.iter().flat_map(|head| head.quorum.voters()).map(|(id, _)| *id);
        voters.filter(|id| !self.voter_in_reach(id)).collect()
    }

    /// The members that this node would fork with: all that it can hear and that have its head, and of the members of
    /// the fork that it has signed last those that have that one already. The latter have all statements, and this node
    /// lacks one for a moment.
    fn fork_members(&self, signed: Option<&Fork>) -> Vec<NodeId> {
        let Some(head) = &self.head else { return Vec::new() };
        let signed = signed.filter(|fork| fork.parent == head.digest);
        let goes = |id: &NodeId, record: &Digest| {
            signed.is_some_and(|fork| {
                let named = |index| member_indices(&fork.members).any(|member| member == index);
                fork.record == *record && head.record.member_index(id).is_some_and(named)
            })
        };
        let stands = |peer: &Peer, id: &NodeId| {
            peer.said.head.as_ref().is_some_and(|at| at.record == head.digest || goes(id, &at.record))
        };
        let heard = |id: &NodeId| {
            self.is_present(id) && self.peers.get(id).is_some_and(|peer| stands(peer, id) && self.spoke_lately(peer))
        };
        let mut here: Vec<NodeId> = head.record.members().filter(|id| *id == self.me || heard(id)).collect();
        let votes = |id: &NodeId| head.quorum.incarnation(id).is_some();
        // Those that fork have to hear one another. In a flock of several rows all voters do, and the members of a row.
        if !head.grid.is_one_row() {
            let voters = here.iter().any(votes);
            here.retain(|id| if voters { votes(id) } else { head.grid.share_a_row(id, &self.me) });
        }
        // A fork's proof has room for so many statements: voters come first, then the others in the shared order. The
        // members left out find a lineage that is longer than theirs, and join it.
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
            let heard = || self.peers.get(id).map(|peer| peer.vote_state.incarnation);
            Some((*id, if *id == self.me { self.identity.incarnation } else { heard()? }))
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
            incarnation: self.identity.incarnation,
            record: record.digest(),
            members: member_bits(indices),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Head, Phase, Pulse};
    use crate::wire::sample::node;

    /// A round in which this node has said Fork with all that it hears.
    fn that_forks(ctx: &Ctx) -> (Round, Fork) {
        let mut round = ctx.sample_round();
        assert!(round.propose_fork(ctx, &mut Out::default()).is_none(), "the others have said nothing yet");
        let fork = round.quorum_loss.fork.clone().expect("a Fork");
        assert_eq!(member_indices(&fork.members).count(), ctx.head.as_ref().expect("a head").record.members().len());
        (round, fork)
    }

    fn stand(ctx: &mut Ctx, fill: u8, record: Digest) {
        let head = ctx.head.as_ref().expect("a head");
        let said = Head {
            lineage: head.record.lineage,
            seq: head.record.seq,
            record,
            tokens: 0,
            phase: Phase::QuorumLost,
            progress: 0,
            awaits: None,
            pulse: Pulse::default(),
        };
        ctx.peers.entry(node(fill)).and_modify(|peer| peer.said.head = Some(said));
    }

    fn sample() -> Ctx {
        let mut ctx = Ctx::sample();
        let head = ctx.head.as_ref().expect("a head").digest;
        stand(&mut ctx, 16, head);
        stand(&mut ctx, 32, head);
        ctx
    }

    #[test]
    fn a_member_on_the_fork_that_was_said_last_counts_as_long_as_that_is_the_last() {
        let mut ctx = sample();
        let (mut round, first) = that_forks(&ctx);
        stand(&mut ctx, 16, first.record);
        ctx.watch.clear();
        round.propose_fork(&ctx, &mut Out::default());
        assert_eq!(round.quorum_loss.fork.as_ref(), Some(&first), "it has what this node lacks for a moment");
        assert!(!ctx.watch.has_begun());

        // The other one goes. The Fork without it has another record, on which nobody stands.
        ctx.peers.entry(node(32)).and_modify(|peer| peer.link.connected = false);
        round.propose_fork(&ctx, &mut Out::default());
        let second = round.quorum_loss.fork.clone().expect("a Fork");
        assert_eq!(member_indices(&second.members).count(), 2);
        assert!(ctx.watch.has_begun(), "the state is gone through once more before the node sleeps");
        round.propose_fork(&ctx, &mut Out::default());
        let third = round.quorum_loss.fork.clone().expect("a Fork");
        assert_eq!(member_indices(&third.members).count(), 1);
        ctx.watch.clear();
        round.propose_fork(&ctx, &mut Out::default());
        assert!(round.quorum_loss.fork.as_ref() == Some(&third) && !ctx.watch.has_begun(), "nothing more follows");
    }

    #[test]
    fn a_member_that_stands_on_a_fork_without_it_does_not_count() {
        let mut ctx = sample();
        ctx.peers.entry(node(16)).and_modify(|peer| peer.link.connected = false);
        let mut round = ctx.sample_round();
        round.propose_fork(&ctx, &mut Out::default());
        let fork = round.quorum_loss.fork.clone().expect("a Fork");
        ctx.peers.entry(node(16)).and_modify(|peer| peer.link.connected = true);
        stand(&mut ctx, 16, fork.record);
        round.propose_fork(&ctx, &mut Out::default());
        assert_eq!(round.quorum_loss.fork, Some(fork));
    }
}
