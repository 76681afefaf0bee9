//! The place of each parameter in the flat vector, under Hugging Face's names for Llama.
//!
//! Query, key and value weights of a layer are neighbours, and so are gate and up: each group is one matrix with more
//! rows, and one product computes all of it.

use crate::config::ModelConfig;
use std::ops::Range;

/// One named tensor, row-major; matrices are `[out, in]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    pub name: String,
    pub shape: Vec<usize>,
    /// First element in the flat vector.
    pub offset: usize,
    /// Elements.
    pub len: usize,
}

impl TensorSpec {
    pub fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.len
    }

    /// Weight decay applies to matrices, not to the gains of norms.
    pub fn decays(&self) -> bool {
        self.shape.len() > 1
    }
}

/// All parameters of a model, in the order of the flat vector, without gaps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schema {
    pub tensors: Vec<TensorSpec>,
}

impl ModelConfig {
    /// Names, shapes and places of the parameters in the flat vector.
    pub fn schema(&self) -> Schema {
        let (d, ffn) = (self.d_model, self.ffn);
        let kv = self.kv_heads * self.head_dim();
        let mut tensors = Vec::with_capacity(3 + 9 * self.layers);
        let mut offset = 0;
        let mut push = |name: String, shape: &[usize]| {
            let len = shape.iter().product();
            tensors.push(TensorSpec { name, shape: shape.to_vec(), offset, len });
            offset += len;
        };
        push("model.embed_tokens.weight".into(), &[self.vocab, d]);
        for layer in 0..self.layers {
            let mut push = |name: &str, shape: &[usize]| push(format!("model.layers.{layer}.{name}.weight"), shape);
            push("input_layernorm", &[d]);
            push("self_attn.q_proj", &[d, d]);
            push("self_attn.k_proj", &[kv, d]);
            push("self_attn.v_proj", &[kv, d]);
            push("self_attn.o_proj", &[d, d]);
            push("post_attention_layernorm", &[d]);
            push("mlp.gate_proj", &[ffn, d]);
            push("mlp.up_proj", &[ffn, d]);
            push("mlp.down_proj", &[d, ffn]);
        }
        push("model.norm.weight".into(), &[d]);
        if !self.tied {
            push("lm_head.weight".into(), &[self.vocab, d]);
        }
        Schema { tensors }
    }
}

impl Schema {
    /// Length of the flat vector.
    pub fn elements(&self) -> usize {
        self.tensors.last().map_or(0, |last| last.offset + last.len)
    }

    /// BLAKE3 over names and shapes: equal for two schemas exactly if their flat vectors have the same layout.
    pub fn digest(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_derive_key("starling schema v1");
        let number = |hasher: &mut blake3::Hasher, n: usize| {
            hasher.update(&(n as u64).to_le_bytes());
        };
        number(&mut hasher, self.tensors.len());
        for tensor in &self.tensors {
            number(&mut hasher, tensor.name.len());
            hasher.update(tensor.name.as_bytes());
            number(&mut hasher, tensor.shape.len());
            tensor.shape.iter().for_each(|&n| number(&mut hasher, n));
        }
        *hasher.finalize().as_bytes()
    }
}

/// The places of a model's weights in the groups that the operations take: neighbours joined.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub embed: Place,
    pub layers: Vec<LayerLayout>,
    pub norm: Place,
    /// The output projection; the embedding's place when tied.
    pub output: Place,
}

/// The place of one weight: its first element, and its shape.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub offset: usize,
    pub shape: Vec<usize>,
}

impl Place {
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    #[cfg(test)]
    pub fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.len()
    }
}

#[derive(Clone, Debug)]
pub(crate) struct LayerLayout {
    pub attention_norm: Place,
    pub qkv: Place,
    pub out: Place,
    pub mlp_norm: Place,
    pub gate_up: Place,
    pub down: Place,
}

impl Layout {
    pub fn of(config: &ModelConfig) -> Self {
        let (d, ffn) = (config.d_model, config.ffn);
        let qkv = d + 2 * config.kv_heads * config.head_dim();
        let mut offset = 0;
        let mut place = |shape: &[usize]| {
            let place = Place { offset, shape: shape.to_vec() };
            offset += place.len();
            place
        };
        let embed = place(&[config.vocab, d]);
        let layers = (0..config.layers)
            .map(|_| LayerLayout {
                attention_norm: place(&[d]),
                qkv: place(&[qkv, d]),
                out: place(&[d, d]),
                mlp_norm: place(&[d]),
                gate_up: place(&[2 * ffn, d]),
                down: place(&[d, ffn]),
            })
            .collect();
        let norm = place(&[d]);
        let output = if config.tied { embed.clone() } else { place(&[config.vocab, d]) };
        Self { embed, layers, norm, output }
    }

    /// Every place once, in the order of the flat vector.
    #[cfg(test)]
    pub fn places(&self) -> Vec<&Place> {
        let layers = self.layers.iter();
        let layers = layers.flat_map(|l| [&l.attention_norm, &l.qkv, &l.out, &l.mlp_norm, &l.gate_up, &l.down]);
        let last = (self.output != self.embed).then_some(&self.output);
        std::iter::once(&self.embed).chain(layers).chain([&self.norm]).chain(last).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_follow_each_other() {
        for tied in [true, false] {
            let config = ModelConfig { tied, kv_heads: 2, ..ModelConfig::preset("0.1m").unwrap() };
            let schema = config.schema();
            let mut next = 0;
            for tensor in &schema.tensors {
                assert_eq!((tensor.offset, tensor.len), (next, tensor.shape.iter().product()));
                next += tensor.len;
            }
            assert_eq!(schema.elements() as u64, config.parameters());
            assert_eq!(schema.tensors.iter().any(|t| t.name == "lm_head.weight"), !tied);
            let layout = Layout::of(&config);
            let places = layout.places();
            assert_eq!(places.iter().map(|p| p.len()).sum::<usize>(), schema.elements());
            assert!(places.windows(2).all(|pair| pair[0].range().end == pair[1].offset));
            let find = |name: &str| schema.tensors.iter().find(|t| t.name == name).unwrap().offset;
            assert_eq!(layout.layers[1].qkv.offset, find("model.layers.1.self_attn.q_proj.weight"));
            assert_eq!(layout.layers[1].down.offset, find("model.layers.1.mlp.down_proj.weight"));
            assert_eq!(layout.norm.offset, find("model.norm.weight"));
        }
    }

    #[test]
    fn the_digest_is_stable() {
        let digest = ModelConfig::preset("0.1m").unwrap().schema().digest();
        let hex: String = digest.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, "df9763d9e4a3da3d9e463a854761ab40fc17daa7d47c2d2ed0fe176d7b63eb4a");
        let other = ModelConfig { ffn: 175, ..ModelConfig::preset("0.1m").unwrap() };
        assert_ne!(other.schema().digest(), digest);
    }
}
