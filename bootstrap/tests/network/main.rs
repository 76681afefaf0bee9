//! Real swarms on loopback.

mod flock;
mod rendezvous;
mod trouble;
