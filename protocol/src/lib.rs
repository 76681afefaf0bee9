//! Starling's pure protocol.
//!
//! Everything that nodes must agree on lives here, and nothing else: identifiers, the run's
//! specification, records, control messages and tensor frames, the ring schedule, pairs, the scalar
//! codecs, the outer step, the state root, and the [`engine`] that turns inputs into outputs.
//!
//! No I/O, no clock, no threads, no OS randomness, no iteration over hash maps: time and randomness
//! are arguments, so that a simulator drives the very code that a node runs.
//!
//! `docs/protocol/README.md` specifies all of it for implementers of other programs. The hex samples in `vectors` are
//! the golden tests' own.

#![forbid(unsafe_code)]

pub mod admission;
pub mod amendment;
pub mod ancestry;
pub mod audit;
pub mod ballot;
pub mod candidate;
pub mod certificate;
pub mod codec;
pub mod control;
pub mod difference;
pub mod digest;
pub mod divergence;
pub mod engine;
pub mod evidence;
pub mod frame;
pub mod gossip;
pub mod grid;
pub mod identity;
pub mod lease;
pub mod limits;
pub mod message;
pub mod mutation;
pub mod outer;
pub mod path;
pub mod permutation;
pub mod quorum;
pub mod record;
pub mod ring;
pub mod run;
#[doc(hidden)]
pub mod sample;
pub mod scale;
#[cfg(feature = "sim")]
pub mod sim;
pub mod state;
pub mod update;
pub mod wire;

pub use digest::Digest;
pub use identity::{NodeId, Signature, Signer, Verifier};
