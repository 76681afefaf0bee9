//! A look at what passes through the pipes: which frames members send to each other, and how many bytes beside them.

use crate::reduce::opening::{self, OPENING_BYTES};
use crate::reduce::word::{WORD_HEADER_BYTES, follow};
use starling_protocol::NodeId;
use starling_protocol::frame::{FRAME_HEADER_BYTES, FrameHeader, FrameKind};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

/// A frame that has left whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    pub from: NodeId,
    pub to: NodeId,
    pub attempt: u32,
    pub kind: FrameKind,
    pub chunk: usize,
    pub bytes: usize,
}

#[derive(Default)]
struct Log {
    frames: Vec<Left>,
    /// The attempt and the bytes of each opening and each word.
    beside: Vec<(u32, usize)>,
}

/// The frames of all members, in all attempts.
#[derive(Clone, Default)]
pub struct Tap(Arc<Mutex<Log>>);

impl Tap {
    /// A look at one stream.
    pub fn on(&self, from: NodeId, to: NodeId) -> Probe {
        Probe { tap: self.clone(), from, to, attempt: None, open: Vec::new(), lost: false }
    }

    /// The frames of an attempt.
    pub fn frames(&self, attempt: u32) -> Vec<Left> {
        self.0.lock().unwrap().frames.iter().filter(|frame| frame.attempt == attempt).copied().collect()
    }

    /// Bytes of an attempt that were sent in an earlier one as well: partial sums and parts that their sender has sent
    /// before, sums that their receiver was sent before, and all that is no frame.
    pub fn again(&self, attempt: u32) -> usize {
        let log = self.0.lock().unwrap();
        let what = |frame: &Left| match frame.kind {
            FrameKind::Contrib => (0, frame.from, frame.chunk),
            _ => (1, frame.to, frame.chunk),
        };
        let before: BTreeSet<_> = log.frames.iter().filter(|frame| frame.attempt < attempt).map(what).collect();
        let again = log.frames.iter().filter(|frame| frame.attempt == attempt && before.contains(&what(frame)));
        let beside = log.beside.iter().filter(|(of, _)| *of == attempt);
        again.map(|frame| frame.bytes).sum::<usize>() + beside.map(|(_, bytes)| bytes).sum::<usize>()
    }
}

/// A look at one stream.
pub struct Probe {
    tap: Tap,
    from: NodeId,
    to: NodeId,
    /// None before the opening has passed.
    attempt: Option<u32>,
    /// Bytes of what has not passed whole.
    open: Vec<u8>,
    /// Something came that is no frame: a fault has changed it.
    lost: bool,
}

impl Probe {
    /// Notes bytes that pass.
    pub fn see(&mut self, bytes: &[u8]) {
        self.open.extend_from_slice(bytes);
        while let Some(length) = self.note().filter(|_| !self.lost) {
            self.open.drain(..length);
        }
    }

    /// Notes the first thing that has passed whole; returns its length.
    fn note(&mut self) -> Option<usize> {
        let mut log = self.tap.0.lock().unwrap();
        let Some(attempt) = self.attempt else {
            let (_, key) = opening::decode(self.open.first_chunk()?).ok()?;
            self.attempt = Some(key.attempt);
            log.beside.push((key.attempt, OPENING_BYTES));
            return Some(OPENING_BYTES);
        };
        if let Some(length) = follow(self.open.first_chunk()?) {
            let length = WORD_HEADER_BYTES + length;
            self.open.get(..length)?;
            log.beside.push((attempt, length));
            return Some(length);
        }
        let Ok(header) = FrameHeader::decode(self.open.get(..FRAME_HEADER_BYTES)?) else {
            self.lost = true;
            return None;
        };
        let bytes = FRAME_HEADER_BYTES + header.payload_len();
        self.open.get(..bytes)?;
        let (from, to, kind, chunk) = (self.from, self.to, header.kind, header.chunk as usize);
        log.frames.push(Left { from, to, attempt, kind, chunk, bytes });
        Some(bytes)
    }
}
