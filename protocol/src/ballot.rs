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
//! that voter gave one estimate. If v is decided in ballot b, every voter that ends b has heard a quorum. It has
//! therefore heard a vote for v and for nothing else, and enters b + 1 with v. A voter that missed messages may enter a
//! later ballot by copying the value of a voter that is in it: that value is the value of a voter that entered
//! properly. A voter may also copy a vote of its own ballot, because the vote stands on a quorum of estimates no matter
//! which voter repeats it. A voter may always abstain.
//!
//! *Liveness.* A voter repeats only its newest estimate and its newest vote, and its earlier statements may be lost. So
//! a vote also shows that its sender was in phase A. A voter that cannot get the bytes of a value to copy (their
//! holders are gone) goes on in its own ballot with the voters that are there. Any quorum of voters that can talk to
//! each other decides, even if all others are gone for good.
//!
//! This module knows nothing of records, signatures or time: it is told the statements and returns the next one. Its
//! owner holds the bytes before it lets an estimate out, and writes before it sends.

use crate::NodeId;
use crate::mutation::{Mutation, mutated};
use crate::quorum::Quorum;
use std::collections::BTreeMap;

/// The number of ballots after its own of which a voter believes anything: far more than ever happen.
pub const BALLOTS_AHEAD_MAX: u32 = 1 << 16;

/// From this ballot on, voters that do not agree follow each other in turn.
const LATE: u32 = 4;

/// A value that voters decide on. When no value is forced, the one with the greatest `rank` wins.
pub trait Choice: Clone + Eq {
    type Rank: Ord;
    fn rank(&self) -> Self::Rank;
    /// Whether a voter must hold bytes before it may name this value.
    fn needs_bytes(&self) -> bool;
}

/// One statement of a voter in a ballot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Said<V> {
    pub ballot: u32,
    pub value: V,
    /// None in phase A; in phase B, whether the voter votes for the value.
    pub voted: Option<bool>,
}

impl<V> Said<V> {
    /// Ballot and phase. One voter's statements rise in this order.
    pub fn place(&self) -> (u32, u8) {
        (self.ballot, if self.voted.is_some() { 2 } else { 1 })
    }
}

/// One voter's part in the vote on one question.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ballot<V> {
    me: NodeId,
    /// This voter's last statement; None before it has entered.
    said: Option<Said<V>>,
    /// The value with which this voter enters.
    input: Option<V>,
    /// The statement that this voter would make next.
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

/// The source of the value in the next statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Why {
    /// The voter's own input, or the best value that it heard.
    Chosen,
    /// Copied from a voter in a later ballot.
    Copied,
    /// The voter saw a vote for the value, so the value may be decided.
    Forced,
}

impl<V: Choice> Ballot<V> {
    pub fn new(me: NodeId) -> Self {
        let (estimates, votes) = (BTreeMap::new(), BTreeMap::new());
        Self { me, said: None, input: None, next: None, estimates, votes, decided: None }
    }

    /// Resumes from the newest estimate and the newest vote that were written before a restart.
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

    /// Values that one voter has named. In phase A the voter holds their bytes.
    pub fn names(&self, id: &NodeId) -> impl Iterator<Item = &V> + '_ {
        self.estimates.get(id).into_iter().chain(self.votes.get(id)).map(|said| &said.value)
    }

    /// Ballot and phase of a voter's newest statement.
    pub fn place_of(&self, id: &NodeId) -> Option<(u32, u8)> {
        self.estimates.get(id).map(Said::place).max(self.votes.get(id).map(Said::place))
    }

    /// The newest estimate and the newest vote of this voter, in the order in which it said them. The owner repeats
    /// them to voters that may have missed them: a voter that has not heard the vote that ended a ballot cannot leave
    /// that ballot.
    pub fn own(&self) -> impl Iterator<Item = &Said<V>> + '_ {
        let (estimate, vote) = (self.estimates.get(&self.me), self.votes.get(&self.me));
        let later = estimate.map(Said::place) > vote.map(Said::place);
        let order = if later { [vote, estimate] } else { [estimate, vote] };
        order.into_iter().flatten()
    }

    /// This voter's last statement.
    pub fn said(&self) -> Option<&Said<V>> {
        self.said.as_ref()
    }

    /// The decided value, and the ballot that decided it.
    pub fn decided(&self) -> Option<(u32, &V)> {
        self.decided.as_ref().map(|(ballot, value)| (*ballot, value))
    }

    /// The next statement. The owner obtains the bytes of the value if it is an estimate, writes, and calls
    /// [`Ballot::say`]. The second part tells whether no other value may take the place of this one.
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

    /// Takes back the pending statement, because its bytes cannot be had. A forced statement stays.
    pub fn withdraw(&mut self) {
        if let Some(next) = self.next.take_if(|next| next.why != Why::Forced) {
            self.input.take_if(|input| *input == next.said.value);
        }
    }

    /// Makes the pending statement this voter's last one. The statement is on disk and about to be sent.
    pub fn say(&mut self) -> Option<Said<V>> {
        let said = self.next.take()?.said;
        self.input = None;
        self.said = Some(said.clone());
        self.record(self.me, said.clone());
        Some(said)
    }

    /// Hears a statement of another voter. Returns false if it is older than that voter's last one or contradicts it.
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

    /// Moves on as far as the heard statements allow. `usable` tells whether this voter holds a value's bytes or may
    /// get them. A value that is not usable is not chosen freely; where none is left, `fallback` is chosen. `patient`
    /// tells whether to wait for more than a quorum where that could help.
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
            // A voter does not wait for others in a ballot that they have left.
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

    /// Notes a decision without taking part, for a node that may not speak.
    pub fn observe(&mut self, quorum: &Quorum) {
        self.decide(quorum);
    }

    /// Notes a decision if a quorum votes for one value in one ballot.
    fn decide(&mut self, quorum: &Quorum) {
        if self.decided.is_some() {
            return;
        }
        let votes: Vec<&Said<V>> = self.votes.values().filter(|said| said.voted == Some(true)).collect();
        let mixes =
            |a: &Said<V>, b: &Said<V>| mutated!(Mutation::MixBallots) && (a.voted, &a.value) == (b.voted, &b.value);
        let agrees = |a: &Said<V>, id: &NodeId| self.votes.get(id).is_some_and(|b| b == a || mixes(a, b));
        // Most voters vote for the same value, so each value is counted once.
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

    /// The entry into the latest ballot in which another voter has a value that can be copied. A value that was voted
    /// for can always be copied, because a quorum held its bytes.
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
        // The estimates are unequal, but a whole quorum may still share one once the missing ones come.
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
        // When all voters are here, the value may be decided in this very ballot.
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

/// The best usable value among those that were heard, the voter's own included. Voters that can use different values
/// would differ for ever. In late ballots they therefore follow one voter after the other, or the fallback.
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
