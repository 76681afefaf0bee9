//! Statements of a READY about other nodes (joins, deaths, revocations) and the round-trip times to them.

use super::conduct::Conduct;
use super::ctx::Ctx;
use super::liveness::fault;
use super::round::Round;
use crate::admission::{Revocation, SubjectKind};
use crate::limits::{GRANTS_MAX, RTTS_MAX, STATEMENTS_MAX};
use crate::message::{PeerRtt, Statement, StatementKind};
use crate::mutation::{Mutation, mutated};
use crate::record::Record;
use crate::{Digest, NodeId, admission};

/// This node's statements for its READY: which nodes ask to be let in, which are dead, which are revoked. Members that
/// see the same nodes speak of different ones, so that many fit.
pub(super) fn statements(ctx: &Ctx, conduct: &Conduct, round: &Round) -> Vec<Statement> {
    let Some(head) = &ctx.head else { return Vec::new() };
    // A full list takes no revocations: stating them for ever would displace all other statements.
    let room = head.record.revoked.len() < GRANTS_MAX;
    let mut urgent = if room { revoked(ctx, conduct, &head.record) } else { Vec::new() };
    let (mut known, mut strangers): (Vec<Statement>, Vec<Statement>) =
        joins(ctx, conduct, &head.record).into_iter().partition(|join| head.record.member(&join.id).is_some());
    let dead = |id: &&NodeId| ctx.fault(id, round).is_some_and(|why| [fault::DOWN, fault::LEFT].contains(&why));
    known.extend(round.task.members.iter().filter(dead).map(|id| {
        let (kind, grant) = (StatementKind::Suspect, Digest::default());
        Statement { kind, id: *id, incarnation: 0, grant }
    }));
    // The turn moves with the round, so that a matter that only one member knows is said in the end.
    let place = head.record.member_index(&ctx.me).unwrap_or(0) as u64;
    let place = if mutated!(Mutation::SayTheSame) { round.task.number.wrapping_neg() } else { place };
    let turn = (place.wrapping_add(round.task.number) % (1 << 16)) as usize;
    if mutated!(Mutation::JoinsFirst) {
        urgent = [urgent, std::mem::take(&mut strangers), std::mem::take(&mut known)].concat();
    }
    let mut said: Vec<Statement> = own_renewal(ctx, &head.record).into_iter().collect();
    take_turns(&mut said, &urgent, STATEMENTS_MAX, turn);
    // Members' matters may last, so they leave half of the places to the nodes that ask to be let in.
    let most = if strangers.is_empty() { STATEMENTS_MAX } else { STATEMENTS_MAX / 2 };
    take_turns(&mut said, &known, most, turn);
    take_turns(&mut said, &strangers, STATEMENTS_MAX, turn);
    said.sort_unstable();
    said.dedup();
    said
}

/// A process that does not speak under its seat's incarnation says so with its contribution. Otherwise the record would
/// make a voter of a seat on which no process can vote.
fn own_renewal(ctx: &Ctx, record: &Record) -> Option<Statement> {
    let incarnation = ctx.identity.incarnation;
    let renewed = record.member(&ctx.me).is_some_and(|seat| seat.incarnation < incarnation);
    let (kind, grant) = (StatementKind::Joins, Digest::default());
    (renewed && !mutated!(Mutation::MuteContributor)).then_some(Statement { kind, id: ctx.me, incarnation, grant })
}

/// Nodes and tickets that the run's creator has revoked, as far as this node was told, and members that have
/// contradicted themselves. Those that the record already lists are left out.
fn revoked(ctx: &Ctx, conduct: &Conduct, record: &Record) -> Vec<Statement> {
    let statement = |revocation: &Revocation| {
        let (id, grant) = match revocation.kind {
            SubjectKind::Identity => (NodeId(revocation.subject.0), Digest::default()),
            SubjectKind::Ticket => (NodeId([0; 32]), revocation.subject),
        };
        Statement { kind: StatementKind::Revoked, id, incarnation: 0, grant }
    };
    let by_evidence = conduct.equivocating_members(ctx.me, record).map(|id| {
        let (kind, grant) = (StatementKind::Revoked, Digest::default());
        Statement { kind, id, incarnation: 0, grant }
    });
    // A node may be both, and is said once.
    let mut all: Vec<Statement> = conduct.revocations(record).map(statement).chain(by_evidence).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Nodes that ask to be let in, have a recent record of this chain as head and are admitted, by ascending id.
fn joins(ctx: &Ctx, conduct: &Conduct, record: &Record) -> Vec<Statement> {
    let asks = ctx.peers.iter().filter_map(|(id, peer)| {
        let (join, at) = peer
            .said
            .join
            .as_ref()
            .filter(|_| peer.present() && !conduct.is_equivocator(id) && !conduct.excludes(id))?;
        (ctx.is_join_valid(*at) && join.lineage == record.lineage).then_some((id, join))
    });
    let statement = |(id, join): (&NodeId, &crate::message::Join)| {
        let verifier = ctx.verifier.as_ref();
        let grant = match record.member(id) {
            Some(_) => Digest::default(),
            None => admission::admit(&ctx.spec, verifier, &ctx.run, record, id, &join.ticket).ok()?,
        };
        let (kind, incarnation) = (StatementKind::Joins, join.incarnation);
        Some(Statement { kind, id: *id, incarnation, grant })
    };
    asks.filter_map(statement).collect()
}

pub(super) fn rtts(ctx: &Ctx, round: &Round) -> Vec<PeerRtt> {
    let rtt = |(place, id): (usize, &NodeId)| {
        let micros = ctx.peers.get(id).map(|peer| peer.link.rtt).filter(|rtt| *rtt > 0)?;
        Some(PeerRtt { peer: u16::try_from(place).ok()?, rtt: (micros / 100).min(u32::from(u16::MAX)) as u16 })
    };
    round.task.members.iter().enumerate().filter_map(rtt).take(RTTS_MAX).collect()
}

/// Adds at most `most` of `all`, as far as there is room. With the next turn the next ones are added.
fn take_turns(said: &mut Vec<Statement>, all: &[Statement], most: usize, turn: usize) {
    let most = most.min(STATEMENTS_MAX - said.len()).min(all.len());
    said.extend(all.iter().cycle().skip(turn * most % all.len().max(1)).take(most).cloned());
}
