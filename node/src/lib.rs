//! The node: everything between the pure protocol and the machine it runs on.
//!
//! `runtime` wires it together: [`runtime::train`] sets up identity, store, text, device and network and hands them to
//! one driver task, which owns the protocol engine. `net` is the swarm (`starling-net`), `reduce` the engines that
//! average, `gossip` the exchange of two members between records, `watch` the output for people and programs, `command`
//! the small commands.

#[cfg(feature = "byzantine")]
pub mod byzantine;
pub mod cli;
pub mod coding;
pub mod command;
pub mod config;
pub mod contribution;
pub mod exit;
pub mod gossip;
pub mod reduce;
pub mod runtime;
pub mod watch;

pub use starling_net as net;
