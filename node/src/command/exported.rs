//! A model in the shape in which Hugging Face's libraries read Llama, as a run's beginning: an exported folder, or one
//! of another program.

use crate::config::model_table::model_config;
use crate::exit::{Code, Failure};
use crate::runtime::{TOKENIZER_FILE, Weights, store_failure};
use serde::Deserialize;
use serde_json::Value;
use starling_bootstrap::config_file;
use starling_data::{Tokenizer, TokenizerChoice, bytes_tokenizer_json};
use starling_protocol::Digest;
use starling_protocol::run::ModelSpec;
use starling_store::{Tensor, read_safetensors};
use std::collections::BTreeMap;
use std::path::Path;

const CONFIG_FILE: &str = "config.json";
const MODEL_FILE: &str = "model.safetensors";
/// The longest sequences that a run takes from a model: other programs name what their positions can count, which may
/// be more than a machine can train with. The run file may ask for more.
const SEQ_LEN_MAX: u32 = 2048;
/// Tensors of a layer.
const OF_LAYER: usize = 9;

/// The keys of `config.json` that say how a model is built. Others are of no matter here.
#[derive(Deserialize)]
struct Config {
    model_type: String,
    vocab_size: u32,
    hidden_size: u32,
    intermediate_size: u32,
    num_hidden_layers: u32,
    num_attention_heads: u32,
    num_key_value_heads: u32,
    max_position_embeddings: u32,
    rms_norm_eps: f64,
    rope_theta: f64,
    tie_word_embeddings: bool,
    hidden_act: String,
    head_dim: Option<u32>,
    rope_scaling: Option<Value>,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
}

/// Whether the folder has a model of this shape, and is no checkpoint, which can be verified.
pub fn is_exported(folder: &Path) -> bool {
    let has = |name: &str| folder.join(name).is_file();
    has(CONFIG_FILE) && has(MODEL_FILE) && !has("manifest.json")
}

/// The number of the model's parameters by its sizes; none if they cannot be read.
pub fn parameters(folder: &Path) -> Option<u64> {
    let config = folder.join(CONFIG_FILE);
    Some(model_of(&config_file::read(&config).ok()?, &config).ok()?.parameters())
}

/// The model of the folder.
pub fn weights(folder: &Path) -> Result<Weights, Failure> {
    let config = folder.join(CONFIG_FILE);
    let text = config_file::read(&config).map_err(|e| Failure::new(Code::Usage, e))?;
    let model = model_of(&text, &config)?;
    let tokenizer = tokenizer_of(&folder.join(TOKENIZER_FILE))?;
    let path = folder.join(MODEL_FILE);
    let tensors = read_safetensors(&path).map_err(store_failure)?;
    let theta = ordered(tensors, &model).map_err(|why| other(&path, &why))?;
    Ok(Weights { model, tokenizer, theta, source: format!("the exported model {}", folder.display()) })
}

fn other(path: &Path, why: &str) -> Failure {
    let why = format!("{}: {why}: name a folder that `starling checkpoint export` has written", path.display());
    Failure::message(Code::ConfigMismatch, why)
}

/// Reads the sizes, and refuses models that Starling does not build.
fn model_of(text: &str, path: &Path) -> Result<ModelSpec, Failure> {
    let config: Config = serde_json::from_str(text)
        .map_err(|error| other(path, &format!("near line {} it is no configuration of a Llama model", error.line())))?;
    let plain = config.model_type == "llama"
        && config.hidden_act == "silu"
        && config.rope_scaling.is_none()
        && !config.attention_bias
        && !config.mlp_bias;
    let model = ModelSpec {
        vocab: config.vocab_size,
        d_model: config.hidden_size,
        layers: config.num_hidden_layers,
        heads: config.num_attention_heads,
        kv_heads: config.num_key_value_heads,
        ffn: config.intermediate_size,
        seq_len: config.max_position_embeddings.min(SEQ_LEN_MAX),
        tied: config.tie_word_embeddings,
        rope_theta: config.rope_theta,
        norm_eps: config.rms_norm_eps,
    };
    model_config(&model).validate().map_err(|e| other(path, &e.to_string()))?;
    let own_width = config.head_dim.is_some_and(|width| width.checked_mul(model.heads) != Some(model.d_model));
    if !plain || own_width {
        return Err(other(path, "its model is not built as Starling's are (plain Llama: silu, no biases, no scaling)"));
    }
    Ok(model)
}

/// Byte-level tokens have no file of their own; an export has one that stands for them.
fn tokenizer_of(path: &Path) -> Result<Digest, Failure> {
    let tokenizer = Tokenizer::load(&TokenizerChoice::File(path.to_path_buf()))?;
    let stands_for_bytes = std::fs::read(path).is_ok_and(|text| text == bytes_tokenizer_json().into_bytes());
    Ok(if stands_for_bytes { Tokenizer::bytes().digest() } else { tokenizer.digest() })
}

/// The parameters in the order of the schema; the file has these tensors and no others.
fn ordered(tensors: Vec<Tensor>, model: &ModelSpec) -> Result<Vec<f32>, String> {
    let expected = (model.layers as usize).saturating_mul(OF_LAYER).saturating_add(if model.tied { 2 } else { 3 });
    if tensors.len() != expected {
        return Err(format!("it has {} tensors, and a model of these sizes has {expected}", tensors.len()));
    }
    let mut tensors: BTreeMap<String, Tensor> = tensors.into_iter().map(|t| (t.name.clone(), t)).collect();
    let mut theta = Vec::new();
    for wanted in model_config(model).schema().tensors {
        let found = tensors.remove(&wanted.name).filter(|found| found.shape == wanted.shape);
        let found = found.ok_or_else(|| format!("tensor {} is missing or has another shape", wanted.name))?;
        theta.extend_from_slice(&found.values);
    }
    Ok(theta)
}

#[cfg(test)]
mod tests {
    use super::super::export::export;
    use super::super::trained::Trained;
    use super::*;

    #[test]
    fn an_exported_model_comes_back_and_others_are_refused() {
        let dir = tempfile::tempdir().expect("a folder");
        let trained = Trained::untrained();
        let folder = dir.path().join("model");
        assert!(!is_exported(&folder));
        export(&trained, &folder, false, None).expect("there is room");
        assert!(is_exported(&folder));
        let back = weights(&folder).expect("it is plain");
        assert_eq!((&back.model, &back.theta), (&trained.spec.model, &trained.theta));
        assert_eq!(back.tokenizer, Tokenizer::bytes().digest());
        assert_eq!(parameters(&folder), Some(back.theta.len() as u64));
        assert_eq!(parameters(dir.path()), None);

        let config = std::fs::read_to_string(folder.join(CONFIG_FILE)).expect("it is there");
        let positions = "\"max_position_embeddings\": 128";
        assert_eq!(config.matches(positions).count(), 1, "{config}");
        let many = config.replace(positions, "\"max_position_embeddings\": 131072");
        let many = model_of(&many, Path::new(CONFIG_FILE)).expect("it is plain");
        assert_eq!(many, ModelSpec { seq_len: SEQ_LEN_MAX, ..back.model });
        let refused = |from: &str, to: &str| {
            assert_eq!(config.matches(from).count(), 1, "{from}");
            std::fs::write(folder.join(CONFIG_FILE), config.replace(from, to)).expect("written");
            let failure = weights(&folder).err().expect("it is another");
            assert_eq!(failure.code, Code::ConfigMismatch, "{to}");
            failure.error.to_string()
        };
        let said = refused("\"silu\"", "\"gelu\"");
        assert!(said.contains("config.json: its model is not built as Starling's are"), "{said}");
        assert!(refused("\"attention_bias\": false", "\"attention_bias\": true").contains("no biases"));
        assert!(refused("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3").contains("has 29"));
        assert!(refused("\"intermediate_size\": 176", "\"intermediate_size\": 175").contains("another shape"));
        assert!(refused("\"hidden_size\"", "\"width\"").contains("no configuration of a Llama model"));
        assert!(refused("\"head_dim\": 16", "\"head_dim\": 8").contains("plain Llama"));
    }

    #[test]
    fn a_model_with_numbers_of_another_kind_is_not_called_damaged() {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = dir.path().join("model");
        export(&Trained::untrained(), &folder, false, None).expect("there is room");
        let header = br#"{"a":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}}"#;
        let file = [&(header.len() as u64).to_le_bytes()[..], header, &[0; 8]].concat();
        std::fs::write(folder.join(MODEL_FILE), file).expect("written");
        let failure = weights(&folder).err().expect("it is not read");
        let said = failure.error.to_string();
        assert!(failure.code == Code::ConfigMismatch && said.contains("float32"), "{said}");
        assert!(said.contains(MODEL_FILE) && !said.contains("damaged"), "{said}");
    }
}
