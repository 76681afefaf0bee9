//! Words of members that this node is not connected with (`docs/protocol/1-wire.md` §1.5.17, §1.5.18).
//!
//! In a flock of several rows a member says READY to its row and its column. Its column passes the READY on along rows,
//! and its row along columns. Every member therefore hears of it on two ways that have no node in common, and a READY
//! that is not the same everywhere meets itself. A word is passed on as its signer has made it, by those that have it
//! from the signer itself: no word goes round in circles. A member that still lacks READYs asks its neighbours in turn.

use super::clock::Moment;
use super::ctx::Ctx;
use super::io::Refusal;
use super::outbox::Out;
use super::round::Round;
use super::succession::SignedReady;
use crate::limits::WANTED_MAX;
use crate::message::{Message, Question, Want, member_bits, member_indices};
use crate::mutation::{Mutation, mutated};
use crate::{Digest, NodeId};
use std::collections::BTreeMap;

/// READYs of one member for one round that are passed on: its process may start again.
const PASSED_MAX: usize = 3;
/// Members of its row to which a learner passes a Start on.
const STARTS: usize = 2;

#[derive(Debug, Default)]
pub(super) struct Relay {
    /// What the READYs below are about: lineage, round, and the record that made the state.
    about: (Digest, u64, Digest),
    /// The digests of the READYs that were passed on, by signer.
    passed: BTreeMap<NodeId, Vec<Digest>>,
    /// The question of the last Start that was passed on.
    started: Option<Question>,
    /// When neighbours were last asked for READYs, and how often.
    asked_at: Moment,
    turns: usize,
}

impl Relay {
    /// Passes the READY of a neighbour on, if it was not passed on before.
    pub fn pass_ready(&mut self, signer: &NodeId, round: &Round, ctx: &Ctx, out: &mut Out) {
        if round.head.grid.is_one_row() || mutated!(Mutation::PassNothing) {
            return;
        }
        let about = (round.head.record.lineage, round.task.number, round.head.base);
        if self.about != about {
            (self.about, self.passed) = (about, BTreeMap::new());
        }
        let Some(ready) = ctx.ready_of(signer, round) else { return };
        let passed = self.passed.entry(*signer).or_default();
        if passed.len() < PASSED_MAX && !passed.contains(&ready.digest) {
            passed.push(ready.digest);
            out.send_bytes(&ctx.onward(signer), &ready.bytes, None);
        }
    }

    /// Passes on the READYs of neighbours that came before this node stood on the record that they are about.
    pub fn pass_early(&mut self, round: &Round, ctx: &Ctx, out: &mut Out) {
        if !round.head.grid.is_one_row() {
            let neighbours: Vec<NodeId> = round.head.grid.neighbours(&ctx.me).collect();
            neighbours.iter().for_each(|signer| self.pass_ready(signer, round, ctx, out));
        }
    }

    /// Passes a voter's Start on along the row, so that no single neighbour keeps it from a learner. A learner of the
    /// first row also passes it down its column: there may be no voter with a neighbour in another row.
    pub fn pass_start(&mut self, question: Question, bytes: &[u8], ctx: &Ctx, out: &mut Out) {
        // Starts of two attempts may meet: only the later one goes on, or both would go around the row for ever.
        let about = |question: &Question| (question.seq, question.parent);
        let again = (self.started.as_ref())
            .is_some_and(|last| about(last) == about(&question) && last.instance >= question.instance);
        if again && !mutated!(Mutation::PassStartsAgain) {
            return;
        }
        self.started = Some(question);
        if let Some(head) = &ctx.head {
            let row = head.grid.after(&ctx.me);
            let mut next: Vec<NodeId> = row.into_iter().filter(|id| ctx.is_connected(id)).take(STARTS).collect();
            if head.grid.cell_of(&ctx.me).is_some_and(|cell| cell.row() == 0) {
                let below = head.grid.neighbours(&ctx.me).filter(|id| !head.grid.share_a_row(id, &ctx.me));
                next.extend(below.filter(|id| ctx.is_connected(id)));
            }
            out.send_bytes(&next, bytes, None);
        }
    }

    /// Passes a Head or a Leave of a neighbour on, which has come from itself: a learner's of the own column to the voters,
    /// or of the own row to the head of the own column, and a voter's to the own row. It does so a few times a second.
    pub fn pass_head(signer: &NodeId, bytes: &[u8], ctx: &mut Ctx, out: &mut Out) {
        let to = ctx.onward_of_head(signer);
        let now = ctx.now;
        let free = ctx.peers.get(signer).is_some_and(|peer| ctx.may_pass_head_on(peer.said.passed_at));
        let Some(peer) = ctx.peers.get_mut(signer).filter(|_| !to.is_empty()) else { return };
        if !free || mutated!(Mutation::PassNoHeads) {
            return;
        }
        peer.said.passed_at = Some(now);
        out.send_bytes(&to, bytes, None);
    }

    /// Asks a neighbour for READYs that this node should have by now: those of a decided set, or those of the expected
    /// members once a quorum is READY.
    pub fn ask(&mut self, round: &Round, ctx: &Ctx, out: &mut Out) {
        if round.head.grid.is_one_row() || mutated!(Mutation::WantNothing) {
            return;
        }
        let wanted = round.wanted(ctx);
        if wanted.is_empty() || !ctx.may_ask_for_readys(self.asked_at) {
            return;
        }
        let mut neighbours: Vec<NodeId> = round.head.grid.neighbours(&ctx.me).collect();
        neighbours.retain(|id| ctx.is_connected(id));
        let Some(neighbour) = neighbours.get(self.turns % neighbours.len().max(1)).copied() else { return };
        let from = self.turns.wrapping_mul(WANTED_MAX) % wanted.len();
        let some = wanted.iter().cycle().skip(from).take(WANTED_MAX.min(wanted.len()));
        let members = member_bits(some.copied());
        let (lineage, number, base) = (round.head.record.lineage, round.task.number, round.head.base);
        out.send_to(ctx, &[neighbour], &Message::Want(Want { lineage, round: number, base, members }));
        (self.asked_at, self.turns) = (ctx.now, self.turns.wrapping_add(1));
    }
}

impl Round {
    /// The places of the members whose READYs this node lacks and should have.
    fn wanted(&self, ctx: &Ctx) -> Vec<usize> {
        let lacks = |index: &usize| {
            self.task.members.get(*index).is_some_and(|id| *id != ctx.me && ctx.ready_of(id, self).is_none())
        };
        if self.record_vote.entered() || self.attempts.running.is_some() || self.results.proof.is_some() {
            return Vec::new();
        }
        if let Some(told) = &self.attempts.told {
            return member_indices(&told.members).filter(lacks).collect();
        }
        // A node may lack the voters' READYs themselves: they were passed on before it had its seat, or to nobody. From
        // its own on it asks whether there are any.
        let own = self.part.ready.as_ref().map(|own| own.said_at);
        let since = self.attempts.quorum_ready_at.or(own);
        let heard = since.is_some_and(|at| ctx.should_have_heard_readys(at));
        if !heard {
            return Vec::new();
        }
        let place = |id: &NodeId| self.task.members.binary_search(id).ok();
        self.task.expected.iter().filter_map(place).filter(lacks).collect()
    }

    /// Answers a neighbour with the READYs that it lacks.
    ///
    /// # Errors
    /// It is about another round, or comes too soon after the last one.
    pub fn hear_want(&self, from: NodeId, want: &Want, ctx: &mut Ctx, out: &mut Out) -> Result<(), Refusal> {
        let about = (&self.head.record.lineage, self.task.number, &self.head.base);
        let paced = ctx.peers.get(&from).is_some_and(|peer| ctx.may_answer_want(peer.said.answered_at));
        if (&want.lineage, want.round, &want.base) != about || !ctx.is_neighbour(&from) || !paced {
            return Err(Refusal::Stale);
        }
        let members = member_indices(&want.members).filter_map(|index| self.task.members.get(index));
        let found: Vec<&SignedReady> = members.filter_map(|id| ctx.ready_of(id, self)).take(WANTED_MAX).collect();
        found.iter().for_each(|ready| out.send_bytes(&[from], &ready.bytes, None));
        let now = ctx.now;
        ctx.peers.entry(from).and_modify(|peer| peer.said.answered_at = Some(now));
        Ok(())
    }

    /// Says to a member what it may have missed: this node's READY to a neighbour, and those that this node passes on to
    /// it.
    pub fn repeat_readys_to(&self, to: NodeId, ctx: &Ctx, out: &mut Out) {
        if !ctx.is_neighbour(&to) {
            return;
        }
        self.repeat_ready(&[to], out);
        let grid = &self.head.grid;
        if grid.is_one_row() || mutated!(Mutation::PassNothing) {
            return;
        }
        let crosses = |signer: &NodeId| grid.share_a_row(signer, &ctx.me) != grid.share_a_row(&to, &ctx.me);
        for signer in grid.neighbours(&ctx.me).filter(|signer| *signer != to && crosses(signer)) {
            if let Some(ready) = ctx.ready_of(&signer, self) {
                out.send_bytes(&[to], &ready.bytes, None);
            }
        }
    }
}

impl Ctx {
    /// Whether a member is connected with this one by the flock's grid. In a flock of one row all are.
    pub fn is_neighbour(&self, id: &NodeId) -> bool {
        self.head.as_ref().is_some_and(|head| head.grid.are_neighbours(&self.me, id))
    }

    /// Whether messages reach this node now.
    pub fn is_connected(&self, id: &NodeId) -> bool {
        self.peers.get(id).is_some_and(super::peer::Peer::present)
    }

    /// Neighbours that can be reached.
    pub fn reachable_neighbours(&self) -> Vec<NodeId> {
        let mut reachable = self.reachable();
        reachable.retain(|id| self.is_neighbour(id));
        reachable
    }

    /// The neighbours to which this node passes on what a neighbour has said to it.
    fn onward(&self, signer: &NodeId) -> Vec<NodeId> {
        let mut onward = self.reachable_neighbours();
        let Some(grid) = self.head.as_ref().map(|head| &head.grid) else { return Vec::new() };
        let along = grid.share_a_row(signer, &self.me);
        onward.retain(|id| id != signer && grid.share_a_row(id, &self.me) != along);
        onward
    }

    /// The same for its Head or Leave.
    fn onward_of_head(&self, signer: &NodeId) -> Vec<NodeId> {
        let Some(grid) = self.head.as_ref().map(|head| &head.grid).filter(|grid| !grid.is_one_row()) else {
            return Vec::new();
        };
        let Some(own) = grid.cell_of(&self.me).filter(|_| grid.are_neighbours(signer, &self.me)) else {
            return Vec::new();
        };
        let (along, votes) = (grid.share_a_row(signer, &self.me), self.is_voter(signer));
        let mut to = match (own.row() == 0, along, votes) {
            (true, false, _) => self.reachable_voters(),
            (false, false, true) => grid.after(&self.me),
            (false, true, _) => grid.head_of(&self.me).into_iter().collect(),
            _ => Vec::new(),
        };
        to.retain(|id| self.is_connected(id));
        to
    }

    /// Whether a peer may pass words of others on to this node: both are members, and neighbours by this record or by
    /// the one before. Records differ for a moment at each commit.
    pub fn may_pass_on(&self, peer: &NodeId) -> bool {
        let records = self.history.iter().rev().take(2);
        let grids = records.map(|past| &past.grid).filter(|grid| !grid.is_one_row());
        grids.into_iter().any(|grid| grid.are_neighbours(&self.me, peer))
    }

    /// Whether this very READY of a member was heard.
    pub fn has_ready(&self, signer: &NodeId, bytes: &[u8]) -> bool {
        self.peers.get(signer).is_some_and(|peer| peer.has_ready(bytes))
    }
}
