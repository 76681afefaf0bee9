//! The commands beside `train`.

pub mod audit;
pub mod checkpoint;
pub mod generate;
pub mod invite;
pub mod revoke;
pub mod status;
