//! Watching a node: events, the terminal, and the status socket.
//!
//! A [`screen::Screen`] shows events: as JSON, as plain lines, or as lines above a block that is renewed in place. The
//! block is a pure function of the [`picture`]; [`terminal`] keeps everything that is written apart from it.

pub mod block;
mod canvas;
pub mod choice;
pub mod event;
pub mod figures;
pub mod names;
pub mod pace;
pub mod pair;
pub mod picture;
pub mod screen;
pub mod status;
pub mod terminal;
pub mod words;
