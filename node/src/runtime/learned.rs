//! The tensors of a run's state, whichever task the run has, and the document that names those of an external task.

use crate::config::model_table::model_config;
use starling_kernels::initial_parameters;
use starling_protocol::Digest;
use starling_protocol::run::{ExternalSpec, RunSpec, TaskSchema};
use starling_store::TensorShape;
use std::io;
use std::path::Path;

/// Name of the document in the node's folder.
const SCHEMA_FILE: &str = "task.schema";

/// Digest of the tensors' names and shapes, as the state's root has it.
pub fn schema_of(spec: &RunSpec) -> Digest {
    match &spec.task {
        Some(task) => task.schema,
        None => Digest(model_config(&spec.model).schema().digest()),
    }
}

/// The parameters that follow from the specification. Those of an external task do not: zeros stand for them.
pub fn initial(spec: &RunSpec) -> Vec<f32> {
    match &spec.task {
        Some(task) => vec![0.0; usize::try_from(task.parameters).unwrap_or(usize::MAX)],
        None => initial_parameters(&model_config(&spec.model), spec.seed),
    }
}

/// The tensors in the order of the flat vector. Without the document an external task has one.
pub fn shapes(spec: &RunSpec, schema: Option<&TaskSchema>) -> Vec<TensorShape> {
    let Some(task) = &spec.task else {
        let tensors = model_config(&spec.model).schema().tensors.into_iter();
        return tensors.map(|tensor| TensorShape { name: tensor.name, shape: tensor.shape }).collect();
    };
    let size = |size: u64| usize::try_from(size).unwrap_or(usize::MAX);
    let Some(schema) = schema else {
        return vec![TensorShape { name: "parameters".into(), shape: vec![size(task.parameters)] }];
    };
    let shape = |sizes: &[u32]| sizes.iter().map(|n| size(u64::from(*n))).collect();
    let tensors = schema.tensors.iter();
    tensors.map(|tensor| TensorShape { name: tensor.name.clone(), shape: shape(&tensor.shape) }).collect()
}

/// The document in the node's folder, if it is the task's.
pub fn kept_schema(home: &Path, task: &ExternalSpec) -> Option<TaskSchema> {
    let bytes = std::fs::read(home.join(SCHEMA_FILE)).ok()?;
    TaskSchema::decode(&bytes).ok().filter(|schema| schema.is_of(task))
}

/// Keeps the document in the node's folder. A reader finds the whole file or none.
pub fn keep_schema(home: &Path, schema: &TaskSchema) -> io::Result<()> {
    let unfinished = home.join(format!(".{SCHEMA_FILE}.new"));
    std::fs::write(&unfinished, schema.encode())?;
    std::fs::rename(&unfinished, home.join(SCHEMA_FILE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling_protocol::run::{TaskTensor, TensorKind, TensorType};
    use starling_protocol::sample;

    #[test]
    fn an_external_task_has_its_own_tensors() {
        let tensor = |name: &str, shape: &[u32]| TaskTensor {
            name: name.into(),
            kind: TensorKind::Learned,
            dtype: TensorType::F32,
            shape: shape.to_vec(),
        };
        let schema = TaskSchema { tensors: vec![tensor("a", &[2, 3]), tensor("b", &[])] };
        let digest = schema.digest();
        let task = ExternalSpec {
            schema: digest,
            frozen: Digest::default(),
            parameters: 7,
            learned: 7,
            samples: 9,
            weight: 1,
        };
        let spec = RunSpec { task: Some(task.clone()), ..sample::spec() };
        assert_eq!((schema_of(&spec), initial(&spec)), (digest, vec![0.0; 7]));
        let named = shapes(&spec, Some(&schema));
        assert_eq!(
            named.iter().map(|t| (t.name.as_str(), t.shape.clone())).collect::<Vec<_>>(),
            [("a", vec![2, 3]), ("b", vec![])]
        );
        assert_eq!(shapes(&spec, None)[0].shape, [7]);
        let built_in = sample::spec();
        let elements: usize = shapes(&built_in, None).iter().filter_map(TensorShape::elements).sum();
        assert_eq!(elements as u64, built_in.parameters());

        let home = tempfile::tempdir().expect("a folder");
        assert_eq!(kept_schema(home.path(), &task), None);
        keep_schema(home.path(), &schema).expect("written");
        assert_eq!(kept_schema(home.path(), &task), Some(schema));
        assert_eq!(kept_schema(home.path(), &ExternalSpec { learned: 6, ..task }), None, "of another task");
    }
}
