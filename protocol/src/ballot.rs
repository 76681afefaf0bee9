//! The vote: one question, decided by a symmetric two-phase ballot without a proposer
//! (`docs/protocol/4-agreement.md` §4.5; after "UniformVoting" of Charron-Bost and Schiper, "The Heard-Of model",
//! Distributed Computing 22, 2009).
//!
//! ```text
//! A  say EST(b, x); of a quorum:  all say v:  vote v, x = v         otherwise:  vote nothing, x = best
//! B  say VOTE(b, x, vote); of a quorum:  one votes v:  x = v, forced    otherwise:  x = best
//!    a quorum votes v: v is decided.  Then ballot b + 1.
//! ```
//!
//! *Safety.* Two votes of one ballot are equal: each stands on a quorum of estimates, two quorums share a voter, and
//! it said one. If v is decided in ballot b, whoever ends b has heard a quorum, so a vote for v and for nothing else,
//! and enters b + 1 with v. A voter that missed messages may enter a later ballot by copying the value of one that is
//! there: its value is that of a voter that entered properly. It may also copy a vote of its own ballot, which stands
//! on a quorum of estimates whoever repeats it, and it may always abstain.
//!
//! *Liveness.* Only the newest that a voter said is repeated, and what it said before may be lost: so a vote shows that
//! its sender was in phase A, too, and a voter whose copy cannot be had (its holders are gone) goes on in its own
//! ballot with those that are there. Any quorum that can talk to each other decides, whoever else is gone for good.
//!
//! This module knows nothing of records, signatures or time: it is told what was said and says what to say next. Its
//! owner holds bytes before it lets an estimate out, and writes before it sends.

use crate::NodeId;
use crate::mutation::{Mutation, mutated};
use crate::quorum::Quorum;
use std::collections::BTreeMap;

/// Ballots beyond the own one of which anything is believed: far more than ever happens.
pub const BALLOTS_AHEAD_MAX: u32 = 1 << 16;

/// From this ballot on voters that do not agree take turns.
const LATE: u32 = 4;

/// What a voter decides between. Compared by `rank` when nothing is forced: the greatest wins.
pub trait Choice: Clone + Eq {
    type Rank: Ord;
    fn rank(&self) -> Self::Rank;
    /// Whether a voter has to hold something before it may name this.
    fn needs_bytes(&self) -> bool;
}

/// Something said in a ballot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Said<V> {
    pub ballot: u32,
    pub value: V,
    /// None in phase A; in phase B whether the value is voted for.
    pub voted: Option<bool>,
}

impl<V> Said<V> {
    /// Ballot and phase: what one voter says rises in this order.
    pub fn place(&self) -> (u32, u8) {
        (self.ballot, if self.voted.is_some() { 2 } else { 1 })
    }
}

/// One voter's part in the vote on one question.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ballot<V> {
    me: NodeId,
    /// What this voter said last; None before it has entered.
    said: Option<Said<V>>,
    /// The value to enter with.
    input: Option<V>,
    /// What it would say next.
    next: Option<Next<V>>,
    /// Newest estimate and newest vote of each other voter.
    estimates: BTreeMap<NodeId, Said<V>>,
    votes: BTreeMap<NodeId, Said<V>>,
    decided: Option<(u32, V)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Next<V> {
    said: Said<V>,
    why: Why,
}

/// Where the value of what is to be said next comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Why {
    /// The own input, or the best of what was heard.
    Chosen,
    /// Of a voter in a later ballot.
    Copied,
    /// A vote for it was seen: it may be decided.
    Forced,
}

impl<V: Choice> Ballot<V> {
    pub fn new(me: NodeId) -> Self {
        let (estimates, votes) = (BTreeMap::new(), BTreeMap::new());
        Self { me, said: None, input: None, next: None, estimates, votes, decided: None }
    }

    /// Goes on from what was written before a restart: the newest estimate and the newest vote.
    pub fn resume(me: NodeId, estimate: Said<V>, vote: Option<Said<V>>) -> Self {
        let mut ballot = Self::new(me);
        for said in [Some(estimate), vote].into_iter().flatten() {
            ballot.record(me, said.clone());
            if ballot.said.as_ref().is_none_or(|before| before.place() < said.place()) {
                ballot.said = Some(said);
            }
        }
        ballot
    }

    /// Values that others have named.
    pub fn heard(&self) -> impl Iterator<Item = &V> + '_ {
        self.estimates.values().chain(self.votes.values()).map(|said| &said.value)
    }

    /// Values that one voter has named: in phase A those whose bytes it holds.
    pub fn names(&self, id: &NodeId) -> impl Iterator<Item = &V> + '_ {
        self.estimates.get(id).into_iter().chain(self.votes.get(id)).map(|said| &said.value)
    }

    /// Ballot and phase of the newest that a voter has said.
    pub fn place_of(&self, id: &NodeId) -> Option<(u32, u8)> {
        self.estimates.get(id).map(Said::place).max(self.votes.get(id).map(Said::place))
    }

    /// The newest estimate and the newest vote of this voter, in the order in which it said them: to be repeated to
    /// whoever may have missed them. Who has not heard the vote that ended a ballot cannot leave that ballot.
    pub fn own(&self) -> impl Iterator<Item = &Said<V>> + '_ {
        let (estimate, vote) = (self.estimates.get(&self.me), self.votes.get(&self.me));
        let later = estimate.map(Said::place) > vote.map(Said::place);
        let order = if later { [vote, estimate] } else { [estimate, vote] };
        order.into_iter().flatten()
    }

    /// What this voter said last.
    pub fn said(&self) -> Option<&Said<V>> {
        self.said.as_ref()
    }

    /// What is decided, and in which ballot.
    pub fn decided(&self) -> Option<(u32, &V)> {
        self.decided.as_ref().map(|(ballot, value)| (*ballot, value))
    }

    /// What is to be said next: the owner obtains the bytes of the value if it is an estimate, writes, and calls
    /// [`Ballot::say`]. The second part tells whether no other value may take its place.
    pub fn pending(&self) -> Option<(&Said<V>, bool)> {
        self.next.as_ref().map(|next| (&next.said, next.why == Why::Forced))
    }

    /// Enters the vote with an own value, unless it has entered.
    pub fn propose(&mut self, value: V) {
        if self.said.is_some() {
            return;
        }
        if self.next.as_ref().is_none_or(|next| next.said.ballot == 0) {
            let said = Said { ballot: 0, value: value.clone(), voted: None };
            self.next = Some(Next { said, why: Why::Chosen });
        }
        self.input = Some(value);
    }

    /// Takes back what was not said: its bytes cannot be had. Only what is not forced can be taken back.
    pub fn withdraw(&mut self) {
        if let Some(next) = self.next.take_if(|next| next.why != Why::Forced) {
            self.input.take_if(|input| *input == next.said.value);
        }
    }

    /// What was pending is on disk and about to be sent.
    pub fn say(&mut self) -> Option<Said<V>> {
        let said = self.next.take()?.said;
        self.input = None;
        self.said = Some(said.clone());
        self.record(self.me, said.clone());
        Some(said)
    }

    /// Hears what another voter said; false if it is older than what it said before, or contradicts it.
    pub fn hear(&mut self, from: NodeId, said: Said<V>) -> bool {
        let own = self.said.as_ref().map_or(0, |said| said.ballot);
        if from == self.me || said.ballot > own.saturating_add(BALLOTS_AHEAD_MAX) {
            return false;
        }
        self.record(from, said)
    }

    fn record(&mut self, from: NodeId, said: Said<V>) -> bool {
        let kept = if said.voted.is_some() { &mut self.votes } else { &mut self.estimates };
        match kept.get(&from) {
            Some(before) if before.ballot > said.ballot => false,
            Some(before) if before.ballot == said.ballot => *before == said,
            _ => {
                kept.insert(from, said);
                true
            }
        }
    }

    /// Whether `from` has said two different things at one place: a lie or a cloned vote state.
    pub fn contradicts(&self, from: &NodeId, said: &Said<V>) -> bool {
        let kept = if said.voted.is_some() { &self.votes } else { &self.estimates };
        kept.get(from).is_some_and(|before| before.ballot == said.ballot && before != said)
    }

    /// The votes that decided, as senders: those whose newest vote is for the decided value in the deciding ballot.
    pub fn deciders(&self) -> impl Iterator<Item = NodeId> + '_ {
        let for_it = |said: &Said<V>| {
            self.decided.as_ref().is_some_and(|(ballot, value)| {
                said.ballot == *ballot && said.value == *value && said.voted == Some(true)
            })
        };
        self.votes.iter().filter(move |(_, said)| for_it(said)).map(|(id, _)| *id)
    }

    /// Moves on as far as what was heard allows. `usable`: whether this voter holds a value's bytes or may get them;
    /// others are not chosen freely, and where none is left `fallback` is. `patient`: whether to wait for more than a
    /// quorum where that could help.
    pub fn advance(&mut self, quorum: &Quorum, usable: impl Fn(&V) -> bool, fallback: &V, patient: bool) {
        self.decide(quorum);
        if self.decided.is_some() {
            self.next = None;
            return;
        }
        let copyable = |value: &V| !value.needs_bytes() || usable(value);
        self.next.take_if(|next| next.why == Why::Copied && !copyable(&next.said.value));
        let copy = self.later(quorum, copyable);
        if self.next.as_ref().is_none_or(|next| next.why == Why::Copied) {
            // Nobody is waited for in a ballot that others have left.
            let patient = patient && copy.is_none();
            let own = match &self.said {
                None => self.input.clone().map(|value| (Said { ballot: 0, value, voted: None }, Why::Chosen)),
                Some(said) if said.voted.is_none() => self.end_estimates(said, quorum, &usable, fallback, patient),
                Some(said) => self.end_votes(said, quorum, &usable, fallback, patient),
            };
            if let Some((said, why)) = own {
                self.next = Some(Next { said, why });
            }
        }
        let own = self.next.as_ref().map(|next| &next.said).or(self.said.as_ref()).map_or(0, |said| said.ballot);
        if let Some((said, why)) = copy.filter(|(copy, _)| copy.ballot > own) {
            self.next = Some(Next { said, why });
        }
    }

    /// Notes a decision without taking part: for whoever may not speak.
    pub fn observe(&mut self, quorum: &Quorum) {
        self.decide(quorum);
    }

    /// A quorum votes for one value in one ballot.
    fn decide(&mut self, quorum: &Quorum) {
        if self.decided.is_some() {
            return;
        }
        let votes: Vec<&Said<V>> = self.votes.values().filter(|said| said.voted == Some(true)).collect();
        let mixes =
            |a: &Said<V>, b: &Said<V>| mutated!(Mutation::MixBallots) && (a.voted, &a.value) == (b.voted, &b.value);
        let agrees = |a: &Said<V>, id: &NodeId| self.votes.get(id).is_some_and(|b| b == a || mixes(a, b));
        // Most vote for the same: each value is counted once.
        let mut counted: Vec<&Said<V>> = Vec::new();
        let winner = votes.into_iter().find(|said| {
            if counted.contains(said) {
                return false;
            }
            counted.push(said);
            quorum.met_by(|id| agrees(said, id) || mutated!(Mutation::DecideByOne))
        });
        if let Some(winner) = winner {
            self.decided = Some((winner.ballot, winner.value.clone()));
        }
    }

    /// The entry into the latest ballot that another voter is in with a value that can be copied. One that was voted for
    /// there has to be: a quorum held its bytes.
    fn later(&self, quorum: &Quorum, copyable: impl Fn(&V) -> bool) -> Option<(Said<V>, Why)> {
        let own = self.said.as_ref().map_or(0, |said| said.ballot);
        let heard = self.estimates.iter().chain(&self.votes);
        let heard = heard.filter(|(id, said)| said.ballot > own && quorum.incarnation(id).is_some());
        let forced = |said: &Said<V>| said.voted == Some(true) && !mutated!(Mutation::CopyUnforced);
        let latest = heard.map(|(_, said)| said).filter(|said| forced(said) || copyable(&said.value));
        let latest = latest.max_by_key(|said| (said.ballot, said.voted))?;
        let why = if forced(latest) { Why::Forced } else { Why::Copied };
        Some((Said { ballot: latest.ballot, value: latest.value.clone(), voted: None }, why))
    }

    /// The vote that follows from the estimates of this ballot.
    fn end_estimates(
        &self,
        said: &Said<V>,
        quorum: &Quorum,
        usable: impl Fn(&V) -> bool,
        fallback: &V,
        patient: bool,
    ) -> Option<(Said<V>, Why)> {
        let ballot = said.ballot;
        let here = |id: &NodeId| self.estimates.get(id).filter(|other| other.ballot == ballot);
        let after = |id: &NodeId| self.votes.get(id).filter(|other| other.ballot == ballot);
        let voters = quorum.voters().iter().map(|(id, _)| id);
        if let Some(vote) = voters.clone().filter_map(after).find(|vote| vote.voted == Some(true)) {
            return Some((vote.clone(), Why::Chosen));
        }
        if !quorum.met_by(|id| here(id).or(after(id)).is_some()) {
            return None;
        }
        let heard: Vec<(NodeId, &V)> = voters.filter_map(|id| Some((*id, &here(id).or(after(id))?.value))).collect();
        let shared = |value: &V| {
            quorum.met_by(|id| here(id).is_some_and(|other| other.value == *value || mutated!(Mutation::VoteUnequal)))
        };
        let agreed = heard.iter().map(|(_, value)| value).find(|value| shared(value));
        // Of unequal estimates one that a whole quorum shares may still be among those to come.
        if agreed.is_none() && patient && heard.len() < quorum.voters().len() {
            return None;
        }
        let (value, voted) = match agreed {
            Some(agreed) => ((*agreed).clone(), true),
            None => (choose(quorum, ballot, &heard, usable, fallback), false),
        };
        Some((Said { ballot, value, voted: Some(voted) }, Why::Chosen))
    }

    /// The entry into the next ballot that follows from the votes of this one.
    fn end_votes(
        &self,
        said: &Said<V>,
        quorum: &Quorum,
        usable: impl Fn(&V) -> bool,
        fallback: &V,
        patient: bool,
    ) -> Option<(Said<V>, Why)> {
        let here = |id: &NodeId| self.votes.get(id).filter(|other| other.ballot == said.ballot);
        if !quorum.met_by(|id| here(id).is_some()) {
            return None;
        }
        let heard: Vec<(NodeId, &Said<V>)> =
            quorum.voters().iter().filter_map(|(id, _)| Some((*id, here(id)?))).collect();
        let seen = |(_, other): &&(NodeId, &Said<V>)| other.voted == Some(true) && !mutated!(Mutation::IgnoreSeenVote);
        let voted = heard.iter().find(seen).map(|(_, other)| other);
        // With all that are here the value may be decided in this very ballot.
        if voted.is_some() && patient && !mutated!(Mutation::Impatient) && heard.len() < quorum.voters().len() {
            return None;
        }
        let (value, why) = match voted {
            Some(voted) => (voted.value.clone(), Why::Forced),
            None => {
                let heard: Vec<(NodeId, &V)> = heard.iter().map(|(id, other)| (*id, &other.value)).collect();
                (choose(quorum, said.ballot, &heard, usable, fallback), Why::Chosen)
            }
        };
        Some((Said { ballot: said.ballot.saturating_add(1), value, voted: None }, why))
    }
}

/// The best value that was heard, the own one among them, and can be used. Voters that can use different values would
/// differ for ever: in late ballots they follow one after the other of them, or else the fallback.
fn choose<V: Choice>(
    quorum: &Quorum,
    ballot: u32,
    heard: &[(NodeId, &V)],
    usable: impl Fn(&V) -> bool,
    fallback: &V,
) -> V {
    let voters = quorum.voters();
    let turn = (ballot as usize).checked_rem(voters.len()).and_then(|place| voters.get(place)).map(|(id, _)| *id);
    let followed = heard.iter().find(|(id, _)| ballot >= LATE && Some(*id) == turn).map(|(_, value)| *value);
    let candidates = heard.iter().map(|(_, value)| *value).filter(|value| usable(value));
    let best = if mutated!(Mutation::WorstFirst) {
        candidates.min_by_key(|value| value.rank())
    } else {
        candidates.max_by_key(|value| value.rank())
    };
    followed.map_or(best, |value| Some(value).filter(|value| usable(value))).unwrap_or(fallback).clone()
}

#[cfg(test)]
#[path = "ballot_test.rs"]
mod tests;

#[cfg(test)]
#[path = "ballot_model_test.rs"]
mod model;
