//! Fetches a candidate that a voter has on its disk, so that this node may vote for it.
//!
//! A source is not trusted: the candidate must decode and be the one asked for, and the update must have the digest
//! that its record names. The engine checks whether the READYs lead to the record: it builds the record again.

use super::ledger::Update;
use crate::net::fetch::{Expect, FetchError, FetchRequest};
use starling_protocol::engine::Candidate;
use starling_protocol::engine::io::AttemptKey;
use starling_protocol::{Digest, NodeId, update, wire};
use std::sync::Arc;

/// A candidate to fetch, and its sources.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub key: AttemptKey,
    /// Digest of the candidate's record.
    pub record: Digest,
    /// The length that its update may have, by the model's size and the round's codec.
    pub update: Expect,
    pub sources: Vec<NodeId>,
}

/// A candidate and the update of its record.
pub struct Arrived {
    pub candidate: Candidate,
    pub update: Update,
}

/// The fault of one source: the label of `starling_refused_total` and a clause for the log.
type Refused = (&'static str, String);

impl Wanted {
    /// Asks the sources in turn.
    ///
    /// # Errors
    /// The answer of the last source.
    pub async fn fetch<F>(&self, ask: impl Fn(NodeId, FetchRequest, Expect) -> F) -> Result<Arrived, String>
    where
        F: Future<Output = Result<Vec<u8>, FetchError>>,
    {
        let mut why = "no member is connected that has it".to_string();
        for source in &self.sources {
            match self.fetch_from(*source, &ask).await {
                Ok(arrived) => return Ok(arrived),
                Err((reason, error)) => {
                    metrics::counter!("starling_refused_total", "reason" => reason).increment(1);
                    why = format!("{}: {error}", source.short());
                    tracing::debug!("a candidate was not fetched: {why}");
                }
            }
        }
        Err(why)
    }

    async fn fetch_from<F>(
        &self,
        source: NodeId,
        ask: &impl Fn(NodeId, FetchRequest, Expect) -> F,
    ) -> Result<Arrived, Refused>
    where
        F: Future<Output = Result<Vec<u8>, FetchError>>,
    {
        let failed = |e: FetchError| ("candidate_not_served", e.to_string());
        let request = FetchRequest::Candidate(self.record);
        let expected = Expect::of(&request);
        let bytes = ask(source, request, expected).await.map_err(failed)?;
        let candidate = wire::decode_candidate(&bytes).map_err(|e| ("candidate_malformed", e.to_string()))?;
        if candidate.record.digest() != self.record || candidate.key != self.key {
            return Err(("candidate_other", "it sent another candidate than the one asked for".into()));
        }
        let digest = candidate.record.update;
        let request = FetchRequest::UpdateByDigest(digest);
        let bytes = ask(source, request, self.update).await.map_err(failed)?;
        if update::digest(&bytes) != digest {
            return Err(("candidate_update", "it sent another update than the record names".into()));
        }
        Ok(Arrived { candidate, update: Update { digest, bytes: Arc::new(bytes) } })
    }
}

#[cfg(test)]
#[path = "candidate_test.rs"]
mod tests;
