//! Fetches the updates of a chain and has the ledger replay them.
//!
//! Each update costs a round trip if they are asked for one after another: a node whose round trip is longer than a
//! round would never arrive. So small ones are asked for in runs, several runs are on their way at a time, and large ones
//! are fetched in pieces ([`super::pieces`]), of which the next one's follow the last of the former.

use super::catch_up::{Failed, Fetched, Progress, Task, beside};
use super::chain::Link;
use super::ledger::Job;
use super::sources::Begun;
use crate::net::fetch::{Expect, FetchRequest, REQUESTS_AT_ONCE, STREAMS_PER_SOURCE};
use crate::reduce::Passed;
use futures::{StreamExt, stream};
use starling_protocol::NodeId;
use starling_protocol::record::Record;
use starling_protocol::run::Codec;
use starling_protocol::update::{self, Fragments};
use std::future::ready;
use std::iter;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::{mpsc, oneshot};

/// Runs of updates that are fetched at a time before the one that is replayed, and the memory that so many of the largest
/// updates may take.
const AHEAD_MAX: usize = STREAMS_PER_SOURCE;
const AHEAD_BYTES: usize = 128 << 20;

/// Updates that are asked for at once on one stream, and the bytes that they may have together.
const TOGETHER_MAX: usize = REQUESTS_AT_ONCE;
const TOGETHER_BYTES: usize = 4 << 20;

/// A record whose update is to be fetched, and the codec of that, which the record before it fixed.
type Wanted = (Link, Codec);
/// A record and its update, if it has one.
type Came = (Link, Option<Fetched>);

impl Task {
    /// Fetches the updates of a chain after `base`, some ahead, and replays them; returns the last link.
    pub(super) async fn replay(&self, base: Link, chain: Vec<Link>, progress: Progress<'_>) -> Result<Link, Failed> {
        self.replay_after(ready(Ok(())), (base, chain), AHEAD_MAX, progress).await
    }

    /// The same for a state that is that of `base` once `prepared` is over: updates are fetched meanwhile, at most
    /// `ahead_max` runs of them at a time.
    pub(super) async fn replay_after(
        &self,
        prepared: impl Future<Output = Result<(), Failed>>,
        (base, chain): (Link, Vec<Link>),
        ahead_max: usize,
        progress: Progress<'_>,
    ) -> Result<Link, Failed> {
        let ahead = self.ahead(&base, &chain).clamp(1, ahead_max);
        let codecs: Vec<Codec> = codecs(&base, &chain).collect();
        let bytes_of = |(link, codec): &Wanted| match link.record.changes_state() {
            true => self.longest(&link.record, *codec),
            false => 0,
        };
        let runs = together(chain.into_iter().zip(codecs), bytes_of);
        let (sender, mut fetched) = mpsc::channel(1);
        let fetching = async {
            let mut updates = stream::iter(runs).map(|run| self.updates_of(run, progress)).buffered(ahead);
            while let Some((came, failed)) = updates.next().await {
                for next in came.into_iter().map(Ok).chain(failed.map(Err)) {
                    if sender.send(next).await.is_err() {
                        return;
                    }
                }
            }
            // The receiver learns that this was all.
            drop(sender);
        };
        // The state must not move unnoticed, so no failure of a fetch ends this before its turn has come.
        let replaying = async {
            prepared.await?;
            let mut last = None;
            while let Some(next) = fetched.recv().await {
                let (link, update) = next?;
                self.replay_one(&link, update, progress).await?;
                last = Some(link);
            }
            last.ok_or_else(|| Failed::because("there is nothing to fetch"))
        };
        beside(replaying, fetching).await
    }

    /// Updates of this chain that have room in memory at a time.
    pub(super) fn ahead(&self, base: &Link, chain: &[Link]) -> usize {
        let longest = codecs(base, chain).map(|codec| update::encoded_max(codec, self.elements)).max();
        AHEAD_BYTES / longest.unwrap_or_default().max(1)
    }

    /// The most bytes that the update of a record may have.
    pub(super) fn longest(&self, record: &Record, codec: Codec) -> usize {
        let elements = Fragments::of(&self.spec.sync, self.elements).of_round(record.round).len();
        update::encoded_max(codec, elements)
    }

    /// Has the ledger go on to a record.
    async fn replay_one(&self, link: &Link, update: Option<Fetched>, progress: Progress<'_>) -> Result<(), Failed> {
        let Some(certificate) = link.certificate.clone() else {
            return Err(Failed::because(format!("record {} came without its votes", link.record.seq)));
        };
        progress(self.bytes.load(Ordering::Relaxed));
        let (reply, replayed) = oneshot::channel();
        let record = link.record.clone();
        // Peers are served from memory until the ledger has it on the disk.
        let bytes = update.as_ref().map(|update| Arc::clone(&update.bytes));
        self.ledger(Job::Replay { record, certificate, update: bytes, reply }).await?;
        replayed.await.map_err(|_| Failed::because("the ledger stopped"))?.map_err(Failed::because)?;
        self.reach(link);
        self.way().passed.push(Passed::of(&link.record, &self.net.me()));
        Ok(())
    }

    /// The updates of a run of records: at once if they are several, and one after another if that fails. Where one
    /// does not come, those before it, and why.
    async fn updates_of(&self, run: Vec<Wanted>, progress: Progress<'_>) -> (Vec<Came>, Option<Failed>) {
        let changing = run.iter().filter(|(link, _)| link.record.changes_state());
        let changing: Vec<(&Record, Codec)> = changing.map(|(link, codec)| (&link.record, *codec)).collect();
        let mut at_once = Vec::new();
        if changing.len() > 1 {
            match self.at_once(&changing, progress).await {
                Ok(updates) => at_once = updates,
                Err(why) => tracing::debug!("{} updates are fetched one after another: {why}", changing.len()),
            }
        }
        let (mut at_once, mut came) = (at_once.into_iter(), Vec::with_capacity(run.len()));
        for (link, codec) in run {
            if !link.record.changes_state() {
                came.push((link, None));
                continue;
            }
            let update = match at_once.next() {
                Some(bytes) => Ok(Fetched::whole(bytes)),
                None => self.update_of(&link.record, codec, progress).await,
            };
            match update {
                Ok(update) => came.push((link, Some(update))),
                Err(failed) => return (came, Some(failed)),
            }
        }
        (came, None)
    }

    /// The updates of these records from one source, in one round trip. All are held before any is checked, so none may be
    /// longer than its codec lets it be.
    async fn at_once(&self, records: &[(&Record, Codec)], progress: Progress<'_>) -> Result<Vec<Vec<u8>>, String> {
        let request = |(record, codec): &(&Record, Codec)| {
            (FetchRequest::Update { seq: record.seq }, Expect::AtMost(self.longest(record, *codec) as u64))
        };
        let requests: Vec<_> = records.iter().map(request).collect();
        let ask = async |source: NodeId, begun: Begun| {
            let came = |bytes| self.count(bytes, progress);
            let answer = self.net.fetch_updates(source, &requests, || begun.tell(), came).await;
            let updates = answer.map_err(|e| e.to_string())?;
            let fit = updates.iter().zip(records).all(|(bytes, (record, _))| update::digest(bytes) == record.update);
            if fit && updates.len() == records.len() {
                Ok(updates)
            } else {
                Err("it sent another update than the record names".to_owned())
            }
        };
        self.sources.first(ask).await
    }

    /// The update of a record; the record before it fixed the codec.
    async fn update_of(&self, record: &Record, codec: Codec, progress: Progress<'_>) -> Result<Fetched, Failed> {
        match self.in_pieces(record, codec, progress).await {
            Ok(Some(fetched)) => return Ok(fetched),
            Ok(None) => {}
            Err(why) => {
                tracing::debug!("the update of record {} is fetched whole: {why}", record.seq);
                let _turn = self.asking.lock().await;
                return self.whole(record, codec, progress).await.map(Fetched::whole);
            }
        }
        self.whole(record, codec, progress).await.map(Fetched::whole)
    }

    /// The whole update of a record from one source.
    async fn whole(&self, record: &Record, codec: Codec, progress: Progress<'_>) -> Result<Vec<u8>, Failed> {
        let bytes_max = self.longest(record, codec) as u64;
        let ask = async |source: NodeId, begun: Begun| {
            let request = FetchRequest::Update { seq: record.seq };
            let came = |bytes| self.count(bytes, progress);
            let expected = Expect::AtMost(bytes_max);
            let answer = self.net.fetch_telling(source, request, expected, || begun.tell(), came).await;
            let bytes = answer.map_err(|e| e.to_string())?;
            let fits = update::digest(&bytes) == record.update;
            if fits { Ok(bytes) } else { Err("it sent another update than the record names".to_owned()) }
        };
        let failed = |why| {
            let reason = format!("no source has the update of record {}: {why}", record.seq);
            Failed { pruned: true, ..Failed::because(reason) }
        };
        self.sources.first(ask).await.map_err(failed)
    }
}

/// The codec of each update of a chain after `base`.
fn codecs<'a>(base: &'a Link, chain: &'a [Link]) -> impl Iterator<Item = Codec> + 'a {
    iter::once(base).chain(chain).map(|parent| parent.record.next.codec).take(chain.len())
}

/// Splits a chain into runs of records whose updates are small enough to be asked for at once.
fn together(chain: impl Iterator<Item = Wanted>, bytes_of: impl Fn(&Wanted) -> usize) -> Vec<Vec<Wanted>> {
    let (mut runs, mut of_run): (Vec<Vec<Wanted>>, _) = (Vec::new(), 0usize);
    for wanted in chain {
        let bytes = bytes_of(&wanted);
        of_run = of_run.saturating_add(bytes);
        match runs.last_mut().filter(|run| run.len() < TOGETHER_MAX && of_run <= TOGETHER_BYTES) {
            Some(run) => run.push(wanted),
            None => {
                runs.push(vec![wanted]);
                of_run = bytes;
            }
        }
    }
    runs
}

#[cfg(test)]
#[path = "replay_test.rs"]
mod tests;
