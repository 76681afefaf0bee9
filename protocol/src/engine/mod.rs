//! The round engine: `handle(input, now) -> outputs`.

mod clock;
mod config;
pub mod io;
pub mod succession;

pub use config::{Candidate, EngineConfig, Founding, Register, Stored, Timing};
