//! From text to tokens to content-addressed, memory-mapped shards.
//!
//! ```text
//! sources ──list──> files ──documents──> blocks ──holdout──> train | validation ──tokens──> shards + manifest
//! ```
//!
//! [`prepare`] does all of that once for a set of sources and keeps the result in a cache folder. A second start finds
//! it by a fingerprint of the files' names, sizes and times. The [`DataManifest`] names every shard by digest, and its
//! own digest is part of the run: nodes that agree on it train on the same tokens. A node without the sources opens a
//! [`Dataset`] from the manifest alone and adds the shards as it fetches them.
//!
//! Opaque files of a run whose trainers bring the model are a data set, too ([`prepare_files`], [`lay_out_files`]).
//!
//! `docs/data.md` describes sources, rules and layouts for users.

mod blocks;
mod cache;
mod crates;
mod dataset;
mod documents;
mod entropy;
mod error;
mod files;
mod holdout;
mod kind;
mod letters;
pub mod limits;
mod manifest;
mod options;
mod plain;
mod prepare;
mod shards;
mod sources;
mod tokenizer;
mod walk;

pub use dataset::Dataset;
pub use error::{DataError, ManifestError};
pub use files::{lay_out_files, prepare_files};
pub use letters::bytes_tokenizer_json;
pub use limits::PIECE_BYTES;
pub use manifest::{DataManifest, ShardInfo};
pub use options::{CRATES_SOURCE, CorpusOptions, default_sources};
pub use plain::{PlainText, plain_text};
pub use prepare::{PrepareProgress, Summary, prepare};
pub use shards::shard_digest;
pub use sources::text_bytes;
pub use tokenizer::{Tokenizer, TokenizerChoice};
