//! Finds the run's text: in this machine's files, its cache, or at peers.

use super::files;
use crate::config::run_file::{RunFile, tokenizer_choice};
use crate::exit::{Code, Failure};
use crate::net::fetch::{Expect, FetchRequest};
use crate::net::{NetEvent, NetEvents, NetHandle};
use crate::watch::event::Event;
use crate::watch::figures::bytes as human_bytes;
use crate::watch::screen::{Screen, Teller};
use anyhow::Context;
use futures::future::{BoxFuture, FutureExt};
use futures::stream::{FuturesUnordered, StreamExt};
use starling_data::{DataError, DataManifest, Dataset, PrepareProgress, Tokenizer};
use starling_protocol::run::{DataSpec, RunSpec};
use starling_protocol::{Digest, NodeId};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;
use tokio::time::Instant;

/// Network events that are kept while the manifest is fetched.
const EARLY_MAX: usize = 1024;
/// The most peers that are asked for the manifest at a time: in all, and strangers, each of which may send 16 MiB.
const ASKED_MAX: usize = 16;
const STRANGERS_ASKED: usize = 8;
/// Time after which a peer without an answer is asked again.
const ASKED_AGAIN: Duration = Duration::from_secs(5);

/// The text, or the files of an external task, as far as they are here.
pub enum Text {
    Here(Box<Dataset>),
    /// Only the manifest's digest is known, and whether it is that of a text.
    Elsewhere {
        manifest: Digest,
        is_text: bool,
    },
}

/// Tokenizes the text that the run file names (or finds it in the cache), and completes the run's specification with
/// it.
pub async fn prepare(
    file: &RunFile,
    overrides: &[String],
    cache: &Path,
    screen: &Screen,
) -> Result<(RunSpec, Text), Failure> {
    // The rest of the run file is checked before minutes go into tokenizing.
    let (mut spec, pinned) = check(file)?;
    if spec.task.is_some() {
        return with_files(file, spec, overrides, cache).await;
    }
    if let Some(pinned) = pinned {
        spec.data.manifest = pinned;
        let text = find(&spec, overrides, cache).await?;
        return Ok((spec, text));
    }
    screen.stage("preparing the text (done once; later starts use the cache)");
    let options = file.corpus(overrides);
    let cache = cache.to_path_buf();
    let teller = screen.teller();
    let preparing = move || starling_data::prepare(&options, &cache, &mut |p| show_progress(&teller, p));
    let dataset = tokio::task::spawn_blocking(preparing).await.context("tokenizing stopped")??;
    if let Some(said) = other_share(dataset.manifest(), file.data.holdout) {
        screen.line(&said);
    }
    spec.data.manifest = dataset.manifest().digest();
    Ok((spec, Text::Here(Box::new(dataset))))
}

/// Finds the files of an external task: in the cache, or where the run file names them. Others than the run's are as
/// good as none, and peers have the run's.
async fn with_files(
    file: &RunFile,
    mut spec: RunSpec,
    overrides: &[String],
    cache: &Path,
) -> Result<(RunSpec, Text), Failure> {
    let is_known = spec.data.manifest != Digest::default();
    let text = find(&spec, overrides, cache).await?;
    if file.data.files.is_empty() || is_known && matches!(&text, Text::Here(data) if data.missing().is_empty()) {
        return Ok((spec, text));
    }
    match files::prepared(file, cache).await {
        Ok(Some(data)) => {
            spec.data.manifest = data.digest();
            Ok((spec, Text::Here(Box::new(data))))
        }
        Err(failure) if is_known => {
            let why = starling_words::of_chain(failure.error.chain());
            tracing::warn!("{why}; the run's files come from peers");
            Ok((spec, text))
        }
        Ok(None) => Ok((spec, text)),
        Err(failure) => Err(failure),
    }
}

/// A text of few blocks has another share held out than the run file asks for; says so if it is half as much again.
fn other_share(manifest: &DataManifest, asked: f64) -> Option<String> {
    let (held, all) = (manifest.validation_bytes, manifest.validation_bytes.saturating_add(manifest.train_bytes));
    let share = held as f64 / all.max(1) as f64;
    (share > 1.5 * asked).then(|| {
        format!(
            "held out for validation: {} of {}, which is {:.1} % where data.holdout asks for {:.1} %: text is held out in \
             whole blocks of 64 KiB and more, and of a text of fewer than eleven blocks a tenth at the least",
            human_bytes(held),
            human_bytes(all),
            share * 100.0,
            asked * 100.0
        )
    })
}

/// Checks every value of the run file. Returns the run's specification, whose manifest is zero until the text is known,
/// and the manifest's digest if the file names one.
pub fn check(file: &RunFile) -> Result<(RunSpec, Option<Digest>), Failure> {
    if file.is_external() {
        return Ok((file.spec(DataSpec::of_external(), 0)?, file.pinned_manifest()?));
    }
    file.check_text()?;
    let tokenizer = Tokenizer::load(&tokenizer_choice(&file.data.tokenizer))?;
    let data = DataSpec { manifest: Digest::default(), tokenizer: tokenizer.digest() };
    Ok((file.spec(data, tokenizer.vocab())?, file.pinned_manifest()?))
}

/// Looks for the run's text in the cache.
pub async fn find(spec: &RunSpec, overrides: &[String], cache: &Path) -> Result<Text, Failure> {
    if !overrides.is_empty() {
        return Err(Failure::message(Code::Usage, "--data goes with --run: a ticket names its text by content"));
    }
    let is_text = spec.task.is_none();
    if !is_text && spec.data.manifest == Digest::default() {
        return Ok(Text::Here(Box::new(Dataset::empty(cache)?)));
    }
    let (digest, cache) = (spec.data.manifest, cache.to_path_buf());
    let opening = move || -> Result<Option<Dataset>, DataError> {
        let dataset = Dataset::open_cached(&cache, &digest)?;
        // Files may be much more than text, and each shard is checked when it is read.
        if let Some(dataset) = dataset.as_ref().filter(|_| is_text) {
            // Damaged shards are set aside here, and fetched again.
            dataset.verify(&mut |_| {})?;
        }
        Ok(dataset)
    };
    match tokio::task::spawn_blocking(opening).await.context("opening the text stopped")? {
        Ok(Some(dataset)) => Ok(Text::Here(Box::new(dataset))),
        Ok(None) => Ok(Text::Elsewhere { manifest: digest, is_text }),
        Err(e) => Err(e.into()),
    }
}

/// Fetches the manifest from peers if necessary. Returns the dataset, which may lack shards, and the network events
/// that arrived meanwhile.
pub async fn complete(
    text: Text,
    cache: &Path,
    net: &NetHandle,
    events: &mut NetEvents,
    screen: &mut Screen,
) -> Result<(Dataset, Vec<NetEvent>), Failure> {
    let (digest, why) = match text {
        Text::Here(dataset) => return Ok((*dataset, Vec::new())),
        Text::Elsewhere { manifest, is_text: true } => {
            (manifest, "a peer that has the run's text: it is not on this machine")
        }
        Text::Elsewhere { manifest, is_text: false } => {
            (manifest, "a peer that has the trainer's files: they are not on this machine")
        }
    };
    screen.show(&Event::Waiting { on: Vec::new(), why: why.into() });
    let mut early = Vec::new();
    let mut retry = tokio::time::interval(Duration::from_secs(1));
    let mut search = Search::new();
    let mut interrupted = std::pin::pin!(tokio::signal::ctrl_c());
    loop {
        tokio::select! {
            _ = &mut interrupted => return Err(Failure::message(Code::Refused, "interrupted while waiting for the run's data")),
            event = events.recv() => match event {
                Some(NetEvent::DialFailed { peer, address, why }) => {
                    screen.show(&Event::dial_failed(peer, address, why));
                }
                Some(event) if early.len() < EARLY_MAX => early.push(event),
                Some(_) => {}
                None => return Err(Failure::message(Code::Refused, "the network stopped; see the log")),
            },
            Some((peer, manifest)) = search.answers.next() => {
                search.asking.remove(&peer);
                if let Some(manifest) = manifest {
                    let dataset = Dataset::open(cache, &manifest)?;
                    return Ok((dataset, early));
                }
            }
            _ = retry.tick() => {
                let is_stranger = |peer: &NodeId| net.is_stranger(peer);
                search.ask(Instant::now(), net.shuffled(), is_stranger, |peer| fetch_manifest(net, peer, digest).boxed());
            }
        }
    }
}

/// The search for a thing, such as the manifest, among peers, which are asked side by side, so that a slow one holds up no other.
pub(super) struct Search<'a, T> {
    pub answers: FuturesUnordered<BoxFuture<'a, (NodeId, Option<T>)>>,
    pub asking: BTreeSet<NodeId>,
    /// The time at which each connected peer was last asked.
    asked: BTreeMap<NodeId, Instant>,
}

impl<'a, T> Search<'a, T> {
    pub fn new() -> Self {
        Self { answers: FuturesUnordered::new(), asking: BTreeSet::new(), asked: BTreeMap::new() }
    }

    /// Asks the peers whose turn it is, up to a limit in all and one for strangers. Peers that were not asked for
    /// longest come first.
    pub fn ask(
        &mut self,
        now: Instant,
        mut peers: Vec<NodeId>,
        is_stranger: impl Fn(&NodeId) -> bool,
        ask: impl Fn(NodeId) -> BoxFuture<'a, (NodeId, Option<T>)>,
    ) {
        self.asked.retain(|peer, _| peers.contains(peer));
        peers.retain(|peer| !self.asking.contains(peer));
        peers.sort_by_key(|peer| self.asked.get(peer).copied());
        let mut strangers = self.asking.iter().filter(|peer| is_stranger(peer)).count();
        for peer in peers {
            let pause = self.asked.get(&peer).is_some_and(|at| now < *at + ASKED_AGAIN);
            let is_stranger = is_stranger(&peer);
            let room = if is_stranger { strangers < STRANGERS_ASKED } else { self.asking.len() < ASKED_MAX };
            if pause || !room {
                continue;
            }
            strangers += usize::from(is_stranger);
            self.asking.insert(peer);
            self.asked.insert(peer, now);
            self.answers.push(ask(peer));
        }
    }
}

async fn fetch_manifest(net: &NetHandle, peer: NodeId, digest: Digest) -> (NodeId, Option<DataManifest>) {
    let request = FetchRequest::DataManifest(digest);
    let expected = Expect::of(&request);
    match net.fetch(peer, request, expected).await {
        Ok(bytes) => match DataManifest::decode(&bytes) {
            Ok(manifest) if manifest.digest() == digest => return (peer, Some(manifest)),
            _ => tracing::warn!("{} sent a data manifest that is not the run's; asking others", peer.short()),
        },
        Err(e) => tracing::debug!("{} does not give the data manifest: {e}", peer.short()),
    }
    (peer, None)
}

fn show_progress(teller: &Teller, progress: PrepareProgress) {
    match progress {
        PrepareProgress::Listing { files } => {
            teller.progress(|| format!("looking for text: {}", starling_words::count(files, "file")))
        }
        PrepareProgress::Waiting => teller.progress(|| "another node of this machine prepares the text".into()),
        PrepareProgress::Checking { done, total } => {
            teller.progress(|| format!("checking the text: {done} of {total} pieces"));
        }
        PrepareProgress::Rebuilding { why } => tracing::warn!("preparing the text again: {why}"),
        PrepareProgress::Reading { done, total } => {
            let of = human_bytes(total.max(done));
            teller.progress(|| format!("turning text into tokens: {} of {of}", human_bytes(done)));
        }
        _ => {}
    }
}

#[cfg(test)]
#[path = "text_test.rs"]
mod tests;
