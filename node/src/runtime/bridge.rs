//! The bridge to a trainer that a node's user brings: any program that speaks as `docs/bridge.md` says.
//!
//! Nothing on which nodes must agree is computed by it. The node reads what it offers out of shared memory before it
//! looks at it, and every length, count and number from outside is checked against a limit.

mod command;
mod door;
mod external;
mod founding;
mod frames;
mod link;
mod memory;
mod note;
mod refusal;
mod said;

#[cfg(test)]
#[path = "bridge/bridge_test.rs"]
mod tests;

pub use command::TrainerCommand;
pub use door::Door;
pub use external::External;
pub use founding::{Founded, Wish, found};
pub use link::{Terms, Wanted};
pub use note::Note;
