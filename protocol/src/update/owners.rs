//! The owners' reduction: every chunk has one member that adds it up (`docs/protocol/3-reduction.md` §3.5; a
//! "butterfly").
//!
//! Members stand by ascending id. Each encodes its pseudo-gradient once, *not* weighted, and sends each owner its
//! chunks. The owner decodes the payloads, multiplies each by its member's weight, adds them up in that one order and
//! encodes the sum once. D is the owners' payloads in order. A member may offer again later what its encoding left out,
//! and an owner what the encoding of its sums left out: other nodes' bits depend on that only through what is sent.

use super::{assemble, chunk_elements, chunks};
use crate::codec::{self, CodecError};
use crate::mutation::{Mutation, mutated};
use crate::run::Codec;
use crate::{Digest, NodeId};

/// With more than two members, no owner has more than this share of the chunks. With four or more, at least
/// [`OWNERS_MIN`] have some: one bad owner must not spoil all.
const SHARE_MAX: f64 = 0.5;
const OWNERS_MIN: usize = 3;
/// Share of a member that is an owner only so that there are enough owners.
const SHARE_ADDED: f64 = 0.125;

/// Members in the order in which they own chunks and are added up.
pub fn order(members: impl IntoIterator<Item = NodeId>) -> Vec<NodeId> {
    let mut members: Vec<_> = members.into_iter().collect();
    members.sort_unstable();
    members.dedup();
    members
}

/// The chunks that each member owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owners {
    /// Each member's chunks, ascending.
    owned: Vec<Vec<usize>>,
    /// The owner's place by chunk.
    owner: Vec<usize>,
}

impl Owners {
    /// Deals `chunks` to the whole flock, given by ascending id with its upload bandwidths ([`Self::new`]). Each chunk
    /// of a member that does not contribute moves to a contributor by rendezvous hash. So every chunk keeps its owner
    /// as long as that one takes part, whatever the others do: after a death only the dead member's parts are sent
    /// again. `contributors` are by ascending id, and places are among them.
    pub fn among(flock: &[(NodeId, u32)], contributors: &[NodeId], chunks: usize) -> Self {
        let kbps: Vec<u32> = flock.iter().map(|(_, kbps)| *kbps).collect();
        let dealt = Self::new(&kbps, chunks);
        let heir = |chunk: usize| {
            let weights = contributors.iter().map(|id| rendezvous(id, chunk));
            weights
                .enumerate()
                .max_by_key(|(place, weight)| {
                    (if mutated!(Mutation::HeirOfAll) { 0 } else { *weight }, std::cmp::Reverse(*place))
                })
                .map(|(place, _)| place)
        };
        let place = |chunk: usize| {
            let stays = dealt.owner(chunk).and_then(|place| flock.get(place));
            stays.and_then(|(id, _)| contributors.binary_search(id).ok()).or_else(|| heir(chunk))
        };
        Self::owned_by((0..chunks).map_while(place), contributors.len())
    }

    fn owned_by(owner: impl Iterator<Item = usize>, members: usize) -> Self {
        let owner: Vec<usize> = owner.collect();
        let mut owned = vec![Vec::new(); members];
        for (chunk, place) in owner.iter().enumerate() {
            owned[*place].push(chunk);
        }
        Self { owned, owner }
    }

    /// Deals `chunks` in contiguous segments to members whose upload bandwidths are `kbps`, so that the slowest is done
    /// as early as possible. A bandwidth of 0 is unknown and counts as the median of the known ones. If none is known,
    /// all members own equally many.
    ///
    /// With S the encoded size, member i sends its contribution and, as an owner of the share f of all chunks, each sum
    /// to M - 2 more members than it saves. That takes it `S (1 + (M - 2) f) / B`. The largest of these times is least
    /// when all owners take equally long, and the others, which are slower even without owning anything, own nothing.
    pub fn new(kbps: &[u32], chunks: usize) -> Self {
        let quotas: Vec<f64> = shares(kbps).iter().map(|share| share * chunks as f64).collect();
        let mut counts: Vec<usize> = quotas.iter().map(|quota| quota.floor() as usize).collect();
        // The chunks that are left go to the largest remainders, of equal ones to the first.
        let mut order: Vec<usize> = (0..quotas.len()).collect();
        let rest = |place: usize| quotas[place] - quotas[place].floor();
        order.sort_by(|a, b| rest(*b).total_cmp(&rest(*a)).then(a.cmp(b)));
        let left = chunks.saturating_sub(counts.iter().sum());
        for place in order.into_iter().cycle().take(if counts.is_empty() { 0 } else { left }) {
            counts[place] += 1;
        }
        let places = counts.iter().enumerate().flat_map(|(place, count)| std::iter::repeat_n(place, *count));
        Self::owned_by(places.take(chunks), kbps.len())
    }

    pub fn members(&self) -> usize {
        self.owned.len()
    }

    /// The chunks of the member at `place`, ascending; none beyond the last.
    pub fn chunks(&self, place: usize) -> &[usize] {
        self.owned.get(place).map_or(&[], Vec::as_slice)
    }

    /// The place of the member that owns `chunk`.
    pub fn owner(&self, chunk: usize) -> Option<usize> {
        self.owner.get(chunk).copied()
    }
}

/// The weight with which a member is drawn to a chunk whose owner is gone: highest random weight (Thaler and
/// Ravishankar 1998).
pub(super) fn rendezvous(member: &NodeId, chunk: usize) -> u64 {
    let digest = Digest::of("starling owner of a chunk", &[&member.0, &(chunk as u64).to_le_bytes()]);
    u64::from_le_bytes(std::array::from_fn(|i| digest.0[i]))
}

/// The share of the chunks that each member should own; the shares add up to 1.
fn shares(kbps: &[u32]) -> Vec<f64> {
    let members = kbps.len();
    let mut shares = vec![0.0; members];
    let known = median(kbps);
    let kbps: Vec<u32> = kbps.iter().map(|b| if *b == 0 { known } else { *b }).collect();
    if known == 0 || members < 2 {
        shares.fill(1.0 / members.max(1) as f64);
        return shares;
    }
    let total: f64 = kbps.iter().map(|b| f64::from(*b)).sum();
    if members == 2 {
        return kbps.iter().map(|b| f64::from(*b) / total).collect();
    }
    let mut order: Vec<usize> = (0..members).collect();
    order.sort_by(|a, b| kbps[*b].cmp(&kbps[*a]).then(a.cmp(b)));
    let fastest: Vec<f64> = order.iter().map(|place| f64::from(kbps[*place])).collect();
    let dealt = cap(deal(&fastest));
    for (place, share) in order.into_iter().zip(dealt) {
        shares[place] = share;
    }
    shares
}

/// The middle one of those that are not 0, the smaller of two middle ones; 0 if there is none.
pub(crate) fn median(kbps: &[u32]) -> u32 {
    let mut known: Vec<u32> = kbps.iter().copied().filter(|b| *b > 0).collect();
    known.sort_unstable();
    known.get(known.len().saturating_sub(1) / 2).copied().unwrap_or(0)
}

/// The closed form of `docs/protocol/3-reduction.md` §3.5.1, for three and more bandwidths from the fastest to the
/// slowest.
fn deal(fastest: &[f64]) -> Vec<f64> {
    let (members, more) = (fastest.len(), (fastest.len() - 2) as f64);
    let (mut together, mut best) = (0.0, vec![1.0]);
    for owners in 1..=members {
        together += fastest[owners - 1];
        let time = (owners as f64 + more) / together;
        let share = |b: &f64| (time * b - 1.0) / more;
        if share(&fastest[owners - 1]) >= 0.0 {
            best = fastest[..owners].iter().map(share).collect();
        }
    }
    let least = if members > OWNERS_MIN { OWNERS_MIN } else { 2 };
    let added = least.saturating_sub(best.len());
    best.iter_mut().for_each(|share| *share *= 1.0 - added as f64 * SHARE_ADDED);
    best.resize(best.len() + added, SHARE_ADDED);
    best.resize(members, 0.0);
    best
}

/// Deals the chunks of the first member beyond its limit to the other owners; no other member can be beyond it.
fn cap(mut shares: Vec<f64>) -> Vec<f64> {
    let owners = shares.iter().filter(|share| **share > 0.0).count();
    let Some(beyond) = shares.first().map(|first| first - SHARE_MAX).filter(|beyond| *beyond > 0.0) else {
        return shares;
    };
    if owners > 1 {
        shares[0] = SHARE_MAX;
        shares[1..owners].iter_mut().for_each(|share| *share += beyond / (owners - 1) as f64);
    }
    shares
}

/// The sum of one chunk from its payloads and their weights, in the members' order: from zeros, one product and one sum
/// a member and element, each rounded to f32.
///
/// # Errors
/// The place of a payload that is not canonical, and the reason.
pub fn sum(codec: Codec, parts: &[(f32, &[u8])], elements: usize) -> Result<Vec<f32>, (usize, CodecError)> {
    let (mut sum, mut part) = (vec![0.0f32; elements], vec![0.0f32; elements]);
    for (place, (weight, payload)) in parts.iter().enumerate() {
        codec::decode(codec, payload, &mut part).map_err(|error| (place, error))?;
        for (sum, x) in sum.iter_mut().zip(&part) {
            *sum += *x * *weight;
        }
    }
    Ok(sum)
}

/// The update of members that contribute `contributions`, *not* weighted and of equal length, with these weights, in
/// the members' order. The sum of a chunk does not depend on its owner.
pub fn reduce(codec: Codec, weights: &[f32], contributions: &[&[f32]]) -> Result<Vec<u8>, CodecError> {
    let elements = contributions.first().map_or(0, |c| c.len());
    if let Some(other) = contributions.iter().find(|c| c.len() != elements) {
        return Err(CodecError::Length { elements, expected: 4 * elements, actual: 4 * other.len() });
    }
    let mut payloads = Vec::with_capacity(chunks(elements));
    for chunk in 0..chunks(elements) {
        let range = chunk_elements(elements, chunk);
        let mut sent = Vec::with_capacity(contributions.len());
        for contribution in contributions {
            let mut payload = Vec::new();
            codec::encode(codec, &contribution[range.clone()], &mut payload)?;
            sent.push(payload);
        }
        let parts: Vec<(f32, &[u8])> = weights.iter().copied().zip(sent.iter().map(Vec::as_slice)).collect();
        let sum = sum(codec, &parts, range.len()).map_err(|(_, error)| error)?;
        let mut payload = Vec::new();
        codec::encode(codec, &sum, &mut payload)?;
        payloads.push(payload);
    }
    Ok(assemble(codec, payloads.iter().map(Vec::as_slice)))
}

#[cfg(test)]
#[path = "owners_test.rs"]
mod tests;
