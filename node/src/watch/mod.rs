//! Watching a node: events, the terminal, metrics, and the status socket.

pub mod event;
pub mod screen;
pub mod status;
pub mod telemetry;
