//! Catching up afresh: a snapshot on the path to the target, proven by the records after it, replaces this node's
//! state.

use super::catch_up::{Errand, Failed, Progress, Task, beside, blocking};
use super::chain::{Link, NoChain};
use super::ledger::Job;
use super::proof::{ANSWER_PATIENCE, Asked, CONTRADICTS, Proof, Unproven};
use super::sources::Begun;
use super::{snapshots, swarm};
use crate::net::fetch::{FetchRequest, Item, Start, decode_start};
use starling_protocol::state::{self, Manifest};
use starling_protocol::{Digest, NodeId};
use std::future::ready;
use std::sync::{Arc, PoisonError};
use tokio::sync::{mpsc, oneshot};

/// Fetched chunks that may wait to be written.
const CHUNKS_WAITING: usize = 8;

/// Updates that may wait for the state: one that is asked for, one that is here, and one that is first in line.
const UPDATES_WAITING: usize = 2;

/// A snapshot on the path to the target.
struct Offer {
    /// The path to the snapshot's record, which is its last link.
    way: Vec<Link>,
    manifest: Manifest,
    /// The records after the snapshot, up to the target.
    chain: Vec<Link>,
}

impl Task {
    pub(super) async fn afresh(&self, progress: Progress<'_>) -> Result<Link, Failed> {
        let proof = match &self.proof {
            Some(proof) => proof.clone(),
            None => self.prove().await?,
        };
        let Offer { way, manifest, chain } = self.offer(&proof).await?;
        let base = way.last().cloned().ok_or_else(|| Failed::because("there is no way to the snapshot"))?;
        let adopted = self.adopt(way, manifest, progress);
        if chain.is_empty() {
            adopted.await?;
            return Ok(base);
        }
        // One update after the other comes beside the chunks, if there is memory for those that wait: three streams
        // fetch chunks, and a source may give this node no more than four.
        if self.ahead(&base, &chain) > UPDATES_WAITING {
            return self.replay_after(adopted, (base, chain), 1, progress).await;
        }
        adopted.await?;
        self.replay(base, chain, progress).await
    }

    /// Proves the path to the target again: it was proven before, and that proof is not at hand any more.
    async fn prove(&self) -> Result<Arc<Proof>, Failed> {
        let Errand { seq, target, .. } = self.errand;
        let store = self.store.clone();
        if let Some(own) = blocking(move || Proof::of_own(&store, seq, &target)).await? {
            return Ok(Arc::new(own));
        }
        let mut why = "no peer to fetch from".to_string();
        for source in &self.errand.sources {
            let asked = self.asked(*source, seq);
            match asked.prove(|request, expected| self.ask(*source, request, expected)).await {
                Ok(proof) => return Ok(Arc::new(proof)),
                Err(unproven) => why = self.unproven(*source, unproven),
            }
        }
        Err(Failed::because(format!("no source shows the path to record {seq}; {why}")))
    }

    fn asked(&self, peer: NodeId, seq: u64) -> Asked {
        let (spec, store) = (self.spec.clone(), self.store.clone());
        // The engine has decided to follow this lineage, at whatever genesis its path begins.
        Asked { peer, seq, record: self.errand.target, foreign: true, spec, store, patience: ANSWER_PATIENCE }
    }

    fn unproven(&self, source: NodeId, unproven: Unproven) -> String {
        let why = match unproven {
            Unproven::Open(why) => why,
            Unproven::Foreign => "its path begins elsewhere".to_owned(),
            Unproven::Split(_) => CONTRADICTS.to_owned(),
            Unproven::False(label) => {
                metrics::counter!("starling_refused_total", "reason" => label).increment(1);
                format!("its path proves nothing ({label})")
            }
        };
        format!("{}: {why}", source.short())
    }

    /// The newest snapshot on the target's chain that a source offers.
    async fn offer(&self, proof: &Arc<Proof>) -> Result<Offer, Failed> {
        let request = FetchRequest::Start { to: self.errand.seq, known: proof.places(u64::MAX).into() };
        let ask = |source, begun| self.offer_of(source, proof, &request, begun);
        let none = |why| format!("no source offers a snapshot on the way to record {}; {why}", self.errand.seq);
        let others = snapshots::prepare(&self.net, &self.errand.sources, self.fellows.clone(), &request);
        let offered = beside(self.sources.first(ask), others);
        offered.await.map_err(|why| Failed::because(none(why)))
    }

    async fn offer_of(
        &self,
        source: NodeId,
        proof: &Arc<Proof>,
        request: &FetchRequest,
        begun: Begun,
    ) -> Result<Offer, String> {
        let answer = snapshots::of(&self.net, source, request, begun).await.map_err(|e| e.to_string())?;
        let start = decode_start(&answer).map_err(|e| e.to_string())?;
        self.snapshot(source, proof, start).await
    }

    /// Checks that the manifest is that of the record at `seq`, and that this record is on the target's chain.
    async fn snapshot(&self, source: NodeId, proof: &Arc<Proof>, start: Start) -> Result<Offer, String> {
        let Start { seq, manifest, path, records } = start;
        let manifest = Manifest::decode(&manifest).map_err(|e| e.to_string())?;
        let vectors = self.spec.sync.mode.vectors();
        if manifest.schema != self.head.schema
            || (manifest.elements, manifest.vectors) != (self.elements as u64, vectors)
        {
            return Err("its snapshot is of another model".into());
        }
        let way = self.way_to(source, proof, (seq, path)).await?;
        let link = way.last().ok_or("there is no way to its snapshot")?;
        if state::root(&manifest) != link.record.state_root {
            return Err("its snapshot is not of its record".into());
        }
        // A snapshot after the target is proven to follow it already.
        if seq > self.errand.seq {
            return Ok(Offer { way, manifest, chain: Vec::new() });
        }
        match self.chain_of(source, link, records).await {
            Ok(chain) => Ok(Offer { way, manifest, chain }),
            Err(NoChain::Diverged) => Err("its snapshot does not lead to the head".into()),
            Err(no) => Err(no.to_string()),
        }
    }

    /// The path to the record of this number: from the target's proof, or as the source has continued it.
    async fn way_to(
        &self,
        source: NodeId,
        proof: &Arc<Proof>,
        (seq, path): (u64, Vec<u8>),
    ) -> Result<Vec<Link>, String> {
        if let Some(way) = proof.way_to(seq) {
            return Ok(way.to_vec());
        }
        // The source has answered already.
        let extended = self.asked(source, seq).extend(proof, |_, _| ready(Ok(path.clone()))).await;
        let (way, ancestry) = extended.map_err(|unproven| self.unproven(source, unproven))?;
        let Errand { seq: target_seq, target, lineage, .. } = self.errand;
        let through = way.iter().any(|link| link.digest == target) && ancestry.lineage() == Some(lineage);
        if seq > target_seq && !through {
            return Err("its snapshot is beyond the head, and not known to follow it".into());
        }
        Ok(way)
    }

    /// Fetches a snapshot's chunks from all sources and fellows at once, and makes the snapshot this node's head.
    async fn adopt(&self, way: Vec<Link>, manifest: Manifest, progress: Progress<'_>) -> Result<(), Failed> {
        let link = way.last().cloned().ok_or_else(|| Failed::because("there is no way to the snapshot"))?;
        let manifest = Arc::new(manifest);
        let items = {
            let (store, manifest, me) = (self.store.clone(), manifest.clone(), self.net.me());
            blocking(move || Ok(swarm::items(&manifest, &store.begin_adopt(&manifest)?, &me))).await?
        };
        let checked = manifest.clone();
        let check = Arc::new(move |item: &Item, bytes: &[u8]| checked.check_chunk(item.index, bytes).is_ok());
        let (done, mut chunks) = mpsc::channel(CHUNKS_WAITING);
        let swarm = swarm::of(&manifest, self.fellows.clone());
        let downloader = self.net.downloader(check).beside(swarm).within(self.lanes.clone());
        let download = async {
            let report = downloader.run(items, &self.errand.sources, done).await.map_err(Failed::because)?;
            swarm::count(&report);
            self.net.fetched().state(&report);
            Ok::<_, Failed>(())
        };
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
        self.leave_lineage(progress).await?;
        // The residuals are dropped before the state changes: after a kill in between, the node must not find residuals
        // of the old state.
        let feedback = Arc::clone(&self.feedback);
        blocking(move || feedback.forget()).await?;
        let store = self.store.clone();
        blocking(move || store.finish_adopt(&manifest, &way)).await?;
        let (reply, reloaded) = oneshot::channel();
        self.ledger(Job::Reload { reply }).await?;
        reloaded.await.map_err(|_| Failed::because("the ledger stopped"))?.map_err(Failed::because)?;
        self.reach(&link);
        self.way().passed.clear();
        Ok(())
    }

    /// Keeps what was learned in the lineage held here, which is about to be replaced, if the target is of another one.
    async fn leave_lineage(&self, progress: Progress<'_>) -> Result<(), Failed> {
        let lineage = self.head.record.lineage;
        if lineage == self.errand.lineage || lineage == Digest::default() {
            return Ok(());
        }
        let (reply, kept) = oneshot::channel();
        let weights = self.weights(progress).await;
        self.ledger(Job::Leave { weights, reply }).await?;
        let kept = kept.await.map_err(|_| Failed::because("the ledger stopped"))?;
        *self.left.lock().unwrap_or_else(PoisonError::into_inner) = Some((lineage, kept));
        Ok(())
    }
}
