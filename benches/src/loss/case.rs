//! A case: engine, codec and mode, as the command line names them, and whatever else differs from the other cases.

use super::rounds::Growth;
use starling_kernels::host::optimizer::Rule;
use starling_protocol::gossip::GossipSpec;
use starling_protocol::limits::TOPK_K_MAX;
use starling_protocol::run::{Codec, EngineKind, SyncMode};

/// Largest number of steps, sequences and so on that a word may give.
const COUNT_MAX: usize = 1 << 20;
/// The keys that words may have.
const KEYS: &str =
    "fragments, overlap, mixing, steps, gossip, outer, corrected, moments, lr, wd, batch, members, inner, grow, null";

/// An engine, a codec and the settings that differ from the other cases'.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Case {
    pub codec: Codec,
    pub engine: EngineKind,
    pub mode: SyncMode,
    pub fragments: u32,
    pub overlap: usize,
    pub mixing: f32,
    pub gossip: Option<GossipSpec>,
    pub inner: Rule,
    /// Outer rate and momentum.
    pub outer: Option<(f64, f64)>,
    /// Inner steps of the rounds that rate and momentum are for; rounds of other lengths have theirs corrected.
    pub corrected: Option<usize>,
    /// Rounds after which the members' moments of the inner optimizer are averaged, each time (DES-LOC, arXiv
    /// 2505.22549).
    pub moments: Option<usize>,
    pub lr: Option<f64>,
    pub weight_decay: Option<f64>,
    pub batch: Option<usize>,
    pub members: Option<usize>,
    /// Inner steps of a round.
    pub steps: Option<usize>,
    pub grow: Option<Growth>,
    /// The initial parameter that is rounded otherwise, from 1; 0 = none.
    pub null: usize,
}

impl Case {
    fn of(codec: Codec, engine: EngineKind) -> Self {
        Self {
            codec,
            engine,
            mode: SyncMode::Rounds,
            fragments: 1,
            overlap: 0,
            mixing: 0.0,
            gossip: None,
            inner: Rule::AdamW,
            outer: None,
            corrected: None,
            moments: None,
            lr: None,
            weight_decay: None,
            batch: None,
            members: None,
            steps: None,
            grow: None,
            null: 0,
        }
    }

    pub fn streams(&self) -> bool {
        self.fragments > 1 || self.overlap > 0 || self.mixing > 0.0
    }

    /// Whether the two differ in a rounding alone.
    pub fn is_null_of(&self, other: &Self) -> bool {
        Self { null: other.null, ..*self } == *other
    }

    /// Takes one of the words behind codec and engine.
    fn take(&mut self, word: &str) -> Result<(), String> {
        let Some((key, value)) = word.split_once('=') else {
            if word == "null" {
                self.null = 1;
            } else {
                self.mode = word.parse().map_err(|_| format!("{word:?} is none of every-step, null, {KEYS}"))?;
            }
            return Ok(());
        };
        match key {
            "fragments" => self.fragments = count(key, value)? as u32,
            "overlap" => self.overlap = if value == "0" { 0 } else { count(key, value)? },
            "mixing" => self.mixing = number(key, value, "from 0 to 1", |x| (0.0..=1.0).contains(&x))? as f32,
            "steps" => self.steps = Some(count(key, value)?),
            "gossip" => self.gossip = Some(GossipSpec::every(count(key, value)? as u32)),
            "outer" => {
                let form = || format!("outer={value}: give RATE,MOMENTUM, for example 0.7,0.6");
                let (rate, momentum) = value.split_once(',').ok_or_else(form)?;
                let momentum = number("outer's momentum", momentum, "from 0 to below 1", |x| (0.0..1.0).contains(&x))?;
                self.outer = Some((number("outer's rate", rate, "above 0", |x| x > 0.0)?, momentum));
            }
            "corrected" => self.corrected = Some(count(key, value)?),
            "moments" => self.moments = Some(count(key, value)?),
            "lr" => self.lr = Some(number(key, value, "above 0", |x| x > 0.0)?),
            "wd" => self.weight_decay = Some(number(key, value, "of at least 0", |x| x >= 0.0)?),
            "batch" => self.batch = Some(count(key, value)?),
            "members" => self.members = Some(count(key, value)?),
            "inner" => self.inner = value.parse()?,
            "grow" => self.grow = Some(value.parse()?),
            "null" => self.null = count(key, value)?,
            _ => return Err(format!("{key:?} is none of {KEYS}")),
        }
        Ok(())
    }

    /// Refuses what does not go together.
    fn check(self) -> Result<Self, String> {
        let in_rounds = self.mode == SyncMode::Rounds;
        let refusals = [
            (
                self.engine == EngineKind::Ring && !self.codec.suits_rings(),
                "int4 and top-k are not for rings: take owners",
            ),
            (self.streams() && !in_rounds, "fragments, overlap and mixing do not go with every-step"),
            (
                self.gossip.is_some() && (self.streams() || !in_rounds),
                "gossip goes with whole rounds: without fragments, overlap, mixing and every-step",
            ),
            (self.outer.is_some() && !in_rounds, "outer means nothing with every-step: it has no outer optimizer"),
            (
                self.corrected.is_some() && (self.streams() || !in_rounds),
                "corrected goes with whole rounds: without fragments, overlap, mixing and every-step",
            ),
            (
                self.moments.is_some() && (self.streams() || !in_rounds),
                "moments goes with whole rounds: without fragments, overlap, mixing and every-step",
            ),
            (self.grow.is_some() && self.steps.is_some(), "grow and steps both say how long rounds are: give one"),
            (
                self.grow.is_some() && (self.streams() || self.gossip.is_some() || !in_rounds),
                "grow goes with whole rounds: without fragments, overlap, mixing, gossip and every-step",
            ),
        ];
        refusals.iter().find(|(wrong, _)| *wrong).map_or(Ok(self), |(_, why)| Err((*why).to_owned()))
    }
}

/// A whole number from 1.
fn count(key: &str, value: &str) -> Result<usize, String> {
    let found = value.parse::<usize>().ok().filter(|count| (1..=COUNT_MAX).contains(count));
    found.ok_or_else(|| format!("{key}={value}: must be a whole number from 1 to {COUNT_MAX}"))
}

/// A finite number in some range.
fn number(key: &str, value: &str, must: &str, fits: impl Fn(f64) -> bool) -> Result<f64, String> {
    let found = value.parse::<f64>().ok().filter(|x| x.is_finite() && fits(*x));
    found.ok_or_else(|| format!("{key}={value}: must be a number {must}"))
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
        if let Some(gossip) = self.gossip {
            write!(f, " gossip every {}", gossip.steps)?;
        }
        if self.inner != Rule::AdamW {
            write!(f, " {}", self.inner)?;
        }
        if let Some((rate, momentum)) = self.outer {
            write!(f, " outer {rate},{momentum}")?;
        }
        let words = [
            (" corrected", self.corrected.map(|x| x.to_string())),
            (" moments", self.moments.map(|x| x.to_string())),
            (" members", self.members.map(|x| x.to_string())),
            (" batch", self.batch.map(|x| x.to_string())),
            (" lr", self.lr.map(|x| x.to_string())),
            (" wd", self.weight_decay.map(|x| x.to_string())),
            (" steps", self.steps.map(|x| x.to_string())),
            (" grow", self.grow.map(|x| x.to_string())),
            (" null", Some(self.null).filter(|null| *null > 0).map(|x| x.to_string())),
        ];
        for (name, value) in words {
            if let Some(value) = value {
                write!(f, "{name} {value}")?;
            }
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
            Some(k) => {
                let k = k.parse::<u16>().ok().filter(|k| (1..=TOPK_K_MAX).contains(k));
                Codec::TopK { k: k.ok_or_else(|| format!("{codec}: k must be from 1 to {TOPK_K_MAX}"))? }
            }
            None => [Codec::Bf16, Codec::Int8, Codec::Int4]
                .into_iter()
                .find(|known| known.name() == codec)
                .ok_or_else(|| format!("{codec:?} is not one of bf16, int8, int4, top-K"))?,
        };
        let mut case = Self::of(codec, engine.parse()?);
        words.try_for_each(|word| case.take(word))?;
        case.check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(text: &str) -> Case {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn words_say_what_differs() {
        let tuned = case("int8:owners:outer=1.2,0.8:lr=2e-3:wd=0.1:batch=2:members=8:inner=muon:grow=1..30:null=3");
        let wanted = Case {
            outer: Some((1.2, 0.8)),
            lr: Some(2e-3),
            weight_decay: Some(0.1),
            batch: Some(2),
            members: Some(8),
            inner: Rule::Muon,
            grow: Some("1..30".parse().unwrap()),
            null: 3,
            ..Case::of(Codec::Int8, EngineKind::Owners)
        };
        assert_eq!(tuned, wanted);
        assert_eq!(
            tuned.to_string(),
            "int8 owners muon outer 1.2,0.8 members 8 batch 2 lr 0.002 wd 0.1 grow 1..30 null 3"
        );
        assert_eq!(case("bf16:ring:every-step").mode, SyncMode::EveryStep);
        assert_eq!(case("top-256:owners").codec, Codec::TopK { k: 256 });
        let streaming = case("bf16:ring:fragments=4:overlap=2:mixing=0.5");
        assert_eq!((streaming.fragments, streaming.overlap, streaming.mixing), (4, 2, 0.5));
        assert_eq!(case("int8:owners:steps=40:gossip=10").gossip, Some(GossipSpec::every(10)));
        assert_eq!(case("bf16:ring:wd=0").weight_decay, Some(0.0));
        assert_eq!(case("bf16:ring:corrected=28:moments=3").to_string(), "bf16 ring corrected 28 moments 3");
    }

    #[test]
    fn a_null_differs_in_a_rounding_alone() {
        let plain = case("bf16:ring:lr=1e-3");
        assert!(case("bf16:ring:lr=1e-3:null").is_null_of(&plain));
        assert!(plain.is_null_of(&case("bf16:ring:lr=1e-3:null=7")));
        assert!(!case("bf16:ring:lr=2e-3:null").is_null_of(&plain));
    }

    #[test]
    fn refusals_name_key_and_reason() {
        let below_one = "must be a number from 0 to below 1";
        for (text, told) in [
            ("bf16", "CODEC:ENGINE"),
            ("f32:ring", "\"f32\" is not one of"),
            ("bf16:star", "no such engine"),
            ("top-0:owners", "top-0: k must be from 1"),
            ("bf16:ring:often", "\"often\" is none of every-step"),
            ("bf16:ring:pairs=10", "\"pairs\" is none of"),
            ("bf16:ring:lr=0", "lr=0: must be a number above 0"),
            ("bf16:ring:lr=-1", "lr=-1: must be a number above 0"),
            ("bf16:ring:lr=inf", "lr=inf: must be a number above 0"),
            ("bf16:ring:lr=NaN", "lr=NaN: must be a number above 0"),
            ("bf16:ring:lr=fast", "lr=fast: must be a number above 0"),
            ("bf16:ring:wd=-0.1", "wd=-0.1: must be a number of at least 0"),
            ("bf16:ring:outer=0.7", "outer=0.7: give RATE,MOMENTUM"),
            ("bf16:ring:outer=0,0.6", "outer's rate=0: must be a number above 0"),
            ("bf16:ring:outer=0.7,1", below_one),
            ("bf16:ring:outer=0.7,-0.1", below_one),
            ("bf16:ring:batch=0", "batch=0: must be a whole number from 1"),
            ("bf16:ring:members=-4", "members=-4: must be a whole number from 1"),
            ("bf16:ring:inner=adam", "there is no inner optimizer \"adam\""),
            ("bf16:ring:grow=30..1", "grow=30..1: rounds grow to the second number"),
            ("bf16:ring:grow=1..30:steps=10", "give one"),
            ("bf16:ring:grow=1..30:every-step", "grow goes with whole rounds"),
            ("bf16:ring:every-step:outer=0.7,0.6", "outer means nothing with every-step"),
            ("bf16:ring:every-step:fragments=4", "do not go with every-step"),
            ("bf16:ring:gossip=5:overlap=2", "gossip goes with whole rounds"),
            ("bf16:ring:mixing=2", "mixing=2: must be a number from 0 to 1"),
            ("bf16:ring:corrected=10:every-step", "corrected goes with whole rounds"),
            ("bf16:ring:moments=0", "moments=0: must be a whole number from 1"),
            ("bf16:ring:moments=3:every-step", "moments goes with whole rounds"),
            ("int4:ring", "not for rings"),
        ] {
            let refused = text.parse::<Case>().unwrap_err();
            assert!(refused.contains(told), "{text}: {refused}");
        }
    }
}
