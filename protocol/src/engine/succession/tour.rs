//! The order of the next reduction's ring, from the round-trip times that the contributions tell
//! (`docs/protocol/2-records.md` §2.5.1).

use super::contribution::SignedReady;
use crate::limits::TOUR_MAX;
use crate::record::{Member, Record};
use crate::ring::tour::{self, Costs};
use crate::run::{Codec, EngineKind, RunSpec};
use crate::update::owners;
use crate::{Digest, NodeId, ring, update};
use std::collections::BTreeMap;

/// Microseconds on one way, for each 100 microseconds of a round trip.
const ONE_WAY_US: u64 = 50;

/// Places of the expected `members` in the order of a good ring; empty when no ring is needed, when there are too few
/// to choose or too many to tell, and when no round-trip time between two of them is known.
pub(super) fn ring(
    parent: &Record,
    parent_digest: &Digest,
    (spec, codec): (&RunSpec, Codec),
    contributions: &[SignedReady],
    members: &[Member],
) -> Vec<u16> {
    let expected: BTreeMap<NodeId, &Member> =
        members.iter().filter(|member| member.expected).map(|member| (member.id, member)).collect();
    if spec.sync.engine_for(codec) != EngineKind::Ring || !(3..=TOUR_MAX).contains(&expected.len()) {
        return Vec::new();
    }
    let order = ring::order(parent_digest, expected.keys().copied());
    let trips = Trips::told(parent, contributions, &order);
    let Some(median) = trips.median() else { return Vec::new() };
    let kbps: Vec<u32> = order.iter().map(|id| expected.get(id).map_or(0, |member| member.upload_kbps)).collect();
    let known = owners::median(&kbps);
    let bytes = update::encoded_max(codec, usize::try_from(spec.parameters()).unwrap_or(usize::MAX));
    // A hop carries one segment of a fragment, through the sender's uplink.
    let bytes = bytes / spec.sync.fragments.max(1) as usize;
    let segment_bits = (bytes as u64).saturating_mul(8) / order.len() as u64;
    let carry_us = |from: usize| {
        let kbps = kbps.get(from).copied().filter(|kbps| *kbps > 0).unwrap_or(known);
        segment_bits.saturating_mul(1000).checked_div(kbps.into()).unwrap_or(0)
    };
    let costs = Costs::new(order.len(), |from, to| {
        let trip = trips.between(from, to).unwrap_or(median);
        let us = (u64::from(trip) * ONE_WAY_US).saturating_add(carry_us(from));
        u32::try_from(us).unwrap_or(u32::MAX)
    });
    let place = |id: &NodeId| u16::try_from(members.binary_search_by(|member| member.id.cmp(id)).ok()?).ok();
    let best = tour::best(&costs, parent_digest);
    best.into_iter().filter_map(|position| order.get(position).and_then(place)).collect()
}

/// Round-trip times between positions, in units of 100 microseconds.
struct Trips(BTreeMap<(usize, usize), u16>);

impl Trips {
    /// Collects the round-trip times that contributions tell of members in this order. If both ends tell one, the
    /// smaller counts: other traffic on the links made the larger one longer.
    fn told(parent: &Record, contributions: &[SignedReady], order: &[NodeId]) -> Self {
        let positions: BTreeMap<NodeId, usize> = order.iter().enumerate().map(|(at, id)| (*id, at)).collect();
        let mut told = BTreeMap::new();
        for contribution in contributions {
            let Some(from) = positions.get(&contribution.member).copied() else { continue };
            for trip in &contribution.ready.rtts {
                let peer = parent.next.members.get(usize::from(trip.peer));
                let Some(to) = peer.and_then(|peer| positions.get(&peer.id)).copied().filter(|to| *to != from) else {
                    continue;
                };
                let least = told.entry((from.min(to), from.max(to))).or_insert(trip.rtt);
                *least = trip.rtt.min(*least);
            }
        }
        Self(told)
    }

    fn between(&self, a: usize, b: usize) -> Option<u16> {
        self.0.get(&(a.min(b), a.max(b))).copied()
    }

    /// The median; the smaller of the two middle ones if the number is even.
    fn median(&self) -> Option<u16> {
        let mut told: Vec<u16> = self.0.values().copied().collect();
        told.sort_unstable();
        told.get(told.len().checked_sub(1)? / 2).copied()
    }
}
