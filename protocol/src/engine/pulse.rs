//! A member's words on itself and on its neighbours, for those that hear it through others only.

use super::ctx::Ctx;
use super::liveness::fault;
use super::round::Round;
use crate::NodeId;
use crate::message::{Pulse, member_bits};

impl Ctx {
    /// The part of a Head that names this process, this moment, and the neighbours that this node does not reach.
    pub fn pulse(&self, round: Option<&Round>) -> Pulse {
        let (boot, incarnation, beat) = (self.identity.boot, self.identity.incarnation, self.now.micros());
        Pulse { boot, incarnation, beat, down: round.map(|round| self.down(round)).unwrap_or_default() }
    }

    /// The neighbours in the grid that this node does not reach, as a set of members. In a flock of one row each member
    /// judges of all others by itself, and the set is empty.
    pub fn down(&self, round: &Round) -> Vec<u8> {
        let head = &round.head;
        if head.grid.is_one_row() {
            return Vec::new();
        }
        let unreached =
            |id: &NodeId| matches!(self.fault(id, round), Some(fault::DOWN | fault::NEVER_MET | fault::SILENT));
        member_bits(head.grid.neighbours(&self.me).filter(unreached).filter_map(|id| head.record.member_index(&id)))
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
