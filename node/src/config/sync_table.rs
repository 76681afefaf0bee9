//! The run file's table about averaging: its codec, engine and settings.

use crate::exit::{Code, Failure};
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use starling_bootstrap::config_file::{former, nearest};
use starling_protocol::gossip::GossipSpec;
use starling_protocol::run::{Codec, EngineKind, RunSpec, SyncMode, SyncSpec};
use std::fmt;

/// The `k` of top-k if the file names none: one value of 64.
const K_DEFAULT: u16 = 64;
/// The engine whose members meet in pairs between two records.
pub(super) const GOSSIP: &str = "gossip";
/// The most inner steps that the flock chooses, unless the file says another number.
const GAP_MAX_DEFAULT: u32 = 512;
/// The codec or engine that the flock chooses, or that follows from the others, as if none were named.
pub(super) const AUTO: &str = "auto";
/// Names of codecs.
const CODECS: [&str; 5] = ["bf16", "int8", "int4", "top-k", AUTO];

/// `[sync]`: what is averaged, and how updates travel.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SyncTable {
    pub mode: String,
    /// Left out: bf16 where every step is averaged, else int8, or int4 where the flock finds that its lines bind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub codec: Option<String>,
    /// Entries of each 4096 values that top-k keeps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub k: Option<u16>,
    /// Left out: a ring for codecs that go around one, else owners. A ring that is named keeps to int8 or bf16.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<String>,
    /// Parts of the parameters that take turns; 1 = all at once.
    pub fragments: u32,
    /// Inner steps of the next round while a record is made.
    pub overlap: u32,
    /// Share of its own parameters that a node keeps where a record has stepped.
    pub mixing: f64,
    /// Whether the flock chooses the inner steps of each round. Left out: where it may, and neither inner.steps nor a
    /// number of rounds says how long rounds are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adapt: Option<bool>,
    /// The most inner steps that it may choose.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gap_max: Option<u32>,
    /// Settings of the engine `gossip`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gossip: Option<GossipTable>,
}

/// `[sync.gossip]`: how often members meet in pairs, and what that does.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GossipTable {
    /// Left out: a quarter of inner.steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alpha: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beta: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gamma: Option<f64>,
}

impl GossipTable {
    fn spec(&self, inner_steps: u32) -> GossipSpec {
        let default = GossipSpec::every(self.steps.unwrap_or(inner_steps.div_ceil(4)));
        GossipSpec {
            alpha: self.alpha.unwrap_or(default.alpha),
            beta: self.beta.unwrap_or(default.beta),
            gamma: self.gamma.unwrap_or(default.gamma),
            ..default
        }
    }
}

impl Default for SyncTable {
    fn default() -> Self {
        Self {
            mode: SyncMode::Rounds.name().into(),
            codec: None,
            k: None,
            engine: None,
            fragments: 1,
            overlap: 0,
            mixing: 0.0,
            adapt: None,
            gap_max: None,
            gossip: None,
        }
    }
}

impl SyncTable {
    /// As the protocol takes it, for rounds of so many inner steps.
    pub fn spec(&self, inner_steps: u32) -> Result<SyncSpec, Failure> {
        let mode = self.mode()?;
        let default = match mode {
            SyncMode::Rounds => Codec::Int8,
            SyncMode::EveryStep => Codec::Bf16,
        };
        let codec = match (named(&self.codec).unwrap_or(default.name()), self.k) {
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
        let gossip = match (&self.gossip, named(&self.engine)) {
            (gossip, Some(GOSSIP)) => Some(gossip.clone().unwrap_or_default().spec(inner_steps)),
            (Some(gossip), None) => Some(gossip.spec(inner_steps)),
            (None, _) => None,
            (Some(_), Some(name)) => {
                let why = format!(
                    "sync.gossip means nothing with sync.engine = \"{name}\": leave it out, or use engine = \"{GOSSIP}\""
                );
                return Err(Failure::message(Code::Usage, why));
            }
        };
        let engine = match named(&self.engine) {
            // Gossip needs owners: they add up what the pairs have mixed.
            _ if gossip.is_some() => EngineKind::Owners,
            None if codec.suits_rings() => EngineKind::Ring,
            None => EngineKind::Owners,
            Some(name) => name.parse().map_err(|_| {
                let names: Vec<_> = EngineKind::ALL.iter().map(|engine| engine.name()).chain([GOSSIP, AUTO]).collect();
                unknown("sync.engine", name, &names)
            })?,
        };
        let Self { fragments, overlap, mixing, .. } = *self;
        Ok(SyncSpec { mode, codec, engine, fragments, overlap, mixing, gossip, gap_max: 0, coarsest: None })
    }

    /// The most inner steps that the flock may choose in a run with this specification; 0 = none but `inner.steps`. If
    /// the table does not say, it may where `is_free`.
    pub fn gap_max(&self, spec: &RunSpec, is_free: bool) -> Result<u32, Failure> {
        let most =
            self.gap_max.unwrap_or(GAP_MAX_DEFAULT).max(if self.gap_max.is_none() { spec.inner.steps } else { 0 });
        let chosen = RunSpec { sync: SyncSpec { gap_max: most, ..spec.sync.clone() }, ..spec.clone() };
        match (self.adapt, self.gap_max) {
            (Some(false), Some(most)) => {
                let why = format!("sync.gap_max = {most} means nothing with sync.adapt = false: leave one of them out");
                Err(Failure::message(Code::Usage, why))
            }
            (Some(false), None) => Ok(0),
            (_, Some(0)) => {
                let why =
                    "sync.gap_max = 0: give the most steps of a round, or sync.adapt = false for none but inner.steps";
                Err(Failure::message(Code::Usage, why))
            }
            (Some(true), _) | (None, Some(_)) => Ok(most),
            (None, None) => Ok(if is_free && chosen.validate().is_ok() { most } else { 0 }),
        }
    }

    /// The coarsest codec that a flock may choose whose steps are chosen up to `gap_max`: int4, unless the table names a
    /// codec, or a ring, where int4 does not go around.
    pub fn coarsest(&self, gap_max: u32) -> Option<Codec> {
        let is_free = named(&self.codec).is_none() && named(&self.engine) != Some(EngineKind::Ring.name());
        (is_free && gap_max > 0).then_some(Codec::Int4)
    }

    /// What is averaged.
    pub fn mode(&self) -> Result<SyncMode, Failure> {
        self.mode.parse().map_err(|_| {
            let names: Vec<_> = SyncMode::ALL.iter().map(|mode| mode.name()).collect();
            unknown("sync.mode", &self.mode, &names)
        })
    }
}

/// The name that a key gives, if it gives one.
fn named(key: &Option<String>) -> Option<&str> {
    key.as_deref().filter(|name| *name != AUTO)
}

/// Reads a table, or a mode alone: `sync = "every-step"`.
pub fn table_or_mode<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SyncTable, D::Error> {
    struct TableOrMode;

    impl<'de> Visitor<'de> for TableOrMode {
        type Value = SyncTable;

        fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
            f.write_str("a mode such as \"every-step\", or a table")
        }

        fn visit_str<E: serde::de::Error>(self, mode: &str) -> Result<SyncTable, E> {
            Ok(SyncTable { mode: mode.to_owned(), ..SyncTable::default() })
        }

        fn visit_map<A: MapAccess<'de>>(self, table: A) -> Result<SyncTable, A::Error> {
            SyncTable::deserialize(MapAccessDeserializer::new(table))
        }
    }
    deserializer.deserialize_any(TableOrMode)
}

/// The failure for a value that is none of `known`; it names the value that was probably meant.
fn unknown(key: &str, value: &str, known: &[&str]) -> Failure {
    let hint = match nearest(value, known.iter().copied()) {
        _ if former(value, known).is_some() => {
            format!("it is called \"{}\" now", former(value, known).unwrap_or_default())
        }
        Some(near) => format!("did you mean \"{near}\"?"),
        None => format!("there are {}", known.join(", ")),
    };
    Failure::message(Code::Usage, format!("{key} = \"{value}\" is not known: {hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(text: &str) -> Result<SyncSpec, String> {
        toml::from_str::<SyncTable>(text).expect("a table").spec(30).map_err(|failure| format!("{failure:?}"))
    }

    #[test]
    fn the_engine_follows_the_codec_unless_it_is_named() {
        let named = |codec, engine| Ok(SyncSpec::whole(SyncMode::Rounds, codec, engine));
        assert_eq!(spec(""), named(Codec::Int8, EngineKind::Ring));
        assert_eq!(spec("codec = \"int4\""), named(Codec::Int4, EngineKind::Owners));
        assert_eq!(spec("codec = \"top-k\""), named(Codec::TopK { k: 64 }, EngineKind::Owners));
        assert_eq!(spec("codec = \"top-k\"\nk = 128"), named(Codec::TopK { k: 128 }, EngineKind::Owners));
        assert_eq!(spec("codec = \"bf16\"\nengine = \"owners\""), named(Codec::Bf16, EngineKind::Owners));
        // The specification refuses values that do not fit together, with its reason.
        assert_eq!(spec("codec = \"int4\"\nengine = \"ring\""), named(Codec::Int4, EngineKind::Ring));
    }

    #[test]
    fn pairs_are_an_engine_with_settings_of_its_own() {
        let named = |codec, gossip| {
            Ok(SyncSpec { gossip: Some(gossip), ..SyncSpec::whole(SyncMode::Rounds, codec, EngineKind::Owners) })
        };
        assert_eq!(spec("engine = \"gossip\""), named(Codec::Int8, GossipSpec::every(8)), "a quarter of the steps");
        assert_eq!(spec("codec = \"int4\"\n[gossip]\nsteps = 5"), named(Codec::Int4, GossipSpec::every(5)));
        let own = GossipSpec { steps: 5, alpha: 0.1, beta: 0.2, gamma: 0.3 };
        let text = "engine = \"gossip\"\ngossip = { steps = 5, alpha = 0.1, beta = 0.2, gamma = 0.3 }";
        assert_eq!(spec(text), named(Codec::Int8, own));
        let refused = spec("engine = \"ring\"\n[gossip]\nsteps = 5").expect_err("two engines");
        assert!(refused.contains("sync.gossip") && refused.contains("engine = \"gossip\""), "{refused}");
        let former = spec("engine = \"pairs\"").expect_err("its name before");
        assert!(former.contains("it is called \"gossip\" now"), "{former}");
    }

    #[test]
    fn every_step_may_be_said_in_short_and_is_exact_unless_told_otherwise() {
        #[derive(Deserialize)]
        struct File {
            #[serde(deserialize_with = "table_or_mode")]
            sync: SyncTable,
        }
        let said = |text: &str| toml::from_str::<File>(text).map(|file| file.sync.spec(1)).map_err(|e| e.to_string());
        let every_step = |codec, engine| SyncSpec::whole(SyncMode::EveryStep, codec, engine);
        for text in ["sync = \"every-step\"", "[sync]\nmode = \"every-step\""] {
            let spec = said(text).expect("it parses").expect("it is sound");
            assert_eq!(spec, every_step(Codec::Bf16, EngineKind::Ring), "{text}");
        }
        assert_eq!(spec("mode = \"every-step\"\ncodec = \"int4\""), Ok(every_step(Codec::Int4, EngineKind::Owners)));
        let near = spec("mode = \"every-steps\"").expect_err("no such mode");
        assert!(near.contains("sync.mode") && near.contains("did you mean \"every-step\"?"), "{near}");
        assert!(said("sync = 7").is_err_and(|why| why.contains("every-step")));
        assert!(said("[sync]\nmod = \"rounds\"").is_err_and(|why| why.contains("unknown field `mod`")));
    }

    #[test]
    fn fragments_overlap_and_mixing_are_the_specifications() {
        let whole = SyncSpec::whole(SyncMode::Rounds, Codec::Int8, EngineKind::Ring);
        assert_eq!(
            spec("fragments = 4\noverlap = 2\nmixing = 0.5"),
            Ok(SyncSpec { fragments: 4, overlap: 2, mixing: 0.5, ..whole })
        );
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
