//! What a READY says about others: who asks to be let in, who is dead, who is revoked, how far away they are.

use super::Engine;
use super::clock::Moment;
use super::liveness::fault;
use crate::admission::{Revocation, SubjectKind};
use crate::limits::{GRANTS_MAX, RTTS_MAX, STATEMENTS_MAX};
use crate::message::{PeerRtt, Statement, StatementKind};
use crate::plant::{Plant, planted};
use crate::record::Record;
use crate::{Digest, NodeId, admission};

impl Engine {
    /// What this node says about others in its READY: who asks to be let in, and who is dead. Members that see the
    /// same speak of different ones, so that many fit.
    pub(super) fn statements(&self) -> Vec<Statement> {
        let Some((round, head)) = self.round.as_ref().zip(self.head.as_ref()) else { return Vec::new() };
        // A list that is full takes none: saying them for ever would be in the way of all else.
        let room = head.record.revoked.len() < GRANTS_MAX;
        let mut urgent = if room { self.revoked(&head.record) } else { Vec::new() };
        let (mut known, mut strangers): (Vec<Statement>, Vec<Statement>) =
            self.joins(&head.record).into_iter().partition(|join| head.record.member(&join.id).is_some());
        let dead = |id: &&NodeId| self.fault(id, round).is_some_and(|why| [fault::DOWN, fault::LEFT].contains(&why));
        known.extend(round.members.iter().filter(dead).map(|id| {
            let (kind, grant) = (StatementKind::Suspect, Digest::default());
            Statement { kind, id: *id, incarnation: 0, grant }
        }));
        // Turns with the round, so that what only one member knows is said in the end.
        let place = head.record.member_index(&self.me).unwrap_or(0) as u64;
        let place = if planted!(Plant::SayTheSame) { round.number.wrapping_neg() } else { place };
        let turn = (place.wrapping_add(round.number) % (1 << 16)) as usize;
        if planted!(Plant::JoinsFirst) {
            urgent = [urgent, std::mem::take(&mut strangers), std::mem::take(&mut known)].concat();
        }
        let mut said: Vec<Statement> = self.own_renewal(&head.record).into_iter().collect();
        take_turns(&mut said, &urgent, STATEMENTS_MAX, turn);
        // Members' matters may last, so that they leave a place to those who ask to be let in.
        let most = if strangers.is_empty() { STATEMENTS_MAX } else { 1 };
        take_turns(&mut said, &known, most, turn);
        take_turns(&mut said, &strangers, STATEMENTS_MAX, turn);
        said.sort_unstable();
        said.dedup();
        said
    }

    /// A process that does not speak under the name of its seat says so with what it contributes: else that would make a
    /// voter of a seat on which nobody can vote.
    fn own_renewal(&self, record: &Record) -> Option<Statement> {
        let incarnation = self.voice.incarnation;
        let renewed = record.member(&self.me).is_some_and(|seat| seat.incarnation < incarnation);
        let (kind, grant) = (StatementKind::Joins, Digest::default());
        (renewed && !planted!(Plant::MuteContributor)).then_some(Statement { kind, id: self.me, incarnation, grant })
    }

    /// Takes a revocation, if the run's creator has signed it.
    pub(super) fn revoke(&mut self, revocation: Revocation) {
        let signed = |creator| revocation.verify(self.verifier.as_ref(), &self.run, creator);
        let known = self.revocations.iter().any(|known| known.subject == revocation.subject);
        let names = revocation.subject != Digest::default();
        if self.spec.creator.as_ref().is_some_and(signed) && names && !known && self.revocations.len() < GRANTS_MAX {
            self.revocations.push(revocation);
        }
    }

    /// What the run's creator has revoked, as far as this node was told, and members that have contradicted themselves,
    /// as far as no record says so yet.
    fn revoked(&self, record: &Record) -> Vec<Statement> {
        let news =
            self.revocations.iter().filter(|revocation| record.revoked.binary_search(&revocation.subject).is_err());
        let statement = |revocation: &Revocation| {
            let (id, grant) = match revocation.kind {
                SubjectKind::Identity => (NodeId(revocation.subject.0), Digest::default()),
                SubjectKind::Ticket => (NodeId([0; 32]), revocation.subject),
            };
            Statement { kind: StatementKind::Revoked, id, incarnation: 0, grant }
        };
        let by_evidence = self.convicted_members(record).into_iter().map(|id| {
            let (kind, grant) = (StatementKind::Revoked, Digest::default());
            Statement { kind, id, incarnation: 0, grant }
        });
        // One may be both: it is said once.
        let mut all: Vec<Statement> = news.map(statement).chain(by_evidence).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Nodes that ask to be let in, stand on a recent record of this chain and are admitted, by ascending id.
    fn joins(&self, record: &Record) -> Vec<Statement> {
        let fresh = |at: Moment| self.now.since(at) <= self.timing.join_valid;
        let asks = self.peers.iter().filter_map(|(id, peer)| {
            let (join, at) =
                peer.join.as_ref().filter(|_| peer.present() && !self.is_convicted(id) && !self.shuns(id))?;
            (fresh(*at) && join.lineage == record.lineage).then_some((id, join))
        });
        let statement = |(id, join): (&NodeId, &crate::message::Join)| {
            let verifier = self.verifier.as_ref();
            let grant = match record.member(id) {
                Some(_) => Digest::default(),
                None => admission::admit(&self.spec, verifier, &self.run, record, id, &join.ticket).ok()?,
            };
            let (kind, incarnation) = (StatementKind::Joins, join.incarnation);
            Some(Statement { kind, id: *id, incarnation, grant })
        };
        asks.filter_map(statement).collect()
    }

    pub(super) fn rtts(&self) -> Vec<PeerRtt> {
        let Some(round) = &self.round else { return Vec::new() };
        let rtt = |(place, id): (usize, &NodeId)| {
            let micros = self.peers.get(id).map(|peer| peer.rtt).filter(|rtt| *rtt > 0)?;
            Some(PeerRtt { peer: u16::try_from(place).ok()?, rtt: (micros / 100).min(u32::from(u16::MAX)) as u16 })
        };
        round.members.iter().enumerate().filter_map(rtt).take(RTTS_MAX).collect()
    }
}

/// Adds so many of these at most as there is still room for. The next time it is the turn of the next ones.
fn take_turns(said: &mut Vec<Statement>, all: &[Statement], most: usize, turn: usize) {
    let most = most.min(STATEMENTS_MAX - said.len()).min(all.len());
    said.extend(all.iter().cycle().skip(turn * most % all.len().max(1)).take(most).cloned());
}
