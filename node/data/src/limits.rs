//! Named limits on corpora, files and all data from peers.

/// Bytes of a full shard: small enough that a fetched shard's digest is checked after four pieces.
pub const SHARD_BYTES: usize = 4 << 20;
/// Bytes of one piece of a shard as peers serve it.
pub const PIECE_BYTES: usize = 1 << 20;
/// Shards of one data set, held out ones included: 256 GiB of tokens.
pub const SHARDS_MAX: usize = 65_536;
/// Bytes of an encoded manifest before the shards' digests.
pub const MANIFEST_HEADER_BYTES: usize = 88;
/// Bytes of an encoded manifest.
pub const MANIFEST_BYTES_MAX: usize = MANIFEST_HEADER_BYTES + SHARDS_MAX * 32;
/// Token values of a tokenizer; no model has an embedding of more rows.
pub const VOCAB_MAX: u32 = 1 << 24;
/// Bytes of a `tokenizer.json`.
pub const TOKENIZER_BYTES_MAX: u64 = 128 << 20;

/// Files of all sources together.
pub const FILES_MAX: usize = 1_000_000;
/// Bytes of the name of an opaque file, and of the list of all of them.
pub const FILE_NAME_BYTES_MAX: usize = 1_024;
pub const FILE_LIST_BYTES_MAX: u64 = 64 << 20;
/// Bytes of one line of a .jsonl file.
pub const JSONL_LINE_BYTES_MAX: usize = 16 << 20;
/// Log2 of the memory that a .zst file may ask for (128 MiB, which the `zstd` tool itself accepts by default).
pub const ZSTD_WINDOW_LOG_MAX: u32 = 27;
/// Bytes at the start of a file that are searched for a zero byte, the mark of a file that is not text.
pub const SNIFF_BYTES: usize = 8 << 10;
/// Text below this cannot be split and trained on.
pub const CORPUS_BYTES_MIN: u64 = 1 << 10;

/// A block, the unit of the held-out split, ends with the first document that ends at or after this many bytes...
pub const BLOCK_BYTES_MIN: usize = 64 << 10;
/// ... and is cut inside a longer document when it reaches this many.
pub const BLOCK_BYTES_MAX: usize = 128 << 10;
/// Held-out text stops growing here, however large the corpus.
pub const HOLDOUT_BYTES_MAX: u64 = 256 << 20;

/// Text of the default corpus.
pub const CRATES_BYTES_MAX: u64 = 64 << 20;
/// Larger files of the default corpus are tables and bindings that a program wrote: they are left out.
pub const CRATES_FILE_BYTES_MAX: u64 = 256 << 10;

/// Shards mapped at once, well below the number of mappings a process may have (65,530 by default on Linux).
pub const MAPS_MAX: usize = 1_024;
/// Tokens of a sequence.
pub const SEQ_LEN_MAX: usize = 1 << 20;

const _: () = assert!(SHARD_BYTES.is_multiple_of(PIECE_BYTES) && SHARD_BYTES.is_multiple_of(4));
const _: () = assert!(BLOCK_BYTES_MIN < BLOCK_BYTES_MAX && BLOCK_BYTES_MAX < u32::MAX as usize);
const _: () = assert!(MAPS_MAX < 65_530);
