//! Real Starling processes for the demo and for end-to-end tests.

pub mod demo;
pub mod flock;
pub mod guest;
pub mod kills;
pub mod letters;
pub mod memory;
pub mod netns;
pub mod process;
pub mod recordings;
pub mod report;
pub mod skips;
pub mod terminal;
