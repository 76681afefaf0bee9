//! The run file's table about what nodes learn: the built-in language model, or what their users' trainers bring
//! (`docs/bridge.md`).

use serde::{Deserialize, Serialize};
use starling_protocol::Digest;
use starling_protocol::run::ExternalSpec;

/// The thing that nodes learn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TaskKind {
    #[default]
    LanguageModel,
    External,
}

/// `[task]`: what nodes learn. All but `kind` and `weight` comes from the founder's trainer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TaskTable {
    pub kind: TaskKind,
    /// The largest weight of a sample. Left out: the founder's trainer says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// Digests of tensors and of frozen parameters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frozen: Option<String>,
    /// Numbers in all tensors, and in those that are learned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parameters: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub learned: Option<u64>,
    /// Training samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples: Option<u64>,
}

impl TaskTable {
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// The table that gives this task.
    pub fn of(task: &ExternalSpec) -> Self {
        Self {
            kind: TaskKind::External,
            weight: Some(task.weight),
            schema: Some(task.schema.to_string()),
            frozen: (task.frozen != Digest::default()).then(|| task.frozen.to_string()),
            parameters: Some(task.parameters),
            learned: Some(task.learned),
            samples: (task.samples > 0).then_some(task.samples),
        }
    }
}
