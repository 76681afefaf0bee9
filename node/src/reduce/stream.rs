//! One bulk stream of an attempt: frames in, frames out, and its end.

use super::error::{PeerFault, ReduceError};
use crate::net::BulkStream;
use starling_protocol::NodeId;
use starling_protocol::frame::{FRAME_HEADER_BYTES, FrameHeader, FrameKind, FrameScope};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};

/// Time for which a finished stream is kept to be closed in order.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// Fills `frame` with the header and payload of a chunk, so that both leave in one write.
pub(crate) fn fill_frame(frame: &mut Vec<u8>, scope: &FrameScope, kind: FrameKind, chunk: usize, payload: &[u8]) {
    frame.clear();
    frame.extend_from_slice(&FrameHeader::new(scope, kind, chunk, payload).encode());
    frame.extend_from_slice(payload);
}

/// Reads the frame that is due, and no other, into `payload`. The muxer buffers arrived bytes, so two reads of a frame
/// cost no two system calls.
pub(crate) async fn read_frame(
    stream: &mut (impl AsyncRead + Unpin),
    scope: &FrameScope,
    kind: FrameKind,
    chunk: usize,
    payload: &mut Vec<u8>,
) -> Result<(), PeerFault> {
    let header = read_header(stream, scope).await?;
    is_due(&header, kind, chunk)?;
    // Decoding has checked that this is at most FRAME_PAYLOAD_BYTES_MAX, or for a row sum ROW_SUM_BYTES_MAX.
    payload.resize(header.payload_len(), 0);
    stream.read_exact(payload).await.map_err(PeerFault::Lost)?;
    Ok(header.check_payload(payload)?)
}

/// Reads the finished sum of a chunk that is due into `payload`: from the stream, or if `known` can fill `payload` with
/// the sum that is here, perhaps its header alone. Returns whether the sum came.
pub(super) async fn read_sum(
    stream: &mut (impl AsyncRead + Unpin),
    scope: &FrameScope,
    chunk: usize,
    known: Option<impl FnOnce(&mut Vec<u8>) -> bool>,
    payload: &mut Vec<u8>,
) -> Result<bool, PeerFault> {
    let header = read_header(stream, scope).await?;
    if header.kind == FrameKind::Known {
        is_due(&header, FrameKind::Known, chunk)?;
        let here = known.is_some_and(|fill| fill(payload));
        if !here {
            return Err(PeerFault::Held);
        }
        header.check_payload(payload)?;
        return Ok(false);
    }
    is_due(&header, FrameKind::Reduced, chunk)?;
    payload.resize(header.payload_len(), 0);
    stream.read_exact(payload).await.map_err(PeerFault::Lost)?;
    header.check_payload(payload)?;
    Ok(true)
}

async fn read_header(stream: &mut (impl AsyncRead + Unpin), scope: &FrameScope) -> Result<FrameHeader, PeerFault> {
    let mut header = [0; FRAME_HEADER_BYTES];
    stream.read_exact(&mut header).await.map_err(PeerFault::Lost)?;
    let header = FrameHeader::decode(&header)?;
    header.belongs_to(scope)?;
    Ok(header)
}

fn is_due(header: &FrameHeader, kind: FrameKind, chunk: usize) -> Result<(), PeerFault> {
    if header.kind == kind && header.chunk as usize == chunk {
        return Ok(());
    }
    let (got, got_chunk) = (header.kind, header.chunk);
    Err(PeerFault::OutOfOrder { expected: kind, expected_chunk: chunk, got, got_chunk })
}

pub(super) fn fault(suspect: NodeId, fault: PeerFault) -> ReduceError {
    ReduceError::Peer { suspect, fault }
}

/// Closes a stream in order, so that its last bytes are not lost with it.
pub(crate) async fn close(mut stream: BulkStream) {
    let closing = async {
        stream.shutdown().await?;
        // The reader writes nothing: this read returns when it has read all and closed the stream.
        stream.read(&mut [0]).await
    };
    // The attempt is done, so the outcome does not matter.
    drop(tokio::time::timeout(CLOSE_TIMEOUT, closing).await);
}

/// Counts a peer that sends more after its last frame.
pub(super) async fn expect_end(mut stream: BulkStream, from: NodeId) {
    let mut more = [0];
    if let Ok(Ok(1)) = tokio::time::timeout(CLOSE_TIMEOUT, stream.read(&mut more)).await {
        tracing::debug!(peer = %from.short(), "more data after the last frame of an attempt");
        metrics::counter!("starling_refused_total", "reason" => "reduce_trailing").increment(1);
    }
}
