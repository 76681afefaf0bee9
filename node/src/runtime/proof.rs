//! Proofs of peers' claims: paths of certified records from this node's chain, or from the genesis of a founder that
//! the run admits (`starling_protocol::path`), to the claimed head. Without such a proof a head leads nowhere
//! (`docs/protocol/6-sync.md` §6.1, §6.2).

use super::chain::{self, Link};
use super::divergence;
use crate::net::fetch::{Expect, FetchError, FetchRequest};
use starling_protocol::ancestry::Ancestry;
use starling_protocol::certificate::Split;
use starling_protocol::engine::io::{Claim, Proven};
use starling_protocol::identity::Ed25519Verifier;
use starling_protocol::limits::{LOCATOR_MAX, PATH_LINKS_MAX};
use starling_protocol::path::{self, FalsePath, Root};
use starling_protocol::record::RecordKind;
use starling_protocol::run::RunSpec;
use starling_protocol::{Digest, NodeId};
use starling_store::{Store, StoreError};
use std::sync::Arc;
use std::time::Duration;

/// Time that a peer has for each answer; a slower one shows nothing for now.
pub const ANSWER_PATIENCE: Duration = Duration::from_secs(10);
/// The most answers of one path. Each is at most a mebibyte.
const ANSWERS_MAX: usize = 8;
/// The most records of a proof that a request names to go on from it, and of those that this node held before.
const PLACES_MAX: usize = LOCATOR_MAX / 2;

/// A head, and the verified path to it.
#[derive(Debug)]
pub struct Proof {
    /// The path, from a record of this node's chain, or a founder's genesis, to the head.
    pub links: Vec<Link>,
    /// The ancestry of the head.
    pub ancestry: Ancestry,
    /// Records of this node's chain on the path, newest first: the first of `links`, and some before.
    own: Vec<(u64, Digest)>,
    /// Length of the answers that carried it.
    pub bytes: usize,
}

/// Why a head is not proven.
#[derive(Debug)]
pub enum Unproven {
    Open(String),
    Foreign,
    False(&'static str),
    /// The peer's chain contradicts this node's within a lineage, and this is the proof.
    Split(Box<Split>),
}

impl Unproven {
    fn open(why: impl ToString) -> Self {
        Self::Open(why.to_string())
    }
}

impl From<FalsePath> for Unproven {
    fn from(why: FalsePath) -> Self {
        if why.is_lie() { Self::False(why.reason()) } else { Self::Open(why.to_string()) }
    }
}

impl From<Unproven> for Claim {
    fn from(unproven: Unproven) -> Self {
        match unproven {
            Unproven::Open(why) => Self::Open { why },
            Unproven::Foreign => Self::Foreign,
            Unproven::False(why) => Self::False { why },
            Unproven::Split(_) => Self::Open { why: CONTRADICTS.to_owned() },
        }
    }
}

/// A peer's claim of its head, which it is asked to prove.
#[derive(Clone)]
pub struct Asked {
    pub peer: NodeId,
    pub seq: u64,
    pub record: Digest,
    /// Whether its path may begin at a genesis that is not on this node's chain.
    pub foreign: bool,
    pub spec: Arc<RunSpec>,
    pub store: Arc<Store>,
    /// Time for each answer.
    pub patience: Duration,
}

impl Proof {
    /// The proof of a record on this node's own chain.
    pub fn of_own(store: &Store, seq: u64, record: &Digest) -> Result<Option<Self>, StoreError> {
        let Some(link) = held(store, seq)?.filter(|link| link.digest == *record) else { return Ok(None) };
        let own = vec![(seq, link.digest)];
        Ok(Some(Self { links: vec![link], ancestry: store.ancestry().until(seq), own, bytes: 0 }))
    }

    pub fn claim(&self) -> Option<Proven> {
        let last = self.links.last()?;
        Some(Proven::of(&last.record, last.digest, self.ancestry.clone()))
    }

    /// The links after this record, if none is left out in between: a node at this record can follow them.
    pub fn children_of(&self, digest: &Digest) -> Option<&[Link]> {
        let at = self.links.iter().position(|link| link.digest == *digest)?;
        let rest = self.links.get(at + 1..)?;
        rest.iter().all(|link| link.certificate.is_some()).then_some(())?;
        let pairs = self.links.get(at..)?.windows(2);
        let next = |pair: &[Link]| matches!(pair, [before, link] if link.record.parent == before.digest);
        pairs.into_iter().all(next).then_some(rest)
    }

    /// The path to record `seq`, if that is one of its links and proven by itself.
    pub fn way_to(&self, seq: u64) -> Option<&[Link]> {
        let at = self.links.iter().position(|link| link.record.seq == seq)?;
        let proven = at == 0 || self.links.get(at)?.certificate.is_some();
        self.links.get(..=at).filter(|_| proven)
    }

    /// The records to name in a request for a path that goes on from here: records of this path up to `seq`, newest
    /// first, and records that this node held before it.
    pub fn places(&self, seq: u64) -> Vec<(u64, Digest)> {
        let proven = |at: &usize| *at == 0 || self.links.get(*at).is_some_and(|link| link.certificate.is_some());
        let upto = (0..self.links.len()).rev().filter(proven).filter_map(|at| self.links.get(at).map(place));
        let mut places: Vec<_> = upto.filter(|place| place.0 <= seq).take(PLACES_MAX).collect();
        let first = self.links.first().map(place);
        places.extend(first.into_iter().chain(self.own.iter().copied()).filter(|place| place.0 <= seq));
        places.dedup();
        places.truncate(LOCATOR_MAX);
        places
    }

    /// The path to the last of `links`, which were verified, and begin with a record of this path or with one that this
    /// node held before it.
    pub fn way_along(&self, links: &[Link]) -> Vec<Link> {
        let Some((first, rest)) = links.split_first() else { return Vec::new() };
        let before = self.links.iter().take_while(|link| link.record.seq < first.record.seq);
        before.chain([first]).chain(rest).cloned().collect()
    }
}

fn place(link: &Link) -> (u64, Digest) {
    (link.record.seq, link.digest)
}

/// The record of this number on this node's chain, with its votes.
fn held(store: &Store, seq: u64) -> Result<Option<Link>, StoreError> {
    let Some((record, certificate)) = store.record(seq)?.zip(Some(store.certificate(seq)?)) else { return Ok(None) };
    let proven = certificate.is_some() || record.kind == RecordKind::Genesis;
    Ok(proven.then(|| Link { digest: record.digest(), record, certificate }))
}

impl Asked {
    /// Asks the peer for the path, and checks it. `ask` sends a request to the peer.
    ///
    /// # Errors
    /// Why the claim is not proven.
    pub async fn prove<F>(&self, ask: impl Fn(FetchRequest, Expect) -> F) -> Result<Proof, Unproven>
    where
        F: Future<Output = Result<Vec<u8>, FetchError>>,
    {
        let store = self.store.clone();
        let own = blocking(move || store.locator().map_err(Unproven::open)).await?;
        let mut proof: Option<Proof> = None;
        for _ in 0..ANSWERS_MAX {
            let known = proof.as_ref().map_or_else(|| own.0.clone(), |proof| proof.places(self.seq));
            let (links, bytes) = self.path(known.into(), &ask).await?;
            let (asked, own) = (self.clone(), own.clone());
            let next = match proof.take() {
                None => blocking(move || asked.begin(own, links, bytes)).await?,
                Some(proof) => blocking(move || asked.go_on(proof, &links, bytes)).await?,
            };
            let last = next.links.last().map(place).unwrap_or_default();
            if last == (self.seq, self.record) {
                return self.kept(next, &ask).await;
            }
            if last.0 >= self.seq {
                return Err(Unproven::open("it stands on another record by now"));
            }
            proof = Some(next);
        }
        Err(Unproven::open(format!("the path to record {} is longer than {ANSWERS_MAX} answers", self.seq)))
    }

    /// Returns the proof if its path keeps to this node's chain. If not, the peer's chain may show that the flock is
    /// split.
    async fn kept<F>(&self, proof: Proof, ask: &impl Fn(FetchRequest, Expect) -> F) -> Result<Proof, Unproven>
    where
        F: Future<Output = Result<Vec<u8>, FetchError>>,
    {
        let asked = self.clone();
        let (kept, proof) = blocking(move || Ok((asked.keeps(&proof.links), proof))).await?;
        let Err(why) = kept else { return Ok(proof) };
        let Some(head) = self.store.ancestry().seq() else { return Err(why) };
        let search = divergence::proven((&self.store, &self.spec), (self.peer, head), ask);
        let split = tokio::time::timeout(self.patience, search).await.ok().flatten();
        Err(split.map_or(why, |split| Unproven::Split(Box::new(split))))
    }

    /// Checks that verified links keep to this node's chain, if they begin on it.
    fn keeps(&self, links: &[Link]) -> Result<(), Unproven> {
        let Some(first) = links.first() else { return Ok(()) };
        let own = self.store.record(first.record.seq).map_err(Unproven::open)?;
        if own.is_none_or(|own| own.digest() != first.digest) {
            return Ok(());
        }
        self.store.keeps(links).map_err(Unproven::open)?.map_err(Unproven::from)
    }

    /// One answer, and its length.
    async fn path<F>(
        &self,
        known: Arc<[(u64, Digest)]>,
        ask: &impl Fn(FetchRequest, Expect) -> F,
    ) -> Result<(Vec<Link>, usize), Unproven>
    where
        F: Future<Output = Result<Vec<u8>, FetchError>>,
    {
        let request = FetchRequest::Path { to: self.seq, known };
        let expected = Expect::of(&request);
        let answer = tokio::time::timeout(self.patience, ask(request, expected)).await;
        let answer = answer.map_err(|_| Unproven::open(format!("it has shown nothing in {:?}", self.patience)))?;
        let answer =
            answer.map_err(|e| if e.is_violation() { Unproven::False(MALFORMED) } else { Unproven::open(e) })?;
        let links = chain::decode(&answer, PATH_LINKS_MAX as u16).map_err(|_| Unproven::False(MALFORMED))?;
        Ok((links, answer.len()))
    }

    /// Checks the first answer. It may have many signatures, so this runs on a thread that may block.
    fn begin(
        &self,
        (known, own): (Vec<(u64, Digest)>, Ancestry),
        links: Vec<Link>,
        bytes: usize,
    ) -> Result<Proof, Unproven> {
        let held = links.first().is_some_and(|first| known.contains(&place(first)));
        if !held {
            let genesis = links.first().is_some_and(|first| first.record.kind == RecordKind::Genesis);
            if genesis && !self.foreign {
                return Err(Unproven::Foreign);
            }
            let ancestry = self.verify(Root::Founder, &links)?;
            return Ok(Proof { links, ancestry, own: Vec::new(), bytes });
        }
        // Links that this node holds need no second check, and lead no further back than it knows.
        let mut links = links;
        links.drain(..self.last_held(&own, &links)?);
        let chain = self.store.ancestry();
        if own.seq().is_none_or(|seq| chain.until(seq) != own) {
            return Err(Unproven::open("this node has taken another chain since it asked"));
        }
        let ancestry = self.verify(Root::Held(&own), &links)?;
        let first = links.first().map_or(0, |first| first.record.seq);
        let own = known.into_iter().filter(|place| place.0 < first).take(PLACES_MAX).collect();
        Ok(Proof { links, ancestry, own, bytes })
    }

    /// The index of the last link that is on this node's chain.
    fn last_held(&self, own: &Ancestry, links: &[Link]) -> Result<usize, Unproven> {
        for (at, link) in links.iter().enumerate().skip(1).rev().filter(|(_, link)| Some(link.record.seq) <= own.seq())
        {
            if held(&self.store, link.record.seq)
                .map_err(Unproven::open)?
                .is_some_and(|held| held.digest == link.digest)
            {
                return Ok(at);
            }
        }
        Ok(0)
    }

    /// Checks an answer that goes on from the end of the answers before.
    fn go_on(&self, mut proof: Proof, links: &[Link], bytes: usize) -> Result<Proof, Unproven> {
        let last = proof.links.last().map(|last| last.digest);
        let progress = links.first().map(|first| first.digest) == last && links.len() > 1;
        if !progress {
            return Err(Unproven::open("its path does not go on where it had ended"));
        }
        proof.ancestry = self.verify(Root::Held(&proof.ancestry), links)?;
        proof.links.extend(links.iter().skip(1).cloned());
        proof.bytes += bytes;
        Ok(proof)
    }

    /// Asks the peer for the path from the proof to this record, and checks it; returns the path from the proof's
    /// beginning.
    pub async fn extend<F>(
        &self,
        proof: &Arc<Proof>,
        ask: impl Fn(FetchRequest, Expect) -> F,
    ) -> Result<(Vec<Link>, Ancestry), Unproven>
    where
        F: Future<Output = Result<Vec<u8>, FetchError>>,
    {
        let known: Arc<[(u64, Digest)]> = proof.places(self.seq).into();
        let (links, _) = self.path(known.clone(), &ask).await?;
        if !links.first().is_some_and(|first| known.contains(&place(first))) {
            return Err(Unproven::open("its path does not begin with what this node knows"));
        }
        if links.last().map(|last| last.record.seq) != Some(self.seq) {
            return Err(Unproven::open(format!("its path does not lead to record {}", self.seq)));
        }
        let (asked, before) = (self.clone(), proof.clone());
        let checked = blocking(move || {
            let ancestry = asked.verify(Root::Held(&before.ancestry), &links)?;
            let way = before.way_along(&links);
            asked.keeps(&way)?;
            Ok((way, ancestry))
        });
        checked.await
    }

    fn verify(&self, root: Root<'_>, links: &[Link]) -> Result<Ancestry, FalsePath> {
        path::verify(&Ed25519Verifier, &self.spec, &self.spec.digest(), (root, &self.peer), links)
    }
}

/// The reason if a peer's chain differs from this node's within a lineage.
pub const CONTRADICTS: &str = "its records contradict those of this node";

/// The label of an answer that is no path.
const MALFORMED: &str = "path_malformed";

/// Runs disk work and signatures on a thread that may block.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Unproven> + Send + 'static,
) -> Result<T, Unproven> {
    tokio::task::spawn_blocking(work).await.map_err(Unproven::open)?
}

#[cfg(test)]
#[path = "proof_test.rs"]
mod tests;
