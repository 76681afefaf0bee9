//! The answer to a request.

use std::fs::File;
use std::sync::Arc;

/// The payload of an answer.
#[derive(Debug)]
pub enum Answer {
    /// In memory until it is sent: at most a mebibyte, but for manifests of large models and large texts.
    Bytes(Arc<Vec<u8>>),
    /// The next `len` bytes of a file, which are read as they are taken. The file may be removed meanwhile; a file that
    /// is cut short ends the stream.
    File { file: File, len: u64 },
}

impl Answer {
    /// Bytes of the payload.
    pub fn length(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::File { len, .. } => *len,
        }
    }
}

impl From<Vec<u8>> for Answer {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(Arc::new(bytes))
    }
}
