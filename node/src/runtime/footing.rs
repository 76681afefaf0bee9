//! The disk and the device on which a node stands when it starts.

use super::ledger::store_failure;
use super::null::NullTrainer;
use crate::cli::TrainArgs;
use crate::exit::{Code, Failure};
use starling_kernels::{DeviceChoice, ModelConfig, Trainer, TrainerOptions};
use starling_protocol::run::RunSpec;
use starling_protocol::wire;
use starling_store::{Opened, Store, StoreOptions};
use std::path::Path;
use std::time::Duration;

/// Opens the store. A damaged chain is set aside and fetched anew, if there are peers to fetch it from.
pub fn open_store(home: &Path, max_bytes: u64, alone: bool) -> Result<Store, Failure> {
    let options = StoreOptions { max_bytes, ..StoreOptions::default() };
    let Opened { store, damage } = Store::open(home, options).map_err(store_failure)?;
    if let Some(damage) = damage.filter(|damage| damage.chain_lost()) {
        if alone {
            let advice = "start this node with --bootstrap or --join, so that it can fetch the state from its peers";
            return Err(Failure::message(Code::StoreDamaged, format!("{damage}; {advice}")));
        }
        tracing::warn!("{damage}; the chain is set aside and fetched anew");
        store.reset_chain().map_err(store_failure)?;
    }
    Ok(store)
}

/// Binds the folder to its run, for good.
pub fn bind_run(store: &Store, home: &Path, spec: &RunSpec, spec_bytes: &[u8]) -> Result<(), Failure> {
    let bound = match store.run() {
        Some(bound) if bound.spec != spec_bytes => bound,
        _ => return store.bind_run(spec_bytes).map_err(store_failure),
    };
    let differences =
        wire::decode_spec(&bound.spec).map(|theirs| spec.differences(&theirs).join("; ")).unwrap_or_default();
    Err(Failure::message(
        Code::ConfigMismatch,
        format!(
            "{} belongs to another run, or to another version of this one ({differences}; here: now, there: in the \
             folder): start it as before, with the text as it was (data.manifest), to go on with that run, or give \
             this one a folder of its own with --home, or another name",
            home.display()
        ),
    ))
}

/// Opens the device with the run's model, or a trainer that only waits for its steps.
pub fn open_trainer(
    args: &TrainArgs,
    device: &DeviceChoice,
    model: &ModelConfig,
    options: &TrainerOptions,
) -> Result<Box<dyn Trainer>, Failure> {
    let open = |model: &ModelConfig| starling_kernels::open_trainer(device, model, options);
    let Some(ms) = args.null_trainer else { return Ok(open(model)?) };
    model.validate()?;
    // The device alone is of interest, so it is opened with the smallest model: the run's may be too large to train.
    let smallest = ModelConfig::preset_names().next().and_then(ModelConfig::preset);
    let device = open(smallest.as_ref().unwrap_or(model))?.device().clone();
    let step = Duration::from_millis(ms);
    Ok(Box::new(NullTrainer::new(device, model.parameters() as usize, model.seq_len, step)))
}
