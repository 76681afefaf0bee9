//! A trained model from which a new run begins (`starling train --from`).

use super::text;
use crate::config::model_table::model_config;
use crate::config::run_file::{RunFile, tokenizer_choice};
use crate::exit::{Code, Failure};
use starling_data::Tokenizer;
use starling_protocol::Digest;
use starling_protocol::run::{ModelSpec, RunSpec};
use starling_protocol::state::{self, State};
use std::path::Path;

/// A trained model.
pub struct Weights {
    pub model: ModelSpec,
    /// Digest of its tokenizer.
    pub tokenizer: Digest,
    pub theta: Vec<f32>,
    /// Where it comes from, for a person.
    pub source: String,
}

/// Reads a trained model from a folder.
pub type Load = fn(&Path) -> Result<Weights, Failure>;

impl Weights {
    /// Completes a run file: the run has the model of the weights, and begins with the state that this returns.
    ///
    /// # Errors
    /// If the file asks for another model or tokenizer, or names another beginning.
    pub fn begin(self, file: &mut RunFile) -> Result<State, Failure> {
        let Self { model, tokenizer, theta, source } = self;
        let own = Tokenizer::load(&tokenizer_choice(&file.data.tokenizer))?.digest();
        if own != tokenizer {
            let why = format!(
                "{source} was trained with another tokenizer than the run file names (data.tokenizer: {own} here, \
                 {tokenizer} there): give data.tokenizer the model's own, `bytes` or the tokenizer.json beside it"
            );
            return Err(Failure::message(Code::ConfigMismatch, why));
        }
        file.take_sizes(&model);
        let (spec, _) = text::check(file)?;
        // Any length of sequences will do: the parameters are the same.
        let model = ModelSpec { seq_len: spec.model.seq_len, ..model };
        let differences = spec.differences(&RunSpec { model, ..spec.clone() });
        if !differences.is_empty() {
            let why = format!(
                "the run file asks for another model than that of {source}; these keys differ: {} (here: the run file, \
                 there: the model): leave [model] out, and the run takes the model's sizes",
                differences.join("; ")
            );
            return Err(Failure::message(Code::ConfigMismatch, why));
        }
        require_finite(&theta, &spec.model, &source)?;
        let state = State::initial(theta, spec.sync.mode);
        let manifest = state.manifest(Digest(model_config(&spec.model).schema().digest()));
        let manifest = manifest.map_err(|e| Failure::new(Code::Refused, e))?;
        if manifest.elements != spec.model.parameters() {
            let why = format!(
                "{source} has {} parameters where its model has {}: it is damaged",
                manifest.elements,
                spec.model.parameters()
            );
            return Err(Failure::message(Code::StoreDamaged, why));
        }
        file.begin_with(state::root(&manifest))?;
        Ok(state)
    }
}

/// Refuses parameters from which no training can go on, by the name of their tensor.
fn require_finite(theta: &[f32], model: &ModelSpec, source: &str) -> Result<(), Failure> {
    let Some(first) = theta.iter().position(|value| !value.is_finite()) else { return Ok(()) };
    let mut tensors = model_config(model).schema().tensors.into_iter();
    let tensor = tensors.find(|tensor| first < tensor.offset + tensor.len);
    let named = tensor.map_or_else(|| format!("parameter {first}"), |tensor| format!("tensor {}", tensor.name));
    let why = format!(
        "{source} has numbers in {named} that are infinite or none at all: begin with an older checkpoint, or with a \
         model that was whole when it was saved"
    );
    Err(Failure::message(Code::Usage, why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling_kernels::initial_parameters;

    fn file(text: &str) -> RunFile {
        let text = format!("name = \"a\"\n[data]\nsources = [\"text.txt\"]\n{text}");
        RunFile::parse(&text, Path::new("run.toml")).expect("it parses")
    }

    fn weights() -> Weights {
        let model = starling_protocol::sample::spec().model;
        let theta = initial_parameters(&model_config(&model), 7);
        Weights { model, tokenizer: Tokenizer::bytes().digest(), theta, source: "the model".into() }
    }

    #[test]
    fn a_run_without_sizes_takes_the_models_and_begins_with_its_state() {
        let mut run = file("[sync]\ncodec = \"bf16\"\n");
        let state = weights().begin(&mut run).expect("it fits");
        assert_eq!(state.theta, weights().theta);
        assert!(state.moments.len() == 1 && state.moments[0].iter().all(|x| x.to_bits() == 0));
        let (spec, _) = text::check(&run).expect("it is sound");
        assert_eq!(spec.model, weights().model);
        let schema = Digest(model_config(&spec.model).schema().digest());
        assert_eq!(spec.beginning, Some(state::root(&state.manifest(schema).expect("of a sound size"))));
        // The same weights complete the same file again, and others do not.
        assert!(weights().begin(&mut run).is_ok());
        let mut others = weights();
        others.theta[0] += 1.0;
        assert_eq!(others.begin(&mut run).expect_err("others").code, Code::ConfigMismatch);
    }

    #[test]
    fn another_model_and_another_tokenizer_are_refused_with_both_values() {
        let refused = |weights: Weights, text: &str| {
            let failure = weights.begin(&mut file(text)).expect_err("it does not fit");
            (failure.code, failure.error.to_string())
        };
        let (code, said) = refused(weights(), "[model]\nlayers = 3\ntied = false\n");
        assert_eq!(code, Code::ConfigMismatch);
        assert!(said.contains("model.layers: 3 here, 2 there; model.tied: false here, true there"), "{said}");
        let (code, said) = refused(weights(), "[model]\npreset = \"0.1m\"\n");
        assert!(code == Code::ConfigMismatch && said.contains("model.kv_heads: 4 here, 2 there"), "{said}");
        let other = Weights { tokenizer: Digest([9; 32]), ..weights() };
        let (code, said) = refused(other, "");
        assert!(code == Code::ConfigMismatch && said.contains(&"09".repeat(32)), "{said}");
        let short = Weights { theta: vec![0.0; 10], ..weights() };
        assert_eq!(refused(short, "").0, Code::StoreDamaged);
        let schema = model_config(&weights().model).schema();
        for tensor in &schema.tensors {
            for (place, wrong) in [(tensor.offset, f32::NAN), (tensor.offset + tensor.len - 1, f32::INFINITY)] {
                let mut spoilt = weights();
                spoilt.theta[place] = wrong;
                let (code, said) = refused(spoilt, "");
                assert!(code == Code::Usage && said.contains(&format!("in tensor {} ", tensor.name)), "{said}");
            }
        }
        assert!(weights().begin(&mut file("[model]\nseq_len = 64\n")).is_ok(), "shorter sequences fit");
    }
}
