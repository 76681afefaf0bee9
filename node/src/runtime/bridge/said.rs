//! The words of a node and its trainer, as JSON (`docs/bridge.md`, sections 3 to 5). Fields that a node does not know
//! are ignored.

use super::memory::Layout;
use super::refusal::{Reason, Refusal};
use serde::{Deserialize, Serialize};
use starling_protocol::Digest;
use starling_protocol::limits::{TASK_SAMPLES_MAX, TENSOR_DIMENSIONS_MAX, TENSOR_NAME_BYTES_MAX, TENSORS_MAX};
use starling_protocol::run::{SchemaError, TaskSchema, TaskTensor, TensorKind, TensorType};

/// The version of the conversation.
pub const VERSION: u64 = 1;
/// Bytes of a text that is shown.
const TEXT_BYTES_MAX: usize = 4096;

/// The one field of a trainer's first frame that all versions have.
#[derive(Debug, Deserialize)]
pub struct AnyHello {
    pub hello: u64,
}

/// A trainer's first frame.
#[derive(Clone, Debug, Deserialize)]
pub struct Hello {
    pub program: String,
    pub tensors: u64,
    pub samples: u64,
    #[serde(default)]
    pub weight: Option<u64>,
    #[serde(default)]
    pub frozen: Option<String>,
    pub evaluates: bool,
    pub saves: bool,
}

/// Some of a trainer's tensors.
#[derive(Debug, Deserialize)]
pub struct Tensors {
    pub tensors: Vec<SaidTensor>,
}

#[derive(Debug, Deserialize)]
pub struct SaidTensor {
    name: String,
    shape: Vec<u64>,
    kind: TensorKind,
    dtype: TensorType,
}

/// A trainer, as its hello describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trainer {
    pub program: String,
    pub schema: TaskSchema,
    pub samples: u64,
    /// The largest weight of a sample.
    pub weight: u32,
    /// Zero without frozen parameters.
    pub frozen: Digest,
    pub evaluates: bool,
    pub saves: bool,
}

impl Hello {
    /// Checks the counts, before tensors are read.
    pub fn check(&self) -> Result<(), Refusal> {
        if !(1..=TENSORS_MAX as u64).contains(&self.tensors) {
            let why = format!("tensors: {}, a trainer has 1 to {TENSORS_MAX}", self.tensors);
            return Err(Refusal::new(Reason::Schema, why));
        }
        if self.samples > TASK_SAMPLES_MAX {
            let why = format!("samples: {}, at most {TASK_SAMPLES_MAX}", self.samples);
            return Err(Refusal::new(Reason::Samples, why));
        }
        Ok(())
    }

    /// The trainer with these tensors.
    pub fn with(self, tensors: Vec<TaskTensor>) -> Result<Trainer, Refusal> {
        let schema = TaskSchema { tensors };
        schema.check().map_err(|e| Refusal::new(Reason::Schema, e.to_string()))?;
        let weight = self.weight.unwrap_or(1);
        let weight = u32::try_from(weight)
            .ok()
            .filter(|weight| *weight > 0)
            .ok_or_else(|| Refusal::new(Reason::Weight, format!("weight: {weight}, a sample has 1 to {}", u32::MAX)))?;
        let frozen = match &self.frozen {
            None => Digest::default(),
            Some(text) => Digest::from_hex(text)
                .ok_or_else(|| Refusal::new(Reason::NotJson, "frozen: it must have 64 hex digits"))?,
        };
        Ok(Trainer {
            program: shown(&self.program),
            schema,
            samples: self.samples,
            weight,
            frozen,
            evaluates: self.evaluates,
            saves: self.saves,
        })
    }
}

impl SaidTensor {
    /// The tensor at a place, without a name or a shape that is longer than any may be.
    pub fn tensor(self, place: usize) -> Result<TaskTensor, Refusal> {
        let refused = |error: SchemaError| Err(Refusal::new(Reason::Schema, error.to_string()));
        if self.name.len() > TENSOR_NAME_BYTES_MAX {
            return refused(SchemaError::Name { place });
        }
        if self.shape.len() > TENSOR_DIMENSIONS_MAX {
            return refused(SchemaError::Shape { name: shown(&self.name) });
        }
        let size = |size: &u64| {
            let why = || format!("{}: a dimension of {size}", shown(&self.name));
            u32::try_from(*size).map_err(|_| Refusal::new(Reason::Schema, why()))
        };
        let shape = self.shape.iter().map(size).collect::<Result<_, _>>()?;
        Ok(TaskTensor { name: self.name, kind: self.kind, dtype: self.dtype, shape })
    }
}

/// A frame of a trainer after its hello: an answer, or something that nobody has asked for.
#[derive(Debug, Default, Deserialize)]
pub struct Said {
    #[serde(default)]
    pub answer: Option<u64>,
    #[serde(default)]
    pub error: Option<String>,
    #[serde(default)]
    pub say: Option<String>,
    #[serde(default)]
    pub text: Option<String>,
    #[serde(default)]
    pub loss: Option<f64>,
    #[serde(default)]
    pub samples: Option<u64>,
    #[serde(default)]
    pub weight: Option<u64>,
}

/// The node's answer to a hello.
#[derive(Debug, Serialize)]
pub struct Welcome<'a> {
    pub welcome: u64,
    pub run: &'a str,
    pub node: &'a str,
    pub founds: bool,
    pub private: bool,
    pub unit: u64,
    pub steps: u32,
    pub elements: u64,
    pub saved: Option<&'a str>,
    pub memory: Layout,
}

/// The node's last frame, if it ends a connection for a reason.
#[derive(Debug, Serialize)]
pub struct Refused<'a> {
    refused: &'static str,
    why: &'a str,
    passing: bool,
}

impl<'a> From<&'a Refusal> for Refused<'a> {
    fn from(refusal: &'a Refusal) -> Self {
        Self { refused: refusal.reason.name(), why: &refusal.why, passing: refusal.reason.passes() }
    }
}

/// A request of a node to its trainer.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "ask", rename_all = "lowercase")]
pub enum Ask<'a> {
    Load { round: u64, base: String, tokens: u64, progress: f64, flying: usize, keep: bool },
    Lease { round: u64, samples: u64, steps: u32, area: usize, likely: bool },
    Step { step: u32, lr: f64, tokens: u64, progress: f64 },
    Read {},
    Evaluate { round: u64 },
    Save { folder: &'a str },
    End { why: &'static str, text: &'a str },
}

/// An ask with its number.
#[derive(Debug, Serialize)]
pub struct Asked<'a> {
    pub id: u64,
    #[serde(flatten)]
    pub ask: &'a Ask<'a>,
}

impl Ask<'_> {
    /// The ask for a person.
    pub fn words(&self) -> String {
        match self {
            Self::Load { round, .. } => format!("load of round {round}"),
            Self::Lease { round, .. } => format!("lease of round {round}"),
            Self::Step { step, .. } => format!("step {step}"),
            Self::Read {} => "read".into(),
            Self::Evaluate { round } => format!("evaluate of round {round}"),
            Self::Save { .. } => "save".into(),
            Self::End { .. } => "end".into(),
        }
    }
}

/// Text of a trainer, cut to what may be shown, without what a terminal takes for orders.
pub fn shown(text: &str) -> String {
    let clean = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    let mut cut = String::new();
    for c in clean {
        if cut.len() + c.len_utf8() > TEXT_BYTES_MAX {
            break;
        }
        cut.push(c);
    }
    cut
}

#[cfg(test)]
mod tests {
    use super::super::frames::parsed;
    use super::*;

    #[test]
    fn asks_are_as_the_page_has_them() {
        let said = |ask: Ask| serde_json::to_string(&Asked { id: 3, ask: &ask }).expect("it is JSON");
        let load = Ask::Load { round: 12, base: "9f".into(), tokens: 5, progress: 0.5, flying: 3, keep: false };
        assert_eq!(
            said(load),
            r#"{"id":3,"ask":"load","round":12,"base":"9f","tokens":5,"progress":0.5,"flying":3,"keep":false}"#
        );
        let lease = Ask::Lease { round: 12, samples: 240, steps: 30, area: 0, likely: false };
        assert_eq!(
            said(lease),
            r#"{"id":3,"ask":"lease","round":12,"samples":240,"steps":30,"area":0,"likely":false}"#
        );
        let step = Ask::Step { step: 0, lr: 0.5, tokens: 1, progress: 0.0 };
        assert_eq!(said(step), r#"{"id":3,"ask":"step","step":0,"lr":0.5,"tokens":1,"progress":0.0}"#);
        assert_eq!(said(Ask::Read {}), r#"{"id":3,"ask":"read"}"#);
        assert_eq!(said(Ask::Save { folder: "/a" }), r#"{"id":3,"ask":"save","folder":"/a"}"#);
    }

    #[test]
    fn a_field_that_is_missing_is_named() {
        let hello = r#"{"hello": 1, "program": "p", "tensors": 1, "samples": 9, "evaluates": false}"#;
        let why = parsed::<Hello>(hello.as_bytes()).expect_err("saves is missing");
        assert!(why.reason == Reason::NotJson && why.why.contains("saves"), "{why}");
        for bad in ["[1, \"p\", 1, 9, null, null, false, false]", "7", "", "{\"hello\": ", "{} {}"] {
            assert_eq!(parsed::<Hello>(bad.as_bytes()).expect_err(bad).reason, Reason::NotJson);
        }
        let known = r#"{"answer": 7, "loss": null, "samples": 8, "news": [1, {"a": 2}]}"#;
        let said = parsed::<Said>(known.as_bytes()).expect("what is unknown is ignored");
        assert_eq!((said.answer, said.loss, said.samples, said.weight), (Some(7), None, Some(8), None));
        for bad in [r#"{"answer": -1}"#, r#"{"answer": 1.5}"#, r#"{"answer": 1, "loss": 1e999}"#] {
            assert!(parsed::<Said>(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_field_of_another_type_is_named() {
        for (field, bad) in [
            ("answer", r#"{"answer": "one"}"#),
            ("answer", r#"{"loss": null, "answer" : -1, "say": "a: b"}"#),
            ("text", "{\"say\": \"a:b\",\n\"text\":\n[1]}"),
        ] {
            let why = parsed::<Said>(bad.as_bytes()).expect_err(bad).why;
            assert!(why.starts_with(&format!("{field}: invalid ")), "{bad}: {why}");
        }
        let tensors = r#"{"tensors": [{"name": "w", "shape": [2], "kind": "local", "dtype": "f32"}]}"#;
        let why = parsed::<Tensors>(tensors.as_bytes()).expect_err("no such kind").why;
        assert!(why.starts_with("kind: no such kind of a tensor"), "{why}");
    }

    #[test]
    fn text_of_a_trainer_gives_no_orders() {
        assert_eq!(shown("a\u{1b}[2Jb\nc"), "a [2Jb c");
        assert_eq!(shown(&"ä".repeat(4096)).len(), TEXT_BYTES_MAX);
    }
}
