//! An engine and a codec, as in `[sync]` of a run file.

use anyhow::{Result, bail};
use starling_kernels::codec::CodecKind;
use starling_protocol::run::{Codec, EngineKind};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    pub engine: EngineKind,
    pub codec: Codec,
}

/// Values of a chunk that top-k keeps here: its default for long runs.
const TOP_K: u16 = 64;

impl Way {
    /// All pairs of these engines and codecs that a run file may name.
    ///
    /// # Errors
    /// If a name is unknown, or no engine takes a codec.
    pub fn all(engines: &[String], codecs: &[String]) -> Result<Vec<Self>> {
        let engines = engines.iter().map(|name| engine(name)).collect::<Result<Vec<_>>>()?;
        let mut ways = Vec::new();
        for name in codecs {
            let codec = codec(name)?;
            let before = ways.len();
            let suits = |engine: &&EngineKind| **engine == EngineKind::Owners || codec.suits_rings();
            ways.extend(engines.iter().filter(suits).map(|engine| Self { engine: *engine, codec }));
            if ways.len() == before {
                bail!("--codec {name} is not for rings: add --engine owners");
            }
        }
        Ok(ways)
    }

    pub fn parse(engine: &str, codec: &str) -> Result<Self> {
        Ok(Self { engine: self::engine(engine)?, codec: self::codec(codec)? })
    }

    pub fn engine_name(self) -> &'static str {
        match self.engine {
            EngineKind::Ring => "ring",
            EngineKind::Owners => "owners",
        }
    }

    pub fn codec_name(self) -> &'static str {
        match self.codec {
            Codec::Bf16 => "bf16",
            Codec::Int8 => "int8",
            Codec::Int4 => "int4",
            Codec::TopK { .. } => "top-k",
        }
    }

    /// The codec of the fast functions, if its payloads have a fixed length.
    pub fn kind(self) -> Option<CodecKind> {
        match self.codec {
            Codec::Bf16 => Some(CodecKind::Bf16),
            Codec::Int8 => Some(CodecKind::Int8),
            Codec::Int4 => Some(CodecKind::Int4),
            Codec::TopK { .. } => None,
        }
    }

    /// Largest distance of a result from the mean, relative to its largest absolute value: a check that the timed
    /// reduction does average.
    pub fn tolerance(self, nodes: usize) -> f64 {
        match self.codec {
            Codec::Bf16 => 0.01 * nodes as f64,
            // 1/254 of a block's largest value at each hop.
            Codec::Int8 => 0.02 * nodes as f64,
            // 1/14 of a block's largest value in every part, whose values are larger than the mean's, and in the sum.
            Codec::Int4 => 0.1 * nodes as f64,
            // Error feedback leaves most values for later rounds.
            Codec::TopK { .. } => f64::INFINITY,
        }
    }
}

fn engine(name: &str) -> Result<EngineKind> {
    Ok(match name {
        "ring" => EngineKind::Ring,
        "owners" => EngineKind::Owners,
        other => bail!("--engine: there is no engine {other:?}; take ring or owners"),
    })
}

fn codec(name: &str) -> Result<Codec> {
    Ok(match name {
        "bf16" => Codec::Bf16,
        "int8" => Codec::Int8,
        "int4" => Codec::Int4,
        "top-k" => Codec::TopK { k: TOP_K },
        other => bail!("--codec: there is no codec {other:?}; take bf16, int8, int4 or top-k"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn codecs_go_with_the_engines_that_take_them() {
        let ways = Way::all(&names(&["ring", "owners"]), &names(&["int8", "int4"])).expect("all are known");
        let told: Vec<_> = ways.iter().map(|way| (way.engine_name(), way.codec_name())).collect();
        assert_eq!(told, [("ring", "int8"), ("owners", "int8"), ("owners", "int4")]);
        assert!(Way::all(&names(&["ring"]), &names(&["int4"])).is_err());
        assert!(Way::all(&names(&["star"]), &names(&["int4"])).is_err());
        assert!(Way::all(&names(&["ring"]), &names(&["int2"])).is_err());
    }
}
