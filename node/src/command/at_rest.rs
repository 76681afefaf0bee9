//! The store of a node that is not running, for commands that read its history.

use crate::exit::{Code, Failure};
use crate::runtime::store_failure;
use starling_store::{Store, StoreOptions};
use std::path::Path;

/// Refuses a folder that is no node's.
pub fn require_home(home: &Path) -> Result<(), Failure> {
    if home.join("run.spec").exists() {
        return Ok(());
    }
    let why = format!("{} holds no run: name the folder that `starling train` was given", home.display());
    Err(Failure::message(Code::Usage, why))
}

/// Opens the store. A folder without a run is refused, and so is a damaged store.
pub fn open_at_rest(home: &Path) -> Result<Store, Failure> {
    require_home(home)?;
    let opened = Store::open(home, StoreOptions::default()).map_err(store_failure)?;
    match opened.damage {
        Some(damage) => Err(Failure::message(Code::StoreDamaged, damage)),
        None => Ok(opened.store),
    }
}
