//! Sizes of the model: a decoder-only transformer of the Llama family (RMSNorm, RoPE, SwiGLU, grouped-query attention).

use serde::{Deserialize, Serialize};

/// Largest accepted size of a single dimension; keeps every product of two of them far from overflow.
const DIMENSION_MAX: usize = 1 << 20;

/// Sizes of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelConfig {
    /// Distinct tokens.
    pub vocab: usize,
    /// Width of the residual stream.
    pub d_model: usize,
    pub layers: usize,
    /// Query heads; each is `d_model / heads` wide.
    pub heads: usize,
    /// Key and value heads, each shared by `heads / kv_heads` query heads.
    pub kv_heads: usize,
    /// Width of the feed-forward layer.
    pub ffn: usize,
    /// Tokens a sequence.
    pub seq_len: usize,
    /// Whether the output projection is the embedding table.
    pub tied: bool,
    /// Base of the rotary embedding's wavelengths.
    pub rope_theta: f64,
    /// The number that RMSNorm adds to the mean square.
    pub norm_eps: f64,
}

/// Why a model cannot be built.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ModelError {
    #[error("model.{key} is {value}; it must be between {low} and {high}")]
    OutOfRange { key: &'static str, value: usize, low: usize, high: usize },
    #[error(
        "model.d_model is {d_model}; it must be a multiple of twice model.heads ({heads}), so that heads have an even width"
    )]
    HeadWidth { d_model: usize, heads: usize },
    #[error("model.heads is {heads}; it must be a multiple of model.kv_heads ({kv_heads})")]
    Groups { heads: usize, kv_heads: usize },
    #[error("model.{key} must be a finite number above {low}")]
    NotPositive { key: &'static str, low: f64 },
    #[error("the model has {0} parameters; at most {max} are supported", max = ModelConfig::PARAMETERS_MAX)]
    TooLarge(u64),
}

/// Name, d_model, layers, heads, kv_heads, ffn, seq_len.
type Preset = (&'static str, usize, usize, usize, usize, usize, usize);

/// Sizes are for byte tokens (a vocabulary of 256). The name is the number of parameters in the layers.
const PRESETS: [Preset; 8] = [
    ("0.1m", 64, 2, 4, 4, 176, 128),
    ("1m", 128, 5, 4, 4, 352, 128),
    ("3m", 256, 4, 4, 4, 688, 256),
    ("10m", 384, 6, 6, 6, 1024, 256),
    ("30m", 512, 10, 8, 8, 1376, 512),
    ("125m", 768, 20, 12, 4, 2048, 1024),
    ("350m", 1024, 31, 16, 4, 2816, 1024),
    ("1b", 2048, 22, 32, 4, 5632, 2048),
];

impl ModelConfig {
    /// Parameters of the largest model that the flat vectors can address.
    pub const PARAMETERS_MAX: u64 = 1 << 36;

    /// A preset by name, for byte tokens; set `vocab` for another tokenizer.
    pub fn preset(name: &str) -> Option<Self> {
        PRESETS.iter().find(|preset| preset.0 == name).map(|&(_, d_model, layers, heads, kv_heads, ffn, seq_len)| {
            Self {
                vocab: 256,
                d_model,
                layers,
                heads,
                kv_heads,
                ffn,
                seq_len,
                tied: true,
                rope_theta: 10_000.0,
                norm_eps: 1e-5,
            }
        })
    }

    /// Names that [`Self::preset`] knows, from small to large.
    pub fn preset_names() -> impl Iterator<Item = &'static str> {
        PRESETS.iter().map(|preset| preset.0)
    }

    /// Whether the model can be built.
    ///
    /// # Errors
    /// Names the first size that does not fit, as its key in a run file.
    pub fn validate(&self) -> Result<(), ModelError> {
        let sizes = [
            ("vocab", self.vocab, 2),
            ("d_model", self.d_model, 2),
            ("layers", self.layers, 1),
            ("heads", self.heads, 1),
            ("kv_heads", self.kv_heads, 1),
            ("ffn", self.ffn, 1),
            ("seq_len", self.seq_len, 1),
        ];
        for (key, value, low) in sizes {
            if !(low..=DIMENSION_MAX).contains(&value) {
                return Err(ModelError::OutOfRange { key, value, low, high: DIMENSION_MAX });
            }
        }
        if !self.d_model.is_multiple_of(2 * self.heads) {
            return Err(ModelError::HeadWidth { d_model: self.d_model, heads: self.heads });
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return Err(ModelError::Groups { heads: self.heads, kv_heads: self.kv_heads });
        }
        for (key, value, low) in [("rope_theta", self.rope_theta, 1.0), ("norm_eps", self.norm_eps, 0.0)] {
            if !(value.is_finite() && value > low) {
                return Err(ModelError::NotPositive { key, low });
            }
        }
        match self.parameters() {
            count if count > Self::PARAMETERS_MAX => Err(ModelError::TooLarge(count)),
            _ => Ok(()),
        }
    }

    /// Width of one head.
    pub fn head_dim(&self) -> usize {
        self.d_model / self.heads
    }

    /// Number of trainable parameters; saturates for a model that is too large.
    pub fn parameters(&self) -> u64 {
        let [vocab, d, layers, ffn] = [self.vocab, self.d_model, self.layers, self.ffn].map(|x| x as u64);
        let kv = (self.kv_heads * self.head_dim()) as u64;
        let layer = 2 * d + 2 * d * d + 2 * d * kv + 3 * d * ffn;
        let tables = if self.tied { 1 } else { 2 };
        layer.saturating_mul(layers).saturating_add(tables * vocab * d + d)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_are_as_large_as_they_say() {
        let sizes = [0.1e6, 1e6, 3e6, 10e6, 30e6, 125e6, 350e6, 1e9];
        for (name, want) in ModelConfig::preset_names().zip(sizes) {
            let config = ModelConfig::preset(name).unwrap();
            config.validate().unwrap();
            let ratio = config.parameters() as f64 / want;
            assert!((0.9..1.2).contains(&ratio), "{name} has {} parameters", config.parameters());
            assert_eq!(config.schema().elements() as u64, config.parameters());
        }
        assert_eq!(ModelConfig::preset("7b"), None);
    }

    #[test]
    fn refusals_name_the_key() {
        let good = ModelConfig::preset("0.1m").unwrap();
        let refused = |change: fn(&mut ModelConfig)| {
            let mut config = good.clone();
            change(&mut config);
            config.validate().unwrap_err().to_string()
        };
        assert!(refused(|c| c.vocab = 1).contains("model.vocab"));
        assert!(refused(|c| c.layers = usize::MAX).contains("model.layers"));
        assert!(refused(|c| c.heads = 5).contains("model.heads"));
        assert!(refused(|c| c.heads = 64).contains("even width"));
        assert!(refused(|c| c.kv_heads = 3).contains("model.kv_heads"));
        assert!(refused(|c| c.norm_eps = f64::NAN).contains("model.norm_eps"));
        assert!(
            refused(|c| {
                (c.d_model, c.ffn, c.layers) = (DIMENSION_MAX, DIMENSION_MAX, DIMENSION_MAX);
            })
            .contains("parameters")
        );
    }
}
