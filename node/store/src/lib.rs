//! What a node keeps on disk: head, records and their certificates, updates, candidates, the vote vote state, snapshots,
//! its private state; and checkpoint folders.
//!
//! Disks lie, processes die at any instruction, and RocksDB opens happily after losing data. Therefore: everything
//! carries a checksum of ours; a change is acknowledged only after it is synced on two sides that are compared at the
//! next start ([`Damage`]); what does not hold is reported and never used. Bulk lies in plain files named by digest,
//! the database is small. `docs/store.md` has the layout and the reasons.
//!
//! The store knows records and digests, not models: a state is some flat vectors to it.

#![forbid(unsafe_code)]

mod adoption;
mod birth;
mod blobs;
mod candidates;
mod chain;
mod checkpoint;
mod error;
mod folder;
mod holding;
mod mirror;
mod path;
mod private;
mod recording;
mod replace;
mod rocks;
mod sealed;
mod snapshot;
mod space;
mod store;
mod tip;
mod weights;

pub use chain::EncodedLink;
pub use checkpoint::{
    Checkpoint, CheckpointFile, CheckpointManifest, CheckpointSource, describe_checkpoint, export_checkpoint,
    open_checkpoint,
};
pub use error::{Damage, Part, StoreError};
pub use private::{PrivateReader, PrivateWriter};
pub use recording::Recording;
pub use snapshot::{LoadedState, SNAPSHOT_EVERY};
pub use space::DiskSpace;
pub use store::{Opened, Run, Store, StoreOptions};
pub use weights::{Tensor, TensorShape, TensorView, export_safetensors, read_safetensors};
