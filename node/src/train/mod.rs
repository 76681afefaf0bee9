//! `starling train`: sets a node up, hands it to the driver, and ends with what the driver says.

mod afresh;
mod beginning;
mod candidate;
mod canonical;
mod catch_up;
mod chain;
mod claims;
mod contributions;
mod device;
mod difference;
mod divergence;
mod driver;
mod ending;
mod evidence;
mod fetches;
mod head;
mod hearing;
mod ledger;
mod memory;
mod merging;
mod mixing;
mod moments;
mod notice;
mod null;
mod origin;
mod outputs;
mod proof;
mod reduction;
mod residuals;
#[cfg(test)]
pub(crate) mod sample_test;
mod setup;
mod shards;
mod source;
mod sources;
mod streaming;
mod text;
mod ticket;
mod trainer;
mod undurable;
mod variant;
mod view;

pub use canonical::Canonical;
pub use ledger::store_failure;
pub use setup::{home_of, train};
