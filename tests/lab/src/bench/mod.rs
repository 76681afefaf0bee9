//! Benches of whole flocks on emulated lines: a newcomer that joins a flying flock, and a round beyond its wire time.

mod join;
mod play;
mod round;

pub use join::{Join, JoinSetting};
pub use play::Place;
pub use round::{RoundCost, RoundSetting};
