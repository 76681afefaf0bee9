//! Whether a model fits into this machine's memory, asked before anything is allocated.

use crate::exit::{Code, Failure};
use crate::watch::screen::bytes as human_bytes;
use starling_kernels::{MemoryEstimate, ModelConfig, TrainerOptions};
use starling_protocol::run::SyncSpec;

/// Everything beside tensors that a node may take (`issue 2`, "A node's memory").
const MEMORY_SLACK: u64 = 300 << 20;

/// Returns the budget in bytes, or refuses when the machine cannot hold it.
pub fn check(model: &ModelConfig, options: &TrainerOptions, sync: &SyncSpec) -> Result<u64, Failure> {
    let estimate: MemoryEstimate = starling_kernels::memory_estimate(model, options);
    let vector = 4 * model.parameters();
    // The canonical state, the contribution, one that the last commit left out or that a difference is mixed into, and one
    // buffer for updates under way: two encoded ones, each at most half of it.
    // Strong codecs keep what they leave out: of contributions, and of the sums that this node makes, of all if it is alone.
    // Who streams keeps its own parameters as they were when it was READY, and mixes in what it has done ahead.
    let own = u64::from(sync.streams()) + if sync.overlap > 0 { 2 } else { 0 };
    let vectors = u64::from(sync.mode.vectors()) + own + if sync.codec.suits_rings() { 3 } else { 5 };
    let needed = estimate.total() + vectors * vector + MEMORY_SLACK;
    let mut system = sysinfo::System::new();
    system.refresh_memory();
    let available =
        system.cgroup_limits().map_or(system.available_memory(), |c| c.free_memory.min(system.available_memory()));
    if needed > available {
        return Err(Failure::message(
            Code::Refused,
            format!(
                "this model needs {} ({} for the model and its optimizer, {} activations, {} shared state and buffers, {} \
                 besides) but {} are free: use a smaller model, a smaller inner.batch, or another machine",
                human_bytes(needed),
                human_bytes(estimate.parameters + estimate.gradients + estimate.moments),
                human_bytes(estimate.activations),
                human_bytes(vectors * vector),
                human_bytes(MEMORY_SLACK),
                human_bytes(available),
            ),
        ));
    }
    Ok(needed)
}
