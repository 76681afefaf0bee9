//! `starling checkpoint export`: a model in the shape in which Hugging Face's libraries read Llama, or in the one that
//! its trainers have given it.
//!
//! The built-in model's parameters have Llama's names, shapes and places already: matrices are `[out, in]`, and element
//! i of a head turns with element i + head_dim / 2, as `transformers` has it. So nothing is permuted.

use super::brought::Named;
use super::trained::Trained;
use crate::config::model_table::model_config;
use crate::exit::{Code, Failure};
use crate::runtime::{TOKENIZER_FILE, store_failure};
use crate::watch::terminal;
use anyhow::Context;
use serde_json::{Value, json};
use starling_data::{Tokenizer, bytes_tokenizer_json};
use starling_kernels::ModelConfig;
use starling_protocol::Digest;
use starling_protocol::run::TensorType;
use starling_store::{MODEL_FILE, Model, StoreError, TensorView, abandon_export, export_folder, export_weights};
use std::collections::BTreeMap;
use std::path::Path;

/// The end of a name that asks for the weights alone.
const WEIGHTS_ALONE: &str = "safetensors";

/// The parts of an export.
struct Parts {
    tensors: Vec<Named>,
    /// Name of the weights' file.
    file: String,
    /// Small files beside it.
    beside: Vec<(String, Vec<u8>)>,
}

/// Writes the model, and says what was written.
pub fn export(trained: &Trained, output: &Path, force: bool, tokenizer: Option<&Path>) -> Result<(), Failure> {
    if output.exists() && !force {
        let why = format!(
            "{} exists already: give --force to write over the model in it, or name another place with --output",
            output.display()
        );
        return Err(Failure::message(Code::Refused, why));
    }
    let is_alone = output.extension().is_some_and(|end| end == WEIGHTS_ALONE);
    let folder = if is_alone { output.parent() } else { Some(output) };
    if let Some(what) = folder.filter(|_| output.exists()).and_then(precious) {
        let output = output.display();
        let why = format!("{output} belongs to {what}, which this would destroy: name another place with --output");
        return Err(Failure::message(Code::Refused, why));
    }
    let parts = match &trained.brought {
        Some(_) if tokenizer.is_some() => {
            let why = "the run's trainers bring the model, and its text if it has any: leave --tokenizer out";
            return Err(Failure::message(Code::Usage, why));
        }
        Some(brought) => {
            let (tensors, file, beside) = brought.export();
            Parts { tensors, file, beside }
        }
        None => of_language_model(trained, is_alone, tokenizer)?,
    };
    interruptible(output, || write(trained, &parts, output, is_alone))?;
    let (parameters, round) = (trained.theta.len(), trained.record.round);
    let what = what(&parts, is_alone, trained.spec.task.is_some());
    terminal::put(&format!("wrote {parameters} parameters of round {round} to {} ({what})\n", output.display()));
    if trained.spec.task.as_ref().is_some_and(|task| task.frozen != Digest::default()) {
        terminal::put("the model's frozen parameters are not in it: each trainer has its own copy of them\n");
    }
    Ok(())
}

/// The content of an export in words.
fn what(parts: &Parts, is_alone: bool, is_brought: bool) -> String {
    let Parts { file, beside, .. } = parts;
    match (is_alone, is_brought) {
        (true, _) => "the weights".into(),
        (false, false) => "model.safetensors, config.json and tokenizer".into(),
        (false, true) => {
            let names = std::iter::once(file.as_str()).chain(beside.iter().map(|(name, _)| name.as_str()));
            names.collect::<Vec<_>>().join(", ")
        }
    }
}

/// The built-in model.
fn of_language_model(trained: &Trained, is_alone: bool, tokenizer: Option<&Path>) -> Result<Parts, Failure> {
    let model = model_config(&trained.spec.model);
    let beside = if is_alone { Vec::new() } else { small_files(trained, &model, tokenizer)? };
    // The digest of the schema was compared, so the places are those of the parameters.
    let tensors = model.schema().tensors.into_iter();
    let tensors = tensors.map(|tensor| Named { name: tensor.name, shape: tensor.shape, dtype: TensorType::F32 });
    Ok(Parts { tensors: tensors.collect(), file: MODEL_FILE.into(), beside })
}

/// The content of a folder that nobody may write over.
fn precious(folder: &Path) -> Option<&'static str> {
    let has = |name: &str| folder.join(name).exists();
    if has("run.spec") {
        return Some("a node");
    }
    has("manifest.json").then_some("a checkpoint")
}

fn write(trained: &Trained, parts: &Parts, output: &Path, is_alone: bool) -> Result<(), StoreError> {
    let (mut rest, mut tensors) = (trained.theta.as_slice(), Vec::with_capacity(parts.tensors.len()));
    for Named { name, shape, dtype } in &parts.tensors {
        let elements = shape.iter().fold(1usize, |product, size| product.saturating_mul(*size));
        // Tensors add up to the parameters, one behind the other.
        let (values, behind) = rest.split_at(elements.min(rest.len()));
        rest = behind;
        tensors.push(TensorView { name, shape, dtype: *dtype, values });
    }
    let metadata = BTreeMap::from([
        // Libraries that read the file for PyTorch ask for it.
        ("format".to_owned(), "pt".to_owned()),
        ("run".to_owned(), trained.spec.name.clone()),
        ("round".to_owned(), trained.record.round.to_string()),
        ("record".to_owned(), trained.record.digest().to_string()),
    ]);
    let model = Model { tensors: &tensors, file: &parts.file, metadata: &metadata, beside: &parts.beside };
    if is_alone { export_weights(output, &model) } else { export_folder(output, &model) }
}

/// The files beside the weights.
fn small_files(
    trained: &Trained,
    model: &ModelConfig,
    named: Option<&Path>,
) -> Result<Vec<(String, Vec<u8>)>, Failure> {
    let (tokenizer, path) = trained.tokenizer(named)?;
    let file = match &path {
        Some(path) => std::fs::read(path).with_context(|| format!("cannot read the tokenizer {}", path.display()))?,
        None => bytes_tokenizer_json().into_bytes(),
    };
    let text = |value: Value| format!("{value:#}\n").into_bytes();
    let generation = json!({"eos_token_id": tokenizer.end(), "do_sample": true, "top_k": 40});
    Ok(vec![
        ("config.json".into(), text(config(model, &tokenizer))),
        ("generation_config.json".into(), text(generation)),
        (TOKENIZER_FILE.into(), file),
        ("tokenizer_config.json".into(), text(tokenizer_config(model))),
    ])
}

/// The sizes of the model as `LlamaConfig` names them.
fn config(model: &ModelConfig, tokenizer: &Tokenizer) -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": model.vocab,
        "hidden_size": model.d_model,
        "intermediate_size": model.ffn,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim(),
        "hidden_act": "silu",
        "max_position_embeddings": model.seq_len,
        "rms_norm_eps": model.norm_eps,
        "rope_theta": model.rope_theta,
        "rope_scaling": null,
        "attention_bias": false,
        "attention_dropout": 0.0,
        "mlp_bias": false,
        "tie_word_embeddings": model.tied,
        "initializer_range": 0.02,
        "bos_token_id": null,
        "eos_token_id": tokenizer.end(),
        "pad_token_id": null,
        "use_cache": true,
        "torch_dtype": "float32",
    })
}

fn tokenizer_config(model: &ModelConfig) -> Value {
    json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": model.seq_len,
        "clean_up_tokenization_spaces": false,
        "add_bos_token": false,
        "add_eos_token": false,
    })
}

/// Does the work; on Ctrl-C or SIGTERM it removes what is unfinished, and the program ends.
fn interruptible(output: &Path, work: impl FnOnce() -> Result<(), StoreError>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let target = output.to_path_buf();
    let watch = runtime.spawn(async move {
        crate::runtime::asked_to_leave().await;
        let left = abandon_export(&target).err().map(|e| format!("; {e}")).unwrap_or_default();
        eprintln!("starling: interrupted: nothing was exported{left}");
        std::process::exit(Code::Refused as i32);
    });
    let done = work().map_err(store_failure);
    watch.abort();
    done
}

#[cfg(test)]
mod tests {
    use super::super::brought::tests::{brought, task};
    use super::*;

    #[test]
    fn the_configuration_is_llamas() {
        let model = ModelConfig { kv_heads: 2, tied: false, ..ModelConfig::preset("0.1m").expect("a preset") };
        let shown = config(&model, &Tokenizer::bytes());
        let expected = [
            ("hidden_size", json!(64)),
            ("num_key_value_heads", json!(2)),
            ("num_attention_heads", json!(4)),
            ("head_dim", json!(16)),
            ("intermediate_size", json!(176)),
            ("max_position_embeddings", json!(128)),
            ("vocab_size", json!(256)),
            ("rms_norm_eps", json!(1e-5)),
            ("rope_theta", json!(10000.0)),
            ("tie_word_embeddings", json!(false)),
            ("eos_token_id", json!(0)),
        ];
        for (key, value) in expected {
            assert_eq!(shown[key], value, "{key}");
        }
    }

    #[test]
    fn a_model_of_trainers_is_exported_as_they_have_it() {
        let dir = tempfile::tempdir().expect("a folder");
        let trained = |files: &[(&str, &str)]| {
            let theta = vec![1.0, -3.140625, 0.1, 2.0, 3.0, 1.0 / 3.0];
            Trained::of_trainers(&task(), theta, brought(files))
        };
        let wishes = r#"{"file": "adapter_model.safetensors", "names": {"a.default.weight": "a.weight"}}"#;
        let files = [("export.json", wishes), ("adapter_config.json", "{}")];
        let folder = dir.path().join("adapter");
        export(&trained(&files), &folder, false, None).expect("there is room");
        let mut names: Vec<_> =
            std::fs::read_dir(&folder).expect("a folder").map(|entry| entry.expect("an entry").file_name()).collect();
        names.sort();
        assert_eq!(names, ["adapter_config.json", "adapter_model.safetensors"]);
        let check = |path: &Path, first: &str| {
            let bytes = std::fs::read(path).expect("it is there");
            let read = safetensors::SafeTensors::deserialize(&bytes).expect("it is whole");
            let tensor = |name: &str| read.tensor(name).expect(name);
            assert_eq!(tensor(first).data(), [0x80, 0x3f, 0x49, 0xc0]);
            let doubles = [f64::from(0.1f32), 2.0, 3.0].map(f64::to_le_bytes).concat();
            assert_eq!((tensor("b").data(), tensor("b").shape()), (doubles.as_slice(), [3usize].as_slice()));
            assert_eq!((tensor("scale").data(), tensor("scale").shape().len()), ([0x55, 0x35].as_slice(), 0));
        };
        check(&folder.join("adapter_model.safetensors"), "a.weight");
        let alone = dir.path().join("alone.safetensors");
        export(&trained(&[]), &alone, false, None).expect("there is room");
        check(&alone, "a.default.weight");

        let tokenizer = export(&trained(&[]), &dir.path().join("other"), false, Some(Path::new("tokenizer.json")));
        assert_eq!(tokenizer.expect_err("it has none").code, Code::Usage);
        let refused = trained(&[]).built_in().err().expect("it cannot be computed here");
        let said = refused.error.to_string();
        assert!(refused.code == Code::ConfigMismatch && said.contains("checkpoint export"), "{said}");
    }

    #[test]
    fn a_checkpoint_and_a_nodes_folder_are_not_written_over_whatever_the_flags() {
        let folder = tempfile::tempdir().expect("a folder");
        let trained = Trained::untrained();
        for (mark, words) in [("manifest.json", "belongs to a checkpoint"), ("run.spec", "belongs to a node")] {
            let there = folder.path().join(mark.replace('.', "-"));
            std::fs::create_dir(&there).expect("a folder");
            let weights = there.join("model.safetensors");
            for file in [&there.join(mark), &weights] {
                std::fs::write(file, b"years of work").expect("written");
            }
            for output in [&there, &weights] {
                let refused = export(&trained, output, true, None).expect_err("it would be destroyed");
                let said = refused.error.to_string();
                assert!(refused.code == Code::Refused && said.contains(words) && said.contains("--output"), "{said}");
            }
            assert_eq!(std::fs::read(&weights).expect("it is there"), b"years of work");
        }
        let fine = folder.path().join("fine");
        std::fs::create_dir(&fine).expect("a folder");
        export(&trained, &fine, true, None).expect("nothing precious is in it");
        assert!(fine.join("config.json").is_file());
    }
}
