//! `RUN.toml`: the settings that all nodes of a run share, as a person writes them.
//!
//! A run file becomes a [`RunSpec`] once the data it names has been tokenized: the spec holds digests,
//! never paths.

use super::flock_tables::{AdmissionTable, GRACE_S_MAX, JoinTable, PartitionTable, node_id};
use super::model_table::ModelTable;
use super::sync_table::{SyncTable, table_or_mode};
use super::task_table::TaskTable;
use crate::exit::{Code, Failure};
use serde::{Deserialize, Serialize};
use starling_bootstrap::config_file::{self, ConfigError};
use starling_data::{CRATES_SOURCE, CorpusOptions, TokenizerChoice};
use starling_kernels::TrainerOptions;
use starling_kernels::host::optimizer::Rule;
use starling_protocol::Digest;
use starling_protocol::limits::JOIN_PATIENCE_MAX;
use starling_protocol::run::{Budget, DataSpec, InnerSpec, Optimizer, OuterSpec, Problem, RunError, RunSpec, SyncMode};
use std::path::{Path, PathBuf};

/// Inner steps of a round.
const STEPS_DEFAULT: u32 = 30;
/// Members by which a budget of tokens is counted in rounds. Rather too many: momentum that has no time to settle costs
/// more than momentum that is missing (`docs/learning.md`).
const MEMBERS_EXPECTED: u64 = 4;
/// Examples of keys that must be there.
const EXAMPLES: [(&str, &str); 1] =
    [("name", "`name = \"my-run\"`, with a name of your own, above all tables: 1 to 64 of a-z, 0-9 and -")];

/// The whole file. Every key has a default but `name`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunFile {
    pub name: String,
    #[serde(default = "defaults::seed")]
    pub seed: u64,
    /// Node id (64 hex digits) of the only node that may invite, revoke and amend the run. Without it every member may
    /// invite, and an amendment takes a quorum's operators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creator: Option<String>,
    #[serde(default)]
    pub model: ModelTable,
    #[serde(default)]
    pub data: DataTable,
    #[serde(default, skip_serializing_if = "TaskTable::is_default")]
    pub task: TaskTable,
    #[serde(default)]
    pub inner: InnerTable,
    #[serde(default)]
    pub outer: OuterTable,
    #[serde(default, deserialize_with = "table_or_mode")]
    pub sync: SyncTable,
    #[serde(default)]
    pub partition: PartitionTable,
    #[serde(default)]
    pub admission: AdmissionTable,
    #[serde(default)]
    pub join: JoinTable,
    #[serde(default)]
    pub budget: BudgetTable,
    /// The file itself, for complaints about its values.
    #[serde(skip)]
    pub written: Written,
}

/// A run file as it was read; nothing for one that was made otherwise.
#[derive(Clone, Debug, Default)]
pub struct Written {
    path: PathBuf,
    text: String,
}

impl Written {
    /// The text of the file.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// The folder of the file; that of the process if it was made otherwise.
    pub fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new(""))
    }

    /// A complaint that begins with a key, with the line of that key.
    fn line(&self, said: &str) -> String {
        let key = said.split([' ', ':']).next().unwrap_or_default();
        let line = config_file::line_of_key(&self.text, key).map(|line| format!("line {line}: "));
        format!("{}{said}", line.unwrap_or_default())
    }

    /// The failure with the file's path, and the lines of the keys that it names.
    fn place(&self, failure: &Failure) -> Failure {
        let said = match failure.error.downcast_ref::<RunError>() {
            Some(error) => error.problems.iter().map(|p| self.line(&p.to_string())).collect::<Vec<_>>().join("; "),
            None => self.line(&failure.error.to_string()),
        };
        let path = if self.text.is_empty() { String::new() } else { format!("{}: ", self.path.display()) };
        Failure::message(failure.code, format!("{path}{said}"))
    }
}

/// `[data]`: the text, and how it becomes tokens.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DataTable {
    /// Files, folders or globs; relative ones count from the run file's folder. Empty: the default corpus.
    pub sources: Vec<String>,
    /// Field of a `.jsonl` line that holds the text.
    pub field: String,
    /// `bytes`, or the path of a Hugging Face `tokenizer.json`.
    pub tokenizer: String,
    /// Share of the text that is held out for validation.
    pub holdout: f64,
    /// Text beyond this many bytes is not used.
    pub bytes_max: u64,
    /// Files, folders or globs whose content trainers get in a folder, with an external task.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
    /// Digest of the data manifest, for nodes that have no copy of the text or the files: they fetch it from peers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub manifest: Option<String>,
    /// The owner of the data, with an external task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<DataMode>,
}

/// The data that nodes of a run with an external task read. Left out: the same ones, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DataMode {
    /// Each its own.
    Private,
}

impl Default for DataTable {
    fn default() -> Self {
        Self {
            sources: Vec::new(),
            field: "text".into(),
            tokenizer: "bytes".into(),
            holdout: 0.01,
            bytes_max: 64 << 20,
            files: Vec::new(),
            manifest: None,
            mode: None,
        }
    }
}

/// `[inner]`: the optimizer of each node, or AdamW on the mean gradient where every step is averaged.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct InnerTable {
    /// Left out: Muon, or AdamW where Muon is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub optimizer: Option<Optimizer>,
    /// Left out: 30, or 1 where every step is averaged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<u32>,
    pub batch: u32,
    pub accumulate: u32,
    /// Left out: `InnerTable::rate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lr: Option<f64>,
    pub lr_final: f64,
    pub warmup_steps: u32,
    pub beta1: f64,
    pub beta2: f64,
    pub eps: f64,
    pub weight_decay: f64,
    pub clip: f64,
}

impl Default for InnerTable {
    fn default() -> Self {
        Self {
            optimizer: None,
            steps: None,
            batch: 8,
            accumulate: 1,
            lr: None,
            lr_final: 0.05,
            warmup_steps: 50,
            beta1: 0.9,
            beta2: 0.99,
            eps: 1e-8,
            weight_decay: 0.01,
            clip: 1.0,
        }
    }
}

impl InnerTable {
    /// The optimizer: Muon where nothing is said and nothing refuses it (docs/learning.md).
    fn chosen(&self, mode: SyncMode, external: bool) -> Optimizer {
        let best = if external || mode == SyncMode::EveryStep { Optimizer::AdamW } else { Optimizer::Muon };
        self.optimizer.unwrap_or(best)
    }

    /// The peak rate. Left out, Muon's is 8e-3 at a width of 128 and falls with the root of the width, so that a step
    /// moves a layer's outputs by as much in each model (Yang, Simon, Bernstein, arXiv 2310.17813, section 2). It has
    /// two digits, as a person would write it.
    fn rate(&self, optimizer: Optimizer, d_model: u32) -> f64 {
        self.lr.unwrap_or_else(|| match optimizer {
            Optimizer::Muon => {
                let rate = 8e-3 * (128.0 / f64::from(d_model.max(1))).sqrt();
                format!("{rate:.1e}").parse().unwrap_or(rate)
            }
            Optimizer::Lion => 2e-4,
            Optimizer::AdamW | Optimizer::RmsProp | Optimizer::Sgd => 2e-3,
        })
    }
}

/// `[outer]`: Nesterov on the average. Both keys default by the inner optimizer and the number of rounds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OuterTable {
    /// One learning rate, or a table of `[contributors, rate]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lr: Option<OuterRate>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub momentum: Option<f64>,
}

/// A rate for any number of contributors, or one for each.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "give one rate, such as 0.7, or a list of contributors and rates, such as [[1, 0.4], [2, 0.6]]"
)]
pub enum OuterRate {
    Constant(f64),
    Table(Vec<(u32, f64)>),
}

/// `[budget]`: where the run ends; 0 = no bound.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BudgetTable {
    pub rounds: u64,
    pub tokens: u64,
}

mod defaults {
    pub fn seed() -> u64 {
        1
    }
}

impl RunFile {
    /// Reads and checks a run file. Paths in it become relative to its folder.
    pub fn load(path: &Path) -> Result<Self, Failure> {
        let text = config_file::read(path).map_err(|e| match e {
            ConfigError::Unreadable { .. } => {
                Failure::message(Code::Usage, format!("{e}, or start from a copy of configs/run.toml"))
            }
            e => Failure::new(Code::Usage, e),
        })?;
        let mut file = Self::parse(&text, path)?;
        let folder = path.parent().unwrap_or(Path::new("."));
        for sources in [&mut file.data.sources, &mut file.data.files] {
            *sources = sources.iter().map(|source| relative_to(folder, source)).collect();
        }
        if file.data.tokenizer != "bytes" {
            file.data.tokenizer = relative_to(folder, &file.data.tokenizer);
        }
        Ok(file)
    }

    /// Parses the text of the run file at `path`; paths in it stay as they are written.
    pub fn parse(text: &str, path: &Path) -> Result<Self, Failure> {
        let mut file: Self =
            config_file::parse_with(text, path, &EXAMPLES).map_err(|e| Failure::new(Code::Usage, e))?;
        file.written = Written { path: path.to_path_buf(), text: text.to_owned() };
        Ok(file)
    }

    /// The options with which the data crate prepares this run's text. `overrides` (from `--data`) replace the sources.
    pub fn corpus(&self, overrides: &[String]) -> CorpusOptions {
        CorpusOptions {
            sources: match (overrides, self.data.sources.as_slice()) {
                ([], []) => starling_data::default_sources(),
                ([], sources) => sources.to_vec(),
                (overrides, _) => overrides.to_vec(),
            },
            field: self.data.field.clone(),
            tokenizer: tokenizer_choice(&self.data.tokenizer),
            holdout: self.data.holdout,
            bytes_max: self.data.bytes_max,
        }
    }

    /// The run's specification, once its data is known by digest.
    pub fn spec(&self, data: DataSpec, tokenizer_vocab: u32) -> Result<RunSpec, Failure> {
        self.unplaced_spec(data, tokenizer_vocab).map_err(|failure| self.written.place(&failure))
    }

    fn unplaced_spec(&self, data: DataSpec, tokenizer_vocab: u32) -> Result<RunSpec, Failure> {
        let creator = match &self.creator {
            Some(text) => Some(node_id("creator", text)?),
            None => None,
        };
        let mode = self.sync.mode()?;
        let steps = self.inner.steps.unwrap_or(match mode {
            SyncMode::Rounds => STEPS_DEFAULT,
            SyncMode::EveryStep => 1,
        });
        let sync = self.sync.spec(steps)?;
        let task = self.external()?;
        let (model, data) = match task {
            Some(_) => self.of_external()?,
            None => (self.model.spec(tokenizer_vocab)?, data),
        };
        let optimizer = self.inner.chosen(mode, self.is_external());
        let lr = self.inner.rate(optimizer, model.d_model);
        let mut spec = RunSpec {
            name: self.name.clone(),
            seed: self.seed,
            creator,
            model,
            data,
            inner: InnerSpec {
                optimizer,
                steps,
                batch: self.inner.batch,
                accumulate: self.inner.accumulate,
                lr,
                lr_final: self.inner.lr_final,
                warmup_steps: self.inner.warmup_steps,
                beta1: self.inner.beta1,
                beta2: self.inner.beta2,
                eps: self.inner.eps,
                weight_decay: self.inner.weight_decay,
                clip: self.inner.clip,
            },
            outer: OuterSpec::unused(),
            sync,
            partition: self.partition.spec()?,
            admission: self.admission.spec()?,
            join: self.join.spec()?,
            budget: Budget { rounds: self.budget.rounds, tokens: self.budget.tokens },
            beginning: self.model.begins_with()?,
            task,
        };
        // Each fragment steps in its share of the rounds.
        let steps = outer_rounds(&spec).div_ceil(u64::from(spec.sync.fragments.max(1)));
        spec.outer = self.outer.spec(spec.sync.mode, optimizer, steps)?;
        // A number of rounds, or of their steps, is the user's own choice.
        let is_free = self.inner.steps.is_none() && self.budget.rounds == 0 && optimizer == Optimizer::Muon;
        spec.sync.gap_max = self.sync.gap_max(&spec, is_free)?;
        spec.sync.coarsest = self.sync.coarsest(spec.sync.gap_max);
        spec.validate().map_err(|e| Failure::new(Code::Usage, self.as_written(e)))?;
        Ok(spec)
    }

    /// The problems by the keys of the file, which has seconds where the specification has milliseconds.
    fn as_written(&self, error: RunError) -> RunError {
        let seconds = |key, value: u32, least: u32, most: u32| Problem {
            key,
            value: value.to_string(),
            must: format!("between {least} and {most}"),
        };
        let written = |problem: Problem| match problem.key {
            "join.patience_ms" => seconds("join.patience_s", self.join.patience_s, 0, JOIN_PATIENCE_MAX / 1000),
            "partition.grace_ms" => seconds("partition.grace_s", self.partition.grace_s, 1, GRACE_S_MAX),
            _ => problem,
        };
        RunError { problems: error.problems.into_iter().map(written).collect() }
    }

    /// Refuses values with which no text can be prepared.
    pub fn check_text(&self) -> Result<(), Failure> {
        self.corpus(&[]).validate().map_err(|e| self.written.place(&Failure::from(e)))
    }

    /// The manifest digest given in the file, if any.
    pub fn pinned_manifest(&self) -> Result<Option<Digest>, Failure> {
        self.manifest().map_err(|failure| self.written.place(&failure))
    }

    /// The same, with a failure that does not name the file.
    pub(super) fn manifest(&self) -> Result<Option<Digest>, Failure> {
        let Some(text) = &self.data.manifest else { return Ok(None) };
        let why = || format!("data.manifest = \"{text}\" is not 64 hex digits: take those that a node shows");
        Digest::from_hex(text).map(Some).ok_or_else(|| Failure::message(Code::Usage, why()))
    }
}

impl OuterTable {
    /// After Muon's steps a round takes the average itself: momentum gained nothing (docs/learning.md). After others few
    /// rounds want a high rate and little momentum, because momentum needs rounds to settle.
    fn spec(&self, mode: SyncMode, optimizer: Optimizer, rounds: u64) -> Result<OuterSpec, Failure> {
        if mode == SyncMode::EveryStep {
            if self.lr.is_some() || self.momentum.is_some() {
                let why = "outer means nothing with sync.mode = \"every-step\": AdamW applies the average there, as [inner] \
                           says; leave the table out";
                return Err(Failure::message(Code::Usage, why));
            }
            return Ok(OuterSpec::unused());
        }
        let (lr, momentum) = match rounds {
            _ if optimizer == Optimizer::Muon => (vec![(1, 1.0)], 0.0),
            1..200 => (vec![(1, 0.9)], 0.3),
            200..500 => (vec![(1, 0.7)], 0.6),
            _ => (vec![(1, 0.4), (2, 0.6), (8, 0.8)], 0.9),
        };
        Ok(OuterSpec {
            lr: match &self.lr {
                Some(OuterRate::Constant(rate)) => vec![(1, *rate)],
                Some(OuterRate::Table(table)) => table.clone(),
                None => lr,
            },
            momentum: self.momentum.unwrap_or(momentum),
        })
    }
}

/// The rounds of a run as far as its budget tells; 0 = without an end.
fn outer_rounds(spec: &RunSpec) -> u64 {
    let Budget { rounds, tokens } = spec.budget;
    let tokens_a_round = spec.inner.samples(spec.inner.steps).saturating_mul(spec.sample_weight().into()).max(1);
    let by_tokens = tokens.div_ceil(tokens_a_round.saturating_mul(MEMBERS_EXPECTED));
    [rounds, by_tokens].into_iter().filter(|rounds| *rounds > 0).min().unwrap_or(0)
}

/// `bytes`, or a tokenizer file.
pub fn tokenizer_choice(name: &str) -> TokenizerChoice {
    match name {
        "bytes" => TokenizerChoice::Bytes,
        path => TokenizerChoice::File(PathBuf::from(path)),
    }
}

/// The inner optimizer as `kernels` takes it; 0 threads = all cores.
pub fn trainer_options(inner: &InnerSpec, threads: usize) -> TrainerOptions {
    let threads = if threads > 0 { threads } else { std::thread::available_parallelism().map_or(1, |n| n.get()) };
    TrainerOptions {
        batch: inner.batch as usize,
        accumulate: inner.accumulate as usize,
        threads,
        rule: rule(inner.optimizer),
        beta1: inner.beta1,
        beta2: inner.beta2,
        eps: inner.eps,
        weight_decay: inner.weight_decay,
        clip: inner.clip,
    }
}

/// An inner optimizer as `kernels` calls it.
fn rule(optimizer: Optimizer) -> Rule {
    match optimizer {
        Optimizer::AdamW => Rule::AdamW,
        Optimizer::Muon => Rule::Muon,
        Optimizer::Sgd => Rule::Sgd,
        Optimizer::RmsProp => Rule::RmsProp,
        Optimizer::Lion => Rule::Lion,
    }
}

fn relative_to(folder: &Path, path: &str) -> String {
    if Path::new(path).is_absolute() || path == CRATES_SOURCE {
        path.to_string()
    } else {
        folder.join(path).to_string_lossy().into_owned()
    }
}

#[cfg(test)]
#[path = "run_file_test.rs"]
mod tests;
