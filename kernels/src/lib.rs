//! Placeholder while dependencies build.

pub mod codec;
