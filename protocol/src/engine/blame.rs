//! The member to blame for a reduction in which nothing moves any more. The members say in their Heads how far they
//! are, and with owners also what they wait for. No member is believed alone for long.

use super::ctx::Ctx;
use super::round::{Attempt, Round};
use crate::NodeId;
use crate::message::{Awaited, Awaits, Head, Phase};
use crate::mutation::{Mutation, mutated};
use crate::run::EngineKind;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// The member to leave out of the next attempt, and another that may have been at fault instead.
#[derive(Clone, Copy)]
pub(super) struct Blame {
    pub culprit: NodeId,
    pub other: Option<NodeId>,
}

impl Round {
    /// The member to blame for a stalled attempt. No node blames itself: the others do.
    pub fn blame(&self, attempt: &Attempt, ctx: &Ctx) -> Option<Blame> {
        match ctx.spec.sync.engine_for(self.head.record.next.codec) {
            EngineKind::Ring if self.head.grid.is_one_row() => self.bad_hop(attempt, ctx),
            EngineKind::Ring | EngineKind::Owners => self.bad_link(attempt, ctx),
        }
    }

    /// Heads of the other members that are in the reduction.
    fn reducing<'a>(&self, attempt: &'a Attempt, ctx: &'a Ctx) -> impl Iterator<Item = (NodeId, &'a Head)> {
        let head = |id: &NodeId| Some((*id, ctx.peers.get(id)?.said.head.as_ref()?));
        attempt.members.iter().filter_map(head).filter(|(_, head)| head.phase == Phase::Reducing)
    }

    /// In a ring, blames an end of the link into the member at which least has arrived: the sender may withhold, or the
    /// receiver not take. Both are suspected. The one that was suspected more often before, with another neighbour, is
    /// blamed. Between a voter and a learner it is the learner, whose word that little has arrived may be a lie.
    fn bad_hop(&self, attempt: &Attempt, ctx: &Ctx) -> Option<Blame> {
        let mut arrived = BTreeMap::from([(ctx.me, attempt.progress)]);
        arrived.extend(self.reducing(attempt, ctx).map(|(id, head)| (id, head.progress)));
        let least = *arrived.values().min()?;
        let mut starved = arrived.iter().filter(|(_, arrived)| **arrived == least).map(|(id, _)| *id);
        // The case is clear only if there is a single one.
        let (receiver, None) = (starved.next()?, starved.next()) else { return None };
        let ring = self.head.record.ring_of(&self.head.digest, attempt.members.iter().copied());
        let at = ring.iter().position(|id| *id == receiver)?;
        let sender = ring[(at + ring.len() - 1) % ring.len()];
        if sender == receiver {
            return None;
        }
        let times = |id: &NodeId| self.distrust.suspected.get(id).copied().unwrap_or(0);
        let other = |id: NodeId| Some(id).filter(|id| *id != ctx.me);
        let receiver_is_worse = receiver != ctx.me && times(&receiver) > times(&sender);
        let learner = [(receiver, sender), (sender, receiver)].into_iter().find(|(by, of)| ctx.is_outvoted(by, of));
        if let Some((culprit, _)) = learner.filter(|(culprit, _)| *culprit != ctx.me) {
            return Some(Blame { culprit, other: None });
        }
        Some(if sender == ctx.me || receiver_is_worse {
            Blame { culprit: receiver, other: other(sender) }
        } else {
            Blame { culprit: sender, other: other(receiver) }
        })
    }

    /// With owners, blames an end of a link on which something is due that depends on nothing else. These are the links
    /// on which members wait for parts; if there are none, for sums of rows; then for sums; if there are none of these,
    /// the links on which no member reads. In a flock of several rows a sum is passed on: who waits for one itself is
    /// not the one that withholds it, if anybody else may be. The member at most of these links is to blame. A link
    /// with a learner does not count against a voter. Between two ends, the one that was suspected before is to blame,
    /// and otherwise the one that is waited for.
    fn bad_link(&self, attempt: &Attempt, ctx: &Ctx) -> Option<Blame> {
        let mine = attempt.awaits.map(|awaits| (ctx.me, awaits));
        let others = self.reducing(attempt, ctx).filter_map(|(id, head)| Some((id, head.awaits?)));
        let is_link = |(waiter, awaits): &(NodeId, Awaits)| {
            let waits = awaits.what != Awaited::Refused && *waiter != awaits.from;
            waits && attempt.members.binary_search(&awaits.from).is_ok()
        };
        let said: Vec<_> = mine.into_iter().chain(others).filter(is_link).collect();
        let first = said.iter().map(|(_, awaits)| awaits.what).min()?;
        let links =
            said.iter().filter(|(_, awaits)| awaits.what == first).map(|(waiter, awaits)| (*waiter, awaits.from));
        let mut links: Vec<(NodeId, NodeId)> = links.collect();
        let passed_on = matches!(first, Awaited::RowSum | Awaited::Sum) && !self.head.grid.is_one_row();
        if passed_on && !mutated!(Mutation::BlameRelays) {
            let waiting: BTreeSet<NodeId> = links.iter().map(|(waiter, _)| *waiter).collect();
            let ends: Vec<_> = links.iter().filter(|(_, from)| !waiting.contains(from)).copied().collect();
            links = if ends.is_empty() { links } else { ends };
        }
        let counts = |(waiter, from): &&(NodeId, NodeId), id: &NodeId| {
            waiter == id && !ctx.is_outvoted(from, id) || from == id && !ctx.is_outvoted(waiter, id)
        };
        let at = |id: &NodeId| links.iter().filter(|link| counts(link, id)).count();
        let rank = |id: &NodeId| {
            let awaited = links.iter().filter(|link| link.1 == *id && counts(link, id)).count();
            // All nodes that heard the same must blame the same member.
            (at(id), self.distrust.suspected.get(id).copied().unwrap_or(0), awaited, Reverse(*id))
        };
        let ends: BTreeSet<NodeId> = links.iter().flat_map(|(waiter, from)| [*waiter, *from]).collect();
        let culprit = ends.into_iter().filter(|id| *id != ctx.me).max_by_key(rank)?;
        // A member at several bad links is the bad end of each.
        let mut of_culprit = links.iter().filter(|link| counts(link, &culprit));
        let other = match (of_culprit.next(), of_culprit.next()) {
            (Some((waiter, from)), None) => Some(if *waiter == culprit { *from } else { *waiter }),
            _ => None,
        };
        Some(Blame { culprit, other: other.filter(|id| *id != ctx.me && !ctx.is_outvoted(&culprit, id)) })
    }
}
