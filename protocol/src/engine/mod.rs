//! The round engine: `handle(input, now) -> outputs`.

pub mod io;
