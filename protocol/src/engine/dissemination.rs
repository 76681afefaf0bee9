//! How members that do not vote hear of a decision: down a tree of members, so that no member says it often.

use super::chain::ChainHead;
use super::clock::Moment;
use super::ctx::Ctx;
use super::outbox::Out;
use super::peer::Peer;
use crate::NodeId;
use crate::message::{Head, Message, Phase};
use crate::mutation::{Mutation, mutated};
use std::collections::BTreeSet;

/// The places that hand a certificate to the learner at place `learner` among the learners. Voters and then learners,
/// both by ascending id, stand in a row. The member at place p hands the certificate to learners 2 p - 2 to 2 p + 1: as
/// many for every member, however large the flock is.
fn handed_by(learner: usize) -> [usize; 2] {
    [learner / 2, if mutated!(Mutation::OneHand) { learner / 2 } else { learner / 2 + 1 }]
}

/// The number of hands, one after another, through which the last of `learners` learners hears of a decision.
fn hands(voters: usize, learners: usize) -> u64 {
    let mut hands = 0;
    let mut last = learners.checked_sub(1);
    while let Some(learner) = last {
        hands += 1;
        let [sooner, _] = handed_by(learner);
        last = sooner.checked_sub(voters.max(1));
    }
    hands
}

/// The same in a flock of several rows: the heads of columns, and their columns.
const ROW_HANDS: u64 = 2;

impl Ctx {
    /// Hands the certificate to this node's learners. Each learner hears of a decision from two others: in a flock of one
    /// row as [`handed_by`] says, and else from the head of its column (which hears it from voters) and from the member
    /// before it in its row.
    pub fn hand_to_learners(&self, out: &mut Out) {
        let Some(certificate) = self.head.as_ref().and_then(|head| head.certificate.clone()) else { return };
        let Some(parent) = self.history.iter().nth_back(1) else { return };
        if !parent.grid.is_one_row() {
            let targets = self.learners_beside(parent);
            return out.send_to(self, &targets, &Message::Certificate(certificate));
        }
        let votes = |id: &NodeId| parent.quorum.incarnation(id).is_some();
        let learners: Vec<NodeId> = parent.record.members().filter(|id| !votes(id)).collect();
        let voters = parent.quorum.voters();
        let place = match voters.binary_search_by(|(id, _)| id.cmp(&self.me)) {
            Ok(place) => Some(place),
            Err(_) => learners.binary_search(&self.me).ok().map(|place| voters.len() + place),
        };
        let Some(place) = place else { return };
        let mine = learners.iter().enumerate().filter(|(at, _)| handed_by(*at).contains(&place)).map(|(_, id)| id);
        let told = |id: &&NodeId| self.is_present(id) && **id != self.me && !mutated!(Mutation::LearnersUntold);
        let targets: Vec<NodeId> = mine.filter(told).copied().collect();
        out.send_to(self, &targets, &Message::Certificate(certificate));
    }

    /// The learners to which this member of a flock of several rows hands a certificate.
    fn learners_beside(&self, parent: &ChainHead) -> Vec<NodeId> {
        let (grid, voters) = (&parent.grid, parent.quorum.voters());
        let heads = grid.cell_of(&self.me).is_some_and(|cell| cell.row() == 0);
        let place = voters.iter().position(|(id, _)| *id == self.me);
        let learns = |id: &NodeId| parent.quorum.incarnation(id).is_none();
        let (row, column): (Vec<NodeId>, Vec<NodeId>) =
            grid.neighbours(&self.me).filter(learns).partition(|id| grid.share_a_row(id, &self.me));
        // Heads that do not vote hear it from two voters each.
        let mine = |at: usize| place.is_some_and(|place| [at, at + 1].map(|at| at % voters.len()).contains(&place));
        let heads_told = row.into_iter().enumerate().filter(|(at, _)| mine(*at)).map(|(_, id)| id);
        let mut targets: BTreeSet<NodeId> = heads_told.chain(column.into_iter().filter(|_| heads)).collect();
        targets.extend(grid.after(&self.me).into_iter().filter(|id| self.is_connected(id)).take(1).filter(learns));
        targets.into_iter().filter(|id| self.is_connected(id) && !mutated!(Mutation::HandToNobody)).collect()
    }

    /// Answers a peer's Head with the votes that contradict it, or with the votes that the peer lacks and should have
    /// by now. `began`: since when this node is in its round. Returns whether the peer is to be told this node's head as
    /// well: in a flock of several rows a node that has the votes but not the update may hear of no source of it, since
    /// those that have gone on without it send it no Heads.
    pub fn help_along(&mut self, from: NodeId, heard: &Head, began: Option<Moment>, out: &mut Out) -> bool {
        let Some(mine) = self.head.as_deref().filter(|mine| heard.lineage == mine.record.lineage) else { return false };
        let behind = Some(mine.record.seq) == heard.seq.checked_add(1) && heard.record == mine.record.parent;
        let at = self.history.iter().find(|past| past.record.seq == heard.seq);
        let contradicts = at.filter(|past| past.digest != heard.record);
        let given = contradicts.or(Some(mine).filter(|_| behind && self.should_know(&from, heard.phase, began)));
        let Some(certificate) = given.and_then(|chain_head| chain_head.certificate.clone()) else { return false };
        let helps = self.helps_again(from);
        if helps {
            out.send_to(self, &[from], &Message::Certificate(certificate));
        }
        helps && behind && self.is_large() && !mutated!(Mutation::LeaveBehind)
    }

    /// Whether a peer is to be told this node's head, since it has missed more than one record. In a flock of several rows
    /// a node that has got its seat by them is told by nobody else: it knows of no neighbours yet.
    pub fn is_to_learn_of_head(&mut self, from: NodeId, heard: &Head) -> bool {
        let here = self.head.as_ref().filter(|_| self.is_large()).map(|mine| (mine.record.lineage, mine.record.seq));
        let far = here.is_some_and(|(lineage, seq)| heard.lineage == lineage && heard.seq.saturating_add(1) < seq);
        far && !mutated!(Mutation::LeaveBehind) && self.helps_again(from)
    }

    /// Whether it is time to help a peer on again. Notes that it is helped.
    fn helps_again(&mut self, id: NodeId) -> bool {
        let again = |peer: &Peer| peer.said.handed_at.is_none_or(|at| self.may_help_again(at));
        let due = self.peers.get(&id).is_some_and(again);
        if let Some(peer) = self.peers.get_mut(&id).filter(|_| due) {
            peer.said.handed_at = Some(self.now);
        }
        due
    }

    /// Whether a peer that is one record behind must have missed something. Its Head may be older than what it has
    /// heard since. A peer that trains or reduces decides when it is done. Learners are told by one another.
    fn should_know(&self, id: &NodeId, phase: Phase, began: Option<Moment>) -> bool {
        let Some(began) = began else { return true };
        let voted = self.history.iter().nth_back(1).is_some_and(|parent| parent.quorum.incarnation(id).is_some());
        let busy = matches!(phase, Phase::Training | Phase::Reducing);
        !busy && self.should_have_heard(self.peers.get(id), voted, began)
    }

    /// The time by which a learner may begin a round later than the voters, in microseconds. Each of the hands, one
    /// after another, writes the record before and tells of it.
    pub fn learners_lag(&self) -> u64 {
        let Some(head) = &self.head else { return 0 };
        let voters = head.quorum.voters().len();
        let learners = head.record.next.members.len().saturating_sub(voters);
        let hands = if head.grid.is_one_row() { hands(voters, learners) } else { ROW_HANDS };
        hands.saturating_mul(self.slowest_rtt().saturating_add(self.commit_took))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_learner_hears_of_a_decision_from_two() {
        assert!((0..1_000).map(handed_by).all(|[one, other]| one != other));
    }

    #[test]
    fn every_learner_hears_of_a_decision_from_so_many_hands() {
        for (voters, learners) in [(1, 0), (1, 1), (1, 40), (3, 7), (31, 1), (31, 62), (31, 63), (31, 993)] {
            // A member that knows of the decision tells its learners, all at once and again and again.
            let mut heard: Vec<Option<u64>> = vec![None; learners];
            for hand in 1.. {
                let knows = |place: usize| match place.checked_sub(voters) {
                    None => true,
                    Some(learner) => heard.get(learner).is_some_and(|heard| heard.is_some()),
                };
                let told = |learner: &usize| heard[*learner].is_none() && handed_by(*learner).into_iter().any(knows);
                let told: Vec<usize> = (0..learners).filter(told).collect();
                if told.is_empty() {
                    break;
                }
                for learner in told {
                    heard[learner] = Some(hand);
                }
            }
            let most = heard.iter().map(|hand| hand.expect("everybody hears of it")).max();
            assert_eq!(hands(voters, learners), most.unwrap_or(0), "{voters} voters, {learners} learners");
            let told = |place: usize| (0..learners).filter(|learner| handed_by(*learner).contains(&place)).count();
            assert!((0..voters + learners).all(|place| told(place) <= 4));
        }
    }
}
