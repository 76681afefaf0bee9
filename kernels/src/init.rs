//! The parameters that every run starts from: the same bits on every machine, from integers and exact operations only.

use crate::config::ModelConfig;

/// Standard deviation of weights, as GPT-2 has it.
const DEVIATION: f64 = 0.02;

/// Initial parameters for `seed`, in the order of the schema.
///
/// Gains are one. Weights are nearly normal with deviation 0.02: the sum of four uniform numbers of 16 bits (which ends
/// at 3.46 deviations). The projections back onto the residual stream are smaller by `sqrt(2 * layers)`, so that its
/// size does not grow with depth. Number `i` of the vector depends on `seed` and `i` alone.
pub fn initial_parameters(config: &ModelConfig, seed: u64) -> Vec<f32> {
    let schema = config.schema();
    let mut out = Vec::with_capacity(schema.elements());
    // Variance of a uniform integer below 2^16 is (2^32 - 1) / 12; of the sum of four, a third of 2^32 - 1.
    let unit = ((f64::from(u32::MAX)) / 3.0).sqrt();
    for tensor in &schema.tensors {
        if !tensor.decays() {
            out.resize(tensor.range().end, 1.0);
            continue;
        }
        let residual = tensor.name.ends_with("o_proj.weight") || tensor.name.ends_with("down_proj.weight");
        let shrink = if residual { (2.0 * config.layers as f64).sqrt() } else { 1.0 };
        let scale = (DEVIATION / shrink / unit) as f32;
        out.extend(tensor.range().map(|i| near_normal(random(seed, i as u64)) as f32 * scale));
    }
    out
}

/// The `index`-th number of SplitMix64 (Steele et al., 2014) started at a scrambled `seed`.
fn random(seed: u64, index: u64) -> u64 {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |mut z: u64| {
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    mix(mix(seed.wrapping_add(GOLDEN)).wrapping_add(index.wrapping_add(1).wrapping_mul(GOLDEN)))
}

/// Sum of the four 16-bit parts, less its mean: an integer below 2^18, exact in f32.
fn near_normal(bits: u64) -> i32 {
    let part = |i: u32| ((bits >> (16 * i)) & 0xffff) as i32;
    part(0) + part(1) + part(2) + part(3) - 2 * 0xffff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_normal_and_depends_on_the_seed() {
        let config = ModelConfig::preset("1m").unwrap();
        let theta = initial_parameters(&config, 1);
        assert_eq!(theta.len() as u64, config.parameters());
        let schema = config.schema();
        let spread = |name: &str| {
            let tensor = schema.tensors.iter().find(|t| t.name.ends_with(name)).unwrap();
            let values = &theta[tensor.range()];
            let mean = values.iter().sum::<f32>() / values.len() as f32;
            let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / values.len() as f32;
            assert!(mean.abs() < 1e-3, "{name}: mean {mean}");
            variance.sqrt()
        };
        assert!((spread("q_proj.weight") - 0.02).abs() < 5e-4);
        assert!((spread("down_proj.weight") - 0.02 / 10f32.sqrt()).abs() < 5e-4);
        assert_ne!(theta, initial_parameters(&config, 2));
    }

    #[test]
    fn the_bits_are_stable() {
        let theta = initial_parameters(&ModelConfig::preset("0.1m").unwrap(), 7);
        let bytes: Vec<u8> = theta.iter().flat_map(|x| x.to_le_bytes()).collect();
        let digest = blake3::hash(&bytes).to_hex();
        assert_eq!(digest.as_str(), "def290bce6474848929023d6a6f71ab9481bdd3fb308f43c33e223b61dd8bdd9");
    }
}
