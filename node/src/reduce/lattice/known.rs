//! The things that a node has of those that a member is to send: its answer to the opening of any attempt but the first
//! (`docs/protocol/3-reduction.md` §3.10.6).
//!
//! The answer has one bit for each part and each sum of a row that is due on the stream, and the hash of each finished
//! sum that is due there, or zeros.

use crate::reduce::error::PeerFault;
use crate::reduce::held;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Bytes of the hash of a sum.
const HASH_BYTES: usize = 8;
/// The value that stands for a sum that is not here. A sum with this very hash is sent again.
pub(super) const NOTHING: u64 = 0;

/// The things that one end of a stream has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Known {
    pub parts: Vec<bool>,
    pub row_sums: Vec<bool>,
    /// By finished sum, its hash or [`NOTHING`].
    pub sums: Vec<u64>,
}

impl Known {
    /// Nothing of so many parts, sums of rows, and sums.
    pub fn nothing(parts: usize, row_sums: usize, sums: usize) -> Self {
        Self { parts: vec![false; parts], row_sums: vec![false; row_sums], sums: vec![NOTHING; sums] }
    }

    /// Writes and flushes the answer.
    pub async fn write(&self, stream: &mut (impl AsyncWrite + Unpin)) -> std::io::Result<()> {
        let bits: Vec<bool> = self.parts.iter().chain(&self.row_sums).copied().collect();
        let mut bytes = held::encode(&bits);
        bytes.extend(self.sums.iter().flat_map(|hash| hash.to_le_bytes()));
        stream.write_all(&bytes).await?;
        stream.flush().await
    }

    /// Reads an answer about so many parts, sums of rows, and sums.
    pub async fn read(
        stream: &mut (impl AsyncRead + Unpin),
        (parts, row_sums, sums): (usize, usize, usize),
    ) -> Result<Self, PeerFault> {
        let mut bits = held::read(stream, parts + row_sums).await?;
        let row_sums = bits.split_off(parts.min(bits.len()));
        let mut hashes = vec![0; HASH_BYTES * sums];
        stream.read_exact(&mut hashes).await.map_err(PeerFault::Lost)?;
        let sums = hashes.as_chunks().0.iter().map(|hash| u64::from_le_bytes(*hash)).collect();
        Ok(Self { parts: bits, row_sums, sums })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reduce::harness::runtime;

    #[test]
    fn golden_answer() {
        runtime().block_on(async {
            let known = Known { parts: vec![true, false, true], row_sums: vec![false, true], sums: vec![0x0102, 0] };
            let mut bytes = Vec::new();
            known.write(&mut bytes).await.unwrap();
            assert_eq!(bytes, [&[0b1_0101, 2, 1][..], &[0; 14]].concat());
            assert_eq!(Known::read(&mut &bytes[..], (3, 2, 2)).await.unwrap(), known);
            assert!(matches!(Known::read(&mut &bytes[..], (2, 2, 2)).await, Err(PeerFault::Held)));
            assert!(matches!(Known::read(&mut &bytes[..], (3, 2, 3)).await, Err(PeerFault::Lost(_))));
        });
    }
}
