//! Fetching by hash or number: the layout, the asking and the serving side, and downloads from many peers at once.

mod answer;
#[cfg(test)]
mod asking_test;
mod client;
mod desk;
mod downloader;
#[cfg(test)]
mod fetch_test;
mod lanes;
mod server;
#[cfg(test)]
mod swarm_test;
mod turns;
mod wire;

pub use answer::Answer;
pub use client::{Expect, FetchError, Patience, REQUESTS_AT_ONCE, begin, payload, request, request_all};
pub use desk::{DownloadError, DownloadReport, IsStranger, Item, SOURCES_MAX};
pub use downloader::{Check, Downloader, OpenFetch, STREAMS_PER_SOURCE, Swarm};
pub use lanes::Lanes;
pub use server::{FetchServer, FetchSource, NothingToFetch, ServeEnd, ServerPatience};
pub use wire::{
    DATA_MANIFEST_BYTES_MAX, FetchRefusal, FetchRequest, FetchWireError, HELD_BYTES_MAX, Link, PIECE_VALUES_BYTES_MAX,
    RECORDS_MAX, SHARD_PIECE_BYTES, SNAPSHOT_BYTES_MAX, Start, UPDATE_PIECE_BYTES, decode_records, decode_start,
    encode_records, encode_start, is_held,
};
