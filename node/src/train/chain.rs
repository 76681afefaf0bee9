//! Records and the votes that decided them, as a source sends them: fetched, and checked link by link.

use crate::net::fetch::{Expect, FetchError, FetchRequest, RECORDS_MAX, decode_records};
use starling_protocol::identity::Ed25519Verifier;
use starling_protocol::message::Certificate;
use starling_protocol::record::{Record, RecordKind};
use starling_protocol::{Digest, certificate, wire};

/// Longest gap that is closed record by record; beyond it a snapshot is fetched.
pub const RECORDS_GAP_MAX: u64 = 4096;

/// A record, its digest, and the votes that decided it; only a genesis record has none.
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    pub record: Record,
    pub digest: Digest,
    pub certificate: Option<Certificate>,
}

impl Link {
    /// The lineages whose work this record has brought into the state that it found, if it follows `before`. Only a COMMIT
    /// does: a FORK lists the lineage that it leaves, whose work was in there.
    pub fn takes_in(&self, before: &Link) -> Vec<Digest> {
        if self.record.kind != RecordKind::Commit || self.record.parent != before.digest {
            return Vec::new();
        }
        let new = |lineage: &&Digest| before.record.merged.binary_search(lineage).is_err();
        self.record.merged.iter().filter(new).copied().collect()
    }
}

/// Why a source's records were of no use.
#[derive(Debug, PartialEq)]
pub enum NoChain {
    /// They do not follow the record asked about, or do not lead to the target.
    Diverged,
    Other(String),
}

impl std::fmt::Display for NoChain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Diverged => f.write_str("its records are of another chain"),
            Self::Other(why) => f.write_str(why),
        }
    }
}

impl NoChain {
    pub fn because(reason: impl ToString) -> Self {
        Self::Other(reason.to_string())
    }

    /// A refusal that is counted: the source sent something that it should not have.
    fn refused(label: &'static str, reason: impl ToString) -> Self {
        metrics::counter!("starling_refused_total", "reason" => label).increment(1);
        Self::because(reason)
    }
}

/// Decodes what a source sent in answer to a request for at most `max` records.
pub fn decode(answer: &[u8], max: u16) -> Result<Vec<Link>, NoChain> {
    let pairs = decode_records(answer).map_err(|e| NoChain::refused("catch_up_malformed", e))?;
    if pairs.len() > usize::from(max) {
        return Err(NoChain::refused("catch_up_malformed", "it sent more records than were asked for"));
    }
    pairs.iter().map(decode_link).collect()
}

fn decode_link((record, votes): &(Vec<u8>, Vec<u8>)) -> Result<Link, NoChain> {
    let malformed = |e| NoChain::refused("catch_up_malformed", e);
    let digest = wire::record_digest(record);
    let record = wire::decode_record(record).map_err(malformed)?;
    let certificate = if votes.is_empty() { None } else { Some(wire::decode_certificate(votes).map_err(malformed)?) };
    Ok(Link { record, digest, certificate })
}

/// Whether `link` was decided on top of `parent`: a quorum of the parent's voters signed it (or, for a fork, all its
/// members), and it follows by all that the two show.
pub fn verify(parent: &Link, link: &Link) -> Result<(), NoChain> {
    let certificate = link.certificate.as_ref().ok_or_else(|| {
        NoChain::refused("catch_up_uncertified", format!("record {} came without its votes", link.record.seq))
    })?;
    certificate::verify(&Ed25519Verifier, &parent.record, &parent.digest, &link.record, certificate)
        .map_err(|e| NoChain::refused("catch_up_certificate", format!("record {}: {e}", link.record.seq)))
}

/// Verifies consecutive links, the first of which follows `parent`. Hundreds of signatures: on a thread that may block.
async fn verified(parent: Link, links: Vec<Link>) -> Result<Vec<Link>, NoChain> {
    let work = move || {
        let mut before = &parent;
        for link in &links {
            verify(before, link)?;
            before = link;
        }
        Ok(links)
    };
    tokio::task::spawn_blocking(work).await.map_err(NoChain::because)?
}

/// The links after `base` up to number `seq`, the last of which must be `target`. `ask` sends a request to the source.
pub async fn after<F>(
    base: &Link,
    seq: u64,
    target: &Digest,
    ask: impl Fn(FetchRequest, Expect) -> F,
) -> Result<Vec<Link>, NoChain>
where
    F: Future<Output = Result<Vec<u8>, FetchError>>,
{
    let gap = seq.checked_sub(base.record.seq).ok_or(NoChain::Diverged)?;
    if gap > RECORDS_GAP_MAX {
        return Err(NoChain::because("the gap is too long for records alone"));
    }
    let mut chain: Vec<Link> = Vec::new();
    while (chain.len() as u64) < gap {
        let parent = chain.last().unwrap_or(base);
        let max = (gap - chain.len() as u64).min(u64::from(RECORDS_MAX)) as u16;
        let from_seq = parent.record.seq.saturating_add(1);
        let request = FetchRequest::Records { from_seq, max };
        let answer = ask(request, Expect::of(&request)).await.map_err(NoChain::because)?;
        let links = decode(&answer, max)?;
        let Some(first) = links.first() else { return Err(NoChain::because("it does not have these records")) };
        if first.record.seq != from_seq {
            return Err(NoChain::because("it does not have these records"));
        }
        if first.record.parent != parent.digest {
            return Err(NoChain::Diverged);
        }
        chain.extend(verified(parent.clone(), links).await?);
    }
    if chain.last().unwrap_or(base).digest == *target { Ok(chain) } else { Err(NoChain::Diverged) }
}

/// The record at `seq`, and the one before it if the source has it: with that one the votes are checked, which is as far
/// as a record that stands on nothing of ours can be.
pub async fn at<F>(seq: u64, ask: impl Fn(FetchRequest, Expect) -> F) -> Result<(Option<Link>, Link), NoChain>
where
    F: Future<Output = Result<Vec<u8>, FetchError>>,
{
    let from_seq = seq.saturating_sub(1);
    let max = if seq == 0 { 1 } else { 2 };
    let request = FetchRequest::Records { from_seq, max };
    let answer = ask(request, Expect::of(&request)).await.map_err(NoChain::because)?;
    let mut links = decode(&answer, max)?;
    let found = links.iter().position(|link| link.record.seq == seq);
    let Some(place) = found else { return Err(NoChain::because("it does not have the snapshot's record")) };
    let link = links.swap_remove(place);
    let before = links.into_iter().find(|other| other.digest == link.record.parent);
    let genesis = link.record.kind == RecordKind::Genesis;
    if genesis != link.certificate.is_none() {
        return Err(NoChain::refused("catch_up_uncertified", format!("record {seq} came without its votes")));
    }
    let Some(before) = before.filter(|_| !genesis) else {
        if !genesis {
            tracing::info!("record {seq} is taken without its parent, so its votes are checked by name only");
        }
        return Ok((None, link));
    };
    let mut link = verified(before.clone(), vec![link]).await?;
    let link = link.pop().ok_or_else(|| NoChain::because("it does not have the snapshot's record"))?;
    Ok((Some(before), link))
}

#[cfg(test)]
#[path = "chain_test.rs"]
mod tests;
