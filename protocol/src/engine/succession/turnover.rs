//! The members of the next round, after absences and the statements of contributing voters
//! (`docs/protocol/2-records.md` §2.5).

use super::contribution::SignedReady;
use super::probation::Probation;
use crate::grid::Cell;
use crate::limits::{GRANTS_MAX, MEMBERS_MAX, STATEMENTS_MAX};
use crate::message::{Ready, Statement, StatementKind};
use crate::mutation::{Mutation, mutated};
use crate::record::{GrantUse, Member, Record, Role, Span};
use crate::{Digest, NodeId, ring};
use std::collections::{BTreeMap, BTreeSet};

/// COMMITs in a row that a member may be left out of; with the last of them it is removed.
const ABSENT_MAX: u8 = 2;

/// New members that any record may admit: as many as one voter can name. A founder takes a small flock in at once, and
/// not a few members with each record.
const ADMITTED_LEAST: usize = STATEMENTS_MAX;

/// New members that one record may admit, given the number of voters before it: in a flock of more than a few,
/// newcomers' first contributions do not outweigh those of the tried members (`docs/protocol/2-records.md` §2.5, rule 4).
pub fn admitted_max(voters: usize) -> usize {
    (voters / 2).max(ADMITTED_LEAST)
}

/// A seat's upload bandwidth follows the measured one when the two differ by more than the seat's divided by this.
/// Owners of chunks, and what they have left of sums, do not move because of less.
const UPLINK_STEPS: u64 = 4;

/// A member of the next round before leases are given out.
#[derive(Clone, Debug)]
pub(super) struct Seat {
    pub member: Member,
    /// Whether it gets a new lease; else it keeps the one that it has.
    pub fresh: bool,
    /// Whether it keeps its cell. A member that this record removes and lets in again does not: it may have been absent
    /// because it does not reach its neighbours there.
    pub settled: bool,
}

/// The statement that a node asks to be let in: the newest one that any voter makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Joiner {
    incarnation: u64,
    grant: Digest,
}

/// The contributions of a round, and the statements of the voters among them, by which the members of the next round
/// follow.
pub(super) struct Turnover<'a> {
    parent: &'a Record,
    digest: Digest,
    contributions: BTreeMap<NodeId, &'a Ready>,
    joiners: BTreeMap<NodeId, Joiner>,
    /// Nodes that more than half of the voters hold to be dead.
    suspects: BTreeSet<NodeId>,
    /// The parent's revocations and the new ones, ascending.
    revoked: Vec<Digest>,
    probation: Probation,
}

impl<'a> Turnover<'a> {
    pub fn new(parent: &'a Record, digest: Digest, contributions: &'a [SignedReady], probation: Probation) -> Self {
        let mut joiners: BTreeMap<NodeId, Joiner> = BTreeMap::new();
        let mut reporters: BTreeMap<NodeId, BTreeSet<NodeId>> = BTreeMap::new();
        let mut revoked = parent.revoked.clone();
        // Voters do not lie, learners may (`docs/protocol/README.md`, *Fault model*): a learner's READY is a
        // contribution only. A record has a quorum of voters among its contributors, so at least one of them speaks in
        // each.
        let voters: BTreeSet<NodeId> = parent.voters().map(|voter| voter.id).collect();
        let all = contributions.iter().flat_map(|c| c.ready.statements.iter().map(|s| (c.member, s)));
        // Each member itself says under which incarnation it speaks.
        let own = |by: &NodeId, s: &Statement| s.kind == StatementKind::Joins && s.id == *by;
        let heard = |by: &NodeId, s: &Statement| voters.contains(by) || own(by, s) || mutated!(Mutation::LearnersSpeak);
        for (by, statement) in all.filter(|(by, statement)| heard(by, statement)) {
            match statement.kind {
                StatementKind::Joins => {
                    let said = Joiner { incarnation: statement.incarnation, grant: statement.grant };
                    let newest = joiners.entry(statement.id).or_insert(said);
                    *newest = said.max(*newest);
                }
                StatementKind::Suspect => {
                    reporters.entry(statement.id).or_default().insert(by);
                }
                StatementKind::Revoked => {
                    let none = statement.grant == Digest::default();
                    let subject = if none { Digest(statement.id.0) } else { statement.grant };
                    if let Err(at) = revoked.binary_search(&subject)
                        && revoked.len() < GRANTS_MAX
                    {
                        revoked.insert(at, subject);
                    }
                }
            }
        }
        let is_revoked = |digest: &Digest| revoked.binary_search(digest).is_ok();
        joiners.retain(|id, joiner| !is_revoked(&Digest(id.0)) && !is_revoked(&joiner.grant));
        let most = |by: &BTreeSet<NodeId>| 2 * by.len() + usize::from(mutated!(Mutation::SuspectByHalf)) > voters.len();
        let suspects = reporters.into_iter().filter(|(_, by)| most(by)).map(|(id, _)| id).collect();
        let contributions = contributions.iter().map(|c| (c.member, &c.ready)).collect();
        Self { parent, digest, contributions, joiners, suspects, revoked, probation }
    }

    /// The members of the next round by ascending id, and the uses of tickets so far.
    pub fn seats(&self) -> (Vec<Seat>, Vec<GrantUse>) {
        let mut seats: BTreeMap<NodeId, Seat> =
            self.parent.next.members.iter().filter_map(|member| Some((member.id, self.stays(member)?))).collect();
        self.promote(&mut seats);
        let grants = self.admit(&mut seats);
        self.keep_a_voter(&mut seats);
        // At least one member has to be waited for, or nothing would ever be tried again.
        if !seats.values().any(|seat| seat.member.expected) {
            seats.values_mut().for_each(|seat| seat.member.expected = true);
        }
        seats.values_mut().for_each(|seat| self.measure(&mut seat.member));
        (seats.into_values().collect(), grants)
    }

    pub fn into_revoked(self) -> Vec<Digest> {
        self.revoked
    }

    /// Takes over a member's measurement of its uplink, if that is news.
    fn measure(&self, member: &mut Member) {
        let same = self.parent.member(&member.id).is_some_and(|before| before.incarnation == member.incarnation);
        let Some(ready) = self.contributions.get(&member.id).filter(|_| same) else { return };
        let (known, said) = (member.upload_kbps, ready.measured.upload_kbps);
        if said != 0
            && (u64::from(known.abs_diff(said)) * UPLINK_STEPS > u64::from(known) || mutated!(Mutation::EveryUplink))
        {
            member.upload_kbps = said;
        }
    }

    /// The seat of a member in the next round; None if it is removed.
    fn stays(&self, member: &Member) -> Option<Seat> {
        let contribution = self.contributions.get(&member.id);
        if contribution.is_some_and(|ready| ready.leave && !mutated!(Mutation::KeepLeaver))
            || self.is_revoked(&member.id)
        {
            return None;
        }
        let joiner = self.joiners.get(&member.id);
        // Incarnations rise: a lower one is an echo from before the member's last restart.
        let newer =
            |joiner: &&Joiner| joiner.incarnation > member.incarnation || mutated!(Mutation::OldIncarnationJoins);
        if let Some(joiner) = joiner.filter(newer) {
            return Some(self.learner(member.id, joiner.incarnation));
        }
        if contribution.is_some() {
            let (since, served) = self.tenure(&member.id);
            let member = Member { absent: 0, expected: true, since, served, ..member.clone() };
            return Some(Seat { member, fresh: true, settled: true });
        }
        let absent = if mutated!(Mutation::NeverRemoved) { 1 } else { member.absent.saturating_add(1) };
        if absent >= ABSENT_MAX - u8::from(mutated!(Mutation::AbsentOnce)) || self.suspects.contains(&member.id) {
            return None;
        }
        let here = joiner.is_some_and(|joiner| joiner.incarnation == member.incarnation);
        let member = Member { absent, expected: here || mutated!(Mutation::ExpectTheAbsent), ..member.clone() };
        Some(Seat { member, fresh: false, settled: true })
    }

    /// Makes learners that have contributed voters, as far as there are seats and their probation lets them.
    fn promote(&self, seats: &mut BTreeMap<NodeId, Seat>) {
        let contributed = |seat: &Member| {
            let before = self.parent.member(&seat.id);
            let same = before.is_some_and(|before| before.incarnation == seat.incarnation);
            same && (self.contributions.contains_key(&seat.id) || mutated!(Mutation::PromoteUntried))
        };
        let mut seats: Vec<&mut Member> = seats.values_mut().map(|seat| &mut seat.member).collect();
        self.probation.promote(&self.digest, &mut seats, contributed);
    }

    /// The round since which a member of the next round is one, and how often it has contributed. Both stay with its
    /// key, through a new incarnation, and when the record that removes a node lets it in again. Such a node has to
    /// earn its vote anew.
    fn tenure(&self, id: &NodeId) -> (u64, u16) {
        let counted = u16::from(self.contributions.contains_key(id));
        let before = self.parent.member(id);
        before.map_or((self.probation.now(), 0), |before| (before.since, before.served.saturating_add(counted)))
    }

    fn learner(&self, id: NodeId, incarnation: u64) -> Seat {
        let lease = Span::default();
        let role = if mutated!(Mutation::JoinAsVoter) { Role::Voter } else { Role::Learner };
        let (since, served) = self.tenure(&id);
        let cell = Cell::default();
        let member =
            Member { id, incarnation, role, absent: 0, expected: true, lease, upload_kbps: 0, since, served, cell };
        Seat { member, fresh: true, settled: true }
    }

    /// Lets newcomers in as learners, and counts the uses of their tickets. A node that was just removed for its
    /// absence is one of them when it is stated to be here again. A node that leaves is not.
    fn admit(&self, seats: &mut BTreeMap<NodeId, Seat>) -> Vec<GrantUse> {
        let leaves = |id: &NodeId| self.contributions.contains_key(id);
        let new: Vec<NodeId> =
            self.joiners.keys().filter(|id| !seats.contains_key(id) && !leaves(id)).copied().collect();
        let mut grants = self.parent.grants.clone();
        let mut shown: BTreeSet<Digest> = BTreeSet::new();
        let most = admitted_max(self.parent.voters().count());
        let mut room = (if mutated!(Mutation::ManyNewcomers) { MEMBERS_MAX } else { most })
            .min(MEMBERS_MAX.saturating_sub(seats.len()));
        for id in ring::order(&self.digest, new) {
            let Some(joiner) = self.joiners.get(&id).filter(|_| room > 0) else { break };
            // Uses are limited, and the limit was checked against the parent's count: one use a record.
            let counted = joiner.grant == Digest::default()
                || mutated!(Mutation::UncountedTicket)
                || ((!shown.contains(&joiner.grant) || mutated!(Mutation::TicketTwiceARecord))
                    && count_use(&mut grants, joiner.grant));
            if counted {
                shown.insert(joiner.grant);
                seats.insert(
                    id,
                    Seat { settled: mutated!(Mutation::ReturnToCell), ..self.learner(id, joiner.incarnation) },
                );
                room -= 1;
            }
        }
        grants
    }

    /// Sees to it that at least one member can decide. When no voter is left, the members that are here vote. When all
    /// members leave, the last ones stay named, so that the lineage can be taken up again. With probation only those of
    /// them vote that the flock has known for longest: learners must not come to vote by outnumbering the last voter as
    /// it goes.
    fn keep_a_voter(&self, seats: &mut BTreeMap<NodeId, Seat>) {
        if seats.values().any(|seat| seat.member.role == Role::Voter) {
            return;
        }
        let here: Vec<NodeId> = seats.values().filter(|seat| seat.member.absent == 0).map(|s| s.member.id).collect();
        let last = if here.is_empty() { self.last(seats) } else { here };
        let of = |id: &NodeId| self.parent.member(id).or(seats.get(id).map(|seat| &seat.member));
        let last: Vec<&Member> = last.iter().filter_map(of).collect();
        for id in self.probation.elders(&self.digest, &last) {
            let Some(member) = self.parent.member(&id).or(seats.get(&id).map(|seat| &seat.member)) else { continue };
            let (since, served) = self.tenure(&id);
            let member = Member { absent: 0, expected: true, since, served, ..member.clone() };
            let seat = seats.entry(id).or_insert(Seat { member, fresh: true, settled: true });
            seat.member.role = Role::Voter;
        }
    }

    /// The members that are named when none stays that is here: the contributors, all of which leave. Revoked ones are
    /// named only when there are no others.
    fn last(&self, seats: &BTreeMap<NodeId, Seat>) -> Vec<NodeId> {
        let leaving: Vec<NodeId> = self.contributions.keys().filter(|id| !self.is_revoked(id)).copied().collect();
        if !leaving.is_empty() {
            return leaving;
        }
        if seats.is_empty() { self.contributions.keys().copied().collect() } else { seats.keys().copied().collect() }
    }

    fn is_revoked(&self, id: &NodeId) -> bool {
        self.revoked.binary_search(&Digest(id.0)).is_ok()
    }
}

/// Counts one more use of a ticket; false when the use cannot be counted.
fn count_use(grants: &mut Vec<GrantUse>, grant: Digest) -> bool {
    match grants.binary_search_by(|entry| entry.grant.cmp(&grant)) {
        Ok(at) => {
            let next = grants.get(at).and_then(|entry| entry.uses.checked_add(1));
            if let (Some(entry), Some(next)) = (grants.get_mut(at), next) {
                entry.uses = next;
            }
            next.is_some()
        }
        Err(_) if grants.len() >= GRANTS_MAX => false,
        Err(at) => {
            grants.insert(at, GrantUse { grant, uses: 1 });
            true
        }
    }
}
