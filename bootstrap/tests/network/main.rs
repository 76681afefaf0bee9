//! Real swarms on loopback.

mod checkup;
mod contacts;
mod flock;
mod hostile;
mod relayed;
mod rendezvous;
mod trouble;
