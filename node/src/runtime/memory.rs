//! Estimates the memory that a node takes, and checks that this machine has it, before any is taken.

use crate::config::model_table::model_config;
use crate::config::run_file::trainer_options;
use crate::exit::{Code, Failure};
use crate::watch::screen::bytes as human_bytes;
use starling_kernels::{DeviceChoice, DeviceInfo, DeviceKind, MemoryEstimate, ModelConfig, TrainerOptions};
use starling_protocol::codec::encoded_max;
use starling_protocol::gossip;
use starling_protocol::run::{RunSpec, SyncSpec};

/// Memory that a node may take beside tensors (`issue 2`, "A node's memory").
const MEMORY_SLACK: u64 = 300 << 20;

/// Where the model is trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trains {
    /// In this machine's memory, as far as is known before a device is opened.
    Here,
    /// In the memory of a device of its own.
    OnADevice,
    /// Nowhere: steps are only waited for.
    Nowhere,
}

/// Bytes of memory that a node takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryNeed {
    /// Parameters, gradients and the optimizer's moments of the trainer.
    pub trainer: u64,
    pub activations: u64,
    /// The canonical state and what is under way beside it, `copies` among it.
    pub shared: u64,
    /// The most that steps which overtake a snapshot on its way to the disk leave for it.
    pub copies: u64,
}

/// The memory of this machine, or of the cgroup in which the process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    pub total: u64,
    /// Bytes that no program takes now.
    pub available: u64,
}

impl Trains {
    /// Where a device trains that is open.
    pub fn on(device: &DeviceInfo) -> Self {
        match device.kind {
            DeviceKind::Cpu => Self::Here,
            DeviceKind::Wgpu | DeviceKind::Cuda => Self::OnADevice,
        }
    }

    /// Where a device trains of which only the name is known.
    pub fn by_name(choice: &DeviceChoice) -> Self {
        match choice {
            DeviceChoice::Auto | DeviceChoice::Cpu => Self::Here,
            DeviceChoice::Wgpu(_) | DeviceChoice::Cuda(_) => Self::OnADevice,
        }
    }
}

impl MemoryNeed {
    /// The memory of a node of this run with so many threads for training; 0 = all cores.
    pub fn of_run(spec: &RunSpec, threads: usize, trains: Trains) -> Self {
        match &spec.task {
            // The memory that it shares with the trainer; what the trainer takes itself is not known.
            Some(task) => {
                let (shared, copies) = shared(task.parameters, &spec.sync);
                Self { trainer: task.parameters.saturating_mul(4), activations: 0, shared, copies }
            }
            None => Self::of(&model_config(&spec.model), &trainer_options(&spec.inner, threads), &spec.sync, trains),
        }
    }

    /// The memory of a node of a run with the built-in task.
    pub fn of(model: &ModelConfig, options: &TrainerOptions, sync: &SyncSpec, trains: Trains) -> Self {
        let (shared, copies) = shared(model.parameters(), sync);
        let (trainer, activations) = match trains {
            Trains::Here => {
                let estimate: MemoryEstimate = starling_kernels::memory_estimate(model, options);
                (estimate.parameters + estimate.gradients + estimate.moments + estimate.copies, estimate.activations)
            }
            // All of it is on the device. Parameters on their way there or back are here once more.
            Trains::OnADevice => (4 * model.parameters(), 0),
            // A null trainer has parameters, which it moves a little.
            Trains::Nowhere => (4 * model.parameters(), 0),
        };
        Self { trainer, activations, shared, copies }
    }

    pub fn total(&self) -> u64 {
        self.trainer.saturating_add(self.activations).saturating_add(self.shared).saturating_add(MEMORY_SLACK)
    }

    /// Refuses a machine that can never hold it. Returns a warning if the machine has no room for it now.
    pub fn judge(&self, machine: Machine) -> Result<Option<String>, Failure> {
        let needed = self.total();
        let says = |there: u64, which: &str| {
            format!(
                "this node needs {needed} bytes of memory ({}: {} for the model and its optimizer, {} activations, {} \
                 shared state and buffers, {} besides), and this machine has {there} bytes{which} ({})",
                human_bytes(needed),
                human_bytes(self.trainer),
                human_bytes(self.activations),
                human_bytes(self.shared),
                human_bytes(MEMORY_SLACK),
                human_bytes(there),
            )
        };
        // A machine without room for the copies may still go on for long.
        if needed.saturating_sub(self.copies) > machine.total {
            let advice = "set a smaller model.preset or inner.batch, or sync.codec = \"int8\" (which keeps no \
                          residuals), in the run file, take a larger machine, or, if a card with memory of its own \
                          trains the model, name it with --device";
            let why = format!("{}: {advice}", says(machine.total, " in all"));
            return Err(Failure::message(Code::Usage, why));
        }
        let advice = "it may be slow, or be ended by the system: stop other programs, or set a smaller inner.batch";
        let is_tight = needed > machine.available;
        Ok(is_tight.then(|| format!("{}: {advice}", says(machine.available, " available now"))))
    }
}

impl Machine {
    /// `None` if the system does not tell.
    pub fn here() -> Option<Self> {
        let mut system = sysinfo::System::new();
        system.refresh_memory();
        let (total, available) = (system.total_memory(), system.available_memory());
        if total == 0 {
            return None;
        }
        Some(match system.cgroup_limits() {
            Some(group) => Self { total: group.total_memory.min(total), available: group.free_memory.min(available) },
            None => Self { total, available },
        })
    }
}

/// Refuses a node that needs more memory than this machine has in all; warns if it needs more than is available.
pub fn check(need: &MemoryNeed) -> Result<(), Failure> {
    let Some(machine) = Machine::here() else { return Ok(()) };
    if let Some(warning) = need.judge(machine)? {
        tracing::warn!("{warning}");
    }
    Ok(())
}

/// The canonical state and what is under way beside it, and of that the copies for a snapshot.
fn shared(parameters: u64, sync: &SyncSpec) -> (u64, u64) {
    let vector = parameters.saturating_mul(4);
    // The vectors are the canonical state, the contribution, one that the last commit left out or that a difference
    // is mixed into, and one buffer for updates under way: two encoded ones, each at most half of it. Strong codecs
    // also keep residuals: those of contributions, and those of the sums that this node makes, which are all sums
    // if it is alone. A streaming trainer keeps its own parameters as they were at its READY, and mixes in its
    // steps ahead.
    let own = u64::from(sync.streams()) + if sync.overlap > 0 { 2 } else { 0 };
    let copies = u64::from(sync.mode.vectors()) * vector;
    let vectors = u64::from(sync.mode.vectors()) + own + if sync.coarsest_codec().feeds_back() { 5 } else { 3 };
    let shared = vectors * vector + copies + mixing(parameters, sync);
    (shared, copies)
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
    use starling_kernels::host::optimizer::Rule;
    use starling_protocol::gossip::GossipSpec;
    use starling_protocol::run::{Codec, EngineKind, SyncMode};

    fn options() -> TrainerOptions {
        TrainerOptions {
            batch: 1,
            accumulate: 1,
            threads: 1,
            rule: Rule::AdamW,
            beta1: 0.9,
            beta2: 0.99,
            eps: 1e-8,
            weight_decay: 0.0,
            clip: 1.0,
        }
    }

    fn need(preset: &str, sync: &SyncSpec, trains: Trains) -> (u64, MemoryNeed) {
        let model = ModelConfig::preset(preset).expect("a preset");
        (model.parameters(), MemoryNeed::of(&model, &options(), sync, trains))
    }

    #[test]
    fn pairs_take_two_vectors_and_what_a_partner_says() {
        let mut sync = sample_test::spec().sync;
        let (_, without) = need("1m", &sync, Trains::Here);
        sync.gossip = Some(GossipSpec::every(8));
        let (parameters, with) = need("1m", &sync, Trains::Here);
        // Two vectors of f32, and two in int8: one byte an element and a scale for each 256.
        let more = with.total() - without.total();
        assert!((10 * parameters..11 * parameters).contains(&more), "{more} for {parameters}");
    }

    #[test]
    fn known_models_take_what_their_vectors_take() {
        let int8 = SyncSpec::whole(SyncMode::Rounds, Codec::Int8, EngineKind::Ring);
        let int4 = SyncSpec::whole(SyncMode::Rounds, Codec::Int4, EngineKind::Owners);
        let every_step = SyncSpec::whole(SyncMode::EveryStep, Codec::Bf16, EngineKind::Ring);
        for (preset, least, most) in [("10m", 9e6, 12e6), ("30m", 27e6, 36e6), ("1b", 0.9e9, 1.2e9)] {
            let (parameters, here) = need(preset, &int8, Trains::Here);
            assert!((least..most).contains(&(parameters as f64)), "{preset} has {parameters}");
            // Four vectors of the trainer; two of the state, which a snapshot may need as it was, and three beside it.
            assert_eq!((here.trainer, here.shared), (16 * parameters, 28 * parameters), "{preset}");
            assert!(here.activations > 0, "{preset}");
            assert_eq!(here.total(), 44 * parameters + here.activations + MEMORY_SLACK, "{preset}");
            assert_eq!(need(preset, &int4, Trains::Here).1.shared, 36 * parameters, "{preset}: residuals");
            assert_eq!(need(preset, &every_step, Trains::Here).1.shared, 36 * parameters, "{preset}: two moments");
            let elsewhere = need(preset, &int8, Trains::OnADevice).1;
            assert_eq!(elsewhere.total(), 32 * parameters + MEMORY_SLACK, "{preset}: a copy that travels");
            let nowhere = need(preset, &int8, Trains::Nowhere).1;
            assert_eq!(nowhere.total(), 32 * parameters + MEMORY_SLACK, "{preset}: no model but its parameters");
        }
    }

    #[test]
    fn a_machine_is_refused_for_what_it_has_in_all_and_warned_of_what_is_taken() {
        let need = MemoryNeed { trainer: 16 << 30, activations: 2 << 30, shared: 20 << 30, copies: 1 << 30 };
        let needed = need.total();
        let machine = |total, available| need.judge(Machine { total, available });
        assert!(machine(needed, needed).is_ok_and(|warning| warning.is_none()));
        let warning = machine(needed, needed - 1).expect("it may still work").expect("a warning");
        for words in [needed.to_string(), (needed - 1).to_string(), "available now".into(), "inner.batch".into()] {
            assert!(warning.contains(&words), "`{words}` is missing in: {warning}");
        }
        let least = needed - (1 << 30);
        assert!(machine(least, least).is_ok_and(|warning| warning.is_some()));
        let refused = machine(least - 1, least - 1).expect_err("it can never work");
        assert_eq!(refused.code, Code::Usage);
        let said = refused.error.to_string();
        for words in [needed.to_string(), (least - 1).to_string(), "model.preset".into(), "--device".into()] {
            assert!(said.contains(&words), "`{words}` is missing in: {said}");
        }
    }
}
