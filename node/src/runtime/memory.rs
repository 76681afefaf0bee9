//! Checks that a model fits into this machine's memory, before memory is taken.

use crate::exit::{Code, Failure};
use crate::watch::screen::bytes as human_bytes;
use starling_kernels::{MemoryEstimate, ModelConfig, TrainerOptions};
use starling_protocol::codec::encoded_max;
use starling_protocol::gossip;
use starling_protocol::run::SyncSpec;

/// Memory that a node may take beside tensors (`issue 2`, "A node's memory").
const MEMORY_SLACK: u64 = 300 << 20;

/// Returns the budget in bytes, or refuses when the machine cannot hold it.
pub fn check(model: &ModelConfig, options: &TrainerOptions, sync: &SyncSpec) -> Result<u64, Failure> {
    let estimate: MemoryEstimate = starling_kernels::memory_estimate(model, options);
    let vector = 4 * model.parameters();
    let shared = vectors(sync) * vector + mixing(model.parameters(), sync);
    let needed = estimate.total() + shared + MEMORY_SLACK;
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
                human_bytes(shared),
                human_bytes(MEMORY_SLACK),
                human_bytes(available),
            ),
        ));
    }
    Ok(needed)
}

/// Vectors of the model's length beside the model and its optimizer.
///
/// They are the canonical state, the contribution, one that the last commit left out or that a difference is mixed
/// into, and one buffer for updates under way: two encoded ones, each at most half of it. Strong codecs also keep
/// residuals: those of contributions, and those of the sums that this node makes, which are all sums if it is alone. A
/// streaming trainer keeps its own parameters as they were at its READY, and mixes in its steps ahead. Steps that
/// overtake a snapshot on its way to the disk leave copies for it, of the whole state at most.
fn vectors(sync: &SyncSpec) -> u64 {
    let own = u64::from(sync.streams()) + if sync.overlap > 0 { 2 } else { 0 };
    2 * u64::from(sync.mode.vectors()) + own + if sync.codec.suits_rings() { 3 } else { 5 }
}

/// Memory of gossip: a drift and its momentum, and in an exchange the partner's two encoded vectors. (The change is
/// written to the memory of the next contribution.)
fn mixing(parameters: u64, sync: &SyncSpec) -> u64 {
    if sync.gossip.is_none() {
        return 0;
    }
    let elements = usize::try_from(parameters).unwrap_or(usize::MAX);
    2 * 4 * parameters + 2 * encoded_max(gossip::codec(sync.codec), elements) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::sample_test;
    use starling_protocol::gossip::GossipSpec;
    use starling_protocol::run::SyncMode;

    /// The state twice, three more for int8, and what does not grow with the mode.
    #[test]
    fn the_state_counts_twice_because_a_snapshot_may_need_it_as_it_was() {
        let mut sync = sample_test::spec().sync;
        assert!(sync.codec.suits_rings() && !sync.streams() && sync.overlap == 0);
        assert_eq!(vectors(&sync), 2 * 2 + 3);
        sync.mode = SyncMode::EveryStep;
        assert_eq!(vectors(&sync), 2 * 3 + 3);
    }

    #[test]
    fn pairs_take_two_vectors_and_what_a_partner_says() {
        let model = ModelConfig::preset("1m").expect("a preset");
        let options = TrainerOptions {
            batch: 1,
            accumulate: 1,
            threads: 1,
            beta1: 0.9,
            beta2: 0.99,
            eps: 1e-8,
            weight_decay: 0.0,
            clip: 1.0,
        };
        let mut sync = sample_test::spec().sync;
        let without = check(&model, &options, &sync).expect("it fits");
        sync.gossip = Some(GossipSpec::every(8));
        let with = check(&model, &options, &sync).expect("it fits");
        // Two vectors of f32, and two in int8: one byte an element and a scale for each 256.
        let parameters = model.parameters();
        assert!((10 * parameters..11 * parameters).contains(&(with - without)), "{} for {parameters}", with - without);
    }
}
