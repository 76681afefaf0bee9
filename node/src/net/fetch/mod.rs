//! Fetching by hash or number: the layout, the asking and the serving side, and downloads from many peers at once.

mod client;
mod downloader;
#[cfg(test)]
mod fetch_test;
mod pace;
mod server;
mod turns;
mod wire;

pub use client::{Expect, FetchError, Patience, request};
pub use downloader::{
    Check, DownloadError, DownloadReport, Downloader, IsStranger, Item, OpenFetch, SOURCES_MAX, STREAMS_PER_SOURCE,
};
pub use server::{FetchServer, FetchSource, NothingToFetch, ServeEnd, ServerPatience};
pub use wire::{
    DATA_MANIFEST_BYTES_MAX, FetchRefusal, FetchRequest, FetchWireError, Link, RECORDS_BYTES_MAX, RECORDS_MAX,
    SHARD_PIECE_BYTES, SNAPSHOT_BYTES_MAX, SNAPSHOTS_MAX, decode_records, decode_snapshots, encode_records,
    encode_snapshots,
};
