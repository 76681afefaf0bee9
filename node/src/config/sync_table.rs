//! The run file's table about how updates travel.

use crate::exit::{Code, Failure};
use serde::{Deserialize, Serialize};
use starling_bootstrap::config_file::nearest;
use starling_protocol::run::{Codec, EngineKind, SyncSpec};

/// What `k` is when top-k is chosen without one: one value of 64.
const K_DEFAULT: u16 = 64;
/// Names of codecs.
const CODECS: [&str; 4] = ["bf16", "int8", "int4", "top-k"];

/// `[sync]`: how updates travel.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SyncTable {
    pub codec: String,
    /// Entries of each 4096 values that top-k keeps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub k: Option<u16>,
    /// Left out: a ring for codecs that go around one, else owners.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<String>,
}

impl Default for SyncTable {
    fn default() -> Self {
        Self { codec: "int8".into(), k: None, engine: None }
    }
}

impl SyncTable {
    /// As the protocol takes it.
    pub fn spec(&self) -> Result<SyncSpec, Failure> {
        let codec = match (self.codec.as_str(), self.k) {
            ("top-k", k) => Codec::TopK { k: k.unwrap_or(K_DEFAULT) },
            ("bf16", None) => Codec::Bf16,
            ("int8", None) => Codec::Int8,
            ("int4", None) => Codec::Int4,
            (name, Some(k)) if CODECS.contains(&name) => {
                let why =
                    format!("sync.k = {k} means nothing with sync.codec = \"{name}\": leave it out, or use top-k");
                return Err(Failure::message(Code::Usage, why));
            }
            (name, _) => return Err(unknown("sync.codec", name, &CODECS)),
        };
        let engine = match &self.engine {
            None if codec.suits_rings() => EngineKind::Ring,
            None => EngineKind::Owners,
            Some(name) => name.parse().map_err(|_| {
                let names: Vec<_> = EngineKind::ALL.iter().map(|engine| engine.name()).collect();
                unknown("sync.engine", name, &names)
            })?,
        };
        Ok(SyncSpec { codec, engine })
    }
}

/// A value that is none of `known`, with the one that was probably meant.
fn unknown(key: &str, value: &str, known: &[&str]) -> Failure {
    let hint = match nearest(value, known.iter().copied()) {
        Some(near) => format!("did you mean \"{near}\"?"),
        None => format!("there are {}", known.join(", ")),
    };
    Failure::message(Code::Usage, format!("{key} = \"{value}\" is not known: {hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(text: &str) -> Result<SyncSpec, String> {
        toml::from_str::<SyncTable>(text).expect("a table").spec().map_err(|failure| format!("{failure:?}"))
    }

    #[test]
    fn the_engine_follows_the_codec_unless_it_is_named() {
        let named = |codec, engine| Ok(SyncSpec { codec, engine });
        assert_eq!(spec(""), named(Codec::Int8, EngineKind::Ring));
        assert_eq!(spec("codec = \"int4\""), named(Codec::Int4, EngineKind::Owners));
        assert_eq!(spec("codec = \"top-k\""), named(Codec::TopK { k: 64 }, EngineKind::Owners));
        assert_eq!(spec("codec = \"top-k\"\nk = 128"), named(Codec::TopK { k: 128 }, EngineKind::Owners));
        assert_eq!(spec("codec = \"bf16\"\nengine = \"owners\""), named(Codec::Bf16, EngineKind::Owners));
        // What does not fit together is for the specification to refuse, with its reason.
        assert_eq!(spec("codec = \"int4\"\nengine = \"ring\""), named(Codec::Int4, EngineKind::Ring));
    }

    #[test]
    fn values_that_are_not_known_name_the_nearest() {
        let said = |text: &str| spec(text).expect_err("not a value");
        assert!(said("codec = \"int5\"").contains("did you mean \"int"), "{}", said("codec = \"int5\""));
        assert!(said("codec = \"topk\"").contains("did you mean \"top-k\"?"), "{}", said("codec = \"topk\""));
        assert!(said("codec = \"gzip9000\"").contains("there are bf16, int8, int4, top-k"));
        assert!(said("engine = \"owner\"").contains("did you mean \"owners\"?"));
        assert!(said("k = 64").contains("sync.k"));
    }
}
