//! Catching up: when this node does it, to which head, and how former tries ended.
//!
//! [`super::claims`] says which claims of others are followed, and which of two lineages has the better right.

use super::chain::Place;
use super::clock::Moment;
use super::ctx::Ctx;
use super::io::{Output, Proven};
use super::outbox::Out;
use super::proven::Claims;
use super::round::Round;
use crate::ancestry::Ancestry;
use crate::mutation::{Mutation, mutated};
use crate::{Digest, NodeId};

/// The number of records that a node may lack and ask to be let in all the same. Others accept a Join on one of their
/// last 8.
const JOIN_BEHIND_MAX: u64 = 6;

#[derive(Debug)]
pub(super) struct Sync {
    pub catch_up: CatchUp,
    /// The way to the head.
    pub ancestry: Ancestry,
    pub claims: Claims,
    /// Peers that the user named.
    pub guides: Vec<NodeId>,
    /// The operator's order to follow this lineage.
    pub adopt: Option<Digest>,
}

/// The catch-up under way, and what is known from former ones.
#[derive(Debug, Default)]
pub(super) struct CatchUp {
    under_way: Option<UnderWay>,
    failures: u32,
    not_before: Moment,
    considered_at: Moment,
    /// Since when others are ahead by one record, which this node may yet decide by itself; and since when a peer says
    /// so.
    ahead_since: Option<Moment>,
    named_since: Option<Moment>,
}

/// State that exists only as long as a node catches up.
#[derive(Debug)]
struct UnderWay {
    /// The peers to catch up from, and the head to reach.
    sources: Vec<NodeId>,
    target: Proven,
    bytes: u64,
    /// Only a few records are missing.
    near: bool,
}

impl CatchUp {
    pub fn is_idle(&self) -> bool {
        self.under_way.is_none()
    }

    /// Whether this node has the others' head, or had it a moment ago. If a round is shorter than the time to fetch
    /// one, a node that asked to be let in only after its catch-up would never get there. Once a node is listed, the
    /// others wait for it.
    pub fn is_near(&self) -> bool {
        self.under_way.as_ref().is_none_or(|under_way| under_way.near)
    }

    /// The head to which the catch-up under way leads.
    pub fn target(&self) -> Option<&Proven> {
        self.under_way.as_ref().map(|under_way| &under_way.target)
    }

    pub fn progress(&mut self, bytes: u64) {
        if let Some(under_way) = &mut self.under_way {
            under_way.bytes = under_way.bytes.max(bytes);
        }
    }

    pub fn bytes(&self) -> u64 {
        self.under_way.as_ref().map_or(0, |under_way| under_way.bytes)
    }

    /// Notes that the head has moved.
    pub fn follow(&mut self) {
        (self.ahead_since, self.named_since) = (None, None);
    }

    /// Asks the driver for a catch-up to `target`.
    pub fn begin(&mut self, target: Proven, sources: Vec<NodeId>, ctx: &Ctx, out: &mut Out) {
        let (Some(lineage), Some(seq)) = (target.ancestry.lineage(), target.ancestry.seq()) else { return };
        let mine = ctx.place().filter(|mine| mine.lineage == lineage && !ctx.distrusted);
        let afresh = mine.is_none();
        let near = mine.is_some_and(|mine| seq.saturating_sub(mine.seq) <= JOIN_BEHIND_MAX);
        out.push(Output::CatchUp { lineage, seq, target: target.record, sources: sources.clone(), afresh });
        self.under_way = Some(UnderWay { sources, target, bytes: 0, near });
    }

    /// Ends the catch-up; returns its sources and its target.
    pub fn end(&mut self) -> Option<(Vec<NodeId>, Proven)> {
        self.under_way.take().map(|UnderWay { sources, target, .. }| (sources, target))
    }

    /// Notes that the catch-up has failed: the next one is tried later.
    pub fn fail(&mut self, ctx: &Ctx) {
        self.not_before = ctx.mark().plus(ctx.retry_pause(self.failures));
        self.failures += 1;
        if mutated!(Mutation::NoRetry) {
            self.not_before = ctx.now.plus(u64::MAX >> 1);
        }
    }
}

impl Sync {
    pub fn new(guides: Vec<NodeId>, adopt: Option<Digest>) -> Self {
        Self { catch_up: CatchUp::default(), ancestry: Ancestry::default(), claims: Claims::default(), guides, adopt }
    }

    /// Looks at the heads of all peers. Returns the best one that this node should catch up with, if there is any, and
    /// its sources.
    pub fn consider(&mut self, round: Option<&Round>, ctx: &Ctx, out: &mut Out) -> Option<(Proven, Vec<NodeId>)> {
        let writing = round.is_some_and(|round| round.committing.is_some());
        if !self.catch_up.is_idle() || writing || !ctx.may_catch_up(self.catch_up.not_before) {
            return None;
        }
        // Looking at every peer is expensive in a large flock, and a moment later is soon enough.
        if ctx.is_large() && !ctx.may_look_again(self.catch_up.considered_at) {
            return None;
        }
        self.catch_up.considered_at = ctx.now;
        self.note_ahead(round, ctx);
        self.look_at_claims(round, ctx, out);
        let target = self.proven_target(round, ctx).or_else(|| self.own_state(ctx))?;
        let sources = self.sources_of(&target, ctx);
        Some((target, sources))
    }

    /// The own head, if this node's own state is in doubt and no peer is ahead: peers with the same head have its state
    /// whole.
    fn own_state(&self, ctx: &Ctx) -> Option<Proven> {
        let head = ctx.head.as_ref().filter(|_| ctx.distrusted && self.claims.are_settled())?;
        let own = Proven::of(&head.record, head.digest, self.ancestry.clone());
        self.has_source(&own, ctx).then_some(own)
    }

    /// Whether this node still has time to decide the next record by itself, before it catches up.
    pub fn may_decide_itself(&self, round: Option<&Round>, mine: &Place, best: &Place, ctx: &Ctx) -> bool {
        votes_on(round, mine, best, ctx) && ctx.may_still_decide(self.catch_up.ahead_since)
    }

    /// The same before any peer is asked to prove its claim.
    pub fn may_leave_unasked(&self, round: Option<&Round>, mine: &Place, best: &Place, ctx: &Ctx) -> bool {
        votes_on(round, mine, best, ctx) && ctx.may_still_decide(self.catch_up.named_since)
    }

    /// Notes since when others are one record ahead. A stranger's bare word does not use up the time for this node's
    /// own vote.
    fn note_ahead(&mut self, round: Option<&Round>, ctx: &Ctx) {
        let Some(mine) = ctx.place() else { return };
        let ahead = || ctx.places().filter(|(_, place)| votes_on(round, &mine, place, ctx));
        let (named, ahead) = (ahead().next().is_some(), ahead().any(|(id, place)| self.is_believed(&id, &place, ctx)));
        if named {
            self.catch_up.named_since.get_or_insert_with(|| ctx.mark());
        }
        if ahead {
            self.catch_up.ahead_since.get_or_insert_with(|| ctx.mark());
        }
    }
}

/// Whether the others are just one record ahead, and this node holds that record's bytes or is about to: its votes are
/// on their way. Also true if their head is the fork that this node has signed: the last of its statements are on their
/// way.
fn votes_on(round: Option<&Round>, mine: &Place, best: &Place, ctx: &Ctx) -> bool {
    let holds = round.is_some_and(|round| round.holds(&best.record) || round.attempts.running.is_some());
    let next = mine.lineage == best.lineage && mine.seq.checked_add(1) == Some(best.seq);
    let forks = round.is_some_and(|round| round.forks_to(&best.record));
    (holds && next || forks) && !ctx.distrusted
}
