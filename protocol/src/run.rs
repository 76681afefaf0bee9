//! The specification that all nodes of a run share. Its digest is bound into every signature.

use crate::gossip::GossipSpec;
use crate::limits::{ALLOWED_MAX, OUTER_LR_ENTRIES_MAX, RUN_NAME_CHARS_MAX};
use crate::wire::bounded;
use crate::wire::number::numbered;
use crate::{Digest, NodeId};
use serde::{Deserialize, Serialize};

pub(crate) mod bytes;
mod check;
mod codec;
mod external;
mod gains;
mod task;

pub use check::{Problem, RunError};
pub use codec::{Codec, EngineKind, SyncMode};
pub use gains::Gains;
pub use task::{ExternalSpec, SchemaError, TaskSchema, TaskTensor, TensorKind, TensorType};

/// The specification of a run. Two nodes train together exactly when these are equal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunSpec {
    /// `[a-z0-9-]{1,64}`; shown, never used as a path.
    #[serde(deserialize_with = "bounded::text::<_, RUN_NAME_CHARS_MAX>")]
    pub name: String,
    /// Root of every random stream of the run.
    pub seed: u64,
    /// The node that may sign tickets and revocations.
    pub creator: Option<NodeId>,
    pub model: ModelSpec,
    pub data: DataSpec,
    pub inner: InnerSpec,
    pub outer: OuterSpec,
    pub sync: SyncSpec,
    pub partition: PartitionSpec,
    pub admission: AdmissionSpec,
    pub join: JoinSpec,
    pub budget: Budget,
    /// Root of the state with which the run begins, if that is not the state that follows from the seed. Its bytes are
    /// only there if it is (`run/bytes.rs`).
    #[serde(skip)]
    pub beginning: Option<Digest>,
    /// The task of the nodes, if it is not the language model of `model`. Its bytes are only there if it is.
    #[serde(skip)]
    pub task: Option<ExternalSpec>,
}

/// Sizes of a decoder-only transformer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelSpec {
    pub vocab: u32,
    pub d_model: u32,
    pub layers: u32,
    pub heads: u32,
    pub kv_heads: u32,
    pub ffn: u32,
    /// Tokens a sequence.
    pub seq_len: u32,
    /// Whether the output projection shares the embedding's weights.
    pub tied: bool,
    pub rope_theta: f64,
    pub norm_eps: f64,
}

/// The data, by content.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DataSpec {
    /// Digest of the shard manifest, which lists the shards, their tokens, and the held-out ones.
    pub manifest: Digest,
    /// Digest of the tokenizer; of the constant `bytes` for byte-level tokens.
    pub tokenizer: Digest,
}

/// The inner optimizer with clipping, warm-up and cosine decay. Each member has its own between two records; with
/// [`SyncMode::EveryStep`] all share one AdamW.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InnerSpec {
    pub optimizer: Optimizer,
    /// Inner steps a round (H). With fragments, each fragment is averaged once in as many rounds as there are
    /// fragments.
    pub steps: u32,
    /// Sequences a micro-batch.
    pub batch: u32,
    /// Micro-batches a step.
    pub accumulate: u32,
    pub lr: f64,
    /// The cosine ends at `lr * lr_final`.
    pub lr_final: f64,
    pub warmup_steps: u32,
    pub beta1: f64,
    pub beta2: f64,
    pub eps: f64,
    pub weight_decay: f64,
    /// Global gradient norm; 0 = no clipping.
    pub clip: f64,
}

/// The inner optimizer. Nodes need not agree on the bits that it computes, but every contribution to
/// an average should be of one kind. The numbers are on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Optimizer {
    /// Loshchilov and Hutter, arXiv 1711.05101.
    AdamW = 1,
    /// Muon (Jordan et al. 2024) on the matrices of the layers, AdamW on the rest.
    Muon = 2,
    /// Gradient descent with the momentum `beta1`.
    Sgd = 3,
    /// Mean square with `beta2`, without a correction of its bias.
    RmsProp = 4,
    /// Chen et al., arXiv 2302.06675.
    Lion = 5,
}

numbered!(Optimizer, "inner optimizer", {
    AdamW = "adamw",
    Muon = "muon",
    Sgd = "sgd",
    RmsProp = "rmsprop",
    Lion = "lion",
});

/// The outer optimizer: Nesterov on the averaged pseudo-gradient (DiLoCo, arXiv 2311.08105, algorithm 1).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OuterSpec {
    /// `(contributors, learning rate)`, contributors rising from 1; a round with M contributors uses the largest
    /// tabulated count not above M.
    #[serde(deserialize_with = "bounded::list::<_, _, OUTER_LR_ENTRIES_MAX>")]
    pub lr: Vec<(u32, f64)>,
    pub momentum: f64,
}

/// The transport of updates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SyncSpec {
    pub mode: SyncMode,
    pub codec: Codec,
    pub engine: EngineKind,
    /// Parts of the parameters, of which each COMMIT steps one, in turn ([`crate::update::Fragments`]); 1 = all at
    /// once.
    pub fragments: u32,
    /// Inner steps of the next round that a member may do while a record is made; 0 = none.
    pub overlap: u32,
    /// The share of its own parameters that a trainer keeps where a COMMIT has stepped; 0 = nothing.
    pub mixing: f64,
    /// If this is set, members mix in pairs between two records.
    pub gossip: Option<GossipSpec>,
    /// The most inner steps of a round that the controller may choose ([`crate::control`]); 0 = each round has those of
    /// `inner.steps`. Otherwise the first round has these.
    pub gap_max: u32,
    /// The coarsest codec that the controller may choose; None = each round has `codec`. The first round has it, too.
    pub coarsest: Option<Codec>,
}

/// The policy of members without a quorum (`docs/protocol/7-merging.md` §7.1).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PartitionSpec {
    pub minority: Minority,
    /// Milliseconds without a quorum before the policy takes effect.
    pub grace_ms: u32,
}

/// The policy of a minority. The numbers are on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Minority {
    /// Goes on as a lineage of its own after the grace.
    Fork = 1,
    /// Ends its inner steps, then waits for the quorum.
    Wait = 2,
    /// Stops training at once.
    Halt = 3,
}

numbered!(Minority, "policy of a minority", { Fork = "fork", Wait = "wait", Halt = "halt" });

/// The rule of admission.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdmissionSpec {
    pub mode: AdmissionMode,
    /// Identities that are admitted in the mode `list`, ascending; empty in the others.
    #[serde(deserialize_with = "bounded::list::<_, _, ALLOWED_MAX>")]
    pub allow: Vec<NodeId>,
    /// Rounds in which an admitted node learns before it votes, and a quarter of the rounds for which it is a newcomer.
    /// 0 = none; also 0 in the modes other than `open`, whose members somebody has chosen.
    pub probation: u32,
}

impl AdmissionSpec {
    /// Rounds of probation; 0 in modes without one.
    pub fn probation_rounds(&self) -> u64 {
        if self.mode == AdmissionMode::Open { self.probation.into() } else { 0 }
    }
}

/// The mode of admission. The numbers are on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum AdmissionMode {
    /// Any node that knows the run.
    Open = 1,
    /// The nodes that the run file lists.
    List = 2,
    /// Any node that holds a ticket that the run's creator has signed.
    Ticket = 3,
}

numbered!(AdmissionMode, "admission mode", { Open = "open", List = "list", Ticket = "ticket" });

/// How long rounds wait for newcomers that fetch the state (`docs/protocol/5-membership.md` §5.7).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JoinSpec {
    /// Milliseconds that rounds wait at once; 0 = they never wait.
    pub patience_ms: u32,
    /// Per cent of a run's time that rounds wait in the long run.
    pub share: u32,
}

/// The end of the run, at the bound that is reached first; 0 = unbounded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Budget {
    pub rounds: u64,
    pub tokens: u64,
}

impl RunSpec {
    /// The keys whose values differ, with both values: `model.layers: 4 here, 6 there`. Empty exactly when the digests
    /// are equal.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let (here, there) = (self.entries(), other.entries());
        here.iter()
            .zip(&there)
            .filter(|(a, b)| a != b)
            .map(|((key, a), (_, b))| format!("{key}: {a} here, {b} there"))
            .collect()
    }

    /// The codecs among which the controller chooses, by ascending coarseness.
    pub fn rungs(&self) -> Vec<Codec> {
        let finest = self.sync.codec;
        let Some(coarsest) = self.sync.coarsest else { return vec![finest] };
        Codec::RUNGS.into_iter().filter(|rung| (finest..=coarsest).contains(rung)).collect()
    }

    /// The fewest inner steps that a round may have.
    pub fn steps_least(&self) -> u32 {
        if self.sync.gap_max == 0 { self.inner.steps } else { 1 }
    }

    /// Every key in dotted form with its value as text; distinct values have distinct texts.
    fn entries(&self) -> Vec<(&'static str, String)> {
        let Self { name, seed, creator, model, data, inner, outer, sync, .. } = self;
        let Self { partition, admission, join, budget, beginning, task, .. } = self;
        let task = |value: fn(&ExternalSpec) -> String| task.as_ref().map_or_else(|| "none".to_owned(), value);
        let beginning = beginning.map_or_else(|| "none".to_owned(), |root| root.to_string());
        let creator = creator.map_or_else(|| "none".to_owned(), |id| id.to_string());
        // Debug prints the shortest text that reads back as the same float.
        let float = |value: f64| format!("{value:?}");
        vec![
            ("name", name.clone()),
            ("seed", seed.to_string()),
            ("creator", creator),
            ("model.vocab", model.vocab.to_string()),
            ("model.d_model", model.d_model.to_string()),
            ("model.layers", model.layers.to_string()),
            ("model.heads", model.heads.to_string()),
            ("model.kv_heads", model.kv_heads.to_string()),
            ("model.ffn", model.ffn.to_string()),
            ("model.seq_len", model.seq_len.to_string()),
            ("model.tied", model.tied.to_string()),
            ("model.rope_theta", float(model.rope_theta)),
            ("model.norm_eps", float(model.norm_eps)),
            ("model.beginning", beginning),
            ("data.manifest", data.manifest.to_string()),
            ("data.tokenizer", data.tokenizer.to_string()),
            ("inner.optimizer", inner.optimizer.to_string()),
            ("inner.steps", inner.steps.to_string()),
            ("inner.batch", inner.batch.to_string()),
            ("inner.accumulate", inner.accumulate.to_string()),
            ("inner.lr", float(inner.lr)),
            ("inner.lr_final", float(inner.lr_final)),
            ("inner.warmup_steps", inner.warmup_steps.to_string()),
            ("inner.beta1", float(inner.beta1)),
            ("inner.beta2", float(inner.beta2)),
            ("inner.eps", float(inner.eps)),
            ("inner.weight_decay", float(inner.weight_decay)),
            ("inner.clip", float(inner.clip)),
            ("outer.lr", rates(&outer.lr)),
            ("outer.momentum", float(outer.momentum)),
            ("sync.mode", sync.mode.to_string()),
            ("sync.codec", sync.codec.to_string()),
            ("sync.engine", sync.engine.to_string()),
            ("sync.fragments", sync.fragments.to_string()),
            ("sync.overlap", sync.overlap.to_string()),
            ("sync.mixing", float(sync.mixing)),
            ("sync.gossip", sync.gossip.map_or_else(|| "none".to_owned(), exchanges)),
            ("sync.gap_max", sync.gap_max.to_string()),
            ("sync.coarsest", sync.coarsest.map_or_else(|| "none".to_owned(), |codec| codec.to_string())),
            ("partition.minority", partition.minority.to_string()),
            ("partition.grace_ms", partition.grace_ms.to_string()),
            ("admission.mode", admission.mode.to_string()),
            ("admission.allow", format!("{:?}", admission.allow.iter().map(NodeId::to_string).collect::<Vec<_>>())),
            ("admission.probation", admission.probation.to_string()),
            ("join.patience_ms", join.patience_ms.to_string()),
            ("join.share", join.share.to_string()),
            ("budget.rounds", budget.rounds.to_string()),
            ("budget.tokens", budget.tokens.to_string()),
            ("task.schema", task(|task| task.schema.to_string())),
            ("task.frozen", task(|task| task.frozen.to_string())),
            ("task.parameters", task(|task| task.parameters.to_string())),
            ("task.learned", task(|task| task.learned.to_string())),
            ("task.samples", task(|task| task.samples.to_string())),
            ("task.weight", task(|task| task.weight.to_string())),
        ]
    }
}

/// Rates by contributors, as a run file has them.
fn rates(rates: &[(u32, f64)]) -> String {
    let pairs: Vec<String> = rates.iter().map(|(contributors, rate)| format!("[{contributors}, {rate:?}]")).collect();
    format!("[{}]", pairs.join(", "))
}

fn exchanges(gossip: GossipSpec) -> String {
    let GossipSpec { steps, alpha, beta, gamma } = gossip;
    format!("steps = {steps}, alpha = {alpha:?}, beta = {beta:?}, gamma = {gamma:?}")
}

impl ModelSpec {
    /// Number of parameters, saturating, since it is called on peers' specifications before any check. Per layer: two
    /// norms, q and o projections (`d_model` square), k and v (`kv_heads` heads), three feed-forward matrices; then the
    /// embedding, the last norm, and the output projection unless tied.
    pub fn parameters(&self) -> u64 {
        let [vocab, d, layers, ffn] = [self.vocab, self.d_model, self.layers, self.ffn].map(u128::from);
        // Each factor is below 2^32, and `kv` below 2^64: a layer is below 2^99, and 2^32 layers are too many for 128
        // bits.
        let kv = d / u128::from(self.heads.max(1)) * u128::from(self.kv_heads);
        let layer = 2 * d + 2 * d * d + 2 * d * kv + 3 * d * ffn;
        let embeddings = if self.tied { vocab * d } else { 2 * vocab * d };
        u64::try_from(layers.saturating_mul(layer).saturating_add(embeddings + d)).unwrap_or(u64::MAX)
    }
}

impl SyncSpec {
    /// Transport of all parameters at once, with trainers that begin each round from the canonical ones.
    pub fn whole(mode: SyncMode, codec: Codec, engine: EngineKind) -> Self {
        Self { mode, codec, engine, fragments: 1, overlap: 0, mixing: 0.0, gossip: None, gap_max: 0, coarsest: None }
    }

    /// The codec with the largest state beside the parameters: the coarsest that a round may have.
    pub fn coarsest_codec(&self) -> Codec {
        self.coarsest.unwrap_or(self.codec)
    }

    /// The engine of a round with this codec: `engine`, unless the codec does not go around a ring.
    pub fn engine_for(&self, codec: Codec) -> EngineKind {
        if codec.suits_rings() { self.engine } else { EngineKind::Owners }
    }

    /// Whether trainers keep parameters of their own from one round to the next (Streaming DiLoCo, arXiv 2501.18512).
    pub fn streams(&self) -> bool {
        self.fragments > 1 || self.overlap > 0 || self.mixing > 0.0
    }

    /// Whether a contribution may hold the difference of another lineage: it must cover all parameters, and be a
    /// difference of parameters rather than a gradient.
    pub fn merges(&self) -> bool {
        self.mode == SyncMode::Rounds && self.fragments <= 1
    }
}

impl InnerSpec {
    /// Sequences that one member trains on in one round of `steps` inner steps; saturating.
    pub fn samples(&self, steps: u32) -> u64 {
        u64::from(steps).saturating_mul(u64::from(self.batch)).saturating_mul(u64::from(self.accumulate))
    }
}

impl OuterSpec {
    /// A placeholder for runs without an outer Nesterov step.
    pub fn unused() -> Self {
        Self { lr: vec![(1, 1.0)], momentum: 0.0 }
    }

    /// The outer learning rate of a round with this many contributors: that of the largest tabulated count not above
    /// it; that of the first entry if there is none (a valid table starts at 1).
    pub fn lr_for(&self, contributors: usize) -> f64 {
        let entry = self.lr.iter().rev().find(|(count, _)| *count as usize <= contributors).or(self.lr.first());
        entry.map_or(0.0, |(_, lr)| *lr)
    }
}

#[cfg(test)]
#[path = "run/run_test.rs"]
mod tests;
