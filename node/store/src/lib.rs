//! The node's data on disk: head, records and their certificates, updates, candidates, the vote state, snapshots, its
//! private state; and checkpoint folders.
//!
//! Disks lie, processes die at any instruction, and RocksDB opens happily after losing data. Therefore everything
//! carries a checksum of ours. A change is acknowledged only after it is synced on two sides, which the next start
//! compares ([`Damage`]). Data that fails a check is reported and never used. Bulk data is in plain files named by
//! digest; the database is small. `docs/store.md` has the layout and the reasons.
//!
//! The store knows records and digests, but no models: a state is a number of flat vectors to it.

#![forbid(unsafe_code)]

mod adoption;
mod arriving;
mod beginning;
mod birth;
mod blobs;
mod bound;
mod candidates;
mod chain;
mod checkpoint;
mod checkpoints;
mod draft;
mod error;
mod export;
mod folder;
mod halves;
mod holding;
mod mirror;
mod path;
mod pieces;
mod private;
mod recording;
mod replace;
mod rocks;
mod sealed;
mod snapshot;
mod space;
mod store;
mod threads;
mod tip;
mod updates;
mod weights;
mod writing;

pub use arriving::Arriving;
pub use chain::EncodedLink;
pub use checkpoint::{
    Checkpoint, CheckpointFile, CheckpointManifest, CheckpointSource, describe_checkpoint, export_checkpoint,
    is_checkpoint_of, is_extra, open_checkpoint,
};
pub use checkpoints::{
    Kept, checkpoint_path, keep_checkpoints, list_checkpoints, newest_checkpoint, remove_checkpoint,
};
pub use draft::Draft;
pub use error::{Damage, Part, StoreError};
pub use export::{MODEL_FILE, Model, abandon_export, export_folder, export_weights};
pub use pieces::{Pieces, UPDATE_PIECE_BYTES};
pub use private::{PrivateReader, PrivateWriter};
pub use recording::Recording;
pub use snapshot::{LoadedState, SNAPSHOT_EVERY, SnapshotKind};
pub use space::{DiskSpace, folder_and_free};
pub use store::{Opened, Run, Store, StoreOptions};
pub use weights::{Tensor, TensorShape, TensorView, read_safetensors};
pub use writing::StateChunks;
