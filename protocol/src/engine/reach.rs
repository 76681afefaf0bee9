//! The members that voters leave out of the sets that they name. Only the two ends of a link know that it is down, and
//! all other voters would name both ends for ever.

use super::ctx::Ctx;
use super::round::Round;
use super::succession::SignedReady;
use crate::message::{Head, Phase, Value, ValueKind, member_indices};
use crate::mutation::{Mutation, mutated};
use crate::{Digest, NodeId};
use std::collections::{BTreeMap, BTreeSet};

/// After so many ballots about a set no member is left out any more for the words of others: agreement comes first.
const BALLOTS: u32 = 4;

/// Members by the members that they do not reach, both ends of each link.
type Links = BTreeMap<NodeId, BTreeSet<NodeId>>;

impl Round {
    /// Keeps the members that a voter leaves out of the set with which it enters a vote. A set that it names later may
    /// be another voter's.
    pub fn note_left_out(&mut self, from: NodeId, ballot: u32, value: &Value) {
        if ballot > 0 || value.kind != ValueKind::Set {
            return;
        }
        let named: BTreeSet<usize> = member_indices(&value.members).collect();
        let members = self.task.members.iter().enumerate();
        let left_out = members.filter(|(index, _)| !named.contains(index)).map(|(_, id)| *id).collect();
        self.distrust.left_out.insert(from, left_out);
    }

    /// Those of some contributions that can be averaged together, as far as members have told whom they do not reach. As
    /// long as one member leaves out another, the one with most such links goes. Among equals it is a member that the
    /// quorum can spare (in a flock of several rows a learner before any voter), and then the round's chance decides. All
    /// nodes that heard the same leave out the same member, and each end of a link has its turn. Returns all
    /// contributions if too few would be left.
    pub fn within_reach<'a>(&self, mut ready: Vec<&'a SignedReady>, ctx: &Ctx) -> Vec<&'a SignedReady> {
        let head = &self.head;
        // Voters that have heard different statements would leave out different members for ever.
        let ballot = self.set_vote.ballot.as_ref().and_then(|ballot| ballot.said()).map_or(0, |said| said.ballot);
        if ballot >= BALLOTS {
            return ready;
        }
        let mut links = self.links_of_learners(ready.iter().map(|c| c.member), ctx);
        self.add_links_of_voters(&mut links);
        if links.is_empty() {
            return ready;
        }
        let all = ready.clone();
        loop {
            let here = |id: &NodeId| ready.binary_search_by(|c| c.member.cmp(id)).is_ok();
            let left = |(id, others): (&NodeId, &BTreeSet<NodeId>)| {
                let others: BTreeSet<NodeId> = others.iter().filter(|other| here(other)).copied().collect();
                (here(id) && !others.is_empty()).then_some((*id, others))
            };
            let links: Links = links.iter().filter_map(left).collect();
            // In a flock of several rows a dead learner would otherwise cost its column a voter.
            let learns = |id: &NodeId| !head.grid.is_one_row() && head.quorum.incarnation(id).is_none();
            let spared = |id: &NodeId| (learns(id), head.quorum.met_by(|other| other != id && here(other)));
            let Some(leaves) = member_that_sits_out(&links, spared, head.digest) else { break };
            ready.retain(|c| c.member != leaves);
        }
        if head.quorum.met_by(|id| ready.iter().any(|c| c.member == *id)) { ready } else { all }
    }

    /// Adds the links between a voter and a member that it leaves out of its sets.
    fn add_links_of_voters(&self, links: &mut Links) {
        for (voter, left_out) in &self.distrust.left_out {
            left_out.iter().filter(|other| *other != voter).for_each(|other| add_link(links, *voter, *other));
        }
    }

    /// The links between learners among some members that are down, in a flock of one row: both ends have to say so, so
    /// that no learner gets another one left out by its word alone. One that refuses the link does, as a voter does.
    fn links_of_learners(&self, members: impl Iterator<Item = NodeId>, ctx: &Ctx) -> Links {
        let (head, mut links) = (&self.head, Links::new());
        if !head.grid.is_one_row() || ctx.named_down.is_empty() {
            return links;
        }
        let place = |id: NodeId| Some((id, head.record.member_index(&id)?));
        let learners = members.filter(|id| head.quorum.incarnation(id).is_none()).filter_map(place);
        let learners: Vec<(NodeId, usize)> = learners.filter(|(_, place)| ctx.named_down.contains(place)).collect();
        let names = |a: &(NodeId, usize), b: &(NodeId, usize)| ctx.says_down(&a.0, b.1) == Some(true);
        let apart = |a, b| {
            let (from, back) = (names(a, b), names(b, a));
            from && back || (from || back) && mutated!(Mutation::HeedOneEnd)
        };
        for (at, a) in learners.iter().enumerate() {
            for b in learners[at + 1..].iter().filter(|b| apart(a, b)) {
                add_link(&mut links, a.0, b.0);
            }
        }
        links
    }

    /// Whether a voter says that it reduces in this round.
    pub fn voters_reduce(&self, ctx: &Ctx) -> bool {
        let said = |id: &NodeId| ctx.peers.get(id).and_then(|peer| peer.said.head.as_ref());
        let reduces = |head: &Head| head.record == self.head.digest && head.phase == Phase::Reducing;
        self.head.quorum.voters().iter().any(|(id, _)| said(id).is_some_and(reduces))
    }

    /// Whether two of the members that attempt 0 expects say that they do not reach each other.
    pub fn expects_two_apart(&self, ctx: &Ctx) -> bool {
        !self.links_of_learners(self.task.expected.iter().copied(), ctx).is_empty()
    }
}

fn add_link(links: &mut Links, a: NodeId, b: NodeId) {
    links.entry(a).or_default().insert(b);
    links.entry(b).or_default().insert(a);
}

/// The member that sits the round out, among members with links that are down.
fn member_that_sits_out(links: &Links, spared: impl Fn(&NodeId) -> (bool, bool), parent: Digest) -> Option<NodeId> {
    let chance = |id: &NodeId| id.0.iter().zip(parent.0).map(|(a, b)| a ^ b).collect::<Vec<u8>>();
    links.iter().max_by_key(|(id, bad)| (bad.len(), spared(id), chance(id))).map(|(id, _)| *id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn links(pairs: &[(u8, u8)]) -> Links {
        let mut links = Links::new();
        pairs.iter().for_each(|(a, b)| add_link(&mut links, NodeId([*a; 32]), NodeId([*b; 32])));
        links
    }

    #[test]
    fn two_that_do_not_reach_each_other_take_turns() {
        let pair = links(&[(1, 2)]);
        let left = |parent| member_that_sits_out(&pair, |_| (false, true), Digest([parent; 32])).map(|id| id.0[0]);
        assert_eq!((left(0), left(3), left(1), left(2)), (Some(2), Some(1), Some(2), Some(1)));
        assert_eq!(left(0), left(0), "all choose the same");
    }

    #[test]
    fn the_member_with_most_links_down_goes_or_of_equals_one_the_quorum_can_spare() {
        let star = links(&[(1, 2), (1, 3), (1, 4)]);
        assert_eq!(member_that_sits_out(&star, |_| (false, false), Digest([0; 32])), Some(NodeId([1; 32])));
        for parent in 0..4 {
            let leaves = member_that_sits_out(&links(&[(1, 2)]), |id| (false, id.0[0] == 1), Digest([parent; 32]));
            assert_eq!(leaves, Some(NodeId([1; 32])));
        }
        assert_eq!(member_that_sits_out(&Links::new(), |_| (false, true), Digest([0; 32])), None);
    }
}
