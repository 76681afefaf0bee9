//! Brings this node's state to the flock's head: by records and updates from peers, or by a snapshot if this node's
//! head is not on their chain.
//!
//! A peer is not trusted. The target is proven from this node's chain, or from a founder's genesis ([`super::proof`]),
//! before an errand begins. Records must form a chain from this node's head, or from the snapshot, to that target, each
//! with the votes of a quorum of the one before; chunks must have the digests of the snapshot's manifest, whose root
//! must be that of its record; updates must have the digest in their record, and replaying them must give its state
//! root. The old state stays until a new one is complete.

use super::chain::{self, Link, NoChain};
use super::difference::Left;
use super::divergence;
use super::head::Head;
use super::ledger::Job;
use super::proof::Proof;
use super::sources::Sources;
use crate::net::NetHandle;
use crate::net::fetch::{Expect, FetchError, FetchRequest, Lanes};
use crate::reduce::{FragmentFeedback, Passed};
use futures::future::{Either, select};
use starling_protocol::ancestry::Ancestry;
use starling_protocol::certificate::Split;
use starling_protocol::message::Certificate;
use starling_protocol::record::Record;
use starling_protocol::run::RunSpec;
use starling_protocol::{Digest, NodeId};
use starling_store::{Arriving, Store};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::{mpsc, watch};

/// Bytes after which others are told again that this node makes progress.
const TOLD_EACH: u64 = 256 << 10;

/// Sources with another chain of this node's lineage that are searched for the first record that differs.
const SEARCHED_MAX: usize = 3;

/// The catch-up that the engine asked for.
#[derive(Clone, Debug)]
pub struct Errand {
    pub lineage: Digest,
    pub seq: u64,
    pub target: Digest,
    pub sources: Vec<NodeId>,
    pub afresh: bool,
}

/// The end of an errand.
#[derive(Debug)]
pub struct Arrived {
    pub record: Record,
    pub certificate: Option<Certificate>,
    /// The ancestry of that record.
    pub ancestry: Ancestry,
    pub bytes: u64,
    pub seconds: f64,
    /// The lineage that this node has left on the way, if it has, with the difference that it keeps.
    pub left: Option<Left>,
    /// Lineages that records on the way have merged, with the rounds.
    pub merged: Vec<(Digest, u64)>,
    /// Records on the way, each after the one before; those before a snapshot are left out.
    pub passed: Vec<Passed>,
}

/// The movement of the state so far.
#[derive(Default)]
pub struct Way {
    /// The link of the present state, if it has moved.
    reached: Option<Link>,
    merged: Vec<(Digest, u64)>,
    pub passed: Vec<Passed>,
}

impl Way {
    /// Notes that the state, which was that of `held` at first, is now that of `link`.
    fn reach(&mut self, held: impl FnOnce() -> Link, link: &Link) {
        let new = chain::takes_in(link, &self.reached.take().unwrap_or_else(held));
        self.merged.extend(new.into_iter().map(|lineage| (lineage, link.record.round)));
        self.reached = Some(link.clone());
    }
}

/// Why an errand failed.
#[derive(Debug)]
pub struct Failed {
    pub reason: String,
    /// The sources' chain differs from this node's within one lineage, and this is the proof.
    pub split: Option<Box<Split>>,
    /// The sources have dropped an update on the way, so only a snapshot helps.
    pub pruned: bool,
}

impl Failed {
    pub(super) fn because(reason: impl ToString) -> Self {
        Self { reason: reason.to_string(), split: None, pruned: false }
    }
}

/// The inputs of an errand, and its progress.
pub struct Task {
    pub errand: Errand,
    /// The errand's sources, in the order in which they are asked.
    pub sources: Sources,
    /// Peers that catch up at the same time.
    pub fellows: watch::Receiver<Vec<NodeId>>,
    /// The path to the target, if it is at hand.
    pub proof: Option<Arc<Proof>>,
    pub net: NetHandle,
    pub ledger: mpsc::Sender<Job>,
    pub store: Arc<Store>,
    pub spec: Arc<RunSpec>,
    pub elements: usize,
    /// This node's head at the start.
    pub head: Arc<Head>,
    /// The streams that downloads of chunks and pieces share, so that they take no more than a node gives a stranger.
    pub lanes: Lanes,
    /// Held while a source is asked for something beside these streams.
    pub asking: tokio::sync::Mutex<()>,
    /// Bytes received so far.
    pub bytes: AtomicU64,
    /// The movement of the state so far.
    pub way: Mutex<Way>,
    /// The residuals, which follow the passed records; a snapshot drops them.
    pub feedback: Arc<FragmentFeedback>,
    /// The difference of the lineage held at the start, once this node has left it.
    pub left: Mutex<Option<Left>>,
}

/// An update that was fetched.
pub struct Fetched {
    pub bytes: Arc<Vec<u8>>,
    /// The pieces, which peers are served as long as this lives.
    _serves: Option<Arc<Arriving>>,
}

impl Fetched {
    /// An update that came whole; peers are served it once it is on the disk.
    pub fn whole(bytes: Vec<u8>) -> Self {
        Self { bytes: Arc::new(bytes), _serves: None }
    }

    /// An update that came in pieces.
    pub fn in_pieces(bytes: Arc<Vec<u8>>, pieces: Arc<Arriving>) -> Self {
        Self { bytes, _serves: Some(pieces) }
    }
}

/// A receiver of the number of bytes so far.
pub type Progress<'a> = &'a (dyn Fn(u64) + Send + Sync);

impl Task {
    /// Runs the errand. An errand that fails after the state has moved ends at that state: the engine goes on from
    /// there, and asks again for the rest.
    pub async fn run(self, progress: Progress<'_>) -> Result<Arrived, Failed> {
        let started = Instant::now();
        let outcome = if self.errand.afresh { self.afresh(progress).await } else { self.onward(progress).await };
        let Way { reached, merged, passed } = std::mem::take(&mut *self.way());
        let link = match (outcome, reached) {
            (Ok(link), _) => link,
            (Err(failed), Some(link)) => {
                let (seq, target) = (link.record.seq, self.errand.seq);
                tracing::info!("reached record {seq} on the way to {target}: {}", failed.reason);
                link
            }
            (Err(failed), None) => return Err(failed),
        };
        let bytes = self.bytes.load(Ordering::Relaxed);
        let Link { record, certificate, .. } = link;
        let left = self.left.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (ancestry, seconds) = (self.store.ancestry().until(record.seq), started.elapsed().as_secs_f64());
        Ok(Arrived { record, certificate, ancestry, bytes, seconds, left, merged, passed })
    }

    /// Catches up from this node's head; by a snapshot if the sources have dropped records or updates on the way.
    async fn onward(&self, progress: Progress<'_>) -> Result<Link, Failed> {
        let held = self.held();
        if let Some(chain) = self.proof.as_ref().and_then(|proof| proof.children_of(&held.digest)) {
            // The path was checked when it arrived, and no source needs to be asked.
            return self.replay_or_afresh(held, chain.to_vec(), progress).await;
        }
        let mut why = "no peer to fetch from".to_string();
        let (mut diverged, mut gone) = (0, false);
        for source in &self.errand.sources {
            match self.chain_of(*source, &held, Vec::new()).await {
                Ok(chain) => return self.replay_or_afresh(held, chain, progress).await,
                Err(NoChain::Diverged) => {
                    diverged += 1;
                    let search = diverged <= SEARCHED_MAX;
                    if search && let Some(split) = self.split_from(*source).await {
                        let why = "the flock's records contradict those of this node";
                        return Err(Failed { split: Some(Box::new(split)), ..Failed::because(why) });
                    }
                    why = format!("its records do not follow record {} of this node", self.head.record.seq);
                }
                Err(NoChain::Gone(reason)) => (gone, why) = (true, reason.to_owned()),
                Err(NoChain::Other(reason)) => why = reason,
            }
            why = format!("{}: {why}", source.short());
        }
        if gone { self.afresh(progress).await } else { Err(Failed::because(why)) }
    }

    async fn replay_or_afresh(&self, held: Link, chain: Vec<Link>, progress: Progress<'_>) -> Result<Link, Failed> {
        match self.replay(held, chain, progress).await {
            Err(failed) if failed.pruned => self.afresh(progress).await,
            other => other,
        }
    }

    /// This node's head at the start, which was checked when it was committed.
    fn held(&self) -> Link {
        Link { record: self.head.record.clone(), digest: self.head.record.digest(), certificate: None }
    }

    /// Looks for the first record that differs between a source's chain, which does not hold this node's head, and this
    /// node's, if both are of one lineage; checks the proof.
    async fn split_from(&self, source: NodeId) -> Option<Split> {
        if self.head.record.lineage != self.errand.lineage {
            return None;
        }
        let ask = |request, expected| self.ask(source, request, expected);
        divergence::proven((&self.store, &self.spec), (source, self.head.record.seq), ask).await
    }

    /// The records after `base` up to the target, of which the source has sent the first already, or none.
    pub(super) async fn chain_of(&self, source: NodeId, base: &Link, records: Vec<u8>) -> Result<Vec<Link>, NoChain> {
        let Errand { lineage, seq, target, .. } = &self.errand;
        let at_hand = Mutex::new(Some(records).filter(|records| records.len() > NO_RECORDS.len()));
        let ask = |request, expected| {
            let first = at_hand.lock().unwrap_or_else(PoisonError::into_inner).take();
            async move {
                match first {
                    Some(records) => Ok(records),
                    None => self.ask(source, request, expected).await,
                }
            }
        };
        let chain = chain::after(&self.spec, base, *seq, target, ask).await?;
        // The digest proves the chain; a lineage that does not fit it is a mistake of the caller.
        let last = chain.last().unwrap_or(base);
        if last.record.lineage == *lineage { Ok(chain) } else { Err(NoChain::Diverged) }
    }

    pub(super) async fn ask(
        &self,
        source: NodeId,
        request: FetchRequest,
        expected: Expect,
    ) -> Result<Vec<u8>, FetchError> {
        self.net.fetch(source, request, expected).await
    }

    pub(super) fn way(&self) -> MutexGuard<'_, Way> {
        self.way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn reach(&self, link: &Link) {
        self.way().reach(|| self.held(), link);
    }

    pub(super) fn count(&self, bytes: usize, progress: Progress<'_>) {
        let before = self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        let after = before + bytes as u64;
        if before / TOLD_EACH != after / TOLD_EACH {
            progress(after);
        }
    }

    pub(super) async fn ledger(&self, job: Job) -> Result<(), Failed> {
        self.ledger.send(job).await.map_err(|_| Failed::because("the ledger stopped"))
    }
}

/// The encoding of a list of no records.
const NO_RECORDS: [u8; 2] = 0u16.to_le_bytes();

/// Runs `main` to its end, and `aside` no longer than that.
pub(super) async fn beside<T>(main: impl Future<Output = T>, aside: impl Future<Output = ()>) -> T {
    match select(pin!(main), pin!(aside)).await {
        Either::Left((done, _)) => done,
        Either::Right(((), main)) => main.await,
    }
}

/// Runs disk work on a thread that may block.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, starling_store::StoreError> + Send + 'static,
) -> Result<T, Failed> {
    tokio::task::spawn_blocking(work).await.map_err(Failed::because)?.map_err(Failed::because)
}

#[cfg(test)]
#[path = "catch_up_test.rs"]
mod tests;
