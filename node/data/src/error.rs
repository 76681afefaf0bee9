//! The errors of a corpus, each with its full text in one place.

use crate::limits::MANIFEST_BYTES_MAX;
use starling_protocol::Digest;
use std::io;
use std::path::{Path, PathBuf};

/// The reason why bytes are not a manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ManifestError {
    #[error("it has {bytes} bytes; the bound is {MANIFEST_BYTES_MAX}")]
    TooLong { bytes: usize },
    #[error("it has {bytes} bytes where {expected} are expected: it is cut or padded")]
    Length { bytes: usize, expected: usize },
    #[error("it does not begin as a data manifest does")]
    Magic,
    #[error("it has version {theirs}; this program knows {ours}: run the same release on all nodes")]
    Version { theirs: u16, ours: u16 },
    #[error("its {what} contradicts the rest of it or a limit")]
    Field { what: &'static str },
}

/// The reason why a corpus could not be prepared or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    #[error(
        "no corpus is named: give --data PATH (a file, a folder or a glob), or leave it out for the default corpus"
    )]
    NoSources,
    #[error(
        "{} does not exist: check the path (on the command line, or data.sources or data.files in the run file)",
        path.display()
    )]
    NotFound { path: PathBuf },
    #[error("{source_text} is remote, and only local files are read so far: download it and give its path")]
    Remote { source_text: String },
    #[error("the glob {pattern} matches no file: check it, and quote it so that the shell leaves it alone")]
    NoMatch { pattern: String },
    #[error("the glob {pattern} is malformed: {reason}")]
    BadGlob { pattern: String, reason: String },
    #[error("cannot read {}: {}; check the path and its owner", path.display(), starling_words::of(source))]
    Unreadable { path: PathBuf, source: io::Error },
    #[error(
        "cannot unpack {}: {}; it is damaged, incomplete or not what its name says",
        path.display(), starling_words::of(source)
    )]
    Unpack { path: PathBuf, source: io::Error },
    #[error("{} is neither a file nor a folder, so it cannot be read twice: save its contents to a file", path.display())]
    NotAFile { path: PathBuf },
    #[error("{} is not text (it holds a zero byte near its start): convert it to UTF-8 text", path.display())]
    NotText { path: PathBuf },
    #[error(
        "{} has no file of a known kind (.txt, .md, .jsonl or source code, plain, .gz or .zst; hidden files are \
         skipped): name the files or use a glob",
        path.display()
    )]
    NoUsableFile { path: PathBuf },
    #[error("{} has no file (hidden ones are skipped): name another in data.files", path.display())]
    NoFile { path: PathBuf },
    #[error(
        "{} has no name below the run file's folder or its source that others can use (1,024 bytes of UTF-8, no \
         backslash, and no file where another needs a folder): rename it, or name its folder in data.files",
        path.display()
    )]
    FileName { path: PathBuf },
    #[error(
        "two files would be called {name} in data.files: {} and {}; put both below the run file's folder",
        first.display(), second.display()
    )]
    TwoFiles { name: String, first: PathBuf, second: PathBuf },
    #[error("the run's data are no files that this program can lay out: {reason}; run the same release on all nodes")]
    NoFiles { reason: &'static str },
    #[error("the corpus has more than {max} files: join them into fewer, larger ones")]
    TooManyFiles { max: usize },
    #[error("{}:{line}: not a JSON object with a text: {reason}; mend the line, or leave it out", path.display())]
    Json { path: PathBuf, line: u64, reason: String },
    #[error("{}:{line}: the object has no field {field:?}; name its text's field with data.field", path.display())]
    NoField { path: PathBuf, line: u64, field: String },
    #[error("{}:{line}: the line is longer than {max} bytes: split the document", path.display())]
    LineTooLong { path: PathBuf, line: u64, max: usize },
    #[error("{} changed while it was read: start again once it is complete", path.display())]
    Changed { path: PathBuf },
    #[error("the corpus is empty: there is no text in {}; give other files", starling_words::count(files, "file"))]
    Empty { files: usize },
    #[error("the corpus holds {bytes} bytes of text; at least {min} are needed: give more text")]
    TooSmall { bytes: u64, min: u64 },
    #[error(
        "the corpus is too small for sequences of {seq_len} tokens: it gives {train} training and {validation} held-out \
         sequences, and needs one of each: give more text, or a smaller model.seq_len"
    )]
    TooFewSequences { seq_len: usize, train: u64, validation: u64 },
    #[error("the corpus needs more than {max} shards: bound it (data.bytes_max in the run file) or give less text")]
    TooManyShards { max: usize },
    #[error("data.holdout is {share}: give the share of the text that is held out, from 0.001 to 0.5")]
    Holdout { share: f64 },
    #[error(
        "the default corpus (the sources of the crates that Starling is built from) is not at {}: give --data PATH, or \
         set CARGO_HOME to where cargo keeps its registry",
        looked.display()
    )]
    NoDefaultCorpus { looked: PathBuf },
    #[error(
        "the tokenizer {} cannot be used: {reason}; data.tokenizer in the run file is `bytes`, or the path of a \
         Hugging Face tokenizer.json",
        path.display()
    )]
    Tokenizer { path: PathBuf, reason: String },
    #[error("the tokenizer failed on a text: {reason}")]
    Encode { reason: String },
    #[error(
        "cannot {what} in the folder of tokenized text {}: {}; name another with --cache, or make room there",
        path.display(), starling_words::of(source)
    )]
    Cache { what: &'static str, path: PathBuf, source: io::Error },
    #[error("the data manifest is refused: {0}")]
    Manifest(#[from] ManifestError),
    /// The shard may also have been found damaged: that is logged, and the file is set aside.
    #[error(
        "shard {digest} is not in the data cache: it must be fetched from a peer, or built again at the next start"
    )]
    MissingShard { digest: Digest },
    #[error("the bytes given as shard {digest} are not that shard: {reason}")]
    WrongShard { digest: Digest, reason: &'static str },
    #[error("shard {digest} is not part of this data set")]
    UnknownShard { digest: Digest },
    #[error("{what} {index} is asked for; there are {count}")]
    OutOfRange { what: &'static str, index: u64, count: u64 },
    #[error("shard {digest} holds token {token}, and the vocabulary ends at {vocab}: the data set was made wrongly")]
    TokenOutOfVocab { digest: Digest, token: u32, vocab: u32 },
}

impl DataError {
    /// Whether the disk is full: a start then exits with a code of its own.
    pub fn is_disk_full(&self) -> bool {
        matches!(self, Self::Cache { source, .. }
            if matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded))
    }

    /// Whether the text or the tokenizer that the user named is at fault, as opposed to this machine or a peer.
    pub fn is_of_the_text(&self) -> bool {
        match self {
            Self::Cache { .. }
            | Self::Manifest(_)
            | Self::MissingShard { .. }
            | Self::WrongShard { .. }
            | Self::UnknownShard { .. }
            | Self::OutOfRange { .. }
            | Self::NoFiles { .. }
            | Self::TokenOutOfVocab { .. } => false,
            Self::NoSources
            | Self::NotFound { .. }
            | Self::Remote { .. }
            | Self::NoMatch { .. }
            | Self::BadGlob { .. }
            | Self::Unreadable { .. }
            | Self::Unpack { .. }
            | Self::NotAFile { .. }
            | Self::NotText { .. }
            | Self::NoUsableFile { .. }
            | Self::NoFile { .. }
            | Self::FileName { .. }
            | Self::TwoFiles { .. }
            | Self::TooManyFiles { .. }
            | Self::Json { .. }
            | Self::NoField { .. }
            | Self::LineTooLong { .. }
            | Self::Changed { .. }
            | Self::Empty { .. }
            | Self::TooSmall { .. }
            | Self::TooFewSequences { .. }
            | Self::TooManyShards { .. }
            | Self::Holdout { .. }
            | Self::NoDefaultCorpus { .. }
            | Self::Tokenizer { .. }
            | Self::Encode { .. } => true,
        }
    }

    pub(crate) fn unreadable(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| match source.kind() {
            io::ErrorKind::NotFound => Self::NotFound { path },
            _ => Self::Unreadable { path, source },
        }
    }

    pub(crate) fn cache(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Cache { what, path, source }
    }
}
