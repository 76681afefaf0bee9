//! Which chunks of a state are here: a bit for each place in its manifest, kept in memory, so that a peer's question for them reads no
//! chunk. Bit `place % 8`, from the lowest, of byte `place / 8`.

use starling_protocol::Digest;
use starling_protocol::state::{self, Manifest};
use std::collections::HashSet;
use std::ops::Range;

/// The state that a store is taking over, and how much of it is here.
pub(crate) struct Adoption {
    root: Digest,
    /// Each chunk's digest and place, by digest: chunks that are alike have several places.
    places: Vec<(Digest, usize)>,
    held: Vec<u8>,
}

impl Adoption {
    /// All chunks are here but these.
    pub fn new(manifest: &Manifest, missing: &[Digest]) -> Self {
        let missing: HashSet<_> = missing.iter().collect();
        let mut held = vec![0; manifest.chunks.len().div_ceil(8)];
        let here = manifest.chunks.iter().enumerate().filter(|(_, digest)| !missing.contains(digest));
        here.for_each(|(place, _)| mark(&mut held, place));
        let mut places: Vec<_> = manifest.chunks.iter().enumerate().map(|(place, digest)| (*digest, place)).collect();
        places.sort_unstable();
        Self { root: state::root(manifest), places, held }
    }

    pub fn root(&self) -> &Digest {
        &self.root
    }

    /// Chunks of the state.
    pub fn chunks(&self) -> usize {
        self.places.len()
    }

    pub fn held(&self) -> &[u8] {
        &self.held
    }

    pub fn wants(&self, digest: &Digest) -> bool {
        !self.found(digest).is_empty()
    }

    /// The chunk is here now.
    pub fn put(&mut self, digest: &Digest) {
        for (_, place) in &self.places[self.found(digest)] {
            mark(&mut self.held, *place);
        }
    }

    /// The state's chunks, in no particular order.
    pub fn digests(&self) -> impl Iterator<Item = Digest> {
        self.places.iter().map(|(digest, _)| *digest)
    }

    /// Where the places of this chunk stand.
    fn found(&self, digest: &Digest) -> Range<usize> {
        let from = self.places.partition_point(|(other, _)| other < digest);
        let alike = self.places[from..].partition_point(|(other, _)| other == digest);
        from..from + alike
    }
}

/// The bits of a holder of all these chunks.
pub(crate) fn all(chunks: usize) -> Vec<u8> {
    let mut held = vec![0xff; chunks.div_ceil(8)];
    if let Some(last) = held.last_mut().filter(|_| !chunks.is_multiple_of(8)) {
        *last = (1 << (chunks % 8)) - 1;
    }
    held
}

fn mark(held: &mut [u8], place: usize) {
    if let Some(byte) = held.get_mut(place / 8) {
        *byte |= 1 << (place % 8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bit_stands_for_each_place_of_a_chunk() {
        let digest = |n: u8| Digest([n; 32]);
        let chunks = [5, 0, 3, 0, 4, 9, 8, 7, 0, 1].map(digest).to_vec();
        let manifest = Manifest { schema: digest(1), elements: 1, vectors: 2, chunks };
        let missing = [5, 0, 3, 4, 8, 7, 1].map(digest);
        let mut adoption = Adoption::new(&manifest, &missing);
        assert_eq!((adoption.root(), adoption.chunks()), (&state::root(&manifest), 10));
        assert_eq!(adoption.held(), [0b0010_0000, 0]);
        assert!(adoption.wants(&digest(9)) && !adoption.wants(&digest(2)));
        adoption.put(&digest(0));
        adoption.put(&digest(2));
        assert_eq!(adoption.held(), [0b0010_1010, 0b01]);
        missing.iter().for_each(|chunk| adoption.put(chunk));
        assert_eq!(adoption.held(), all(10));
        assert_eq!([all(0), all(8), all(9)], [vec![], vec![0xff], vec![0xff, 1]]);
        assert_eq!(adoption.digests().count(), 10);
    }
}
