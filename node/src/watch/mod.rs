//! Watching a node: events, the terminal, and the status socket.

pub mod event;
pub mod screen;
pub mod status;
