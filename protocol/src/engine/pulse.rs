//! A member's words on itself and on its neighbours, for those that hear it through others only.

use super::ctx::Ctx;
use super::liveness::fault;
use super::round::Round;
use crate::NodeId;
use crate::message::{Pulse, member_bits, member_indices};

impl Ctx {
    /// The part of a Head that names this process, this moment, and the neighbours that this node does not reach.
    pub fn pulse(&self, round: Option<&Round>) -> Pulse {
        let (boot, incarnation, beat) = (self.identity.boot, self.identity.incarnation, self.now.micros());
        Pulse { boot, incarnation, beat, down: round.map(|round| self.down(round)).unwrap_or_default() }
    }

    /// The members that this node does not reach, as a set: in a flock of several rows of its neighbours in the grid. In
    /// a flock of one row voters show by their sets whom they do not reach, and a learner names the learners, of which
    /// no voter knows.
    pub fn down(&self, round: &Round) -> Vec<u8> {
        let head = &round.head;
        let votes = |id: &NodeId| head.quorum.incarnation(id).is_some();
        let one_row = head.grid.is_one_row();
        if one_row && votes(&self.me) {
            return Vec::new();
        }
        let unreached = |id: &NodeId| {
            let fault = self.fault_of_itself(id, round);
            matches!(fault, Some(fault::DOWN | fault::NEVER_MET | fault::SILENT))
                || one_row && self.was_there_to_meet(id) && !self.peers.get(id).is_some_and(|peer| peer.link.greeted)
        };
        let heard_of = |id: &NodeId| !one_row || !votes(id);
        let down = head.grid.neighbours(&self.me).filter(|id| heard_of(id) && unreached(id));
        member_bits(down.filter_map(|id| head.record.member_index(&id)))
    }

    /// Whether both this node and the other were members for a whole round before this one. Short rounds would always be
    /// over before the deadline of those that were never met.
    fn was_there_to_meet(&self, id: &NodeId) -> bool {
        let parent = self.history.iter().nth_back(1).map(|parent| &parent.record);
        parent.is_some_and(|record| record.member(id).is_some() && record.member(&self.me).is_some())
    }

    /// Notes the members that a peer's newest Head names as down, if it stands on this node's head.
    pub fn note_down(&mut self, from: &NodeId) {
        let record = self.head_digest();
        if !self.is_member(from) {
            return;
        }
        let said = self.peers.get(from).and_then(|peer| peer.said.head.as_ref());
        if let Some(said) = said.filter(|said| said.record == record) {
            self.named_down.extend(member_indices(&said.pulse.down));
        }
    }

    /// Whether a member that stands on this head says that it does not reach another, by that one's place among the
    /// members. None if no word of it on this head is held.
    pub fn says_down(&self, member: &NodeId, place: usize) -> Option<bool> {
        let said = self.peers.get(member)?.said.head.as_ref().filter(|said| said.record == self.head_digest())?;
        Some(said.pulse.down.get(place / 8).is_some_and(|byte| byte >> (place % 8) & 1 == 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::chain::ChainHead;
    use crate::record::Member;
    use crate::wire::sample;

    #[test]
    fn a_member_names_the_neighbours_that_it_does_not_reach_in_a_flock_of_rows_only() {
        let mut ctx = Ctx::sample();
        assert_eq!((ctx.pulse(Some(&ctx.sample_round())).down, ctx.pulse(None).boot), (Vec::new(), ctx.identity.boot));
        let mut record = ctx.head.as_ref().expect("a head").record.clone();
        let seat = record.next.members[0].clone();
        let others = (0x40..0x40 + 61).map(|fill| Member { id: sample::node(fill), ..seat.clone() });
        record.next.members.extend(others);
        record.next.members.sort_by_key(|member| member.id);
        crate::sample::seat(&mut record.next.members);
        ctx.stand_on(ChainHead::new(record, None));
        let mut round = ctx.sample_round();
        assert!(ctx.pulse(Some(&round)).down.is_empty(), "the round has just begun");
        round.began = Default::default();
        let down = crate::message::member_indices(&ctx.pulse(Some(&round)).down).count();
        let head = ctx.head.as_ref().expect("a head");
        let met = [16, 32].map(sample::node).into_iter().filter(|id| head.grid.are_neighbours(&ctx.me, id)).count();
        assert_eq!(down, head.grid.neighbours(&ctx.me).count() - met);
    }
}
