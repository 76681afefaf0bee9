//! A model of this crate on an open device.

use crate::config::ModelConfig;
use crate::host::optimizer::Rule;
use starling_gpu::{Batch, Opened, Session, Sizes, Ways};

impl From<&ModelConfig> for Sizes {
    /// A model's sizes as a device takes them.
    fn from(model: &ModelConfig) -> Self {
        Self {
            vocab: model.vocab,
            width: model.d_model,
            layers: model.layers,
            heads: model.heads,
            kv_heads: model.kv_heads,
            ffn: model.ffn,
            tokens: model.seq_len,
            tied: model.tied,
            theta: model.rope_theta,
            eps: model.norm_eps as f32,
        }
    }
}

impl From<Rule> for starling_gpu::Rule {
    /// A rule as devices have it.
    fn from(rule: Rule) -> Self {
        match rule {
            Rule::AdamW => Self::AdamW,
            Rule::Muon => Self::Muon,
            Rule::Sgd => Self::Sgd,
            Rule::RmsProp => Self::RmsProp,
            Rule::Lion => Self::Lion,
        }
    }
}

/// A session whose memory is there.
///
/// # Errors
/// The device's words.
pub fn open_session(opened: &Opened, sizes: &Sizes, batch: &Batch, ways: Ways) -> Result<Box<dyn Session>, String> {
    asked(|| {
        let mut session = opened.session(sizes, batch, ways)?;
        session.check()?;
        Ok(session)
    })
}

/// The work that a device was asked for.
///
/// # Errors
/// The device's words, as one line; a panic of its runtime is one, too.
pub fn asked<T>(f: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    starling_gpu::guarded(f).and_then(|done| done.map_err(|words| starling_gpu::plain(&words)))
}
