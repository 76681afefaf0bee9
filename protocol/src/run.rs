//! What all nodes of a run share. Its digest is bound into every signature.

use crate::{Digest, NodeId};
use serde::{Deserialize, Serialize};

/// The specification of a run. Two nodes train together exactly when these are equal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunSpec {
    /// `[a-z0-9-]{1,64}`; shown, never used as a path.
    pub name: String,
    /// Root of every random stream of the run.
    pub seed: u64,
    /// Who may sign tickets; `None` admits whoever knows the run.
    pub creator: Option<NodeId>,
    pub model: ModelSpec,
    pub data: DataSpec,
    pub inner: InnerSpec,
    pub outer: OuterSpec,
    pub sync: SyncSpec,
    pub budget: Budget,
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
    /// Digest of the shard manifest: which tokens, in which shards, which of them held out.
    pub manifest: Digest,
    /// Digest of the tokenizer; of the constant `bytes` for byte-level tokens.
    pub tokenizer: Digest,
}

/// The inner optimizer: AdamW with clipping, warm-up and cosine decay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InnerSpec {
    /// Inner steps a round (H).
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

/// The outer optimizer: Nesterov on the averaged pseudo-gradient (DiLoCo, arXiv 2311.08105, algorithm 1).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OuterSpec {
    /// `(contributors, learning rate)`, contributors rising from 1; a round with M contributors uses the largest
    /// tabulated count not above M.
    pub lr: Vec<(u32, f64)>,
    pub momentum: f64,
}

/// How updates travel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SyncSpec {
    pub codec: Codec,
}

/// How a vector of f32 is written on the wire (`protocol.md` §10). The numbers are on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[repr(u8)]
pub enum Codec {
    Bf16 = 1,
    Int8 = 2,
}

/// When the run ends: at whichever bound is reached first; 0 = unbounded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Budget {
    pub rounds: u64,
    pub tokens: u64,
}
