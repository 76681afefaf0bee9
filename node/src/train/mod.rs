//! `starling train`: sets a node up, hands it to the driver, and ends with what the driver says.

mod canonical;
mod catch_up;
mod driver;
mod ledger;
mod moments;
mod null;
mod outputs;
mod reduction;
mod setup;
mod shards;
mod source;
mod text;
mod ticket;
mod trainer;
mod view;

pub use canonical::Canonical;
pub use ledger::store_failure;
pub use setup::{home_of, train};
