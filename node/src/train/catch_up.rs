//! Bringing this node's state to the flock's head: records and updates from peers, and a snapshot when what is
//! held is not on their chain.
//!
//! Nothing of a peer is believed: records must form a chain from what is held (or from the snapshot) to the head that
//! the engine asked for, each with the votes of a quorum of the one before, chunks must have the digests of the
//! snapshot's manifest, whose root must be that of its record, updates must have the digest in their record, and
//! replaying them must give its state root. Until a new state is complete, the old one stays.

use super::chain::{self, Link, NoChain};
use super::divergence;
use super::head::Head;
use super::ledger::Job;
use super::merging::Left;
use crate::net::NetHandle;
use crate::net::fetch::{Expect, FetchError, FetchRequest, Item, SNAPSHOT_BYTES_MAX, decode_snapshots};
use crate::reduce::{FragmentFeedback, Passed};
use futures::{StreamExt, stream};
use starling_protocol::certificate::Split;
use starling_protocol::message::Certificate;
use starling_protocol::record::Record;
use starling_protocol::run::{Codec, RunSpec};
use starling_protocol::state::{self, Manifest};
use starling_protocol::{Digest, NodeId, update};
use starling_store::Store;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::{mpsc, oneshot};

/// Chunks that are fetched and wait to be written.
const CHUNKS_WAITING: usize = 8;

/// Updates that are fetched before the one that is replayed, and what they may take in memory.
const AHEAD_MAX: usize = 8;
const AHEAD_BYTES: usize = 128 << 20;

/// Sources of another chain within this node's lineage that are searched for the place where it begins.
const SEARCHED_MAX: usize = 3;

/// What the engine asked for.
#[derive(Clone, Debug)]
pub struct Errand {
    pub lineage: Digest,
    pub seq: u64,
    pub target: Digest,
    pub sources: Vec<NodeId>,
    pub afresh: bool,
}

/// Where the errand ended.
#[derive(Debug)]
pub struct Arrived {
    pub record: Record,
    pub certificate: Option<Certificate>,
    pub bytes: u64,
    pub seconds: f64,
    /// The lineage that this node has left on the way, if it has, and what it keeps of it.
    pub left: Option<Left>,
    /// Lineages that records on the way have merged, and in which rounds.
    pub merged: Vec<(Digest, u64)>,
    /// Records on the way, each after the one before; those before a snapshot are not in it.
    pub passed: Vec<Passed>,
}

/// How far the state has moved.
#[derive(Default)]
pub struct Way {
    /// Where it stands, if it has moved.
    reached: Option<Link>,
    merged: Vec<(Digest, u64)>,
    passed: Vec<Passed>,
}

impl Way {
    /// The state, which was that of `held` at first, is now that of `link`.
    fn reach(&mut self, held: impl FnOnce() -> Link, link: &Link) {
        let new = link.takes_in(&self.reached.take().unwrap_or_else(held));
        self.merged.extend(new.into_iter().map(|lineage| (lineage, link.record.round)));
        self.reached = Some(link.clone());
    }
}

/// Why it did not get there.
#[derive(Debug)]
pub struct Failed {
    pub reason: String,
    /// The sources' chain does not contain the record held here.
    pub diverged: bool,
    /// And both are certified from some place of one lineage on: for the engine to check.
    pub split: Option<Box<Split>>,
    /// The sources have dropped an update in between: only a snapshot helps.
    pruned: bool,
}

impl Failed {
    fn because(reason: impl ToString) -> Self {
        Self { reason: reason.to_string(), diverged: false, split: None, pruned: false }
    }
}

/// Everything an errand needs.
pub struct Task {
    pub errand: Errand,
    pub net: NetHandle,
    pub ledger: mpsc::Sender<Job>,
    pub store: Arc<Store>,
    pub spec: RunSpec,
    pub elements: usize,
    /// What is held now.
    pub head: Arc<Head>,
    /// Bytes received so far.
    pub bytes: AtomicU64,
    /// How far the state has moved by now.
    pub way: Mutex<Way>,
    /// What updates have left out: it goes by the records that were passed, and a snapshot tells none.
    pub feedback: Arc<FragmentFeedback>,
    /// What is kept of the lineage held now, once it is left.
    pub left: Mutex<Option<Left>>,
}

/// Told how many bytes have come so far.
pub type Progress<'a> = &'a (dyn Fn(u64) + Send + Sync);

/// A snapshot on the way to the target, and the records after it.
struct Offer {
    link: Link,
    /// The record before it, if a source had it.
    before: Option<Link>,
    manifest: Manifest,
    chain: Vec<Link>,
}

impl Task {
    /// Runs the errand. One that fails after the state has moved has arrived where it stands: the engine goes on from
    /// there, and asks again for what is left.
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
        Ok(Arrived { record, certificate, bytes, seconds: started.elapsed().as_secs_f64(), left, merged, passed })
    }

    /// From the head held here; by way of a snapshot if the sources have dropped the updates in between.
    async fn onward(&self, progress: Progress<'_>) -> Result<Link, Failed> {
        let held = self.held();
        let mut why = "no peer to fetch from".to_string();
        let (mut diverged, mut asked, mut split) = (0, 0, None);
        for source in &self.errand.sources {
            match self.chain_of(*source, &held).await {
                Ok(chain) => match self.replay(chain, progress).await {
                    Err(failed) if failed.pruned => return self.afresh(progress).await,
                    other => return other,
                },
                Err(NoChain::Diverged) => {
                    diverged += 1;
                    if split.is_none() && diverged <= SEARCHED_MAX {
                        split = self.split_from(*source).await;
                    }
                    why = format!("the flock's records do not follow record {} of this node", self.head.record.seq);
                }
                Err(NoChain::Other(reason)) => why = reason,
            }
            asked += 1;
        }
        let diverged = asked > 0 && diverged == asked;
        Err(Failed { diverged, split: split.map(Box::new), ..Failed::because(why) })
    }

    /// What is held at first, which was checked when it came.
    fn held(&self) -> Link {
        Link { record: self.head.record.clone(), digest: self.head.record.digest(), certificate: None }
    }

    /// A source's chain does not hold this node's head: if they are of one lineage, looks where they part.
    async fn split_from(&self, source: NodeId) -> Option<Split> {
        if self.head.record.lineage != self.errand.lineage {
            return None;
        }
        let held = |seq| {
            let store = self.store.clone();
            async move {
                let read = move || store.record(seq).and_then(|record| Ok(record.zip(Some(store.certificate(seq)?))));
                blocking(read).await.map_err(|failed| NoChain::because(failed.reason))
            }
        };
        let ask = |request, expected| self.ask(source, request, expected);
        divergence::find(self.head.record.seq, held, ask).await.unwrap_or_else(|no| {
            tracing::info!("{}: where its records part from this node's is not known: {no}", source.short());
            None
        })
    }

    async fn afresh(&self, progress: Progress<'_>) -> Result<Link, Failed> {
        let offer = self.offer().await?;
        let base = self.adopt(&offer, progress).await?;
        if offer.chain.is_empty() { Ok(base) } else { self.replay(offer.chain, progress).await }
    }

    /// The records after `base` up to the target.
    async fn chain_of(&self, source: NodeId, base: &Link) -> Result<Vec<Link>, NoChain> {
        let Errand { lineage, seq, target, .. } = &self.errand;
        let chain = chain::after(base, *seq, target, |request, expected| self.ask(source, request, expected)).await;
        let chain = chain.map_err(|no| match no {
            NoChain::Other(why) => NoChain::Other(format!("{}: {why}", source.short())),
            diverged => diverged,
        })?;
        // The digest says it all; a lineage that does not fit it is a mistake of whoever asked.
        let last = chain.last().unwrap_or(base);
        if last.record.lineage == *lineage { Ok(chain) } else { Err(NoChain::Diverged) }
    }

    async fn ask(&self, source: NodeId, request: FetchRequest, expected: Expect) -> Result<Vec<u8>, FetchError> {
        self.net.fetch(source, request, expected).await
    }

    /// The newest snapshot of any source that lies on the target's chain.
    async fn offer(&self) -> Result<Offer, Failed> {
        let mut why = "no peer to fetch from".to_string();
        for source in &self.errand.sources {
            match self.offer_of(*source).await {
                Ok(offer) => return Ok(offer),
                Err(reason) => why = format!("{}: {reason}", source.short()),
            }
        }
        Err(Failed::because(format!("no source offers a snapshot on the way to record {}; {why}", self.errand.seq)))
    }

    async fn offer_of(&self, source: NodeId) -> Result<Offer, String> {
        let request = FetchRequest::SnapshotManifests;
        let answer = self.net.fetch(source, request, Expect::of(&request)).await.map_err(|e| e.to_string())?;
        let mut snapshots = decode_snapshots(&answer).map_err(|e| e.to_string())?;
        snapshots.sort_by_key(|(seq, _)| std::cmp::Reverse(*seq));
        let mut why = "it has none".to_string();
        for (seq, manifest) in snapshots.into_iter().filter(|(_, m)| m.len() <= SNAPSHOT_BYTES_MAX) {
            match self.snapshot(source, seq, &manifest).await {
                Ok(offer) => return Ok(offer),
                Err(reason) => why = reason,
            }
        }
        Err(why)
    }

    /// Checks that the manifest is of the record at `seq`, and that the record leads to the target.
    async fn snapshot(&self, source: NodeId, seq: u64, manifest: &[u8]) -> Result<Offer, String> {
        let manifest = Manifest::decode(manifest).map_err(|e| e.to_string())?;
        let vectors = self.spec.sync.mode.vectors();
        if manifest.schema != self.head.schema
            || (manifest.elements, manifest.vectors) != (self.elements as u64, vectors)
        {
            return Err("its snapshot is of another model".into());
        }
        let found = chain::at(seq, |request, expected| self.ask(source, request, expected)).await;
        let (before, link) = found.map_err(|no| no.to_string())?;
        // Its lineage may be one that the target's has forked from.
        if link.record.run != self.spec.digest() || state::root(&manifest) != link.record.state_root {
            return Err("its snapshot is not of its record".into());
        }
        match self.chain_of(source, &link).await {
            Ok(chain) => Ok(Offer { link, before, manifest, chain }),
            Err(NoChain::Diverged) => Err("its snapshot does not lead to the head".into()),
            Err(NoChain::Other(why)) => Err(why),
        }
    }

    /// Fetches a snapshot's chunks from all sources at once and makes it this node's head.
    async fn adopt(&self, offer: &Offer, progress: Progress<'_>) -> Result<Link, Failed> {
        let manifest = Arc::new(offer.manifest.clone());
        let missing = {
            let (store, manifest) = (self.store.clone(), manifest.clone());
            blocking(move || store.begin_adopt(&manifest)).await?
        };
        let places: BTreeMap<Digest, usize> = manifest.chunks.iter().enumerate().map(|(n, d)| (*d, n)).collect();
        let items = missing.iter().filter_map(|digest| {
            let index = *places.get(digest)?;
            let length = manifest.chunk_len(index)? as u64;
            Some(Item { index, parts: vec![(FetchRequest::StateChunk(*digest), Expect::Exactly(length))] })
        });
        let items: Vec<Item> = items.collect();
        let checked = manifest.clone();
        let check = Arc::new(move |item: &Item, bytes: &[u8]| checked.check_chunk(item.index, bytes).is_ok());
        let (done, mut chunks) = mpsc::channel(CHUNKS_WAITING);
        let downloader = self.net.downloader(check);
        let download = async { downloader.run(items, &self.errand.sources, done).await.map_err(Failed::because) };
        let writing = async {
            while let Some((index, bytes)) = chunks.recv().await {
                self.count(bytes.len(), progress);
                let (store, manifest) = (self.store.clone(), manifest.clone());
                blocking(move || match manifest.chunks.get(index) {
                    Some(digest) => store.put_chunk(digest, &bytes),
                    None => Ok(()),
                })
                .await?;
            }
            Ok(())
        };
        tokio::try_join!(download, writing)?;
        self.leave_lineage().await?;
        // Before the state is another: killed in between, the node shall not find what belongs to the old one.
        let feedback = Arc::clone(&self.feedback);
        blocking(move || feedback.forget()).await?;
        let (store, link) = (self.store.clone(), offer.link.clone());
        let before = offer.before.as_ref().map(|before| before.record.clone());
        let adopt = move || store.finish_adopt(&manifest, &link.record, link.certificate.as_ref(), before.as_ref());
        blocking(adopt).await?;
        let (reply, reloaded) = oneshot::channel();
        self.ledger(Job::Reload { reply }).await?;
        reloaded.await.map_err(|_| Failed::because("the ledger stopped"))?.map_err(Failed::because)?;
        self.reach(&offer.link);
        self.way().passed.clear();
        Ok(offer.link.clone())
    }

    /// The chain held here is about to be replaced: keeps what was learned in it, if it is of another lineage.
    async fn leave_lineage(&self) -> Result<(), Failed> {
        let lineage = self.head.record.lineage;
        if lineage == self.errand.lineage || lineage == Digest::default() {
            return Ok(());
        }
        let (reply, kept) = oneshot::channel();
        self.ledger(Job::Leave { reply }).await?;
        let kept = kept.await.map_err(|_| Failed::because("the ledger stopped"))?;
        *self.left.lock().unwrap_or_else(PoisonError::into_inner) = Some((lineage, kept));
        Ok(())
    }

    /// Fetches the updates of a chain, some ahead, and replays them; returns the last link. One at a time would be one a
    /// round trip: where rounds are shorter than that, a node far away would never get there.
    async fn replay(&self, chain: Vec<Link>, progress: Progress<'_>) -> Result<Link, Failed> {
        let mut last = None;
        let largest = update::encoded_max(Codec::Bf16, self.elements).max(1);
        let ahead = (AHEAD_BYTES / largest).clamp(1, AHEAD_MAX);
        let fetched = |link: Link| async {
            let update = if link.record.changes_state() { Some(self.update_of(&link.record).await?) } else { None };
            Ok::<_, Failed>((link, update))
        };
        let mut updates = stream::iter(chain).map(fetched).buffered(ahead);
        while let Some(next) = updates.next().await {
            let (link, update) = next?;
            let Some(certificate) = link.certificate.clone() else {
                return Err(Failed::because(format!("record {} came without its votes", link.record.seq)));
            };
            self.count(update.as_ref().map_or(0, Vec::len), progress);
            let (reply, replayed) = oneshot::channel();
            let record = link.record.clone();
            self.ledger(Job::Replay { record, certificate, update, reply }).await?;
            replayed.await.map_err(|_| Failed::because("the ledger stopped"))?.map_err(Failed::because)?;
            self.reach(&link);
            self.way().passed.push(Passed::of(&link.record, &self.net.me()));
            last = Some(link);
        }
        last.ok_or_else(|| Failed::because("there is nothing to fetch"))
    }

    async fn update_of(&self, record: &Record) -> Result<Vec<u8>, Failed> {
        let mut why = "no peer to fetch from".to_string();
        // The codec was fixed by the record before; what is longer than the longest codec's is no update.
        let bytes_max = update::encoded_max(Codec::Bf16, self.elements) as u64;
        for source in &self.errand.sources {
            let request = FetchRequest::Update { seq: record.seq };
            match self.net.fetch(*source, request, Expect::AtMost(bytes_max)).await {
                Ok(bytes) if update::digest(&bytes) == record.update => return Ok(bytes),
                Ok(_) => why = format!("{} sent another update than the record names", source.short()),
                Err(e) => why = e.to_string(),
            }
        }
        let reason = format!("no source has the update of record {}: {why}", record.seq);
        Err(Failed { pruned: true, ..Failed::because(reason) })
    }

    fn way(&self) -> MutexGuard<'_, Way> {
        self.way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reach(&self, link: &Link) {
        self.way().reach(|| self.held(), link);
    }

    fn count(&self, bytes: usize, progress: Progress<'_>) {
        progress(self.bytes.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64);
    }

    async fn ledger(&self, job: Job) -> Result<(), Failed> {
        self.ledger.send(job).await.map_err(|_| Failed::because("the ledger stopped"))
    }
}

/// Runs disk work on a thread that may block.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, starling_store::StoreError> + Send + 'static,
) -> Result<T, Failed> {
    tokio::task::spawn_blocking(work).await.map_err(Failed::because)?.map_err(Failed::because)
}

#[cfg(test)]
#[path = "catch_up_test.rs"]
mod tests;
