//! The document of a task's tensors, and what a task changes in a run's specification (`docs/protocol/2-records.md`
//! §2.8.7).

use super::task::{ExternalSpec, SchemaError, TaskSchema, TensorKind};
use super::{DataSpec, ModelSpec, RunSpec};
use crate::Digest;
use crate::limits::{PARAMETERS_MAX, SCHEMA_BYTES_MAX, TENSOR_DIMENSIONS_MAX, TENSOR_NAME_BYTES_MAX, TENSORS_MAX};
use crate::mutation::{Mutation, mutated};
use crate::wire::{WireError, binary};
use std::collections::BTreeSet;

const SCHEMA_DOMAIN: &str = "starling task schema v1";
const WHAT: &str = "schema of a task";

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

    /// Whether it is the one that a run names, with its counts.
    pub fn is_of(&self, spec: &ExternalSpec) -> bool {
        let counts = (self.elements(), self.learned()) == (spec.parameters, spec.learned);
        counts && self.digest() == spec.schema || mutated!(Mutation::AnyDocument)
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
    use super::super::TensorType;
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
        assert!(!schema.is_of(&ExternalSpec { learned: 6, ..task_spec() }));
        assert!(!schema.is_of(&ExternalSpec { parameters: 13, ..task_spec() }));
        assert!(!schema.is_of(&ExternalSpec { schema: Digest([1; 32]), ..task_spec() }));
        // A count is refused before memory is taken for so many.
        for count in [0, TENSORS_MAX as u64 + 1, 1 << 40, u64::MAX] {
            assert!(TaskSchema::decode(&count.to_le_bytes()).is_err(), "{count} tensors");
        }
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
