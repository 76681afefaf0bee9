//! Paths: the proof that a head was decided. A path begins at a record that the reader holds, or at the genesis of a
//! founder that the run admits.
//!
//! A path is a list of links, each trusted because of the one before:
//!
//! - a *child*: its certificate is checked against the record before, as always;
//! - a *jump* within a lineage: a record without its votes (the *stone*), and then its child with them. The child's
//!   votes decide it after the stone, and their signers are also a quorum of the voters of the last trusted record.
//!   Voters do not lie, and each votes on children of its own head only: so one of them says that the child is on the
//!   chain. (After the skipping verification of light clients: Braithwaite et al., "Formal specification and model
//!   checking of the Tendermint blockchain synchronization protocol", 2020, section 3.)
//!
//! A FORK record is always a child of a trusted record, so the lineages on the way are known ([`Ancestry`]).
//!
//! Within the reader's own lineages a path keeps to the reader's chain ([`keeps_to`]).
//!
//! So a path's length depends on how often voters were replaced and lineages forked, not on the number of records.

use crate::admission;
use crate::ancestry::Ancestry;
use crate::certificate::{self, CertificateError};
use crate::identity::Verifier;
use crate::limits::{LOCATOR_MAX, PATH_LINKS_MAX};
use crate::message::Certificate;
use crate::mutation::{Mutation, mutated};
use crate::quorum::Quorum;
use crate::record::{Record, RecordKind};
use crate::run::RunSpec;
use crate::{Digest, NodeId};
use std::cmp::Reverse;

/// Records up to so many beyond the first are all given: a reader that lacks so few needs them anyway.
pub const WHOLE_MAX: u64 = 16;
/// The newest lineages whose end a locator tells.
const ENDS_MAX: usize = 16;

/// A record, its digest, and the votes that decided it. A genesis record has no votes, and a stone comes without them.
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    pub record: Record,
    pub digest: Digest,
    pub certificate: Option<Certificate>,
}

/// A chain that paths are read from, such as a store's. Records may be missing, except FORKs and their parents.
pub trait Chain {
    /// The record of this number.
    fn at(&self, seq: u64) -> Option<Link>;
    /// The highest number of a record here that is not above `seq`.
    fn newest(&self, seq: u64) -> Option<u64>;
    /// The way to the chain's head.
    fn ancestry(&self) -> &Ancestry;
    /// Whether the chain gives no more records for this path. The path then ends with the links that it has.
    fn is_spent(&self) -> bool {
        false
    }
}

/// The reason why a path proves nothing: its sender lies, or runs another program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FalsePath {
    #[error("the path is empty")]
    Empty,
    #[error("the path is longer than {PATH_LINKS_MAX} links")]
    TooLong,
    #[error("the path begins with a record that is neither held here nor a genesis")]
    NoRoot,
    #[error("the path begins with a genesis whose founder {0} may not found this run")]
    Founder(NodeId),
    #[error("the path begins with a genesis whose state is not the one that this run begins with")]
    Beginning,
    #[error("the path begins with a genesis whose first round has other inner steps or another codec than the run")]
    Settings,
    #[error("the path is a genesis alone, and comes from {0}, which has not founded it")]
    Hearsay(NodeId),
    #[error("record {seq} of the path does not follow the record before it: {why}")]
    Broken { seq: u64, why: &'static str },
    #[error("record {seq} of the path is not certified: {why}")]
    Certificate { seq: u64, why: CertificateError },
    #[error("record {seq} of the path is not known to be on this node's chain, or to go on from it")]
    Apart { seq: u64 },
}

impl FalsePath {
    /// Whether no honest node shows such a path. A node that has joined a flock without a COMMIT can show its genesis
    /// only. A node whose disk lost the oldest records has no way from the genesis. A node that lacks the reader's head
    /// may know no way that goes through it.
    pub fn is_lie(&self) -> bool {
        !matches!(self, Self::Hearsay(_) | Self::NoRoot | Self::Apart { .. })
    }

    /// A short constant name of the reason: the label of a counter.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Empty => "path_empty",
            Self::TooLong => "path_too_long",
            Self::NoRoot => "path_no_root",
            Self::Founder(_) => "path_founder",
            Self::Beginning => "path_beginning",
            Self::Settings => "path_settings",
            Self::Hearsay(_) => "path_hearsay",
            Self::Broken { .. } => "path_broken",
            Self::Certificate { .. } => "path_certificate",
            Self::Apart { .. } => "path_apart",
        }
    }
}

/// The records by which a node says what it holds, newest first: close together near the head, ever wider apart before
/// it, and those at which its chain has left a lineage, from which others have gone on there.
pub fn locator(chain: &impl Chain) -> Vec<(u64, Digest)> {
    let mut places: Vec<(u64, Digest)> = Vec::new();
    let mut next = chain.ancestry().seq();
    let mut step = 1u64;
    while let Some(seq) = next.and_then(|seq| chain.newest(seq)) {
        places.extend(chain.at(seq).map(|link| (seq, link.digest)));
        if places.len() + 1 + ENDS_MAX >= LOCATOR_MAX {
            break;
        }
        next = seq.checked_sub(step);
        step = step.saturating_mul(2);
        // The oldest record stands for all that are older still.
        let oldest = next.is_none_or(|next| chain.newest(next).is_none());
        let first = if oldest { first(chain).filter(|first| *first < seq) } else { None };
        next = first.or(next);
    }
    let ends = chain.ancestry().reaches().iter().rev().skip(1).take(ENDS_MAX);
    places.extend(ends.filter_map(|reach| Some((reach.last, chain.at(reach.last)?.digest))));
    places.sort_unstable_by_key(|place| Reverse(place.0));
    places.dedup();
    places
}

/// The number of the oldest record.
fn first(chain: &impl Chain) -> Option<u64> {
    let (mut below, mut first) = (0, chain.ancestry().seq().and_then(|head| chain.newest(head))?);
    // By halves: `newest` is all that a chain tells of where records are.
    while below < first {
        let middle = below + (first - below) / 2;
        match chain.newest(middle) {
            Some(found) => first = found,
            None => below = middle + 1,
        }
    }
    Some(first)
}

/// The path to record `to` of this chain from the newest of these records that is on it, or from the oldest record here
/// if none is. None if there is no such record, or no way to it. A path that would be longer than [`PATH_LINKS_MAX`],
/// or take more reading than the chain allows, ends before, with a record from which to go on.
pub fn build(chain: &impl Chain, known: &[(u64, Digest)], to: u64) -> Option<Vec<Link>> {
    let held = |place: &&(u64, Digest)| place.0 <= to && chain.at(place.0).is_some_and(|link| link.digest == place.1);
    let from = known.iter().take(LOCATOR_MAX).find(held).map(|place| place.0);
    let from = from.or_else(|| first(chain)).filter(|from| *from <= to)?;
    let mut path = vec![chain.at(from)?];
    for goal in goals(chain, from, to) {
        match go(chain, &mut path, goal) {
            Some(true) => {}
            Some(false) => break,
            // Each leap so far is whole, and ends with a record that has its votes.
            None if chain.is_spent() && path.len() > 1 => break,
            None => return None,
        }
    }
    Some(path)
}

/// Records that the path must lead through: each FORK, the record before it, and the last. If they are close, instead
/// each record between the ends that is here with its votes.
fn goals(chain: &impl Chain, from: u64, to: u64) -> Vec<u64> {
    let ends = chain.ancestry().reaches().iter().map(|reach| reach.last).filter(|last| (from..to).contains(last));
    let mut goals: Vec<u64> = ends.flat_map(|last| [last, last.saturating_add(1)]).collect();
    goals.push(to);
    if to - from <= WHOLE_MAX {
        let voted = |seq: &u64| *seq == to || chain.at(*seq).is_some_and(|link| link.certificate.is_some());
        goals = (from + 1..=to).filter(voted).collect();
    }
    goals
}

/// Goes on to record `goal`. Returns false if the path would be too long; None if there is no way.
fn go(chain: &impl Chain, path: &mut Vec<Link>, goal: u64) -> Option<bool> {
    loop {
        let trusted = path.last()?;
        let here = trusted.record.seq;
        if here >= goal {
            return Some(true);
        }
        if path.len() + 2 > PATH_LINKS_MAX {
            return Some(false);
        }
        let quorum = Quorum::after(&trusted.record);
        let digest = trusted.digest;
        let leap = |seq: u64| chain.at(seq).and_then(|link| leap(chain, &quorum, &digest, link));
        // A record that is kept as a stone leads to its child.
        let to = |seq: u64| leap(seq).or_else(|| leap(seq.checked_add(1).filter(|child| *child <= goal)?));
        let mut distance = goal - here;
        let links = loop {
            match (to(here + distance), nearer(chain, here, distance)) {
                (Some(links), _) => break links,
                (None, Some(shorter)) => distance = shorter,
                // On a path that others have shown, the next record that is here leads on.
                (None, None) => break to(following(chain, here, goal)?)?,
            }
        };
        path.extend(links);
    }
}

/// The lowest number of a record here between these two numbers, `here` excluded.
fn following(chain: &impl Chain, here: u64, goal: u64) -> Option<u64> {
    let (mut low, mut high) = (here + 1, goal);
    while low < high {
        let middle = low + (high - low) / 2;
        if chain.newest(middle)? > here { high = middle } else { low = middle + 1 }
    }
    chain.at(low).map(|_| low)
}

/// The next shorter distance to try: about half, where there is a record.
fn nearer(chain: &impl Chain, here: u64, distance: u64) -> Option<u64> {
    let middle = chain.newest(here + distance / 2).unwrap_or(here);
    // When records are missing, the next one that is here may be further than half: look from behind.
    let seq = if middle > here { middle } else { chain.newest(here + distance - 1)? };
    (seq > here).then(|| seq - here)
}

/// The links that lead at once from a trusted record, with these voters and this digest, to `link`.
fn leap(chain: &impl Chain, quorum: &Quorum, trusted: &Digest, link: Link) -> Option<Vec<Link>> {
    if link.record.parent == *trusted {
        return link.certificate.is_some().then(|| vec![link]);
    }
    let stone = chain.at(link.record.seq.checked_sub(1)?)?;
    let proof = link.certificate.as_ref()?;
    let spans = link.record.kind != RecordKind::Fork
        && stone.digest == link.record.parent
        && quorum.met(&certificate::signers(proof));
    spans.then(|| vec![Link { certificate: None, ..stone }, link])
}

/// The beginning of a path.
#[derive(Clone, Copy, Debug)]
pub enum Root<'a> {
    /// Its first record is on the reader's own chain, whose way this is.
    Held(&'a Ancestry),
    /// The reader holds nothing, or looks at a lineage that is not its own.
    Founder,
}

/// Checks a path that `by` has sent, and returns the way to its last record. Records must have been decoded from bytes
/// of their digests.
///
/// # Errors
/// The first reason why the path proves nothing.
pub fn verify(
    verifier: &dyn Verifier,
    spec: &RunSpec,
    run: &Digest,
    (root, by): (Root<'_>, &NodeId),
    links: &[Link],
) -> Result<Ancestry, FalsePath> {
    let Some((mut trusted, rest)) = links.split_first() else { return Err(FalsePath::Empty) };
    if links.len() > PATH_LINKS_MAX {
        return Err(FalsePath::TooLong);
    }
    let mut ancestry = match root {
        Root::Held(own) => own.until(trusted.record.seq),
        Root::Founder => {
            check_genesis(spec, run, &trusted.record, (by, rest.is_empty()))?;
            Ancestry::of([&trusted.record])
        }
    };
    let mut stone: Option<&Link> = None;
    for link in rest {
        match (stone.take(), &link.certificate) {
            (None, None) => {
                follows(trusted, link)?;
                stone = Some(link);
                continue;
            }
            (None, Some(proof)) => certified(verifier, spec, trusted, link, proof)?,
            (Some(stone), Some(proof)) => {
                certified(verifier, spec, stone, link, proof)?;
                jumps(trusted, link, proof)?;
            }
            (Some(_), None) => return Err(broken(link, "two records in a row come without their votes")),
        }
        ancestry.follow(Some(&trusted.record), &link.record);
        trusted = link;
    }
    match stone {
        Some(stone) => Err(broken(stone, "the path ends without the votes for its last record")),
        None => Ok(ancestry),
    }
}

/// Checks that a path, which was verified and begins on the reader's chain, keeps to that chain, and goes on from its
/// end. Keys that were a quorum once can sign another child of an old record at any time, and any records after it. So
/// in the reader's lineages only the voters of the last record that the reader has there decide what comes after it.
///
/// # Errors
/// The first record that differs from the reader's, or goes beyond its last one without those voters' signatures.
pub fn keeps_to(chain: &impl Chain, links: &[Link]) -> Result<(), FalsePath> {
    for (at, link) in links.iter().enumerate() {
        let Record { lineage, seq, .. } = link.record;
        let reaches = chain.ancestry().reaches();
        let Some(reach) = reaches.iter().find(|reach| reach.lineage == lineage) else { continue };
        let leaps =
            || at.checked_sub(1).and_then(|at| links.get(at)).is_some_and(|trusted| trusted.record.seq < reach.last);
        let kept = if seq <= reach.last {
            // Where the reader has no record any more, nothing is contradicted.
            chain.at(seq).is_none_or(|own| own.digest == link.digest) || mutated!(Mutation::OffTheChain)
        } else {
            // Stones beyond the end lead to their children.
            !leaps() || vouched(chain, reach.last, links.get(at + 1)) || mutated!(Mutation::LeapTheHead)
        };
        if !kept {
            return Err(FalsePath::Apart { seq });
        }
    }
    Ok(())
}

/// Whether a quorum of the voters of the reader's record `last` has signed this link.
fn vouched(chain: &impl Chain, last: u64, link: Option<&Link>) -> bool {
    let own = chain.at(last).map(|own| Quorum::after(&own.record));
    let proof = link.and_then(|link| link.certificate.as_ref());
    own.zip(proof).is_some_and(|(quorum, proof)| quorum.met(&certificate::signers(proof)))
}

fn broken(link: &Link, why: &'static str) -> FalsePath {
    FalsePath::Broken { seq: link.record.seq, why }
}

/// A genesis is not signed. The voters that certified a record after it have signed its digest. A genesis alone is
/// believed of its founder only, whose identity the connection proves.
fn check_genesis(
    spec: &RunSpec,
    run: &Digest,
    genesis: &Record,
    (by, alone): (&NodeId, bool),
) -> Result<(), FalsePath> {
    if genesis.kind != RecordKind::Genesis || genesis.run != *run {
        return Err(FalsePath::NoRoot);
    }
    if let Some(founder) = genesis.members().find(|founder| !admission::may_found(spec, founder)) {
        return Err(FalsePath::Founder(founder));
    }
    if (genesis.next.inner_steps, genesis.next.codec) != (spec.inner.steps, spec.sync.codec) {
        return Err(FalsePath::Settings);
    }
    let begun = spec.beginning.is_none_or(|root| root == genesis.state_root);
    if !begun && !mutated!(Mutation::AnyBeginning) {
        return Err(FalsePath::Beginning);
    }
    if alone && genesis.member(by).is_none() { Err(FalsePath::Hearsay(*by)) } else { Ok(()) }
}

/// A stone stands further on in the lineage of the last trusted record.
fn follows(trusted: &Link, stone: &Link) -> Result<(), FalsePath> {
    let (before, after) = (&trusted.record, &stone.record);
    let fits = (after.run, after.lineage) == (before.run, before.lineage) && after.seq > before.seq;
    if fits { Ok(()) } else { Err(broken(stone, "it is not further on in the same lineage")) }
}

fn certified(
    verifier: &dyn Verifier,
    spec: &RunSpec,
    parent: &Link,
    link: &Link,
    proof: &Certificate,
) -> Result<(), FalsePath> {
    if link.record.parent != parent.digest {
        return Err(broken(link, "its parent is another record"));
    }
    let checked = certificate::verify(verifier, spec, &parent.record, &parent.digest, &link.record, proof);
    checked.map_err(|why| FalsePath::Certificate { seq: link.record.seq, why })
}

/// Checks that the signers are a quorum of the voters of the last trusted record, too.
fn jumps(trusted: &Link, link: &Link, proof: &Certificate) -> Result<(), FalsePath> {
    let quorum = Quorum::after(&trusted.record);
    if link.record.lineage != trusted.record.lineage {
        return Err(broken(link, "it is a fork, and the record before it is not certified"));
    }
    if quorum.met(&certificate::signers(proof)) || mutated!(Mutation::JumpAnywhere) {
        return Ok(());
    }
    Err(broken(link, "no quorum of the voters known so far has signed it"))
}

#[cfg(test)]
#[path = "path_test.rs"]
mod tests;
