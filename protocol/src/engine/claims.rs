//! Heads that peers claim, and which of them are proven.
//!
//! A Head is a claim: it costs only its sender anything. A claim that would call this node away is proven first, while
//! the round goes on ([`Output::Prove`]). A proven record stays proven, no matter which peer claimed it. So a node goes
//! to proven heads, and nowhere else.
//!
//! Which lineage has the better right follows from how they parted ([`Relation`]). Members that went on in the common
//! lineage have kept its quorum, no matter what the members that left it have trained. Between forks of one record, the
//! one along which more of its voters went has the better right. If as many went along each, the tokens of proven
//! records decide.

use super::chain::Place;
use super::ctx::Ctx;
use super::io::{Claim, Output, Proven};
use super::outbox::Out;
use super::proven::Held;
use super::round::Round;
use super::sync::Sync;
use crate::ancestry::{Ancestry, Relation};
use crate::message::Phase;
use crate::mutation::{Mutation, mutated};
use crate::run::AdmissionMode;
use crate::{Digest, NodeId};
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// The number of claims that are looked at at a time.
pub const CLAIMS_MAX: usize = 8;
/// The number of these for each class of peers. Strangers have four until this node has a head, and then one.
const OF_CLASS_MAX: usize = 2;
const STRANGERS_MAX: (usize, usize) = (4, 1);
/// The number of these for one lineage: a peer that is slow to prove a claim does not keep another from proving it.
const OF_LINEAGE_MAX: usize = 2;
// The classes of peers, in the order in which their claims are looked at.
const GUIDE: u8 = 0;
const VOTER: u8 = 1;
const LEARNER: u8 = 2;
const STRANGER: u8 = 3;

/// The consequence for a peer whose claim was looked at.
pub(super) enum Verdict {
    /// Its claims are left alone for a while.
    Pause,
    /// The peer has lied.
    False { why: &'static str },
    /// Its chain has nothing in common with this node's.
    Foreign,
}

/// Whether the first of two forks of one record wins: the one along which more voters of that record went. Tokens, then
/// length, then the smaller lineage id decide between equals. Every node computes it from proven heads, and exactly one
/// of two forks wins.
fn wins((theirs, their): (&Ancestry, &Place), (mine, my): (&Ancestry, &Place)) -> bool {
    match theirs.went_along(mine) {
        (there, here) if there != here && !mutated!(Mutation::TokensBeforeVoters) => there > here,
        _ => their.beats(my),
    }
}

impl Sync {
    /// Has those claims looked at that would call this node away if they were true.
    pub fn look_at_claims(&mut self, round: Option<&Round>, ctx: &Ctx, out: &mut Out) {
        let mut wanted: Vec<(u8, u32, Reverse<u64>, NodeId, Place)> = Vec::new();
        for (id, place) in ctx.places() {
            if self.calls_away(&id, &place, round, ctx) {
                let failures = ctx.peers.get(&id).map_or(0, |peer| peer.chain.failures);
                wanted.push((self.class_of(&id, ctx), failures, Reverse(place.seq), id, place));
            }
        }
        wanted.sort_unstable_by_key(|(class, failures, seq, id, _)| (*class, *failures, *seq, *id));
        let foreign = ctx.head.is_none() || self.seeks_adoption();
        for (class, _, _, peer, place) in wanted {
            if self.may_ask(class, &peer, &place, ctx) {
                let Place { seq, record, .. } = place;
                self.claims.asked.insert(peer, place);
                out.push(Output::Prove { peer, seq, record, foreign });
            }
        }
    }

    /// Whether there is room for one more claim, of this peer. A peer of a lower class, which may prove nothing for as
    /// long as it likes, takes none of that room.
    fn may_ask(&self, class: u8, peer: &NodeId, place: &Place, ctx: &Ctx) -> bool {
        let asked = &self.claims.asked;
        let counts = |id: &NodeId| self.class_of(id, ctx) <= class || mutated!(Mutation::StrangersFirst);
        let alike = asked.iter().filter(|(id, other)| counts(id) && other.lineage == place.lineage).count();
        let known = asked.iter().any(|(id, other)| counts(id) && other.record == place.record);
        let of_class = asked.keys().filter(|id| self.class_of(id, ctx) == class).count();
        let places = match (class, &ctx.head) {
            (STRANGER, None) => STRANGERS_MAX.0,
            (STRANGER, Some(_)) => STRANGERS_MAX.1,
            _ => OF_CLASS_MAX,
        };
        let room = asked.len() < CLAIMS_MAX && of_class < places && alike < OF_LINEAGE_MAX;
        room && !known && !asked.contains_key(peer)
    }

    /// The class of a peer. Peers that the user named come first, then voters, then learners, then all others.
    fn class_of(&self, id: &NodeId, ctx: &Ctx) -> u8 {
        if self.guides.contains(id) {
            GUIDE
        } else if ctx.is_voter(id) {
            VOTER
        } else if ctx.is_member(id) {
            LEARNER
        } else {
            STRANGER
        }
    }

    /// Whether a claim would matter if it were true, and is not known to be true.
    fn calls_away(&self, id: &NodeId, place: &Place, round: Option<&Round>, ctx: &Ctx) -> bool {
        let held = self.claims.of(&place.lineage);
        if held.is_some_and(|held| {
            held.proven.record == place.record && self.is_fresh(held, ctx) && self.has_source(&held.proven, ctx)
        }) {
            return false;
        }
        let again = held.is_none_or(|held| ctx.may_prove_again(held.at));
        let Some(mine) = ctx.place() else { return again };
        if ctx.peers.get(id).is_some_and(|peer| peer.chain.foreign == Some(place.lineage)) && !self.seeks_adoption() {
            return false;
        }
        if mine.lineage == place.lineage {
            return place.seq > mine.seq && !self.may_leave_unasked(round, &mine, place, ctx);
        }
        let Some(held) = held else { return true };
        let news = again && Some(place.seq) > held.proven.ancestry.seq();
        // The quorum may come to its end long after its last head was proven.
        let ended = || again && held.proven.is_held_at(place) && self.may_follow_ended(&held.proven, ctx);
        match self.ancestry.relation(&held.proven.ancestry) {
            _ if self.seeks_adoption() => news,
            Relation::Strangers => false,
            Relation::Left => ended(),
            Relation::Siblings => again && wins((&held.proven.ancestry, place), (&self.ancestry, &mine)) || ended(),
            Relation::ForksOff => news && (quorum_is_lost(round, ctx) || is_passed_by(round, ctx)),
            // Members may still go on in a lineage that this node's has left.
            Relation::Behind | Relation::ForkedFrom | Relation::Kept | Relation::Ahead => news,
        }
    }

    fn is_fresh(&self, held: &Held, ctx: &Ctx) -> bool {
        ctx.is_fresh(held.at)
    }

    /// The head to go to: the best of the proven heads that have a better right than this node's own.
    pub fn proven_target(&self, round: Option<&Round>, ctx: &Ctx) -> Option<Proven> {
        let better = |a: &'_ Proven, b: &Proven| match a.ancestry.relation(&b.ancestry) {
            Relation::Ahead | Relation::Kept => true,
            // Neither leads on from the other: the order of forks decides between them.
            Relation::Siblings => wins((&b.ancestry, &b.place()), (&a.ancestry, &a.place())),
            Relation::ForksOff | Relation::ForkedFrom | Relation::Behind | Relation::Left | Relation::Strangers => {
                false
            }
        };
        let fresh = self.claims.held.iter().filter(|held| self.is_fresh(held, ctx)).map(|held| &held.proven);
        let targets = fresh.filter(|proven| self.leads_away(proven, round, ctx) && self.has_source(proven, ctx));
        targets.reduce(|best, next| if better(best, next) { next } else { best }).cloned()
    }

    /// Whether this node is to go to this head.
    fn leads_away(&self, proven: &Proven, round: Option<&Round>, ctx: &Ctx) -> bool {
        if mutated!(Mutation::FollowTokens) {
            return ctx.place().is_none_or(|mine| proven.tokens > mine.tokens);
        }
        if self.seeks_adoption() {
            return self.adopt.is_some_and(|lineage| proven.ancestry.has(&lineage));
        }
        let Some(mine) = ctx.place() else { return self.is_guided_to(proven, ctx) };
        match self.ancestry.relation(&proven.ancestry) {
            Relation::Ahead => !self.may_decide_itself(round, &mine, &proven.place(), ctx),
            Relation::Kept => true,
            Relation::ForksOff => {
                (quorum_is_lost(round, ctx) || is_passed_by(round, ctx)) && self.may_follow_fork(proven, ctx)
            }
            Relation::Siblings => {
                // Length alone calls no node away from a quorum: a longer lineage has not done more by that.
                let (voters, others) = self.ancestry.went_along(&proven.ancestry);
                let more = others > voters || proven.tokens > mine.tokens || !ctx.quorum_in_reach();
                let other_wins = more && wins((&proven.ancestry, &proven.place()), (&self.ancestry, &mine));
                other_wins || self.may_follow_ended(proven, ctx)
            }
            Relation::Left => self.may_follow_ended(proven, ctx),
            Relation::Behind | Relation::ForkedFrom | Relation::Strangers => false,
        }
    }

    /// Whether this node may go to a head that has less right than its own. It has no seat in its own head, and a quorum
    /// of that head's voters says that the run's budget is spent there. That quorum decides nothing after the own head
    /// any more, so that this node would wait for it for ever. Voters that have not come to that end come back to the
    /// own head by themselves, because it has more right. This node ends there as well, so it first gives peers that
    /// have gone on from its head the time to come.
    fn may_follow_ended(&self, proven: &Proven, ctx: &Ctx) -> bool {
        let Some(head) = ctx.head.as_ref().filter(|_| !ctx.is_member(&ctx.me)) else { return false };
        let there = ctx.places().filter(|(id, place)| proven.is_held_at(place) && ctx.has_finished(id));
        let ended: BTreeSet<NodeId> = there.map(|(id, _)| id).collect();
        let enough = head.quorum.met(&ended) || !ended.is_empty() && mutated!(Mutation::FollowEnded);
        enough && ctx.has_had_time_to_meet()
    }

    /// Whether this node may follow a fork of its head. A voter does so only if another voter of that head says that it
    /// has gone there: what learners have made by themselves has no more right than this node alone. The fork's records
    /// do not tell, because liars' records may name any node.
    fn may_follow_fork(&self, proven: &Proven, ctx: &Ctx) -> bool {
        let there = |lineage: &Digest| proven.ancestry.has(lineage) && !self.ancestry.has(lineage);
        let voters = || ctx.places().any(|(id, place)| ctx.is_voter(&id) && there(&place.lineage));
        !ctx.votes() || voters() || mutated!(Mutation::FollowLearners)
    }

    /// Whether the operator has named a lineage that this node is not in yet.
    fn seeks_adoption(&self) -> bool {
        self.adopt.is_some_and(|lineage| !self.ancestry.has(&lineage))
    }

    /// Whether a node without a head may go to this head. In an open run any node founds lineages, so the node follows
    /// the lineage of a peer that the user named. As long as such a peer may still come, the node follows no other.
    fn is_guided_to(&self, proven: &Proven, ctx: &Ctx) -> bool {
        if ctx.spec.admission.mode != AdmissionMode::Open || self.guides.is_empty() {
            return true;
        }
        let lineages = ctx.places().filter(|(id, _)| self.guides.contains(id)).map(|(_, place)| place.lineage);
        let mut roots = lineages.map(|lineage| self.claims.of(&lineage).and_then(|held| held.proven.ancestry.root()));
        let waited = || ctx.has_had_time_to_meet();
        match roots.next() {
            Some(first) => std::iter::once(first).chain(roots).any(|root| root == proven.ancestry.root()),
            None => waited(),
        }
    }

    /// Whether a peer is here that has shown this head, or a member that says that it holds it. No node leaves its
    /// round for the bare word of any other peer.
    pub fn has_source(&self, proven: &Proven, ctx: &Ctx) -> bool {
        let by = self.shown_by(proven);
        let trusted =
            |id: &NodeId| Some(*id) == by || self.class_of(id, ctx) != STRANGER || mutated!(Mutation::AnySource);
        ctx.places().any(|(id, place)| proven.is_held_at(&place) && trusted(&id))
    }

    /// Whether a peer's claim counts without a proof, or is proven.
    pub fn is_believed(&self, id: &NodeId, place: &Place, ctx: &Ctx) -> bool {
        let proven = self.claims.of(&place.lineage).is_some_and(|held| held.proven.record == place.record);
        proven || self.class_of(id, ctx) != STRANGER || mutated!(Mutation::AnySource)
    }

    fn shown_by(&self, proven: &Proven) -> Option<NodeId> {
        self.claims.held.iter().find(|held| held.proven.record == proven.record).map(|held| held.by)
    }

    /// Takes the outcome of a claim; returns the consequence for its peer.
    pub fn judge(&mut self, peer: &NodeId, record: Digest, outcome: Claim, ctx: &Ctx) -> Option<Verdict> {
        self.claims.asked.get(peer).filter(|asked| asked.record == record)?;
        self.claims.asked.remove(peer);
        let proven = match outcome {
            Claim::Proven(proven) if proven.record == record => proven,
            Claim::Proven(_) | Claim::Open { .. } => return Some(Verdict::Pause),
            Claim::Foreign => return Some(Verdict::Foreign),
            Claim::False { why } => return Some(Verdict::False { why }),
        };
        let claimed = ctx.peers.get(peer).and_then(|peer| Place::of(peer.said.head.as_ref()?));
        if claimed.is_some_and(|place| place.record == record && place != proven.place()) {
            return Some(Verdict::False { why: "head_differs" });
        }
        let strangers = ctx.head.is_some() && self.ancestry.relation(&proven.ancestry) == Relation::Strangers;
        self.claims.hold(Held { at: ctx.now, by: *peer, proven });
        strangers.then_some(Verdict::Foreign)
    }

    /// Peers that say that they hold this head: first the peer that has shown it, then the others by class.
    pub fn sources_of(&self, proven: &Proven, ctx: &Ctx) -> Vec<NodeId> {
        let there = ctx.places().filter(|(_, place)| proven.is_held_at(place));
        let mut sources: Vec<NodeId> = there.map(|(id, _)| id).collect();
        let by = self.shown_by(proven);
        sources.sort_by_key(|id| (Some(*id) != by, self.class_of(id, ctx)));
        sources
    }
}

/// Whether the voters of the head are no quorum here, and for a member with a round have been none for a while. Voters
/// in another lineage decide nothing in this one any more.
fn quorum_is_lost(round: Option<&Round>, ctx: &Ctx) -> bool {
    let long = |round: &Round| round.quorum_loss.since().is_some_and(|since| ctx.is_long_quorum_lost(since));
    !ctx.quorum_in_reach() && round.is_none_or(long)
}

/// Whether this node is a voter that has just started, or is at the end of the run, and would decide without any other
/// one. Where another voter of its head has forked meanwhile, the work of that one is worth more than the beginning of a
/// round. A voter that decides nothing alone may follow once the quorum is lost, which takes a while: the first peers
/// that it meets may be the fewer.
fn is_passed_by(round: Option<&Round>, ctx: &Ctx) -> bool {
    let begins = round.is_none_or(|round| round.resumed && !round.record_vote.entered());
    let Some(head) = &ctx.head else { return false };
    let decides = head.quorum.met_by(|id| *id == ctx.me);
    let alone = !head.quorum.voters().iter().any(|(id, _)| *id != ctx.me && ctx.voter_in_reach(id));
    begins && ctx.votes() && decides && alone && !mutated!(Mutation::StayAlone)
}

impl Ctx {
    /// Whether a peer says that the run's budget is spent in its lineage.
    pub fn has_finished(&self, id: &NodeId) -> bool {
        let head = self.peers.get(id).and_then(|peer| peer.said.head.as_ref());
        head.is_some_and(|head| head.phase == Phase::Finished)
    }

    /// Leaves a peer's claims alone for a while, longer each time.
    pub fn pause(&mut self, id: &NodeId) {
        let pause = self.peers.get(id).map_or(0, |peer| self.retry_pause(peer.chain.failures));
        if let Some(peer) = self.peers.get_mut(id) {
            peer.chain.avoid_until = self.now.plus(pause);
            peer.chain.failures = peer.chain.failures.saturating_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ancestry::Reach;

    /// No two flocks give way to each other, and no three do so in a circle.
    #[test]
    fn forks_of_one_record_are_in_one_order() {
        let mut forks: Vec<(Ancestry, Place)> = Vec::new();
        for n in 0..36u8 {
            let (voters, tokens, seq) = (usize::from(n % 3), u64::from(n / 3 % 3), 9 + u64::from(n / 9 % 2));
            let lineage = Digest([40 - n; 32]);
            let reaches = [(Digest([1; 32]), 8, 0), (lineage, seq, voters)];
            let way = reaches.map(|(lineage, last, voters)| Reach { lineage, last, voters }).into_iter().collect();
            forks.push((way, Place { lineage, seq, record: lineage, tokens }));
        }
        let wins = |a: &(Ancestry, Place), b: &(Ancestry, Place)| wins((&a.0, &a.1), (&b.0, &b.1));
        for a in &forks {
            let beaten: Vec<_> = forks.iter().filter(|b| wins(a, b)).collect();
            assert!(forks.iter().all(|b| a == b || wins(a, b) != wins(b, a)));
            assert!(beaten.iter().all(|b| forks.iter().filter(|c| wins(b, c)).all(|c| wins(a, c))));
        }
    }
}
