//! How nodes find each other: their identities, their connections, and the meeting of the nodes of one run.
//!
//! A library that the node composes into its network task, and a small program, `starling-bootstrap`, that runs a
//! well-known peer. It knows nothing of training.
//!
//! - [`identity`]: key files; [`addresses`]: multiaddrs and bootstrap lists; [`ticket`]: one line to join a run.
//! - [`transport`], [`mux`], [`gate`], [`doors`], [`handshake`], [`crowd`], [`source`]: how connections are made or
//!   refused.
//! - [`swarm`]: all behaviours with their limits; [`dht`], [`gossip`], [`pace`], [`streams`], [`reach`] are parts of it.
//! - [`uplink`]: the rate of this machine's line.
//! - [`process`]: tells processes that share a key apart.
//! - [`discovery`]: which peers to dial and when, and the events for the owner of a swarm.
//! - [`checkup`]: whether peers answer, and whether they reach this machine.
//! - [`framing`]: length-prefixed frames over a stream; [`config_file`]: TOML with helpful errors.
//! - [`telemetry`]: logs and metrics of a process; [`service`]: the well-known peer.

pub mod addresses;
mod cause;
pub mod checkup;
pub mod config_file;
pub mod crowd;
pub mod dht;
pub mod discovery;
pub mod doors;
pub mod framing;
pub mod gate;
pub mod gossip;
pub mod handshake;
pub mod identification;
pub mod identity;
pub mod mux;
pub mod pace;
pub mod process;
pub mod reach;
pub mod service;
pub mod source;
pub mod streams;
pub mod swarm;
pub mod telemetry;
pub mod ticket;
pub mod tls;
pub mod transport;
pub mod untrusted;
pub mod uplink;
