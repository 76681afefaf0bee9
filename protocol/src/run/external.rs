//! A run whose nodes' users bring model and loop (`docs/protocol/2-records.md` §2.8.7, `docs/bridge.md`): the part of
//! its specification, and the tensors that are averaged, as a document.

use super::{DataSpec, ModelSpec, RunSpec};
use crate::Digest;
use crate::limits::{PARAMETERS_MAX, SCHEMA_BYTES_MAX, TENSOR_DIMENSIONS_MAX, TENSOR_NAME_BYTES_MAX, TENSORS_MAX};
use crate::wire::number::numbered;
use crate::wire::{WireError, binary, bounded};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

const SCHEMA_DOMAIN: &str = "starling task schema v1";
const WHAT: &str = "schema of a task";

/// What the trainers of a run have in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExternalSpec {
    /// Digest of the [`TaskSchema`].
    pub schema: Digest,
    /// Digest of the parameters that are not averaged and do not change, as trainers compute it; zero without any.
    pub frozen: Digest,
    /// Elements of all tensors.
    pub parameters: u64,
    /// Elements of those that are learned, which come first.
    pub learned: u64,
    /// Training samples; 0 if each node reads data of its own, whose samples have no numbers.
    pub samples: u64,
    /// The largest weight of a sample.
    pub weight: u32,
}

/// How a tensor is averaged. The numbers are on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TensorKind {
    /// By the outer optimizer.
    Learned = 1,
    /// As it is: what is measured, as the statistics of a normalisation.
    Mean = 2,
}

numbered!(TensorKind, "kind of a tensor", { Learned = "learned", Mean = "mean" });

/// The type in which trainers keep a tensor. It is averaged as f32. The numbers are on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TensorType {
    F32 = 1,
    Bf16 = 2,
    F16 = 3,
    F64 = 4,
}

numbered!(TensorType, "type of a tensor", { F32 = "f32", Bf16 = "bf16", F16 = "f16", F64 = "f64" });

/// One tensor of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskTensor {
    #[serde(deserialize_with = "bounded::text::<_, TENSOR_NAME_BYTES_MAX>")]
    pub name: String,
    pub kind: TensorKind,
    pub dtype: TensorType,
    #[serde(deserialize_with = "bounded::list::<_, _, TENSOR_DIMENSIONS_MAX>")]
    pub shape: Vec<u32>,
}

impl TaskTensor {
    /// Number of elements, saturating.
    pub fn elements(&self) -> u64 {
        self.shape.iter().fold(1u64, |product, size| product.saturating_mul(u64::from(*size)))
    }
}

/// The tensors of a task, in the order of the state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskSchema {
    #[serde(deserialize_with = "bounded::list::<_, _, TENSORS_MAX>")]
    pub tensors: Vec<TaskTensor>,
}

/// The reason why tensors are no schema.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SchemaError {
    #[error("{count} tensors: there must be 1 to {TENSORS_MAX}")]
    Count { count: usize },
    #[error("tensor {place}: its name must have 1 to {TENSOR_NAME_BYTES_MAX} printable ASCII characters without spaces")]
    Name { place: usize },
    #[error("{name}: two tensors have this name")]
    Twice { name: String },
    #[error("{name}: a tensor has at most {TENSOR_DIMENSIONS_MAX} dimensions, each of at least 1")]
    Shape { name: String },
    #[error("{name}: tensors of kind learned come first, and there is at least one")]
    Order { name: String },
    #[error("its tensors have more than {PARAMETERS_MAX} elements together")]
    Elements,
    #[error("its document has {bytes} bytes, the limit is {SCHEMA_BYTES_MAX}: give tensors shorter names")]
    Bytes { bytes: usize },
}

impl TaskSchema {
    /// Checks everything that a decoder has not checked yet.
    pub fn check(&self) -> Result<(), SchemaError> {
        if self.tensors.is_empty() || self.tensors.len() > TENSORS_MAX {
            return Err(SchemaError::Count { count: self.tensors.len() });
        }
        let (mut names, mut elements, mut before) = (BTreeSet::new(), 0u64, TensorKind::Learned);
        for (place, tensor) in self.tensors.iter().enumerate() {
            let printable = tensor.name.bytes().all(|byte| byte.is_ascii_graphic());
            if !(1..=TENSOR_NAME_BYTES_MAX).contains(&tensor.name.len()) || !printable {
                return Err(SchemaError::Name { place });
            }
            let name = || tensor.name.clone();
            if !names.insert(tensor.name.as_str()) {
                return Err(SchemaError::Twice { name: name() });
            }
            if tensor.shape.len() > TENSOR_DIMENSIONS_MAX || tensor.shape.contains(&0) {
                return Err(SchemaError::Shape { name: name() });
            }
            let falls_back = before == TensorKind::Mean && tensor.kind == TensorKind::Learned;
            if falls_back || place == 0 && tensor.kind != TensorKind::Learned {
                return Err(SchemaError::Order { name: name() });
            }
            before = tensor.kind;
            elements = elements.saturating_add(tensor.elements());
        }
        if elements > PARAMETERS_MAX {
            return Err(SchemaError::Elements);
        }
        match self.encode().len() {
            bytes if bytes > SCHEMA_BYTES_MAX => Err(SchemaError::Bytes { bytes }),
            _ => Ok(()),
        }
    }

    /// Elements of all tensors.
    pub fn elements(&self) -> u64 {
        self.tensors.iter().fold(0, |sum, tensor| sum.saturating_add(tensor.elements()))
    }

    /// Elements of the tensors that are learned.
    pub fn learned(&self) -> u64 {
        let learned = self.tensors.iter().filter(|tensor| tensor.kind == TensorKind::Learned);
        learned.fold(0, |sum, tensor| sum.saturating_add(tensor.elements()))
    }

    /// The one byte string of these tensors.
    pub fn encode(&self) -> Vec<u8> {
        binary::encode(self)
    }

    /// Decodes a schema from outside bytes: canonical, at most [`SCHEMA_BYTES_MAX`] long, and sound.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let schema = binary::decode::<Self, SCHEMA_BYTES_MAX>(WHAT, bytes)?;
        schema.check().map_err(|error| WireError::Invalid { what: WHAT, detail: error.to_string() })?;
        Ok(schema)
    }

    /// The digest by which a run names it.
    pub fn digest(&self) -> Digest {
        Digest::of(SCHEMA_DOMAIN, &[&self.encode()])
    }

    /// The first difference of a trainer's tensors, from those of the run; none if they are equal.
    pub fn difference(&self, theirs: &Self) -> Option<String> {
        for (run, here) in self.tensors.iter().zip(&theirs.tensors) {
            if run.name != here.name {
                return Some(format!("{} here, the run has {} at this place", here.name, run.name));
            }
            let name = &run.name;
            if run.shape != here.shape {
                return Some(format!("{name}: {:?} here, the run has {:?}", here.shape, run.shape));
            }
            if run.dtype != here.dtype {
                return Some(format!("{name}: {} here, the run has {}", here.dtype, run.dtype));
            }
            if run.kind != here.kind {
                return Some(format!("{name}: kind {} here, the run has {}", here.kind, run.kind));
            }
        }
        let (run, here) = (self.tensors.len(), theirs.tensors.len());
        (run != here).then(|| format!("{here} tensors here, the run has {run}"))
    }

    /// Whether it is the one that a run names, with its counts.
    pub fn is_of(&self, spec: &ExternalSpec) -> bool {
        (self.elements(), self.learned(), self.digest()) == (spec.parameters, spec.learned, spec.schema)
    }
}

impl ModelSpec {
    /// The model of a specification with an external task: the least sizes, which mean nothing.
    pub fn of_external() -> Self {
        Self {
            vocab: 2,
            d_model: 2,
            layers: 1,
            heads: 1,
            kv_heads: 1,
            ffn: 1,
            seq_len: 1,
            tied: true,
            rope_theta: 1.0,
            norm_eps: 0.1,
        }
    }
}

impl DataSpec {
    /// The data of a specification with an external task.
    pub fn of_external() -> Self {
        Self { manifest: Digest::default(), tokenizer: Digest::default() }
    }
}

impl RunSpec {
    /// Elements of each vector of the state, saturating.
    pub fn parameters(&self) -> u64 {
        self.task.as_ref().map_or_else(|| self.model.parameters(), |task| task.parameters)
    }

    /// The largest weight of a sample: the tokens of a sequence, unless the task is external.
    pub fn sample_weight(&self) -> u32 {
        self.task.as_ref().map_or(self.model.seq_len, |task| task.weight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::sample::{task_schema, task_spec};

    fn refused(change: impl Fn(&mut TaskSchema)) -> Option<SchemaError> {
        let mut schema = task_schema();
        change(&mut schema);
        schema.check().err()
    }

    #[test]
    fn a_sound_schema_is_its_document() {
        let schema = task_schema();
        assert_eq!(schema.check(), Ok(()));
        assert_eq!((schema.elements(), schema.learned()), (6 + 3 + 3, 6 + 3));
        let bytes = schema.encode();
        assert_eq!(TaskSchema::decode(&bytes), Ok(schema.clone()));
        assert!(TaskSchema::decode(&bytes[..bytes.len() - 1]).is_err());
        assert!(TaskSchema::decode(&[&bytes[..], &[0]].concat()).is_err());
        assert!(schema.is_of(&task_spec()));
    }

    #[test]
    fn what_is_no_schema_is_refused_by_name() {
        assert_eq!(refused(|s| s.tensors.clear()), Some(SchemaError::Count { count: 0 }));
        for name in ["", "a b", "ä", &"x".repeat(TENSOR_NAME_BYTES_MAX + 1)] {
            assert_eq!(refused(|s| s.tensors[1].name = name.to_owned()), Some(SchemaError::Name { place: 1 }));
        }
        let name = || task_schema().tensors[0].name.clone();
        assert_eq!(refused(|s| s.tensors[1].name = name()), Some(SchemaError::Twice { name: name() }));
        assert_eq!(refused(|s| s.tensors[0].shape[0] = 0), Some(SchemaError::Shape { name: name() }));
        let long = TENSOR_DIMENSIONS_MAX + 1;
        assert_eq!(refused(|s| s.tensors[0].shape = vec![1; long]), Some(SchemaError::Shape { name: name() }));
        assert_eq!(refused(|s| s.tensors[0].kind = TensorKind::Mean), Some(SchemaError::Order { name: name() }));
        assert!(matches!(refused(|s| s.tensors.swap(1, 2)), Some(SchemaError::Order { .. })));
        assert_eq!(refused(|s| s.tensors[0].shape = vec![u32::MAX; 2]), Some(SchemaError::Elements));
        assert_eq!(refused(|s| s.tensors[0].shape = vec![]), None, "a single number");
    }

    #[test]
    fn a_difference_names_the_tensor() {
        let run = task_schema();
        let said = |change: fn(&mut TaskSchema)| {
            let mut theirs = run.clone();
            change(&mut theirs);
            run.difference(&theirs)
        };
        assert_eq!(said(|_| ()), None);
        let other = said(|s| s.tensors[1].shape = vec![4]).unwrap();
        assert_eq!(other, "norm.weight: [4] here, the run has [3]");
        assert!(said(|s| s.tensors[1].dtype = TensorType::Bf16).unwrap().contains("bf16"));
        assert!(said(|s| s.tensors[0].name = "other".into()).unwrap().starts_with("other here"));
        assert_eq!(said(|s| drop(s.tensors.pop())).unwrap(), "2 tensors here, the run has 3");
    }
}
