//! Length-prefixed frames over a byte stream: a `u32` little-endian length, then that many bytes.
//!
//! The length is checked against the caller's limit before anything is allocated, and memory grows with the bytes that
//! arrive, so a lying prefix costs its sender more than this node. Deadlines keep a peer that sends nothing, or one
//! byte a second, from holding a stream open (`docs/reliability.md`, T11, T12).

use futures::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use std::io;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Bytes of the length prefix.
pub const HEADER_BYTES: usize = 4;
/// A frame's buffer grows by at most this much ahead of the bytes that have arrived.
const GROWTH_BYTES: usize = 64 * 1024;

/// The longest waits of a reader. A stream that breaks a deadline is to be closed.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    /// From the start of the reader to the first byte of the first frame.
    pub first_byte: Duration,
    /// From the first byte of a frame to its last.
    pub frame: Duration,
    /// From the end of one frame to the first byte of the next; `None` waits for ever.
    pub idle: Option<Duration>,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self { first_byte: Duration::from_secs(5), frame: Duration::from_secs(10), idle: None }
    }
}

/// The reason why a frame was not read or written.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    #[error("the peer announced a frame of {announced} bytes and {max} are allowed")]
    TooLong { announced: u64, max: usize },
    #[error("the stream ended inside a frame, after {got} of {expected} bytes")]
    Truncated { got: usize, expected: usize },
    #[error("the peer opened the stream and sent nothing in time")]
    Silent,
    #[error("the peer sent part of a frame and not the rest in time")]
    Stalled,
    #[error("nothing arrived for too long")]
    Idle,
    #[error("the stream failed: {}", starling_words::of(.0))]
    Io(#[from] io::Error),
}

impl FrameError {
    /// A short name for counters.
    pub fn reason(&self) -> &'static str {
        match self {
            FrameError::TooLong { .. } => "frame_too_long",
            FrameError::Truncated { .. } => "frame_truncated",
            FrameError::Silent => "stream_silent",
            FrameError::Stalled => "frame_stalled",
            FrameError::Idle => "stream_idle",
            FrameError::Io(_) => "stream_failed",
        }
    }
}

/// Reads frames. [`FrameReader::next`] may be dropped and called again without losing bytes.
pub struct FrameReader<R> {
    stream: R,
    max: usize,
    deadlines: Deadlines,
    header: [u8; HEADER_BYTES],
    header_got: usize,
    /// `Some` once the header is complete: the frame's length, and its bytes so far.
    body: Option<(usize, Vec<u8>)>,
    /// The deadline of the present wait.
    due: Option<Instant>,
    frames: u64,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// Reads frames of at most `max` bytes. The first deadline starts now.
    pub fn new(stream: R, max: usize, deadlines: Deadlines) -> Self {
        let due = Some(Instant::now() + deadlines.first_byte);
        Self { stream, max, deadlines, header: [0; HEADER_BYTES], header_got: 0, body: None, due, frames: 0 }
    }

    /// The next frame; `None` when the stream ended between two frames.
    ///
    /// # Errors
    /// After an error the stream is of no more use: close it.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, FrameError> {
        while self.header_got < HEADER_BYTES {
            let mut rest = [0u8; HEADER_BYTES];
            let wanted = HEADER_BYTES - self.header_got;
            let got = self.read_some(wanted, &mut rest).await?;
            if got == 0 {
                return match self.header_got {
                    0 => Ok(None),
                    got => Err(FrameError::Truncated { got, expected: HEADER_BYTES }),
                };
            }
            if self.header_got == 0 {
                self.due = Some(Instant::now() + self.deadlines.frame);
            }
            self.header[self.header_got..self.header_got + got].copy_from_slice(&rest[..got]);
            self.header_got += got;
        }
        self.read_body().await.map(Some)
    }

    async fn read_body(&mut self) -> Result<Vec<u8>, FrameError> {
        if self.body.is_none() {
            let announced = u32::from_le_bytes(self.header);
            let length = usize::try_from(announced).ok().filter(|l| *l <= self.max);
            let Some(length) = length else {
                return Err(FrameError::TooLong { announced: u64::from(announced), max: self.max });
            };
            self.body = Some((length, Vec::with_capacity(length.min(GROWTH_BYTES))));
        }
        loop {
            let Some((length, got)) = self.body.as_ref().map(|(length, bytes)| (*length, bytes.len())) else {
                return Ok(Vec::new());
            };
            if got == length {
                break;
            }
            let mut piece = [0u8; 4096];
            let wanted = (length - got).min(piece.len());
            let read = self.read_some(wanted, &mut piece).await?;
            if read == 0 {
                return Err(FrameError::Truncated { got, expected: length });
            }
            if let Some((_, bytes)) = self.body.as_mut() {
                bytes.extend_from_slice(&piece[..read]);
            }
        }
        self.frames += 1;
        self.header_got = 0;
        self.due = self.deadlines.idle.map(|idle| Instant::now() + idle);
        Ok(self.body.take().map(|(_, bytes)| bytes).unwrap_or_default())
    }

    /// Reads 1 to `wanted` bytes into the front of `buffer`, or 0 at the end of the stream.
    async fn read_some(&mut self, wanted: usize, buffer: &mut [u8]) -> Result<usize, FrameError> {
        let room = buffer.len().min(wanted);
        let read = self.stream.read(&mut buffer[..room]);
        match self.due {
            None => Ok(read.await?),
            Some(due) => match timeout_at(due, read).await {
                Ok(read) => Ok(read?),
                Err(_) => Err(self.overdue()),
            },
        }
    }

    fn overdue(&self) -> FrameError {
        match (self.header_got, self.frames) {
            (0, 0) => FrameError::Silent,
            (0, _) => FrameError::Idle,
            _ => FrameError::Stalled,
        }
    }
}

/// Writes one frame of at most `max` bytes and flushes. Must not be dropped half-way if the stream is used on.
pub async fn write_frame<W: AsyncWrite + Unpin>(stream: &mut W, frame: &[u8], max: usize) -> Result<(), FrameError> {
    let too_long = || FrameError::TooLong { announced: frame.len() as u64, max };
    let length = u32::try_from(frame.len()).ok().filter(|_| frame.len() <= max).ok_or_else(too_long)?;
    if frame.len() <= GROWTH_BYTES {
        // One write, so that header and body of a short frame leave in one packet.
        let mut bytes = Vec::with_capacity(HEADER_BYTES + frame.len());
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(frame);
        stream.write_all(&bytes).await?;
    } else {
        stream.write_all(&length.to_le_bytes()).await?;
        stream.write_all(frame).await?;
    }
    Ok(stream.flush().await?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::io::Cursor;
    use proptest::prelude::*;

    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
    }

    fn reader(bytes: &[u8], max: usize) -> FrameReader<Cursor<Vec<u8>>> {
        FrameReader::new(Cursor::new(bytes.to_vec()), max, Deadlines::default())
    }

    #[test]
    fn frames_come_back_in_order_and_the_end_is_clean() {
        run(async {
            let frames = [b"".to_vec(), b"one".to_vec(), vec![7u8; 200_000]];
            let mut bytes = Vec::new();
            for frame in &frames {
                write_frame(&mut bytes, frame, 1 << 20).await.unwrap();
            }
            let mut reader = reader(&bytes, 1 << 20);
            for frame in &frames {
                assert_eq!(reader.next().await.unwrap().as_ref(), Some(frame));
            }
            assert!(reader.next().await.unwrap().is_none());
        });
    }

    #[test]
    fn oversize_is_refused_by_its_header_alone() {
        run(async {
            for announced in [17u32, u32::MAX] {
                let error = reader(&announced.to_le_bytes(), 16).next().await.unwrap_err();
                assert!(matches!(error, FrameError::TooLong { max: 16, .. }), "{error}");
            }
            let mut sink = Vec::new();
            assert!(write_frame(&mut sink, &[0; 17], 16).await.is_err());
            assert!(sink.is_empty(), "nothing of a refused frame is written");
        });
    }

    #[test]
    fn every_truncation_is_noticed() {
        run(async {
            let mut bytes = Vec::new();
            write_frame(&mut bytes, b"payload", 64).await.unwrap();
            for cut in 1..bytes.len() {
                let error = reader(&bytes[..cut], 64).next().await.unwrap_err();
                assert!(matches!(error, FrameError::Truncated { .. }), "{cut}: {error}");
            }
        });
    }

    /// Yields its bytes, then stays silent for ever.
    struct ThenSilent(Cursor<Vec<u8>>);

    impl AsyncRead for ThenSilent {
        fn poll_read(
            mut self: std::pin::Pin<&mut Self>,
            cx: &mut std::task::Context<'_>,
            buffer: &mut [u8],
        ) -> std::task::Poll<io::Result<usize>> {
            if self.0.position() as usize >= self.0.get_ref().len() {
                return std::task::Poll::Pending;
            }
            std::pin::Pin::new(&mut self.0).poll_read(cx, buffer)
        }
    }

    #[test]
    fn silence_is_told_apart_by_where_it_begins() {
        run(async {
            let short = Duration::from_millis(5);
            let deadlines = Deadlines { first_byte: short, frame: short, idle: Some(short) };
            let open = |bytes: &[u8]| FrameReader::new(ThenSilent(Cursor::new(bytes.to_vec())), 64, deadlines);
            assert!(matches!(open(b"").next().await, Err(FrameError::Silent)));
            assert!(matches!(open(&[3]).next().await, Err(FrameError::Stalled)));
            assert!(matches!(open(&[3, 0, 0, 0, b'a']).next().await, Err(FrameError::Stalled)));
            let mut reader = open(&[1, 0, 0, 0, b'a']);
            assert_eq!(reader.next().await.unwrap(), Some(b"a".to_vec()));
            assert!(matches!(reader.next().await, Err(FrameError::Idle)));
        });
    }

    #[test]
    fn a_dropped_read_loses_nothing() {
        run(async {
            let (mut tx, rx) = tokio::io::duplex(64);
            let rx = tokio_util_compat(rx);
            let mut reader = FrameReader::new(rx, 64, Deadlines::default());
            for byte in [3u8, 0, 0, 0, b'a', b'b'] {
                tokio::io::AsyncWriteExt::write_all(&mut tx, &[byte]).await.unwrap();
                // The read is polled once, takes the byte, and is dropped.
                let poll = futures::future::poll_fn(|cx| {
                    let next = std::pin::pin!(reader.next());
                    std::task::Poll::Ready(next.poll(cx).is_pending())
                });
                assert!(poll.await);
            }
            tokio::io::AsyncWriteExt::write_all(&mut tx, b"c").await.unwrap();
            assert_eq!(reader.next().await.unwrap(), Some(b"abc".to_vec()));
        });
    }

    fn tokio_util_compat(stream: tokio::io::DuplexStream) -> impl AsyncRead + Unpin {
        struct Compat(tokio::io::DuplexStream);
        impl AsyncRead for Compat {
            fn poll_read(
                mut self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
                buffer: &mut [u8],
            ) -> std::task::Poll<io::Result<usize>> {
                let mut buffer = tokio::io::ReadBuf::new(buffer);
                let polled = tokio::io::AsyncRead::poll_read(std::pin::Pin::new(&mut self.0), cx, &mut buffer);
                polled.map_ok(|()| buffer.filled().len())
            }
        }
        Compat(stream)
    }

    proptest! {
        #[test]
        fn garbage_never_yields_more_than_it_holds(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            run(async {
                let mut reader = reader(&bytes, 64);
                let mut total = 0;
                while let Ok(Some(frame)) = reader.next().await {
                    assert!(frame.len() <= 64);
                    total += frame.len() + HEADER_BYTES;
                }
                assert!(total <= bytes.len());
            });
        }
    }
}
