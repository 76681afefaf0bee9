//! Records and the votes that decided them, as a source sends them: fetches them, and checks them link by link.

use crate::net::fetch::{Expect, FetchError, FetchRequest, RECORDS_MAX, decode_records};
use starling_protocol::identity::Ed25519Verifier;
pub use starling_protocol::path::Link;
use starling_protocol::record::RecordKind;
use starling_protocol::run::RunSpec;
use starling_protocol::{Digest, certificate, wire};

/// Longest gap that is closed record by record; beyond it a snapshot is fetched.
pub const RECORDS_GAP_MAX: u64 = 4096;

/// The lineages whose work this record has brought into the state before it, if it follows `before`. Only a COMMIT
/// does: a FORK lists the lineage that it leaves, whose work was in the state already.
pub fn takes_in(link: &Link, before: &Link) -> Vec<Digest> {
    if link.record.kind != RecordKind::Commit || link.record.parent != before.digest {
        return Vec::new();
    }
    let new = |lineage: &&Digest| before.record.merged.binary_search(lineage).is_err();
    link.record.merged.iter().filter(new).copied().collect()
}

/// Why a source's records are of no use.
#[derive(Debug, PartialEq)]
pub enum NoChain {
    /// The records do not follow the base, or do not lead to the target.
    Gone(&'static str),
    /// They do not follow the record asked about, or do not lead to the target.
    Diverged,
    Other(String),
}

impl std::fmt::Display for NoChain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Gone(why) => f.write_str(why),
            Self::Diverged => f.write_str("its records are of another chain"),
            Self::Other(why) => f.write_str(why),
        }
    }
}

impl NoChain {
    pub fn because(reason: impl ToString) -> Self {
        Self::Other(reason.to_string())
    }

    /// A refusal that is counted: the source broke the protocol.
    fn refused(label: &'static str, reason: impl ToString) -> Self {
        metrics::counter!("starling_refused_total", "reason" => label).increment(1);
        Self::because(reason)
    }
}

/// Decodes a source's answer to a request for at most `max` records.
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

/// Checks that `link` was decided on top of `parent`: a quorum of the parent's voters signed it (or, for a fork, all
/// its members), and it follows from the parent by everything that the two records show.
pub fn verify(spec: &RunSpec, parent: &Link, link: &Link) -> Result<(), NoChain> {
    let certificate = link.certificate.as_ref().ok_or_else(|| {
        NoChain::refused("catch_up_uncertified", format!("record {} came without its votes", link.record.seq))
    })?;
    certificate::verify(&Ed25519Verifier, spec, &parent.record, &parent.digest, &link.record, certificate)
        .map_err(|e| NoChain::refused("catch_up_certificate", format!("record {}: {e}", link.record.seq)))
}

/// Verifies consecutive links, the first of which follows `parent`. There may be hundreds of signatures, so this runs
/// on a thread that may block.
async fn verified(spec: RunSpec, parent: Link, links: Vec<Link>) -> Result<Vec<Link>, NoChain> {
    let work = move || {
        let mut before = &parent;
        for link in &links {
            verify(&spec, before, link)?;
            before = link;
        }
        Ok(links)
    };
    tokio::task::spawn_blocking(work).await.map_err(NoChain::because)?
}

/// The links after `base` up to number `seq`, the last of which must be `target`. `ask` sends a request to the source.
pub async fn after<F>(
    spec: &RunSpec,
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
        return Err(NoChain::Gone("the gap is too long for records alone"));
    }
    let mut chain: Vec<Link> = Vec::new();
    while (chain.len() as u64) < gap {
        let parent = chain.last().unwrap_or(base);
        let max = (gap - chain.len() as u64).min(u64::from(RECORDS_MAX)) as u16;
        let from_seq = parent.record.seq.saturating_add(1);
        let links = ask_for(FetchRequest::Records { from_seq, max }, max, &ask).await?;
        let first = links.first().filter(|first| first.record.seq == from_seq);
        let Some(first) = first else { return Err(NoChain::Gone("it does not have these records")) };
        if first.record.parent != parent.digest {
            return Err(NoChain::Diverged);
        }
        chain.extend(verified(spec.clone(), parent.clone(), links).await?);
    }
    if chain.last().unwrap_or(base).digest == *target { Ok(chain) } else { Err(NoChain::Diverged) }
}

/// Asks for at most `max` records, and decodes the answer.
pub async fn ask_for<F>(
    request: FetchRequest,
    max: u16,
    ask: impl Fn(FetchRequest, Expect) -> F,
) -> Result<Vec<Link>, NoChain>
where
    F: Future<Output = Result<Vec<u8>, FetchError>>,
{
    let expected = Expect::of(&request);
    decode(&ask(request, expected).await.map_err(NoChain::because)?, max)
}

#[cfg(test)]
#[path = "chain_test.rs"]
mod tests;
