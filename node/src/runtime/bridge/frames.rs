//! Frames of a trainer's connection (`docs/bridge.md`, section 2): a length, and as many bytes of JSON.

use super::refusal::{Broken, Reason, Refusal};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::error::Category;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Bytes of a frame without its length.
pub const FRAME_BYTES_MAX: usize = 1 << 20;
/// The shortest JSON object: `{}`.
const FRAME_BYTES_MIN: usize = 2;
/// Interval at which a wait looks at its deadline.
const LOOK: Duration = Duration::from_millis(100);
/// Time in which a trainer has to take a frame.
const TAKES: Duration = Duration::from_secs(10);

/// One side of a connection.
#[derive(Debug)]
pub struct Frames {
    stream: UnixStream,
}

impl Frames {
    pub fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(LOOK))?;
        stream.set_write_timeout(Some(TAKES))?;
        Ok(Self { stream })
    }

    /// Another handle of the same connection, to look at it or to end it.
    pub fn handle(&self) -> io::Result<UnixStream> {
        self.stream.try_clone()
    }

    /// Sends a frame.
    pub fn send(&mut self, said: &impl Serialize) -> Result<(), Broken> {
        let frame = encoded(said)?;
        self.stream.write_all(&frame).map_err(|e| not_taken(&e))
    }

    /// Sends a frame, and an open file with its first byte.
    pub fn send_with(&mut self, said: &impl Serialize, file: BorrowedFd<'_>) -> Result<(), Broken> {
        let frame = encoded(said)?;
        let files = [file];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(&files)) {
            return Err(Broken::Ended("the memory cannot be handed over".into()));
        }
        let (first, rest) = frame.split_at(1);
        let sent = rustix::net::sendmsg(self.stream.as_fd(), &[IoSlice::new(first)], &mut control, SendFlags::empty());
        sent.map_err(|e| not_taken(&io::Error::from(e)))?;
        self.stream.write_all(rest).map_err(|e| not_taken(&e))
    }

    /// Waits until this time for something to read, or for the end of the connection; whether there is any.
    pub fn has_come(&self, until: Instant) -> bool {
        let mut byte = [0u8; 1];
        loop {
            match rustix::net::recv(self.stream.as_fd(), &mut byte[..], RecvFlags::PEEK) {
                Err(e) if is_nothing(&io::Error::from(e)) && Instant::now() < until => {}
                Err(e) => return !is_nothing(&io::Error::from(e)),
                Ok(_) => return true,
            }
        }
    }

    /// Receives a frame by the deadline; `asked` is what the trainer was asked, for a complaint.
    pub fn receive<T: DeserializeOwned>(&mut self, deadline: Instant, asked: &str) -> Result<T, Broken> {
        parsed(&self.receive_json(deadline, asked)?).map_err(Broken::from)
    }

    /// The same as it was sent.
    pub fn receive_json(&mut self, deadline: Instant, asked: &str) -> Result<Vec<u8>, Broken> {
        let mut length = [0; 4];
        self.fill(&mut length, deadline, asked, true)?;
        let length = u32::from_le_bytes(length) as usize;
        if !(FRAME_BYTES_MIN..=FRAME_BYTES_MAX).contains(&length) {
            let why = format!("a frame of {length} bytes; it must have {FRAME_BYTES_MIN} to {FRAME_BYTES_MAX}");
            return Err(Refusal::new(Reason::TooLong, why).into());
        }
        let mut json = vec![0; length];
        self.fill(&mut json, deadline, asked, false)?;
        Ok(json)
    }

    /// Fills a buffer; the trainer may end the connection only before the first byte of a frame.
    fn fill(&mut self, buffer: &mut [u8], deadline: Instant, asked: &str, is_start: bool) -> Result<(), Broken> {
        let mut filled = 0;
        while filled < buffer.len() {
            let Some(rest) = buffer.get_mut(filled..) else { break };
            match self.stream.read(rest) {
                Ok(0) if is_start && filled == 0 => {
                    return Err(Broken::Ended("it closed the connection".into()));
                }
                Ok(0) => {
                    return Err(Refusal::new(Reason::Cut, "the connection ended in the middle of a frame").into());
                }
                Ok(read) => {
                    filled += read;
                    // A trainer that sends a byte at a time is as late as a silent one.
                    if filled < buffer.len() && Instant::now() >= deadline {
                        return Err(late(asked).into());
                    }
                }
                Err(e) if is_nothing(&e) && Instant::now() < deadline => {}
                Err(e) if is_nothing(&e) => return Err(late(asked).into()),
                Err(e) => return Err(Broken::Ended(starling_words::of(&e))),
            }
        }
        Ok(())
    }
}

/// The end of a connection whose trainer has not done in time what it was asked.
pub fn late(asked: &str) -> Refusal {
    Refusal::new(Reason::Silent, format!("no answer in time to {asked}"))
}

/// Whether the other side of a connection is still there.
pub fn is_alive(stream: &UnixStream) -> bool {
    // Bytes that nobody has read yet hide the end from a reader, and nothing hides it from a writer of no bytes.
    let sent = rustix::net::send(stream.as_fd(), &[], SendFlags::DONTWAIT);
    if sent.is_err_and(|e| !is_nothing(&io::Error::from(e))) {
        return false;
    }
    let mut byte = [0u8; 1];
    let peeked = rustix::net::recv(stream.as_fd(), &mut byte[..], RecvFlags::PEEK | RecvFlags::DONTWAIT);
    match peeked {
        Ok((_, read)) => read > 0,
        Err(e) => is_nothing(&io::Error::from(e)),
    }
}

/// Whether an error says no more than that nothing has come yet.
fn is_nothing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

fn encoded(said: &impl Serialize) -> Result<Vec<u8>, Broken> {
    let mut frame = vec![0; 4];
    let written = serde_json::to_writer(&mut frame, said);
    written.map_err(|e| Broken::Ended(format!("a frame could not be written: {e}")))?;
    let length = frame.len() - 4;
    let Some(prefix) = frame.first_chunk_mut::<4>().filter(|_| length <= FRAME_BYTES_MAX) else {
        return Err(Broken::Ended("a frame became too long".into()));
    };
    *prefix = (length as u32).to_le_bytes();
    Ok(frame)
}

/// Reads one JSON object.
pub fn parsed<T: DeserializeOwned>(json: &[u8]) -> Result<T, Refusal> {
    let first = json.iter().find(|byte| !byte.is_ascii_whitespace());
    if first != Some(&b'{') {
        return Err(Refusal::new(Reason::NotJson, "a frame holds no JSON object"));
    }
    serde_json::from_slice(json).map_err(|e| {
        let field = field_before(json, &e).map(|field| format!("{field}: ")).unwrap_or_default();
        Refusal::new(Reason::NotJson, format!("{field}{e}"))
    })
}

/// The field whose value is of another type than it must be; none for other errors, such as that of a field which is
/// missing and has its name in the error.
fn field_before<'a>(json: &'a [u8], error: &serde_json::Error) -> Option<&'a str> {
    if error.classify() != Category::Data || error.to_string().starts_with("missing field") {
        return None;
    }
    // A frame may have several lines.
    let before: usize = json.split(|byte| *byte == b'\n').take(error.line().checked_sub(1)?).map(|l| l.len() + 1).sum();
    let mut rest = std::str::from_utf8(json.get(..before + error.column())?).ok()?;
    loop {
        let (left, _) = rest.rsplit_once(':')?;
        let quoted = left.trim_end().strip_suffix('"');
        if let Some((_, field)) = quoted.and_then(|quoted| quoted.rsplit_once('"')) {
            return Some(field);
        }
        rest = left;
    }
}

fn not_taken(error: &io::Error) -> Broken {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
            Refusal::new(Reason::Silent, "it does not read what the node says").into()
        }
        _ => Broken::Ended(starling_words::of(error)),
    }
}

#[cfg(test)]
#[path = "frames_test.rs"]
mod tests;
