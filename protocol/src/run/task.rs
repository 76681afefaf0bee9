//! The common ground of a run's trainers, if its nodes' users bring model and loop (`docs/protocol/2-records.md`
//! §2.8.7, `docs/bridge.md`).

use crate::Digest;
use crate::limits::{PARAMETERS_MAX, SCHEMA_BYTES_MAX, TENSOR_DIMENSIONS_MAX, TENSOR_NAME_BYTES_MAX, TENSORS_MAX};
use crate::wire::bounded;
use crate::wire::number::numbered;
use serde::{Deserialize, Serialize};

/// An external task.
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

/// The way in which a tensor is averaged. The numbers are on the wire.
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
    #[error(
        "tensor {place}: its name must have 1 to {TENSOR_NAME_BYTES_MAX} printable ASCII characters without spaces"
    )]
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
    /// Elements of all tensors.
    pub fn elements(&self) -> u64 {
        self.tensors.iter().fold(0, |sum, tensor| sum.saturating_add(tensor.elements()))
    }

    /// Elements of the tensors that are learned.
    pub fn learned(&self) -> u64 {
        let learned = self.tensors.iter().filter(|tensor| tensor.kind == TensorKind::Learned);
        learned.fold(0, |sum, tensor| sum.saturating_add(tensor.elements()))
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
}
