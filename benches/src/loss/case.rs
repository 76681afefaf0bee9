//! A case: engine, codec and mode, as the command line names them.

use starling_protocol::gossip::GossipSpec;
use starling_protocol::run::{Codec, EngineKind, SyncMode};

/// An engine, a codec and the settings that differ from the other cases'.
#[derive(Clone, Copy)]
pub struct Case {
    pub codec: Codec,
    pub engine: EngineKind,
    pub mode: SyncMode,
    pub fragments: u32,
    pub overlap: usize,
    pub mixing: f32,
    /// Inner steps of a round, if they differ from those of all cases.
    pub steps: Option<usize>,
    pub gossip: Option<GossipSpec>,
}

impl Case {
    pub fn streams(&self) -> bool {
        self.fragments > 1 || self.overlap > 0 || self.mixing > 0.0
    }

    /// Takes one of the words behind codec and engine.
    fn take(&mut self, word: &str) -> Result<(), String> {
        let no_number = |_| format!("{word:?} names no number");
        match word.split_once('=') {
            None => self.mode = word.parse()?,
            Some(("fragments", count)) => self.fragments = count.parse().map_err(no_number)?,
            Some(("overlap", steps)) => self.overlap = steps.parse().map_err(no_number)?,
            Some(("mixing", share)) => {
                self.mixing = share.parse().map_err(|_| format!("{word:?} names no number"))?;
            }
            Some(("steps", count)) => self.steps = Some(count.parse::<usize>().map_err(no_number)?.max(1)),
            Some(("gossip", steps)) => self.gossip = Some(GossipSpec::every(steps.parse().map_err(no_number)?)),
            Some((key, _)) => return Err(format!("{key:?} is none of fragments, overlap, mixing, steps, gossip")),
        }
        Ok(())
    }
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.codec, self.engine)?;
        if self.mode != SyncMode::Rounds {
            write!(f, " {}", self.mode)?;
        }
        if self.streams() {
            write!(f, " fragments {} overlap {} mixing {}", self.fragments, self.overlap, self.mixing)?;
        }
        if let Some(steps) = self.steps {
            write!(f, " steps {steps}")?;
        }
        if let Some(gossip) = self.gossip {
            write!(f, " gossip every {}", gossip.steps)?;
        }
        Ok(())
    }
}

impl std::str::FromStr for Case {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (codec, rest) = text.split_once(':').ok_or("give CODEC:ENGINE, for example int4:owners")?;
        let mut words = rest.split(':');
        let engine = words.next().unwrap_or_default();
        let codec = match codec.strip_prefix("top-") {
            Some(k) => Codec::TopK { k: k.parse().map_err(|_| format!("{k:?} is no number"))? },
            None => [Codec::Bf16, Codec::Int8, Codec::Int4]
                .into_iter()
                .find(|known| known.name() == codec)
                .ok_or_else(|| format!("{codec:?} is not one of bf16, int8, int4, top-K"))?,
        };
        let (engine, mode) = (engine.parse()?, SyncMode::Rounds);
        let mut case = Self { codec, engine, mode, fragments: 1, overlap: 0, mixing: 0.0, steps: None, gossip: None };
        words.try_for_each(|word| case.take(word))?;
        if case.streams() && case.mode != SyncMode::Rounds {
            return Err("fragments, overlap and mixing do not go with every-step".to_owned());
        }
        if case.gossip.is_some() && (case.streams() || case.mode != SyncMode::Rounds) {
            return Err("gossip goes with whole rounds: without fragments, overlap, mixing and every-step".to_owned());
        }
        Ok(case)
    }
}
