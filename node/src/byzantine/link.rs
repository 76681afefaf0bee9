//! Bulk streams that say something else than the engine has written: a task takes the engine's bytes apart into opening
//! and frames, changes them, and puts them together again with checks that fit.

use super::{Mode, armed};
use crate::net::BulkStream;
use crate::reduce::{OPENING_BYTES, WORD_HEADER_BYTES, follow, opening_of};
use starling_protocol::frame::{FRAME_HEADER_BYTES, FrameHeader, FrameKind, FrameScope};
use starling_protocol::run::Codec;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Capacity of the pipe between the engine and the lie, in bytes: a frame fits.
const PIPE_BYTES: usize = 1 << 18;
/// Most bytes of a word: a bit for each chunk of a huge model.
const WORD_BYTES_MAX: usize = 1 << 20;
/// Offset of the payload's length in a frame header.
const LENGTH_AT: usize = 60;
/// Offset of the record's number in an opening.
const SEQ_AT: usize = 72;
/// bf16 bits: a scale that is not a number, and an exponent of 20, which is a factor of about a million.
const NOT_A_NUMBER: u16 = 0x7fc0;
const MILLION_EXPONENT: u16 = 20 << 7;

/// The stream that the engine gets in place of one to a member.
pub fn link(stream: BulkStream) -> BulkStream {
    let lies = [Mode::Nan, Mode::WrongRound, Mode::Garbage, Mode::Oversize, Mode::Stall, Mode::Close, Mode::WrongSum];
    if !lies.into_iter().any(armed) {
        return stream;
    }
    let (near, far) = tokio::io::duplex(PIPE_BYTES);
    tokio::spawn(async move {
        let (from, mut back) = tokio::io::split(far);
        let (mut answers, to) = tokio::io::split(stream);
        // The stream ends as soon as one direction ends.
        tokio::select! {
            end = tell(from, to) => if let Err(error) = end {
                tracing::debug!("a lie has ended: {error}");
            },
            _ = tokio::io::copy(&mut answers, &mut back) => {}
        }
    });
    BulkStream::new(near)
}

async fn tell(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) -> io::Result<()> {
    let mut opening = [0; OPENING_BYTES];
    from.read_exact(&mut opening).await?;
    let (run, key) = opening_of(&opening).ok_or(io::ErrorKind::InvalidData)?;
    if armed(Mode::WrongRound) {
        opening[SEQ_AT] ^= 1;
    }
    to.write_all(&opening).await?;
    to.flush().await?;
    loop {
        let (mut bytes, mut first) = ([0; FRAME_HEADER_BYTES], [0; WORD_HEADER_BYTES]);
        if from.read_exact(&mut first).await.is_err() {
            to.shutdown().await?;
            // The other side reads on; its answers still go back to the engine until it lets go.
            return std::future::pending().await;
        }
        if let Some(length) = follow(&first) {
            pass(&mut from, &mut to, &first, length).await?;
            continue;
        }
        bytes[..WORD_HEADER_BYTES].copy_from_slice(&first);
        from.read_exact(&mut bytes[WORD_HEADER_BYTES..]).await?;
        let header = FrameHeader::decode(&bytes).map_err(io::Error::other)?;
        let mut payload = vec![0; header.payload_len()];
        from.read_exact(&mut payload).await?;
        twist(&header, &mut payload);
        // The header that is made again uses little of the scope; k of top-k is not in it.
        let elements = header.element_offset() as usize + header.elements as usize;
        let codec = [Codec::Bf16, Codec::Int8, Codec::Int4, Codec::TopK { k: 1 }];
        let codec = codec.into_iter().find(|codec| codec.number() == header.codec).unwrap_or(Codec::Int8);
        let scope = FrameScope { run, key, codec, elements };
        // No payload follows the header of a sum that the member has.
        if header.kind != FrameKind::Known {
            bytes = FrameHeader::new(&scope, header.kind, header.chunk as usize, &payload).encode();
        }
        if armed(Mode::Garbage) {
            bytes = std::array::from_fn(|_| rand::random());
        }
        if armed(Mode::Oversize) {
            bytes[LENGTH_AT..LENGTH_AT + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        }
        if armed(Mode::Stall) {
            return creep(&mut to, &[&bytes[..], &payload].concat()).await;
        }
        to.write_all(&bytes).await?;
        if armed(Mode::Close) {
            to.write_all(&payload[..payload.len() / 2]).await?;
            to.flush().await?;
            return Ok(());
        }
        to.write_all(&payload).await?;
        to.flush().await?;
    }
}

/// Passes on what the engine says of its sums as it is.
async fn pass(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    first: &[u8],
    length: usize,
) -> io::Result<()> {
    let mut bits = vec![0; length.min(WORD_BYTES_MAX)];
    from.read_exact(&mut bits).await?;
    to.write_all(&[first, &bits].concat()).await?;
    to.flush().await
}

/// Falsifies the scale of a payload (int8 or bf16).
fn twist(header: &FrameHeader, payload: &mut [u8]) {
    let Some(first) = payload.first_chunk_mut::<2>() else { return };
    let scale = u16::from_le_bytes(*first);
    if header.kind == FrameKind::Contrib && armed(Mode::Nan) {
        *first = NOT_A_NUMBER.to_le_bytes();
    }
    if header.kind == FrameKind::Reduced && armed(Mode::WrongSum) && scale != 0 {
        *first = scale.saturating_add(MILLION_EXPONENT).to_le_bytes();
    }
}

async fn creep(to: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
    for byte in bytes {
        to.write_all(&[*byte]).await?;
        to.flush().await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    Ok(())
}
