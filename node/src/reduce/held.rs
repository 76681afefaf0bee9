//! The parts and sums of a member that a node already has: its answer to the opening of any attempt but the first.
//!
//! The answer has one bit for each of the node's own chunks, ascending, the first in the lowest bit of the first byte;
//! a set bit means that the part need not be sent again. Surplus bits of the last byte are zero. Then comes a byte for
//! each chunk that the member owns, ascending: 0, or one more than the attempt in which the member has sent its sum.

use super::error::PeerFault;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Writes and flushes the bits, and the bytes about sums.
pub(super) async fn write(stream: &mut (impl AsyncWrite + Unpin), held: &[bool], sums: &[u8]) -> std::io::Result<()> {
    stream.write_all(&[&encode(held)[..], sums].concat()).await?;
    stream.flush().await
}

/// Reads the bits of `chunks` chunks.
pub(super) async fn read(stream: &mut (impl AsyncRead + Unpin), chunks: usize) -> Result<Vec<bool>, PeerFault> {
    let mut bytes = vec![0; chunks.div_ceil(8)];
    stream.read_exact(&mut bytes).await.map_err(PeerFault::Lost)?;
    decode(&bytes, chunks).ok_or(PeerFault::Held)
}

/// Reads the bytes about the sums of `chunks` chunks, in attempt `attempt`: all are of earlier attempts.
pub(super) async fn read_sums(
    stream: &mut (impl AsyncRead + Unpin),
    chunks: usize,
    attempt: u32,
) -> Result<Vec<u8>, PeerFault> {
    let mut sums = vec![0; chunks];
    stream.read_exact(&mut sums).await.map_err(PeerFault::Lost)?;
    if sums.iter().any(|byte| u32::from(*byte) > attempt) {
        return Err(PeerFault::Held);
    }
    Ok(sums)
}

pub(super) fn encode(held: &[bool]) -> Vec<u8> {
    let byte = |bits: &[bool]| bits.iter().enumerate().fold(0, |byte, (n, bit)| byte | u8::from(*bit) << n);
    held.chunks(8).map(byte).collect()
}

/// The bits; none if a surplus bit is set.
fn decode(bytes: &[u8], chunks: usize) -> Option<Vec<bool>> {
    let mut held: Vec<bool> = bytes.iter().flat_map(|byte| (0..8).map(move |n| byte >> n & 1 == 1)).collect();
    let beyond = held.split_off(chunks.min(held.len()));
    (!beyond.contains(&true)).then_some(held)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_list_comes_back(held in prop::collection::vec(any::<bool>(), 0..200)) {
            prop_assert_eq!(decode(&encode(&held), held.len()), Some(held));
        }
    }

    #[test]
    fn sums_are_of_earlier_attempts() {
        let read = |bytes: &'static [u8], attempt| {
            crate::reduce::harness::runtime().block_on(async move { read_sums(&mut &bytes[..], 3, attempt).await })
        };
        assert_eq!(read(&[0, 2, 1], 2).ok(), Some(vec![0, 2, 1]));
        assert!(matches!(read(&[0, 2, 1], 1), Err(PeerFault::Held)));
        assert!(matches!(read(&[0, 2], 2), Err(PeerFault::Lost(_))));
    }

    #[test]
    fn golden_bits() {
        assert_eq!(encode(&[true, false, false, false, true, true, false, false, true]), [0b0011_0001, 1]);
        assert_eq!(encode(&[]), [0; 0]);
        assert_eq!(decode(&[0b1000], 3), None);
        assert_eq!(decode(&[0b0100], 3), Some(vec![false, false, true]));
    }
}
