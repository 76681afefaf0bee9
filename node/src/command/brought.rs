//! A model that trainers have brought, as other programs get it: under the trainers' names and types, with the small
//! files that a trainer has left for it (`docs/bridge.md`, section 3.5).

use crate::exit::{Code, Failure};
use crate::runtime::{SCHEMA_FILE, SmallFiles, kept_schema};
use serde::Deserialize;
use starling_protocol::run::{ExternalSpec, TaskSchema, TensorType};
use starling_store::MODEL_FILE;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The trainer's wishes for names. It goes along with the model, and not into an export.
const WISHES_FILE: &str = "export.json";

/// The things that belong to a model besides its numbers.
pub struct Brought {
    schema: TaskSchema,
    files: BTreeMap<String, Vec<u8>>,
}

/// Names in an export, as a trainer wishes them.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Wishes {
    /// The weights' file.
    file: Option<String>,
    /// Tensors that have another name there than in the run.
    names: BTreeMap<String, String>,
}

/// One tensor of an export.
#[derive(Debug, PartialEq)]
pub struct Named {
    pub name: String,
    pub shape: Vec<usize>,
    pub dtype: TensorType,
}

impl Brought {
    /// Finds the document of the tensors among the files, or in a node's folder.
    pub fn of(
        task: &ExternalSpec,
        mut files: BTreeMap<String, Vec<u8>>,
        (home, source): (Option<&Path>, &str),
    ) -> Result<Self, Failure> {
        let among = files.remove(SCHEMA_FILE).and_then(|bytes| TaskSchema::decode(&bytes).ok());
        let schema = among.filter(|schema| schema.is_of(task)).or_else(|| kept_schema(home?, task));
        let schema = schema.ok_or_else(|| {
            let why = format!(
                "{source} lacks {SCHEMA_FILE}, which names the run's tensors: start the node again, which fetches it, \
                 or name the folder of another node of the run"
            );
            Failure::message(Code::ConfigMismatch, why)
        })?;
        Ok(Self { schema, files })
    }

    /// The tensors in the order of the state, the name of their file, and the files beside it.
    pub fn export(&self) -> (Vec<Named>, String, SmallFiles) {
        let wishes = self.files.get(WISHES_FILE).and_then(|json| wishes(json, &self.schema)).unwrap_or_default();
        let tensors = self.schema.tensors.iter().map(|tensor| Named {
            name: wishes.names.get(&tensor.name).unwrap_or(&tensor.name).clone(),
            shape: tensor.shape.iter().map(|size| usize::try_from(*size).unwrap_or(usize::MAX)).collect(),
            dtype: tensor.dtype,
        });
        let tensors = tensors.collect();
        let file = wishes.file.unwrap_or_else(|| MODEL_FILE.to_owned());
        let beside = self.files.iter().filter(|(name, _)| **name != file && *name != WISHES_FILE);
        let beside = beside.map(|(name, bytes)| (name.clone(), bytes.clone())).collect();
        (tensors, file, beside)
    }
}

/// The wishes, if they can be met. Others are told of, and the model is exported without them.
fn wishes(json: &[u8], schema: &TaskSchema) -> Option<Wishes> {
    let read =
        serde_json::from_slice::<Wishes>(json).map_err(|e| format!("near line {} it is no {WISHES_FILE}", e.line()));
    let met = read.and_then(|wishes| if let Some(why) = unmet(&wishes, schema) { Err(why) } else { Ok(wishes) });
    met.map_err(|why| eprintln!("{WISHES_FILE}, which the trainer has left, is not followed: {why}")).ok()
}

fn unmet(wishes: &Wishes, schema: &TaskSchema) -> Option<String> {
    if let Some(file) = &wishes.file {
        let plain = starling_store::is_extra(file, 0) || file == MODEL_FILE;
        if !plain || Path::new(file).extension().is_none_or(|end| end != "safetensors") {
            return Some(format!("file {file:?} is no plain name that ends in .safetensors"));
        }
    }
    let mut names = BTreeSet::new();
    for tensor in &schema.tensors {
        let name = wishes.names.get(&tensor.name).unwrap_or(&tensor.name);
        if name.is_empty() || name == "__metadata__" {
            return Some(format!("{} cannot be called {name:?}", tensor.name));
        }
        if !names.insert(name) {
            return Some(format!("two tensors are called {name:?}"));
        }
    }
    None
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::runtime::keep_schema;
    use starling_protocol::Digest;
    use starling_protocol::run::{TaskTensor, TensorKind};

    /// Three tensors of 2, 3 and 1 numbers.
    pub fn schema() -> TaskSchema {
        let tensor = |name: &str, dtype, shape: &[u32]| TaskTensor {
            name: name.into(),
            kind: TensorKind::Learned,
            dtype,
            shape: shape.to_vec(),
        };
        let tensors = vec![
            tensor("a.default.weight", TensorType::Bf16, &[2, 1]),
            tensor("b", TensorType::F64, &[3]),
            tensor("scale", TensorType::F16, &[]),
        ];
        TaskSchema { tensors }
    }

    pub fn task() -> ExternalSpec {
        let schema = schema().digest();
        ExternalSpec { schema, frozen: Digest::default(), parameters: 6, learned: 6, samples: 9, weight: 1 }
    }

    /// The model with these files beside it.
    pub fn brought(files: &[(&str, &str)]) -> Brought {
        let files = files.iter().map(|(name, text)| ((*name).to_owned(), text.as_bytes().to_vec()));
        let schema = [(SCHEMA_FILE.to_owned(), schema().encode())];
        Brought::of(&task(), schema.into_iter().chain(files).collect(), (None, "a test")).expect("it is the task's")
    }

    fn names(tensors: &[Named]) -> Vec<&str> {
        tensors.iter().map(|tensor| tensor.name.as_str()).collect()
    }

    #[test]
    fn a_model_has_the_trainers_names_and_files() {
        let (tensors, file, beside) = brought(&[("config.json", "{}")]).export();
        assert_eq!(names(&tensors), ["a.default.weight", "b", "scale"]);
        assert_eq!((tensors[0].dtype, tensors[0].shape.as_slice()), (TensorType::Bf16, [2usize, 1].as_slice()));
        assert!(tensors[2].shape.is_empty());
        assert_eq!((file.as_str(), beside), (MODEL_FILE, vec![("config.json".to_owned(), b"{}".to_vec())]));

        let wishes = r#"{"file": "adapter_model.safetensors", "names": {"a.default.weight": "a.weight", "c": "d"}}"#;
        let files = [(WISHES_FILE, wishes), ("adapter_config.json", "{}"), ("adapter_model.safetensors", "old")];
        let (tensors, file, beside) = brought(&files).export();
        assert_eq!((names(&tensors), file.as_str()), (vec!["a.weight", "b", "scale"], "adapter_model.safetensors"));
        assert_eq!(beside.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["adapter_config.json"]);
    }

    #[test]
    fn wishes_that_cannot_be_met_are_left_out() {
        for bad in [
            "{",
            r#"{"file": 7}"#,
            r#"{"file": "../model.safetensors"}"#,
            r#"{"file": "model.bin"}"#,
            r#"{"names": {"b": "scale"}}"#,
            r#"{"names": {"b": ""}}"#,
            r#"{"names": {"b": "__metadata__"}}"#,
        ] {
            assert_eq!(wishes(bad.as_bytes(), &schema()), None, "{bad}");
            let (tensors, file, beside) = brought(&[(WISHES_FILE, bad)]).export();
            assert_eq!((tensors.len(), file.as_str(), beside.len()), (3, MODEL_FILE, 0), "{bad}");
        }
    }

    #[test]
    fn the_tensors_names_are_found_in_the_nodes_folder_or_asked_for() {
        let home = tempfile::tempdir().expect("a folder");
        let none = || Brought::of(&task(), BTreeMap::new(), (Some(home.path()), "the node in a")).map(drop);
        let failure = none().expect_err("nothing names them");
        let said = failure.error.to_string();
        assert!(failure.code == Code::ConfigMismatch && said.contains("the node in a lacks task.schema"), "{said}");
        keep_schema(home.path(), &schema()).expect("written");
        assert!(none().is_ok());
    }
}
