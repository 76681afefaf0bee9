//! The weights with which a run began, for a node that leaves a founded lineage: what was learned there is measured
//! from them (`docs/protocol/7-merging.md` §7.4.1). They are on this disk, or come from peers, each chunk checked.

use super::catch_up::{Failed, Progress, Task, blocking};
use super::{difference, swarm};
use crate::net::fetch::{Expect, FetchRequest, Item};
use starling_protocol::limits::STATE_CHUNK_BYTES;
use starling_protocol::state::{self, Manifest};
use starling_protocol::{Digest, NodeId};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use tokio::sync::mpsc;

/// Fetched chunks that may wait to be taken.
const CHUNKS_WAITING: usize = 8;

impl Task {
    /// The weights with which the run began, if the lineage held here is measured from them and they are to be had.
    /// Without them the difference of the lineage is lost, and nothing else.
    pub(super) async fn weights(&self, progress: Progress<'_>) -> Option<Vec<f32>> {
        let root = self.spec.beginning?;
        let (store, spec, me, head) = (self.store.clone(), self.spec.clone(), self.net.me(), self.head.clone());
        let own = move || {
            if !difference::needs_weights(&store, &spec, &me, &head.record) {
                return Ok((false, None));
            }
            store.load_beginning().map(|theta| (true, theta))
        };
        match blocking(own).await {
            Ok((false, _)) => return None,
            Ok((true, Some(theta))) => return Some(theta),
            Ok((true, None)) => {}
            Err(failed) => tracing::warn!("the weights that the run began with are fetched: {}", failed.reason),
        }
        let fetched = self.fetch_weights(&root, progress).await;
        fetched.inspect_err(|failed| tracing::warn!("no weights that the run began with: {}", failed.reason)).ok()
    }

    async fn fetch_weights(&self, root: &Digest, progress: Progress<'_>) -> Result<Vec<f32>, Failed> {
        let manifest = Arc::new(self.manifest_of_weights(root).await?);
        // The moments begin with zeros.
        let of_theta = state::chunk_count(manifest.elements, 1);
        let mut places: HashMap<Digest, Vec<usize>> = HashMap::new();
        for (place, digest) in manifest.chunks.iter().enumerate().take(of_theta) {
            places.entry(*digest).or_default().push(place);
        }
        let wanted: BTreeSet<Digest> = places.keys().copied().collect();
        let items = swarm::items(&manifest, &Vec::from_iter(wanted), &self.net.me());
        let checked = manifest.clone();
        let check = Arc::new(move |item: &Item, bytes: &[u8]| checked.check_chunk(item.index, bytes).is_ok());
        let (done, mut chunks) = mpsc::channel(CHUNKS_WAITING);
        let downloader = self.net.downloader(check).within(self.lanes.clone());
        let download = async {
            let report = downloader.run(items, &self.errand.sources, done).await.map_err(Failed::because)?;
            swarm::count(&report);
            Ok::<_, Failed>(())
        };
        let mut theta = vec![0.0; self.elements];
        let taking = async {
            while let Some((index, bytes)) = chunks.recv().await {
                self.count(bytes.len(), progress);
                let here = manifest.chunks.get(index).and_then(|digest| places.get(digest));
                for place in here.into_iter().flatten() {
                    put(&mut theta, *place, &bytes);
                }
            }
            Ok::<_, Failed>(())
        };
        tokio::try_join!(download, taking)?;
        Ok(theta)
    }

    /// The manifest of the state with which the run began, from the first source that has it.
    async fn manifest_of_weights(&self, root: &Digest) -> Result<Manifest, Failed> {
        let mut why = "no peer to fetch from".to_owned();
        for source in &self.errand.sources {
            match self.manifest_from(*source, root).await {
                Ok(manifest) => return Ok(manifest),
                Err(reason) => why = format!("{}: {reason}", source.short()),
            }
        }
        Err(Failed::because(why))
    }

    async fn manifest_from(&self, source: NodeId, root: &Digest) -> Result<Manifest, String> {
        let request = FetchRequest::Beginning;
        let expected = Expect::of(&request);
        let bytes = self.ask(source, request, expected).await.map_err(|e| e.to_string())?;
        let manifest = Manifest::decode(&bytes).map_err(|e| e.to_string())?;
        let fits = manifest.schema == self.head.schema && manifest.elements == self.elements as u64;
        if fits && state::root(&manifest) == *root {
            Ok(manifest)
        } else {
            Err("its manifest is not that of the state with which the run began".into())
        }
    }
}

/// Puts the floats of a chunk of theta into their place.
fn put(theta: &mut [f32], place: usize, bytes: &[u8]) {
    let floats = theta.iter_mut().skip(place.saturating_mul(STATE_CHUNK_BYTES / 4));
    for (float, bytes) in floats.zip(bytes.as_chunks::<4>().0) {
        *float = f32::from_le_bytes(*bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_fill_their_places() {
        const FLOATS: usize = STATE_CHUNK_BYTES / 4;
        let mut theta = vec![0.0; FLOATS + 3];
        put(&mut theta, 1, &[1.0f32, 2.0, 3.0].map(f32::to_le_bytes).concat());
        assert_eq!(theta[FLOATS - 1..], [0.0, 1.0, 2.0, 3.0]);
        put(&mut theta, 0, &4.0f32.to_le_bytes().repeat(FLOATS));
        assert!(theta[..FLOATS].iter().all(|x| *x == 4.0) && theta[FLOATS] == 1.0);
        put(&mut theta, 2, &[0; 4]);
    }
}
