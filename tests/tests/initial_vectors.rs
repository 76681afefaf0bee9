//! Compares the schemas and initial parameters of the crate with the models with the vectors for other programs
//! (`docs/protocol/2-records.md` §2.8.2, §2.8.5).

use serde_json::Value;
use starling_kernels::{ModelConfig, initial_parameters};

const VECTORS: &str = include_str!("../../protocol/vectors/outer.json");

#[test]
fn schemas_and_initial_parameters_are_those_of_the_vectors() {
    let file: Value = serde_json::from_str(VECTORS).expect("the vectors are JSON");
    let cases = file["initial"].as_array().expect("a list of models");
    assert!(cases.len() > 1, "a tied model and another one");
    for case in cases {
        let size = |key: &str| case[key].as_u64().unwrap_or_else(|| panic!("{key} is a number")) as usize;
        let [vocab, d_model, layers, heads, kv_heads, ffn] =
            ["vocab", "d_model", "layers", "heads", "kv_heads", "ffn"].map(size);
        let tied = case["tied"].as_bool().expect("tied is said");
        let pattern = ModelConfig::preset("0.1m").expect("a preset");
        let model = ModelConfig { vocab, d_model, layers, heads, kv_heads, ffn, tied, ..pattern };
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(case["schema"]["digest"], hex(&model.schema().digest()));
        let theta = initial_parameters(&model, size("seed") as u64);
        assert_eq!(theta.len(), size("parameters"));
        let bytes: Vec<u8> = theta.iter().flat_map(|x| x.to_le_bytes()).collect();
        assert_eq!(case["theta"], hex(&bytes));
    }
}
