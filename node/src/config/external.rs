//! A run file whose nodes' users bring model and loop.

use super::run_file::{DataMode, RunFile};
use super::task_table::{TaskKind, TaskTable};
use crate::exit::{Code, Failure};
use starling_protocol::Digest;
use starling_protocol::limits::PARAMETERS_MAX;
use starling_protocol::run::{DataSpec, ExternalSpec, ModelSpec, RunSpec};

impl RunFile {
    /// Whether the nodes' users bring model and loop.
    pub fn is_external(&self) -> bool {
        self.task.kind == TaskKind::External
    }

    /// Whether each node reads data of its own.
    pub fn is_private(&self) -> bool {
        self.data.mode == Some(DataMode::Private)
    }

    /// Whether the founder's trainer has still to say what the run begins with.
    pub fn awaits_founder(&self) -> bool {
        self.is_external() && (self.task.schema.is_none() || self.model.beginning.is_none())
    }

    /// Completes the file with the task of a run, and the root of its first state.
    pub fn take_task(&mut self, task: &ExternalSpec, root: Digest) {
        self.task = TaskTable::of(task);
        self.model.beginning = Some(root.to_string());
    }

    /// Completes the file with what a specification of its run says; false if that is of another kind.
    pub fn take_from(&mut self, spec: &RunSpec) -> bool {
        let (Some(task), Some(root)) = (&spec.task, spec.beginning) else { return false };
        if spec.name == self.name {
            self.take_task(task, root);
            self.data.manifest = (spec.data.manifest != Digest::default()).then(|| spec.data.manifest.to_string());
        }
        spec.name == self.name
    }

    /// The specification as far as the file has it; another task stands for the founder's.
    ///
    /// # Errors
    /// The file says what no run may have, whatever the founder's trainer brings.
    pub fn before_founding(&self) -> Result<RunSpec, Failure> {
        let mut file = self.clone();
        let task = ExternalSpec {
            schema: Digest([1; 32]),
            frozen: Digest::default(),
            parameters: PARAMETERS_MAX,
            learned: PARAMETERS_MAX,
            samples: u64::from(!self.is_private()),
            weight: self.task.weight.unwrap_or(1),
        };
        file.take_task(&task, Digest([1; 32]));
        file.spec(DataSpec::of_external(), 0)
    }

    /// The task of the specification; none for the built-in one.
    ///
    /// # Errors
    /// The file says what does not go together, or leaves out what nobody has told yet.
    pub(super) fn external(&self) -> Result<Option<ExternalSpec>, Failure> {
        let usage = |why: String| Failure::message(Code::Usage, why);
        if !self.is_external() {
            if !self.task.is_default() {
                return Err(usage("task: only kind = \"external\" has more keys; leave the others out".into()));
            }
            if self.is_private() {
                return Err(usage("data.mode = \"private\" goes with [task] kind = \"external\"".into()));
            }
            if !self.data.files.is_empty() {
                let why = "data.files goes with [task] kind = \"external\": text to train on is named in data.sources";
                return Err(usage(why.into()));
            }
            return Ok(None);
        }
        if let Some(key) = self.written_size() {
            return Err(usage(format!("model.{key} goes with the built-in language model: a trainer brings its own")));
        }
        let TaskTable { weight, schema, frozen, parameters, learned, samples, .. } = &self.task;
        let known = (schema, *parameters, *learned, *weight);
        let (Some(schema), Some(parameters), Some(learned), Some(weight)) = known else {
            return Err(usage(
                "task.schema is not known yet: the founder's trainer gives it (`starling train --run RUN.toml -- CMD`); \
                 other nodes come with --join, or with the run file that `--print-config` shows on the founder's node"
                    .into(),
            ));
        };
        let digest = |key: &str, text: &str| {
            Digest::from_hex(text).ok_or_else(|| usage(format!("task.{key} = \"{text}\" is not 64 hex digits")))
        };
        let frozen = frozen.as_deref().map(|text| digest("frozen", text)).transpose()?.unwrap_or_default();
        let samples = match (self.is_private(), *samples) {
            (true, None) => 0,
            (false, Some(samples)) if samples > 0 => samples,
            (true, Some(_)) => return Err(usage("task.samples: private data have no numbers; leave it out".into())),
            (false, _) => return Err(usage("task.samples is missing: the founder's trainer gives it".into())),
        };
        Ok(Some(ExternalSpec { schema: digest("schema", schema)?, frozen, parameters, learned, samples, weight }))
    }

    /// Model and data of the specification, if the task is external.
    pub(super) fn of_external(&self) -> Result<(ModelSpec, DataSpec), Failure> {
        let manifest = self.manifest()?.unwrap_or_default();
        Ok((ModelSpec::of_external(), DataSpec { manifest, ..DataSpec::of_external() }))
    }

    /// A key of `[model]` that means something for the built-in model only. A preset is in every file that a node has
    /// written.
    fn written_size(&self) -> Option<&'static str> {
        let table = &self.model;
        let sizes = [
            ("d_model", table.d_model),
            ("layers", table.layers),
            ("heads", table.heads),
            ("kv_heads", table.kv_heads),
            ("ffn", table.ffn),
            ("seq_len", table.seq_len),
            ("vocab", table.vocab),
        ];
        sizes.into_iter().find_map(|(key, size)| size.map(|_| key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling_protocol::run::Optimizer;
    use std::path::Path;

    fn file(text: &str) -> RunFile {
        RunFile::parse(&format!("name = \"a\"\n{text}"), Path::new("run.toml")).expect("it parses")
    }

    fn task() -> ExternalSpec {
        let schema = Digest([5; 32]);
        ExternalSpec { schema, frozen: Digest::default(), parameters: 12, learned: 9, samples: 50, weight: 4 }
    }

    fn refused(file: &RunFile) -> String {
        file.external().map(drop).expect_err("it is refused").error.to_string()
    }

    #[test]
    fn a_file_is_completed_by_the_founders_trainer() {
        let mut plain = file("[task]\nkind = \"external\"\n");
        assert!(plain.is_external() && plain.awaits_founder());
        assert!(plain.before_founding().is_ok_and(|spec| spec.inner.samples(1) == 8));
        assert!(refused(&plain).contains("the founder's trainer gives it"));
        plain.take_task(&task(), Digest([6; 32]));
        assert!(!plain.awaits_founder());
        let (model, data) = plain.of_external().expect("no digest is wrong");
        let spec = plain.spec(data.clone(), 2).expect("it is sound");
        assert_eq!((spec.task.as_ref(), spec.beginning), (Some(&task()), Some(Digest([6; 32]))));
        assert_eq!((&spec.model, &spec.data), (&model, &data));
        assert_eq!((spec.inner.optimizer, spec.inner.lr), (Optimizer::AdamW, 2e-3), "none but this is taken");
        // Another start finds the same run, from its folder or from the file that was written.
        let mut again = file("[task]\nkind = \"external\"\n");
        assert!(again.take_from(&spec) && again.spec(data.clone(), 2).ok() == Some(spec.clone()));
        let written: RunFile = toml::from_str(&toml::to_string(&plain).expect("written")).expect("it parses");
        assert_eq!(written.spec(data, 2).ok(), Some(spec));
    }

    #[test]
    fn files_are_named_by_their_manifest() {
        let mut named = file("[task]\nkind = \"external\"\n[data]\nfiles = [\"train/*.bin\"]\n");
        let digest = Digest([7; 32]);
        named.data.manifest = Some(digest.to_string());
        named.take_task(&task(), Digest([6; 32]));
        let spec = named.spec(DataSpec::of_external(), 0).expect("it is sound");
        assert_eq!((spec.data.manifest, spec.data.tokenizer), (digest, Digest::default()));
        // A file that does not know them yet finds them with the task.
        let mut again = file("[task]\nkind = \"external\"\n[data]\nfiles = [\"train/*.bin\"]\n");
        assert!(again.take_from(&spec) && again.spec(DataSpec::of_external(), 0).ok() == Some(spec));
        named.data.manifest = Some("abc".into());
        let why = named.spec(DataSpec::of_external(), 0).map(drop).expect_err("no digest").error.to_string();
        assert!(why.contains("data.manifest = \"abc\" is not 64 hex digits"), "{why}");
    }

    #[test]
    fn what_does_not_go_together_is_refused() {
        assert!(file("").external().expect("the built-in task").is_none());
        assert!(refused(&file("[data]\nmode = \"private\"\n")).contains("goes with [task]"));
        assert!(refused(&file("[task]\nweight = 3\n")).contains("only kind = \"external\""));
        assert!(refused(&file("[data]\nfiles = [\"a\"]\n")).contains("text to train on is named in data.sources"));
        let every_step = file("sync = \"every-step\"\n[task]\nkind = \"external\"\n").before_founding();
        let why = every_step.map(drop).expect_err("gradients are averaged").error.to_string();
        assert!(why.contains("sync.mode = every-step: must be \"rounds\""), "{why}");
        let sized = file("[task]\nkind = \"external\"\n[model]\nlayers = 3\n");
        assert!(refused(&sized).contains("model.layers"));
        let mut private = file("[data]\nmode = \"private\"\n[task]\nkind = \"external\"\n");
        private.take_task(&task(), Digest([6; 32]));
        assert!(refused(&private).contains("private data have no numbers"));
        private.take_task(&ExternalSpec { samples: 0, ..task() }, Digest([6; 32]));
        assert_eq!(private.external().expect("it is sound").map(|task| task.samples), Some(0));
        let mut numbered = file("[task]\nkind = \"external\"\n");
        numbered.take_task(&ExternalSpec { samples: 0, ..task() }, Digest([6; 32]));
        assert!(refused(&numbered).contains("task.samples is missing"));
        numbered.task.schema = Some("abc".into());
        numbered.task.samples = Some(5);
        assert!(refused(&numbered).contains("task.schema = \"abc\""));
    }
}
