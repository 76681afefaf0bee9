//! The *difference* of a lineage that gave way: what it has learned. One member offers it to the winner, mixed into a
//! contribution of its own (`docs/protocol/7-merging.md` §7.4).
//!
//! This module says which lineages leave a difference, how large it may be, and the arithmetic. The engine decides
//! which member offers it and when (`engine/offer.rs`). Other nodes do not repeat anything here: they check only the
//! bound of its weight.

use crate::mutation::{Mutation, mutated};
use crate::record::{Contributor, Record, RecordKind};
use crate::{Digest, NodeId, update};

/// A difference counts for its lineage's tokens divided by this.
const TOKENS_DIVISOR: u64 = 2;
/// A difference is cut to so many times the median norm of the winner's contributions.
const NORM_FACTOR: f64 = 3.0;
/// The most tokens that a difference weighs, as for a contribution.
pub const MERGED_TOKENS_MAX: u64 = u64::MAX >> 8;

/// A node's record of a lineage that gave way, beside the vector itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Difference {
    pub lineage: Digest,
    /// Tokens trained in the lineage since the parameters that the difference is measured from.
    pub tokens: u64,
    /// The node's place among the voters of the lineage's last record, by ascending id, and their number: they take
    /// turns in offering the difference.
    pub place: u32,
    pub of: u32,
}

/// The parameters that a lineage's difference is measured from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The run's initial parameters, for a lineage that was founded.
    Initial,
    /// The parameters of the lineage's FORK record.
    Fork,
}

/// The reason why nothing is kept of a lineage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Nothing {
    #[error("this node did not vote in it")]
    NoVoter,
    #[error("nothing was trained in it")]
    Untrained,
    #[error("this node does not hold the parameters that it began with")]
    NoBase,
    #[error("it has taken in another lineage itself, whose work could count twice")]
    Mixed,
    #[error("the parameters that it began or ended with are damaged")]
    Damaged,
    #[error("its difference is not a finite number")]
    NotFinite,
}

/// The weight that a difference may have in the round after a record, and its length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Tokens; with 0 nothing may be merged.
    pub tokens: u64,
    /// Median of the contributions' norms, as the bits of an f32; 0 if unknown.
    pub norm_bits: u32,
}

impl Limits {
    /// The limits after a COMMIT of these contributors. A difference may weigh no more than all of theirs together, so
    /// that it never weighs more than half of a round like theirs.
    pub fn of(contributors: &[Contributor]) -> Self {
        let tokens = contributors.iter().fold(0u64, |sum, c| sum.saturating_add(c.tokens)).min(MERGED_TOKENS_MAX);
        // Bits of finite floats that are not negative are ordered like the floats.
        let mut norms: Vec<u32> = contributors.iter().map(|c| c.measured.norm_bits).filter(|bits| *bits > 0).collect();
        norms.sort_unstable();
        let middle = norms.len().checked_sub(usize::from(!mutated!(Mutation::HigherMergeNorm))).map(|last| last / 2);
        Self { tokens, norm_bits: middle.and_then(|middle| norms.get(middle)).copied().unwrap_or(0) }
    }

    /// The tokens that a difference counts for under these limits.
    pub fn weigh(&self, difference: &Difference) -> u64 {
        if mutated!(Mutation::WeighDifference) {
            return difference.tokens.saturating_mul(1 << 10).min(MERGED_TOKENS_MAX);
        }
        (difference.tokens / TOKENS_DIVISOR).min(self.tokens)
    }
}

impl Record {
    /// The limits of a difference in the next round.
    pub fn merge_limits(&self) -> Limits {
        Limits { tokens: self.next.merge_tokens, norm_bits: self.next.merge_norm_bits }
    }
}

/// The difference that member `me` keeps of the lineage that ended with `last`, and the parameters that it is measured
/// from. `fork` is the FORK record whose parameters the node holds, if it holds any.
///
/// A lineage's records list in `merged` all other lineages whose work is in its state. A founded lineage begins with
/// none. A fork begins with those of the record that it left and that record's lineage. So an empty list is that of a
/// founded lineage that has merged nothing, and the FORK record's own list is that of a fork that has merged nothing.
///
/// # Errors
/// The reason why there is nothing to keep.
pub fn of_lineage(last: &Record, fork: Option<&Record>, me: &NodeId) -> Result<(Difference, Origin), Nothing> {
    let fork = fork.filter(|fork| fork.kind == RecordKind::Fork && fork.lineage == last.lineage);
    let (before, origin) = match fork {
        Some(fork) if fork.merged == last.merged => (fork.tokens, Origin::Fork),
        None if last.merged.is_empty() => (0, Origin::Initial),
        Some(_) => return Err(Nothing::Mixed),
        None => return Err(Nothing::NoBase),
    };
    let place = last.voters().position(|voter| voter.id == *me).ok_or(Nothing::NoVoter)?;
    let tokens = last.tokens.checked_sub(before).filter(|tokens| *tokens > 0).ok_or(Nothing::Untrained)?;
    let (place, of) = (place as u32, last.voters().count() as u32);
    Ok((Difference { lineage: last.lineage, tokens, place, of }, origin))
}

/// Computes `base <- base - last`, element by element, and returns the sum of the squares in order, in f64. A caller
/// may pass a vector piece by piece: the sums add up.
pub fn subtract(base: &mut [f32], last: &[f32]) -> f64 {
    let mut squares = 0f64;
    for (base, last) in base.iter_mut().zip(last) {
        *base -= last;
        squares += f64::from(*base) * f64::from(*base);
    }
    squares
}

/// The weighted mean of a contribution and a difference that is cut to the limit, each step in f32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mix {
    scale: f32,
    own: f32,
    other: f32,
}

impl Mix {
    /// The mix of a contribution of `tokens` and a difference of `merged_tokens` whose L2 norm is `norm`; `median_bits`
    /// is [`Limits::norm_bits`].
    pub fn new(tokens: u64, merged_tokens: u64, norm: f64, median_bits: u32) -> Self {
        let most = NORM_FACTOR * f64::from(f32::from_bits(median_bits));
        let long = norm > most && !mutated!(Mutation::NoClip);
        let total = tokens.saturating_add(merged_tokens);
        Self {
            scale: if long { (most / norm) as f32 } else { 1.0 },
            own: update::weight(tokens, total),
            other: update::weight(merged_tokens, total),
        }
    }

    /// `own <- weight * own + other weight * (scale * difference)`, rounded after each of the four operations.
    pub fn apply(&self, own: &mut [f32], difference: &[f32]) {
        for (own, difference) in own.iter_mut().zip(difference) {
            let cut = self.scale * difference;
            let (mine, theirs) = (self.own * *own, self.other * cut);
            *own = mine + theirs;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::sample::{digest, node, record};

    fn fork_of(parent: &Record) -> Record {
        let merged = vec![digest(2), digest(0x51)];
        Record { kind: RecordKind::Fork, lineage: digest(0x22), contributors: vec![], merged, ..parent.clone() }
    }

    #[test]
    fn a_fork_counts_what_it_has_trained_itself() {
        let fork = fork_of(&record());
        let mut last = Record { tokens: fork.tokens + 1_001, ..fork.clone() };
        let kept = of_lineage(&last, Some(&fork), &node(0x10));
        let expected = Difference { lineage: digest(0x22), tokens: 1_001, place: 0, of: 1 };
        assert_eq!(kept, Ok((expected, Origin::Fork)));
        let limits = |tokens| Limits { tokens, norm_bits: 1 };
        assert_eq!([1, 500, 501].map(|most| limits(most).weigh(&expected)), [1, 500, 500]);
        assert_eq!(of_lineage(&fork, Some(&fork), &node(0x10)), Err(Nothing::Untrained));
        assert_eq!(of_lineage(&last, Some(&fork), &node(0x20)), Err(Nothing::NoVoter), "a learner");
        assert_eq!(of_lineage(&last, None, &node(0x10)), Err(Nothing::NoBase));
        let other = Record { lineage: digest(0x23), ..fork.clone() };
        assert_eq!(of_lineage(&last, Some(&other), &node(0x10)), Err(Nothing::NoBase));
        last.merged.push(digest(0x70));
        assert_eq!(of_lineage(&last, Some(&fork), &node(0x10)), Err(Nothing::Mixed));
    }

    #[test]
    fn a_founded_lineage_counts_all_of_its_work() {
        let last = Record { merged: vec![], ..record() };
        let (kept, origin) = of_lineage(&last, None, &node(0x10)).unwrap();
        assert_eq!((kept.tokens, origin), (184_320, Origin::Initial));
        assert_eq!(of_lineage(&record(), None, &node(0x10)), Err(Nothing::NoBase), "it is a fork, or has merged");
    }

    #[test]
    fn limits_are_those_of_the_contributors() {
        let mut contributors = record().contributors;
        assert_eq!(Limits::of(&contributors), Limits { tokens: 61_440, norm_bits: 1.5f32.to_bits() });
        contributors[1].measured.norm_bits = 0.25f32.to_bits();
        assert_eq!(Limits::of(&contributors).norm_bits, 0.25f32.to_bits(), "of two the smaller");
        contributors[1].measured.norm_bits = 0;
        assert_eq!(Limits::of(&contributors).norm_bits, 1.5f32.to_bits(), "0 is not measured");
        assert_eq!(Limits::of(&[]), Limits::default());
        contributors[0].tokens = u64::MAX;
        assert_eq!(Limits::of(&contributors).tokens, MERGED_TOKENS_MAX);
    }

    #[test]
    fn a_mix_is_the_weighted_mean_and_long_differences_are_cut() {
        let (mut base, last) = (vec![4.0, 1.0, 0.0], [1.0, 5.0, 0.0]);
        let squares = subtract(&mut base, &last);
        assert_eq!((base.as_slice(), squares), ([3.0, -4.0, 0.0].as_slice(), 25.0));
        let mix = |median: f32| {
            let mut own = vec![1.0, 1.0, 1.0];
            Mix::new(300, 100, squares.sqrt(), median.to_bits()).apply(&mut own, &base);
            own
        };
        assert_eq!(mix(2.0), [1.5, -0.25, 0.75], "5 is not above 6");
        assert_eq!(mix(5.0 / 6.0), [1.125, 0.25, 0.75], "cut to half of its length");
        let mut own = vec![0.1];
        Mix::new(7, 0, 1.0, 1).apply(&mut own, &[1e30]);
        assert_eq!(own, [0.1], "a difference that weighs nothing changes nothing");
    }
}
