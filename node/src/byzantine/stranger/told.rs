//! The serving of a story.

use super::forgery::invented;
use super::story::Story;
use super::world::World;
use crate::net::fetch::{
    Answer, FetchRefusal, FetchRequest, FetchSource, Link, RECORDS_MAX, Start, encode_records, encode_start,
};
use starling_protocol::limits::PATH_LINKS_MAX;
use starling_protocol::{Digest, wire};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

impl Story {
    fn records(&self, spec: &World, from: u64, max: u16) -> Vec<Link> {
        let mut links: Vec<Link> = Vec::new();
        for seq in from..from.saturating_add(max.into()) {
            let link = self.links.get(&seq).cloned();
            // One invented record is enough: the node that asks sees that it does not follow.
            let made = || (self.invents && links.is_empty()).then(|| invented(spec, &self.head.lineage, seq));
            let Some(link) = link.or_else(made) else { if links.is_empty() { continue } else { break } };
            links.push(link);
        }
        links
    }

    fn serve(&self, world: &World, request: &FetchRequest) -> Result<Vec<u8>, FetchRefusal> {
        match request {
            FetchRequest::Start { to, known } => self.start(world, *to, known),
            FetchRequest::StateChunk(digest) => self.chunks.get(digest).cloned().ok_or(FetchRefusal::NotFound),
            FetchRequest::Records { from_seq, max } => {
                encode_records(&self.records(world, *from_seq, *max)).map_err(|_| FetchRefusal::Internal)
            }
            FetchRequest::Path { to, known } => {
                encode_records(&self.path(world, *to, known)).map_err(|_| FetchRefusal::Internal)
            }
            _ => Err(FetchRefusal::NotFound),
        }
    }

    /// The newest snapshot, a path to it, and the records after it.
    fn start(&self, world: &World, to: u64, known: &[(u64, Digest)]) -> Result<Vec<u8>, FetchRefusal> {
        let (seq, manifest) = self.snapshots.first().cloned().ok_or(FetchRefusal::NotFound)?;
        let encoded = |links: &[Link]| encode_records(links).map_err(|_| FetchRefusal::Internal);
        let most = to.saturating_sub(seq).min(RECORDS_MAX.into()) as u16;
        let path = encoded(&self.path(world, seq, known))?;
        let records = encoded(&self.records(world, seq.saturating_add(1), most))?;
        encode_start(&Start { seq, manifest, path, records }).map_err(|_| FetchRefusal::Internal)
    }

    /// The records from the newest of `known` on, or from the first; and an invented one.
    fn path(&self, world: &World, to: u64, known: &[(u64, Digest)]) -> Vec<Link> {
        let has = |(seq, digest): &&(u64, Digest)| {
            self.links.get(seq).is_some_and(|(record, _)| wire::record_digest(record) == *digest)
        };
        let from = known.iter().filter(has).map(|(seq, _)| *seq).max().unwrap_or_default();
        let links = self.links.range(from..=to.max(from)).map(|(_, link)| link.clone());
        let made = (self.invents && !self.links.contains_key(&to)).then(|| invented(world, &self.head.lineage, to));
        links.chain(made).take(PATH_LINKS_MAX).collect()
    }
}

/// The story that an identity tells at the moment; its network serves it.
pub struct Told {
    world: Arc<World>,
    story: Mutex<Option<Arc<Story>>>,
}

impl Told {
    pub fn new(world: Arc<World>) -> Self {
        Self { world, story: Mutex::default() }
    }

    fn story(&self) -> MutexGuard<'_, Option<Arc<Story>>> {
        self.story.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn now(&self) -> Option<Arc<Story>> {
        self.story().clone()
    }

    pub fn tell(&self, story: Story) {
        *self.story() = Some(Arc::new(story));
    }
}

impl FetchSource for Told {
    fn serve(&self, request: &FetchRequest) -> Result<Answer, FetchRefusal> {
        if *request == FetchRequest::Spec {
            return Ok(self.world.spec_bytes.clone().into());
        }
        let story = self.now().ok_or(FetchRefusal::NotFound)?;
        let answer = story.serve(&self.world, request);
        tracing::debug!(?request, served = answer.is_ok(), "asked for a story");
        if answer.is_ok() {
            self.world.tally.served.fetch_add(1, Relaxed);
        }
        answer.map(Answer::from)
    }
}
