//! Real swarms on loopback.

mod flock;
mod hostile;
mod relayed;
mod rendezvous;
mod trouble;
