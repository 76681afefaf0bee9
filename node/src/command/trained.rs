//! A trained model for the commands that use one: of a checkpoint, or of a node, running or not.

use super::at_rest::open_at_rest;
use super::brought::Brought;
use crate::cli::ModelArgs;
use crate::config::model_table::model_config;
use crate::config::run_file::{tokenizer_choice, trainer_options};
use crate::exit::{Code, Failure};
use crate::runtime::{
    TOKENIZER_FILE, Weights, brought_files, checkpoints_folder, home_of, is_of_another, keep_kernels, store_failure,
    stored,
};
use crate::watch::status::{Answer, Question, ask_within, failure, is_running};
use anyhow::Context;
use starling_data::Tokenizer;
use starling_kernels::{DeviceChoice, ModelConfig, Trainer, TrainerOptions};
use starling_protocol::Digest;
use starling_protocol::record::Record;
use starling_protocol::run::RunSpec;
use starling_protocol::wire;
use starling_store::{Checkpoint, LoadedState, Store, newest_checkpoint, open_checkpoint};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a running node may take to write the checkpoint that it is asked for.
pub const WRITING: Duration = Duration::from_secs(900);

/// A trained model.
pub struct Trained {
    pub spec: RunSpec,
    pub record: Record,
    pub theta: Vec<f32>,
    /// The names of its tensors and what else goes with it, if trainers have brought it.
    pub brought: Option<Brought>,
    /// Where its tokenizer lies if the run has one of its own and left it there.
    beside: PathBuf,
    /// Where it comes from, for a person.
    source: String,
}

impl Trained {
    /// Finds the built-in model that the flags name, and says which record it is of.
    pub fn find(args: &ModelArgs) -> Result<Self, Failure> {
        let folder = match &args.checkpoint {
            Some(folder) => folder.clone(),
            None => home_of(args.run.as_deref(), args.home.as_deref())?,
        };
        // A node's checkpoints lie two folders below its home.
        if let Some(home) = folder.ancestors().take(3).find(|above| is_home(above)) {
            keep_kernels(home);
        }
        let trained = if args.checkpoint.is_some() { Self::of_folder(&folder)? } else { Self::of_home(&folder)? };
        let trained = trained.built_in()?;
        trained.tell();
        Ok(trained)
    }

    /// The model of a folder: a checkpoint's, or a node's.
    pub fn of_folder(folder: &Path) -> Result<Self, Failure> {
        if is_home(folder) { Self::of_home(folder) } else { Self::of_checkpoint(folder) }
    }

    fn of_checkpoint(folder: &Path) -> Result<Self, Failure> {
        let Checkpoint { record, spec, schema, state, extras, .. } = open(folder)?;
        let source = format!("the checkpoint {}", folder.display());
        let brought = spec.task.as_ref().map(|task| Brought::of(task, extras, (None, &source))).transpose()?;
        Self::of(spec, (record, schema), (state.theta, brought), (folder.join(TOKENIZER_FILE), source))
    }

    /// The newest state of a node that can be had. A running node writes a checkpoint of it; that of a node at rest is
    /// on its disk. If neither can be had, its newest checkpoint is taken.
    fn of_home(home: &Path) -> Result<Self, Failure> {
        let newest = if is_running(home) { of_running(home) } else { Self::at_rest(home) };
        let failure = match newest {
            Ok(trained) => return Ok(trained),
            Err(failure) => failure,
        };
        let Some((folder, manifest)) = newest_checkpoint(&checkpoints_folder(home)) else { return Err(failure) };
        eprintln!(
            "the present state of the node in {} cannot be had ({}); its newest checkpoint, of round {}, is taken",
            home.display(),
            starling_words::of_chain(failure.error.chain()),
            manifest.round
        );
        Self::of_checkpoint(&folder)
    }

    fn at_rest(home: &Path) -> Result<Self, Failure> {
        let (LoadedState { record, schema, state, .. }, spec) = load(&open_at_rest(home)?)?;
        let source = format!("the disk of the node in {}", home.display());
        let of_task = |task| Brought::of(task, brought_files(home, task).into_iter().collect(), (Some(home), &source));
        let brought = spec.task.as_ref().map(of_task).transpose()?;
        Self::of(spec, (record, schema), (state.theta, brought), (home.join(TOKENIZER_FILE), source))
    }

    /// Takes a model that this release builds, or that trainers have brought.
    fn of(
        spec: RunSpec,
        (record, schema): (Record, Digest),
        (theta, brought): (Vec<f32>, Option<Brought>),
        (beside, source): (PathBuf, String),
    ) -> Result<Self, Failure> {
        if brought.is_none() {
            require_known_model(&spec, schema, &source)?;
        }
        Ok(Self { spec, record, theta, brought, beside, source })
    }

    /// Refuses a model that trainers have brought.
    pub fn built_in(self) -> Result<Self, Failure> {
        if self.brought.is_none() {
            return Ok(self);
        }
        let why = format!(
            "{} is of a run whose trainers bring the model (docs/bridge.md), which this program cannot compute: \
             `starling checkpoint export` writes it for a program of yours",
            self.source
        );
        Err(Failure::message(Code::ConfigMismatch, why))
    }

    /// Says on standard error what is used: standard output is for the result.
    pub fn tell(&self) {
        let Record { seq, round, tokens, .. } = &self.record;
        eprintln!("run {}, record {seq} (round {round}, {tokens} tokens), from {}", self.spec.name, self.source);
    }

    /// The model as a run's beginning.
    pub fn into_weights(self) -> Weights {
        let Self { spec, theta, source, .. } = self;
        Weights { model: spec.model, tokenizer: spec.data.tokenizer, theta, source }
    }

    /// The tokenizer that it was trained with, and its file; byte-level tokens have none.
    pub fn tokenizer(&self, named: Option<&Path>) -> Result<(Tokenizer, Option<PathBuf>), Failure> {
        let path = named.map(Path::to_path_buf).or_else(|| self.beside.is_file().then(|| self.beside.clone()));
        let choice = path.as_ref().map_or_else(|| "bytes".into(), |path| path.to_string_lossy().into_owned());
        let tokenizer = Tokenizer::load(&tokenizer_choice(&choice))?;
        if tokenizer.digest() != self.spec.data.tokenizer {
            let why = format!(
                "{} was trained with another tokenizer than {choice}: give its tokenizer.json with --tokenizer",
                self.source
            );
            return Err(Failure::message(Code::ConfigMismatch, why));
        }
        Ok((tokenizer, path))
    }

    /// The model on a device, for sequences of `seq_len` tokens, so many at a time.
    pub fn open(&self, device: &str, seq_len: usize, batch: usize) -> Result<(Box<dyn Trainer>, ModelConfig), Failure> {
        let device: DeviceChoice =
            device.parse().map_err(|e| Failure::message(Code::Usage, format!("--device: {e}")))?;
        let model = ModelConfig { seq_len, ..model_config(&self.spec.model) };
        let options = TrainerOptions { batch, accumulate: 1, ..trainer_options(&self.spec.inner, 0) };
        let mut trainer =
            starling_kernels::open_trainer(&device, &model, &options).map_err(|e| Failure::new(Code::Refused, e))?;
        for said in trainer.told().iter().filter(|said| is_of_another(said, trainer.device())) {
            eprintln!("{said}");
        }
        trainer.load(&self.theta)?;
        Ok((trainer, model))
    }
}

#[cfg(test)]
impl Trained {
    /// The smallest preset as it is before any training, on byte-level tokens.
    pub fn untrained() -> Self {
        use crate::runtime::sample_test;
        use starling_protocol::run::ModelSpec;

        let model = ModelConfig::preset("0.1m").expect("a preset");
        let size = |n: usize| u32::try_from(n).expect("a small model");
        let mut spec = sample_test::spec();
        spec.model = ModelSpec {
            vocab: size(model.vocab),
            d_model: size(model.d_model),
            layers: size(model.layers),
            heads: size(model.heads),
            kv_heads: size(model.kv_heads),
            ffn: size(model.ffn),
            seq_len: size(model.seq_len),
            tied: model.tied,
            rope_theta: model.rope_theta,
            norm_eps: model.norm_eps,
        };
        spec.data.tokenizer = Tokenizer::bytes().digest();
        let theta = starling_kernels::initial_parameters(&model, 1);
        let schema = Digest(model.schema().digest());
        let place = (PathBuf::from("nowhere"), "a test".to_owned());
        Self::of(spec, (sample_test::genesis().record, schema), (theta, None), place).expect("it is of this release")
    }

    /// A model that trainers have brought, with these numbers.
    pub fn of_trainers(task: &starling_protocol::run::ExternalSpec, theta: Vec<f32>, brought: Brought) -> Self {
        use crate::runtime::sample_test;

        let spec = RunSpec { task: Some(task.clone()), ..sample_test::spec() };
        let place = (PathBuf::from("nowhere"), "a test".to_owned());
        let record = (sample_test::genesis().record, task.schema);
        Self::of(spec, record, (theta, Some(brought)), place).expect("any model will do")
    }
}

/// Refuses a model that this release would build in another way.
pub fn require_known_model(spec: &RunSpec, schema: Digest, source: &str) -> Result<(), Failure> {
    if Digest(model_config(&spec.model).schema().digest()) == schema {
        return Ok(());
    }
    let why = format!(
        "{source} is of another model than this release builds (its tensors have other names or shapes): use the \
         release that trained it"
    );
    Err(Failure::message(Code::ConfigMismatch, why))
}

/// Whether a node has its home in this folder.
pub fn is_home(folder: &Path) -> bool {
    folder.join("run.spec").exists()
}

/// Opens and verifies a checkpoint; damage leads to exit code 4.
pub fn open(folder: &Path) -> Result<Checkpoint, Failure> {
    let advice =
        "name a checkpoint's folder (`starling checkpoint list --home DIR` lists those of a node), or a node's folder";
    let name = folder.display();
    let usage = |why: String| Err(Failure::message(Code::Usage, format!("{why}: {advice}")));
    if !folder.exists() {
        return usage(format!("there is no folder {name}"));
    }
    if !folder.is_dir() {
        return usage(format!("{name} is a file"));
    }
    if !folder.join("manifest.json").exists() {
        return usage(format!("{name} is no checkpoint, since it has no manifest.json"));
    }
    open_checkpoint(folder).map_err(store_failure)
}

/// The model of a checkpoint that the running node writes now.
fn of_running(home: &Path) -> Result<Trained, Failure> {
    match ask_within(home, Question::Checkpoint, WRITING).map_err(|e| Failure::new(Code::Refused, e))? {
        Answer::Checkpoint { path, .. } => Trained::of_checkpoint(Path::new(&path)),
        Answer::Error { message, code } => Err(failure(message, code)),
        _ => Err(Failure::message(Code::Refused, "the node answered another question: update it")),
    }
}

/// The state of the head in the store of a node at rest, and its run.
pub fn load(store: &Store) -> Result<(LoadedState, RunSpec), Failure> {
    let run = store.run().context("the folder is bound to no run yet: it has no model")?;
    let spec = wire::decode_spec(&run.spec).context("the folder's run does not decode")?;
    if store.head().is_none() {
        let why = format!(
            "{} has no model yet: its node has neither founded a flock nor fetched the state of one",
            store.path().display()
        );
        return Err(Failure::message(Code::Refused, why));
    }
    let state = stored(store, &spec).map_err(store_failure)?;
    Ok((state, spec))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::sample_test::genesis;
    use starling_store::{CheckpointSource, TensorShape, checkpoint_path, export_checkpoint};

    fn refused(folder: &Path) -> (Code, String) {
        let failure = Trained::of_folder(folder).err().expect("there is no model");
        (failure.code, format!("{:#}", failure.error))
    }

    #[test]
    fn a_folder_without_a_model_is_answered_in_words() {
        let dir = tempfile::tempdir().expect("a folder");
        let (code, said) = refused(&dir.path().join("none"));
        assert_eq!(code, Code::Usage);
        assert!(said.contains("there is no folder") && said.contains("checkpoint list"), "{said}");
        let (code, said) = refused(dir.path());
        assert!(code == Code::Usage && said.contains("no manifest.json"), "{said}");
        let file = dir.path().join("text.txt");
        std::fs::write(&file, "some text").expect("written");
        let (code, said) = refused(&file);
        assert!(code == Code::Usage && said.contains("text.txt is a file"), "{said}");
        let (code, said) =
            Trained::of_home(dir.path()).err().map(|f| (f.code, f.error.to_string())).expect("there is no node");
        assert!(code == Code::Usage && said.contains("holds no run"), "{said}");
    }

    #[test]
    fn a_checkpoint_of_another_model_is_refused_and_a_damaged_home_has_its_newest_checkpoint() {
        let dir = tempfile::tempdir().expect("a folder");
        let trained = Trained::untrained();
        let model = model_config(&trained.spec.model);
        let tensors = model.schema().tensors.into_iter();
        let tensors: Vec<_> = tensors.map(|t| TensorShape { name: t.name, shape: t.shape }).collect();
        let state = starling_protocol::state::State::initial(trained.theta.clone(), trained.spec.sync.mode);
        let export = |folder: &Path, schema: Digest| {
            let mut record = genesis().record;
            record.state_root = starling_protocol::state::root(&state.manifest(schema).expect("a sound size"));
            let spec = wire::encode_spec(&trained.spec);
            let (tensors, state) = (&tensors, &state);
            let source = CheckpointSource { record: &record, spec: &spec, schema, tensors, state, extras: &[] };
            export_checkpoint(folder, &source).expect("there is room");
        };
        let other = dir.path().join("other");
        export(&other, Digest([9; 32]));
        let (code, said) = refused(&other);
        assert!(code == Code::ConfigMismatch && said.contains("another model"), "{said}");
        let home = dir.path().join("home");
        export(&checkpoint_path(&checkpoints_folder(&home), 7), Digest(model.schema().digest()));
        let found = Trained::of_home(&home).expect("the checkpoint will do");
        assert_eq!(found.theta, trained.theta);
        assert!(found.source.contains("round-000007"), "{}", found.source);
        let (tokenizer, path) = found.tokenizer(None).expect("bytes need no file");
        assert_eq!((tokenizer.vocab(), path), (256, None));
    }
}
