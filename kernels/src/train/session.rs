//! A model of this crate on an open device.

use crate::config::ModelConfig;
use starling_gpu::{Batch, Opened, Session, Sizes, Ways};

/// A model's sizes as a device takes them.
pub fn sizes(model: &ModelConfig) -> Sizes {
    Sizes {
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

/// A session whose memory is there.
pub fn open_session(opened: &Opened, sizes: &Sizes, batch: &Batch, ways: Ways) -> Result<Box<dyn Session>, String> {
    starling_gpu::guarded(|| {
        let mut session = opened.session(sizes, batch, ways)?;
        session.check()?;
        Ok(session)
    })?
}
