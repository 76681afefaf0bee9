//! Probation in open runs: rules for votes, so that an attacker with many identities does not come to decide
//! (`docs/protocol/5-membership.md` §5.5).

use crate::mutation::{Mutation, mutated};
use crate::record::{Member, Role};
use crate::run::RunSpec;
use crate::scale::scale;
use crate::{Digest, NodeId, ring};
use std::collections::BTreeMap;

/// A seat is a newcomer's for so many times its probation.
const NEW: u64 = 4;

/// The rule as it applies in one record.
#[derive(Clone, Copy, Debug, Default)]
pub struct Probation {
    /// Rounds of probation; 0 = none.
    rounds: u64,
    /// COMMITs of the lineage up to this record.
    now: u64,
}

impl Probation {
    /// The rule in a record whose round is `now`.
    pub fn of(spec: &RunSpec, now: u64) -> Self {
        let rounds = if mutated!(Mutation::NoProbation) { 0 } else { spec.admission.probation_rounds() };
        Self { rounds, now }
    }

    /// The rule in a fork after a record of this round.
    pub(super) fn of_fork(spec: &RunSpec, round: u64) -> Self {
        if mutated!(Mutation::ForkOfNewcomers) { Self::default() } else { Self::of(spec, round) }
    }

    pub fn now(&self) -> u64 {
        self.now
    }

    /// COMMITs and contributions of its own that a seat still lacks before it may vote.
    pub fn left(&self, seat: &Member) -> (u64, u64) {
        if seat.is_founder() {
            return (0, 0);
        }
        let age = self.now.saturating_sub(seat.since);
        (self.rounds.saturating_sub(age), self.rounds.div_ceil(2).saturating_sub(seat.served.into()))
    }

    /// COMMITs until the flock has known a seat for long; 0 if it has.
    pub fn new_for(&self, seat: &Member) -> u64 {
        let span = if mutated!(Mutation::ForgetNewcomers) { 1 } else { NEW };
        let age = self.now.saturating_sub(seat.since);
        if seat.is_founder() { 0 } else { (span * self.rounds).saturating_sub(age) }
    }

    fn is_over(&self, seat: &Member) -> bool {
        let (rounds, contributions) = self.left(seat);
        rounds == 0 && (contributions == 0 || mutated!(Mutation::IdleProbation))
    }

    fn is_new(&self, seat: &Member) -> bool {
        self.new_for(seat) > 0
    }

    /// Makes voters of learners that are `tried` and have their probation behind them, as far as there are places.
    /// Known members come first; then newcomers, as long as they are fewer than a third of the voters. In between,
    /// newcomers that vote and are too many, since others have left, become learners again.
    ///
    /// `seats` are all members of the next round.
    pub(super) fn promote(&self, digest: &Digest, seats: &mut [&mut Member], tried: impl Fn(&Member) -> bool) {
        let may = |seat: &Member| seat.role == Role::Learner && tried(seat) && self.is_over(seat);
        let order = self.order(digest, seats, may);
        let new = |at: &usize| seats.get(*at).is_some_and(|seat| self.is_new(seat));
        let (newcomers, known): (Vec<usize>, Vec<usize>) = order.into_iter().partition(new);
        known.into_iter().for_each(|at| raise(seats, at));
        self.limit(digest, seats);
        for at in newcomers {
            let (new, all) = self.votes(seats);
            if 3 * (new + 1) < all + 1 {
                raise(seats, at);
            }
        }
    }

    /// Sets newcomers among the voters back to learners, the newest first, until they are fewer than a third. If all
    /// voters are newcomers they stay: some member has to decide, and the flock has known no voter for longer.
    fn limit(&self, digest: &Digest, seats: &mut [&mut Member]) {
        let (mut new, mut all) = self.votes(seats);
        let fits = |new: usize, all: usize| 3 * new < all || mutated!(Mutation::KeepNewcomers);
        if new == 0 || new == all || fits(new, all) {
            return;
        }
        for at in self.order(digest, seats, |seat| seat.role == Role::Voter && self.is_new(seat)).into_iter().rev() {
            if let Some(seat) = seats.get_mut(at).filter(|_| !fits(new, all)) {
                seat.role = Role::Learner;
                (new, all) = (new - 1, all - 1);
            }
        }
    }

    /// The members that vote where no voter is left: those that the flock has known for longest, at most as many as may
    /// vote. These are all that are no newcomers, or else those that came first.
    pub(super) fn elders(&self, digest: &Digest, seats: &[&Member]) -> Vec<NodeId> {
        let first = seats.iter().map(|seat| seat.since).min();
        let known = seats.iter().any(|seat| !self.is_new(seat));
        let elder = |seat: &&&Member| if known { !self.is_new(seat) } else { Some(seat.since) == first };
        let elders = seats.iter().filter(elder).map(|seat| seat.id);
        ring::order(digest, elders).into_iter().take(scale().voters).collect()
    }

    /// Sets the voters of a fork of these members: those that voted, newcomers as long as they are fewer than a third;
    /// if none voted, the elders.
    pub(super) fn fork_voters(&self, digest: &Digest, members: &mut [Member]) {
        if members.iter().any(|member| member.role == Role::Voter) {
            return self.limit(digest, &mut members.iter_mut().collect::<Vec<_>>());
        }
        let elders = self.elders(digest, &members.iter().collect::<Vec<_>>());
        let vote = |member: &&mut Member| elders.contains(&member.id);
        members.iter_mut().filter(vote).for_each(|member| member.role = Role::Voter);
    }

    /// The number of newcomers among the voters, and of all voters.
    fn votes(&self, seats: &[&mut Member]) -> (usize, usize) {
        let voters = || seats.iter().filter(|seat| seat.role == Role::Voter);
        (voters().filter(|seat| self.is_new(seat)).count(), voters().count())
    }

    /// Places in `seats` of the seats that `of` picks, in the order in which they come to vote. With probation, members
    /// that came first come first: a crowd that comes at once takes no place of a member that was there before it.
    /// Seats that are equal in that, and all seats without probation, are in ring order, which is the same for all and
    /// favours no member for long.
    fn order(&self, digest: &Digest, seats: &[&mut Member], of: impl Fn(&Member) -> bool) -> Vec<usize> {
        let chosen = || seats.iter().enumerate().filter(|(_, seat)| of(seat));
        let ring = ring::order(digest, chosen().map(|(_, seat)| seat.id));
        let ring: BTreeMap<NodeId, usize> = ring.into_iter().enumerate().map(|(place, id)| (id, place)).collect();
        let came = |seat: &Member| if self.rounds == 0 { 0 } else { seat.since };
        let mut order: Vec<_> = chosen().map(|(at, seat)| (came(seat), ring.get(&seat.id).copied(), at)).collect();
        order.sort_unstable();
        order.into_iter().map(|(_, _, at)| at).collect()
    }
}

/// Makes a learner a voter, if there is a place.
fn raise(seats: &mut [&mut Member], at: usize) {
    let voters = seats.iter().filter(|seat| seat.role == Role::Voter).count();
    if let Some(seat) = seats.get_mut(at).filter(|_| voters < scale().voters || mutated!(Mutation::TooManyVoters)) {
        seat.role = Role::Voter;
    }
}
