//! The model of a run file, as a person writes it, as the specification has it, and as `kernels` takes it.

use crate::exit::{Code, Failure};
use serde::{Deserialize, Serialize};
use starling_kernels::ModelConfig;
use starling_protocol::run::ModelSpec;

/// `[model]`: a preset, with any size overridden.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModelTable {
    pub preset: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub d_model: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layers: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heads: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_heads: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ffn: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seq_len: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tied: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rope_theta: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub norm_eps: Option<f64>,
    /// Defaults to the tokenizer's; larger is allowed (padding), smaller is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vocab: Option<u32>,
    /// Root of the state with which the run begins, if not that of the seed: of a trained model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beginning: Option<String>,
}

impl Default for ModelTable {
    fn default() -> Self {
        Self {
            preset: "1m".into(),
            d_model: None,
            layers: None,
            heads: None,
            kv_heads: None,
            ffn: None,
            seq_len: None,
            tied: None,
            rope_theta: None,
            norm_eps: None,
            vocab: None,
            beginning: None,
        }
    }
}

impl ModelTable {
    /// The sizes, for a tokenizer of so many tokens.
    pub(super) fn spec(&self, tokenizer_vocab: u32) -> Result<ModelSpec, Failure> {
        let preset = ModelConfig::preset(&self.preset).ok_or_else(|| {
            let names: Vec<_> = ModelConfig::preset_names().collect();
            Failure::message(
                Code::Usage,
                format!("model.preset = \"{}\" is not known: there are {}", self.preset, names.join(", ")),
            )
        })?;
        let vocab = self.vocab.unwrap_or(tokenizer_vocab);
        if vocab < tokenizer_vocab {
            return Err(Failure::message(
                Code::Usage,
                format!(
                    "model.vocab = {vocab} is less than the {tokenizer_vocab} tokens of the tokenizer: raise it, or leave it out"
                ),
            ));
        }
        Ok(ModelSpec {
            vocab,
            d_model: self.d_model.unwrap_or(preset.d_model as u32),
            layers: self.layers.unwrap_or(preset.layers as u32),
            heads: self.heads.unwrap_or(preset.heads as u32),
            kv_heads: self.kv_heads.unwrap_or(preset.kv_heads as u32),
            ffn: self.ffn.unwrap_or(preset.ffn as u32),
            seq_len: self.seq_len.unwrap_or(preset.seq_len as u32),
            tied: self.tied.unwrap_or(preset.tied),
            rope_theta: self.rope_theta.unwrap_or(preset.rope_theta),
            norm_eps: self.norm_eps.unwrap_or(preset.norm_eps),
        })
    }
}

/// The model's sizes as `kernels` takes them.
pub fn model_config(spec: &ModelSpec) -> ModelConfig {
    ModelConfig {
        vocab: spec.vocab as usize,
        d_model: spec.d_model as usize,
        layers: spec.layers as usize,
        heads: spec.heads as usize,
        kv_heads: spec.kv_heads as usize,
        ffn: spec.ffn as usize,
        seq_len: spec.seq_len as usize,
        tied: spec.tied,
        rope_theta: spec.rope_theta,
        norm_eps: spec.norm_eps,
    }
}
