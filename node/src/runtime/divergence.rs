//! The first record at which a source's chain differs from the one on this disk, with the proofs of both: within a
//! lineage that must never be, and the engine stops when it is shown (`docs/protocol/4-agreement.md` §4.8.4).

use super::chain::{self, Link, NoChain};
use crate::net::fetch::{Expect, FetchError, FetchRequest};
use starling_protocol::NodeId;
use starling_protocol::certificate::{self, Split};
use starling_protocol::divergence::{Compared, FirstDifference};
use starling_protocol::identity::Ed25519Verifier;
use starling_protocol::message::Certificate;
use starling_protocol::record::Record;
use starling_protocol::run::RunSpec;
use starling_store::Store;
use std::sync::Arc;

/// Records before the head that are searched, in steps that double, so that few are asked for.
const DEPTH_MAX: u64 = 1 << 20;
/// The most records that are compared.
const ASKED_MAX: usize = 64;

/// A record with the votes that decided it, if it is there.
pub type Held = Option<(Record, Option<Certificate>)>;

/// Finds the first difference in a chain that does not hold this node's head, of number `head`. `held` reads a record
/// of this node's own chain, `ask` sends a request to the source.
///
/// # Errors
/// The source or the disk failed. `None`: the chains share no record, or show none that differs.
pub async fn find<F, G>(
    head: u64,
    held: impl Fn(u64) -> G,
    ask: impl Fn(FetchRequest, Expect) -> F,
) -> Result<Option<Split>, NoChain>
where
    F: Future<Output = Result<Vec<u8>, FetchError>>,
    G: Future<Output = Result<Held, NoChain>>,
{
    let mut search = FirstDifference::before(head, DEPTH_MAX);
    for _ in 0..ASKED_MAX {
        let Some(seq) = search.next() else { break };
        let ours = held(seq).await?.map(|(record, _)| record.digest());
        let theirs = of_source(seq, &ask).await?.map(|link| link.digest);
        let compared = match ours.zip(theirs) {
            Some((ours, theirs)) if ours == theirs => Compared::Same,
            Some(_) => Compared::Different,
            None => Compared::Missing,
        };
        search.note(seq, compared);
    }
    let Some(seq) = search.found() else { return Ok(None) };
    let (parent, ours) = (held(seq - 1).await?, held(seq).await?);
    let theirs = of_source(seq, &ask).await?.and_then(|link| Some((link.record, link.certificate?)));
    let (Some((parent, _)), Some((ours, Some(proof))), Some(theirs)) = (parent, ours, theirs) else { return Ok(None) };
    Ok(Some(Split { parent, ours: (ours, proof), theirs }))
}

/// Finds the first difference to the chain of `source`, from this disk's head, and checks both proofs. None: nothing is
/// proven.
pub async fn proven<F>(
    (store, spec): (&Arc<Store>, &RunSpec),
    (source, head): (NodeId, u64),
    ask: impl Fn(FetchRequest, Expect) -> F,
) -> Option<Split>
where
    F: Future<Output = Result<Vec<u8>, FetchError>>,
{
    let held = |seq| {
        let store = store.clone();
        async move {
            let read = move || store.record(seq).and_then(|record| Ok(record.zip(Some(store.certificate(seq)?))));
            tokio::task::spawn_blocking(read).await.map_err(NoChain::because)?.map_err(NoChain::because)
        }
    };
    let found = find(head, held, ask).await.unwrap_or_else(|no| {
        tracing::info!("{}: where its records part from this node's is not known: {no}", source.short());
        None
    });
    found.filter(|split| {
        let proven = certificate::verify_split(&Ed25519Verifier, spec, split);
        if let Err(why) = &proven {
            metrics::counter!("starling_refused_total", "reason" => "catch_up_certificate").increment(1);
            tracing::warn!("{}: its records part from this node's without proof: {why}", source.short());
        }
        proven.is_ok()
    })
}

/// The source's record of this number: a claim, which its votes prove or not.
async fn of_source<F>(seq: u64, ask: &impl Fn(FetchRequest, Expect) -> F) -> Result<Option<Link>, NoChain>
where
    F: Future<Output = Result<Vec<u8>, FetchError>>,
{
    let links = chain::ask_for(FetchRequest::Records { from_seq: seq, max: 1 }, 1, ask).await?;
    Ok(links.into_iter().find(|link| link.record.seq == seq))
}

#[cfg(test)]
#[path = "divergence_test.rs"]
mod tests;
