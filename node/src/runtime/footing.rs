//! The disk and the device on which a node stands when it starts.

use super::ledger::store_failure;
use super::memory::{Machine, MemoryNeed, Trains};
use super::null::NullTrainer;
use crate::cli::TrainArgs;
use crate::config::node_file::NodeFile;
use crate::exit::{Code, Failure};
use starling_kernels::host::optimizer::Rule;
use starling_kernels::{DeviceChoice, ModelConfig, OpenError, Trainer, TrainerOptions};
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
    let Some(ms) = args.null_trainer else { return Ok(starling_kernels::open_trainer(device, model, options)?) };
    model.validate()?;
    // The device alone is of interest: the run's model may be too large to train.
    let device = open_smallest(device, options.threads)?.device().clone();
    let step = (options.batch * options.accumulate, model.seq_len);
    let trainer = NullTrainer::new(device, model.parameters() as usize, step, Duration::from_millis(ms));
    Ok(Box::new(trainer.failing_after(args.null_fails_after)))
}

/// Opens what the choice means with the smallest model, of which one step takes next to nothing; 0 threads = all cores.
pub fn open_smallest(choice: &DeviceChoice, threads: usize) -> Result<Box<dyn Trainer>, OpenError> {
    let threads = if threads > 0 { threads } else { std::thread::available_parallelism().map_or(1, |n| n.get()) };
    let (rule, beta1, beta2, eps, weight_decay, clip) = (Rule::AdamW, 0.9, 0.99, 1e-8, 0.01, 1.0);
    let options = TrainerOptions { batch: 1, accumulate: 1, threads, rule, beta1, beta2, eps, weight_decay, clip };
    let smallest = ModelConfig::preset_names().next().and_then(ModelConfig::preset);
    starling_kernels::open_trainer(choice, &smallest.expect("there are presets"), &options)
}

/// Where the chosen device trains, by which the memory is judged. `auto` may mean a card with memory of its own; it is
/// tried only if this machine's memory would not do for a trainer on the CPU, since that may take a while.
pub fn trains(args: &TrainArgs, node: &NodeFile, device: &DeviceChoice, spec: &RunSpec) -> Result<Trains, Failure> {
    if args.null_trainer.is_some() {
        return Ok(Trains::Nowhere);
    }
    if *device != DeviceChoice::Auto || spec.task.is_some() {
        return Ok(Trains::by_name(device));
    }
    let here = MemoryNeed::of_run(spec, node.threads, Trains::Here);
    if Machine::here().is_none_or(|machine| matches!(here.judge(machine), Ok(None))) {
        return Ok(Trains::Here);
    }
    Ok(Trains::on(open_smallest(device, node.threads)?.device()))
}
