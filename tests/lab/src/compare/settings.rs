//! Compare files: the common settings of all systems, and the settings of each.

use anyhow::ensure;
use serde::{Deserialize, Serialize};
use starling_bootstrap::config_file::{self, nearest};
use std::path::{Path, PathBuf};

/// The systems that Starling can be compared with, by their names in files.
pub const RIVALS: [&str; 2] = ["ddp", "hivemind"];

/// A compare file. Every key has a default: `configs/lab/compare/default.toml` lists them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Seed of initial parameters, the order of the text, and chance in the network.
    pub seed: u64,
    pub nodes: usize,
    /// Rate of each machine's line, in either direction.
    pub mbit: f64,
    /// Delay in one direction, between any two machines.
    pub delay_ms: f64,
    /// Nats per byte on held-out text. A system is timed until its first member reaches this.
    pub target: f64,
    /// Seconds after which a system that has not reached the target goes on to the kill.
    pub limit_s: f64,
    /// Seconds for which the lab watches the others after the kill.
    pub after_kill_s: f64,
    /// Held-out sequences of a validation.
    pub validate_sequences: usize,
    /// A text file; none: Starling's documents, which change with its commits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<PathBuf>,
    /// Training threads of each process.
    pub threads: usize,
    pub rivals: Vec<String>,
    pub model: Model,
    pub inner: Inner,
    pub starling: Starling,
    pub ddp: Ddp,
    pub hivemind: Hivemind,
}

/// `[model]`: sizes. Tokens are bytes, and input and output share one embedding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Model {
    pub d_model: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub ffn: usize,
    pub seq_len: usize,
}

/// `[inner]`: AdamW, the same for all systems. After a linear warm-up the rate is constant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Inner {
    /// Sequences of one member's step.
    pub batch: usize,
    pub lr: f64,
    pub warmup_steps: u32,
    pub beta1: f64,
    pub beta2: f64,
    pub eps: f64,
    pub weight_decay: f64,
    pub clip: f64,
}

/// `[starling]`: Starling's rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Starling {
    /// Inner steps of a round.
    pub steps: u32,
    pub codec: String,
    pub engine: String,
    pub outer_lr: f64,
    pub outer_momentum: f64,
    /// Rounds between two validations.
    pub validate_every: u64,
}

/// `[ddp]`: PyTorch's DistributedDataParallel over gloo.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ddp {
    pub bucket_mb: f64,
    /// Time limit of gloo's operations.
    pub timeout_s: f64,
    /// Steps between two validations.
    pub validate_every: u64,
}

/// `[hivemind]`: its optimizer with local updates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Hivemind {
    /// Steps of each peer between two averagings of the parameters.
    pub steps: u64,
    /// Whether averaging overlaps with steps.
    pub delayed: bool,
    pub matchmaking_s: f64,
    pub request_s: f64,
    /// Time limit of an averaging.
    pub timeout_s: f64,
    /// Steps between two validations.
    pub validate_every: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            seed: 1,
            nodes: 4,
            mbit: 50.0,
            delay_ms: 40.0,
            target: 2.0,
            limit_s: 400.0,
            after_kill_s: 45.0,
            validate_sequences: 512,
            text: None,
            threads: 1,
            rivals: RIVALS.map(String::from).into(),
            model: Model::default(),
            inner: Inner::default(),
            starling: Starling::default(),
            ddp: Ddp::default(),
            hivemind: Hivemind::default(),
        }
    }
}

impl Default for Model {
    fn default() -> Self {
        Self { d_model: 64, layers: 2, heads: 4, kv_heads: 4, ffn: 176, seq_len: 64 }
    }
}

impl Default for Inner {
    fn default() -> Self {
        Self { batch: 4, lr: 4e-3, warmup_steps: 50, beta1: 0.9, beta2: 0.99, eps: 1e-8, weight_decay: 0.01, clip: 1.0 }
    }
}

impl Default for Starling {
    fn default() -> Self {
        Self {
            steps: 60,
            codec: "int8".into(),
            engine: "owners".into(),
            outer_lr: 0.9,
            outer_momentum: 0.3,
            validate_every: 1,
        }
    }
}

impl Default for Ddp {
    fn default() -> Self {
        Self { bucket_mb: 25.0, timeout_s: 60.0, validate_every: 10 }
    }
}

impl Default for Hivemind {
    fn default() -> Self {
        Self { steps: 120, delayed: true, matchmaking_s: 2.0, request_s: 1.0, timeout_s: 30.0, validate_every: 240 }
    }
}

impl Settings {
    /// Reads and checks a compare file.
    ///
    /// # Errors
    /// If the file cannot be read or parsed, or a value is out of bounds.
    pub fn load(path: &Path) -> anyhow::Result<Self> {
        Self::parse(&config_file::read(path)?, path)
    }

    /// Like [`Self::load`], of the file's text.
    ///
    /// # Errors
    /// Those of [`Self::load`].
    pub fn parse(text: &str, path: &Path) -> anyhow::Result<Self> {
        let settings: Self = config_file::parse(text, path)?;
        settings.check().map_err(|why| anyhow::anyhow!("{}: {why:#}", path.display()))?;
        Ok(settings)
    }

    fn check(&self) -> anyhow::Result<()> {
        for rival in &self.rivals {
            let hint = nearest(rival, RIVALS).map_or(String::new(), |near| format!("; did you mean {near:?}?"));
            let known = RIVALS.contains(&rival.as_str());
            ensure!(known, "rivals holds {rival:?}{hint} (known: {})", RIVALS.join(", "));
        }
        let numbers = [
            ("nodes", self.nodes as f64, 3.0, 16.0),
            ("mbit", self.mbit, 0.1, 1e6),
            ("delay_ms", self.delay_ms, 0.0, 10_000.0),
            ("target", self.target, 0.1, 8.0),
            ("limit_s", self.limit_s, 1.0, 86_400.0),
            ("after_kill_s", self.after_kill_s, 1.0, 3600.0),
            ("validate_sequences", self.validate_sequences as f64, 1.0, 4096.0),
            ("threads", self.threads as f64, 1.0, 256.0),
            ("inner.batch", self.inner.batch as f64, 1.0, 4096.0),
            ("starling.validate_every", self.starling.validate_every as f64, 1.0, 1e6),
            ("ddp.validate_every", self.ddp.validate_every as f64, 1.0, 1e6),
            ("hivemind.steps", self.hivemind.steps as f64, 1.0, 1e6),
            ("hivemind.validate_every", self.hivemind.validate_every as f64, 1.0, 1e6),
        ];
        for (key, value, low, high) in numbers {
            ensure!((low..=high).contains(&value), "{key} is {value}, allowed is {low} to {high}");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        format!("{:#}", Settings::parse(text, Path::new("c.toml")).expect_err(text))
    }

    #[test]
    fn the_shipped_file_is_the_defaults() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/lab/compare/default.toml");
        assert_eq!(Settings::load(&path).unwrap(), Settings::default());
        assert_eq!(Settings::parse("", Path::new("c.toml")).unwrap(), Settings::default());
    }

    #[test]
    fn wrong_files_are_refused() {
        for (text, told) in [
            ("node = 4\n", "unknown key `node` at line 1; did you mean `nodes`?"),
            ("[hivemind]\nstep = 4\n", "did you mean `steps`?"),
            ("rivals = [\"hivemnd\"]\n", "rivals holds \"hivemnd\"; did you mean \"hivemind\"?"),
            ("nodes = 2\n", "nodes is 2, allowed is 3 to 16"),
            ("target = nan\n", "target is NaN"),
            ("[ddp]\nvalidate_every = 0\n", "ddp.validate_every is 0"),
        ] {
            let said = refusal(text);
            assert!(said.contains(told), "{text}: {said}");
        }
    }
}
