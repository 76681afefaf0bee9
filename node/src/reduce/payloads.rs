//! The payloads of the update that is being made, by chunk.
//!
//! If the codec's payloads have a fixed length, each lies at its final place from the start, so that the update is
//! never in memory twice. Payloads of other codecs are short, and joined at the end.

use starling_protocol::run::Codec;
use starling_protocol::update;

/// An update under construction.
pub(super) struct Payloads {
    codec: Codec,
    elements: usize,
    bytes: Bytes,
}

enum Bytes {
    InPlace(Vec<u8>),
    /// The payloads by chunk.
    Apart(Vec<Vec<u8>>),
}

impl Payloads {
    pub fn new(codec: Codec, elements: usize) -> Self {
        let bytes = if codec.is_fixed() {
            Bytes::InPlace(vec![0; update::encoded_max(codec, elements)])
        } else {
            Bytes::Apart(vec![Vec::new(); update::chunks(elements)])
        };
        Self { codec, elements, bytes }
    }

    /// Whether these are payloads of such an update.
    pub fn are_of(&self, codec: Codec, elements: usize) -> bool {
        (self.codec, self.elements) == (codec, elements)
    }

    /// Stores a payload that was checked, or made here, to be one of `chunk`.
    pub fn put(&mut self, chunk: usize, payload: &[u8]) {
        match &mut self.bytes {
            Bytes::InPlace(all) => {
                all[update::chunk_range(self.codec, self.elements, chunk)].copy_from_slice(payload);
            }
            Bytes::Apart(chunks) => payload.clone_into(&mut chunks[chunk]),
        }
    }

    /// Copies the payload of `chunk` into `out`, whose earlier content goes.
    pub fn copy(&self, chunk: usize, out: &mut Vec<u8>) {
        out.clear();
        self.append(chunk, out);
    }

    /// Appends the payload of `chunk` to `out`.
    pub fn append(&self, chunk: usize, out: &mut Vec<u8>) {
        match &self.bytes {
            Bytes::InPlace(all) => {
                out.extend_from_slice(&all[update::chunk_range(self.codec, self.elements, chunk)]);
            }
            Bytes::Apart(chunks) => out.extend_from_slice(&chunks[chunk]),
        }
    }

    /// The update, once all payloads are there.
    pub fn into_update(self) -> Vec<u8> {
        match self.bytes {
            Bytes::InPlace(all) => all,
            Bytes::Apart(chunks) => update::assemble(self.codec, chunks.iter().map(Vec::as_slice)),
        }
    }
}
