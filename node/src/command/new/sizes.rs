//! The sizes of models that a machine has the memory for, and the settings that follow from a size.

use crate::config::run_file::RunFile;
use crate::exit::{Code, Failure};
use crate::runtime::{MemoryNeed, Trains};
use starling_kernels::ModelConfig;
use starling_protocol::Digest;
use starling_protocol::run::{DataSpec, RunSpec};
use std::path::Path;

/// Sequences of an inner step. A machine with little memory takes them in several micro-batches.
const SEQUENCES: u32 = 8;
/// Tokens for each parameter, with which a model of a given cost learns most.
const TOKENS_A_PARAMETER: u64 = 20;
/// Bytes of text for a token of a tokenizer that is not of bytes: an estimate.
const BYTES_A_TOKEN: u64 = 4;

/// A preset, as this machine would train it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Size {
    pub preset: &'static str,
    pub parameters: u64,
    /// Sequences of a micro-batch, and micro-batches of a step.
    pub batch: u32,
    pub accumulate: u32,
    /// Bytes of memory that a node takes, as a start estimates them.
    pub memory: u64,
    /// Whether they are available on this machine.
    pub fits: bool,
}

impl Size {
    /// The tokens that suit the model, as far as the text has them.
    pub fn tokens(&self, of_text: u64) -> u64 {
        self.parameters.saturating_mul(TOKENS_A_PARAMETER).min(of_text).max(1)
    }
}

/// All presets from small to large, for a vocabulary and so many bytes of memory; none if the system does not tell.
pub fn all(vocab: u32, available: Option<u64>) -> Result<Vec<Size>, Failure> {
    ModelConfig::preset_names().map(|preset| size(preset, vocab, available)).collect()
}

/// The largest that fits into the memory and for which there is enough text. If none is, the smallest.
pub fn largest(sizes: &[Size], of_text: u64) -> Option<&Size> {
    let suits = |size: &&Size| size.fits && size.tokens(u64::MAX) <= of_text;
    sizes.iter().rfind(suits).or(sizes.first())
}

/// Tokens that a node trains on of a text of so many bytes.
pub fn text_tokens(bytes: u64, by_bytes: bool, holdout: f64) -> u64 {
    let tokens = if by_bytes { bytes } else { bytes / BYTES_A_TOKEN };
    (tokens as f64 * (1.0 - holdout)) as u64
}

/// Bytes of text in which there are so many tokens, those that are held out besides.
pub fn bytes_of(tokens: u64, by_bytes: bool, holdout: f64) -> u64 {
    let bytes = if by_bytes { tokens } else { tokens.saturating_mul(BYTES_A_TOKEN) };
    (bytes as f64 / (1.0 - holdout)).ceil() as u64
}

/// The preset with the largest micro-batch that fits; if none does, with the largest there is.
fn size(preset: &'static str, vocab: u32, available: Option<u64>) -> Result<Size, Failure> {
    let mut whole = None;
    for batch in [SEQUENCES, SEQUENCES / 2, SEQUENCES / 4, SEQUENCES / 8] {
        let spec = spec(preset, batch, vocab)?;
        let memory = MemoryNeed::of_run(&spec, 0, Trains::Here).total();
        let parameters = spec.model.parameters();
        let size = Size {
            preset,
            parameters,
            batch,
            accumulate: SEQUENCES / batch,
            memory,
            fits: available.is_none_or(|available| memory <= available),
        };
        if size.fits {
            return Ok(size);
        }
        whole = whole.or(Some(size));
    }
    whole.ok_or_else(|| Failure::message(Code::Refused, "no size fits: this is a bug; report it"))
}

/// The specification of a run with this preset, and the defaults besides.
fn spec(preset: &str, batch: u32, vocab: u32) -> Result<RunSpec, Failure> {
    let text = format!(
        "name = \"size\"\n[model]\npreset = \"{preset}\"\n[inner]\nbatch = {batch}\naccumulate = {}\n",
        SEQUENCES / batch
    );
    let data = DataSpec { manifest: Digest::default(), tokenizer: Digest::default() };
    RunFile::parse(&text, Path::new("RUN.toml"))?.spec(data, vocab)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: u64 = u64::MAX;

    fn sizes(available: u64) -> Vec<Size> {
        all(256, Some(available)).expect("the presets are sound")
    }

    #[test]
    fn a_size_that_fits_takes_no_more_than_there_is() {
        let roomy = sizes(ALL);
        assert_eq!(roomy.len(), ModelConfig::preset_names().count());
        assert!(roomy.iter().all(|size| size.fits && size.batch == 8 && size.accumulate == 1), "{roomy:?}");
        assert!(roomy.windows(2).all(|pair| pair[0].memory < pair[1].memory));
        // With a little less the same model is trained in smaller micro-batches, which make the same steps.
        let whole = roomy[5];
        let tight = sizes(whole.memory - 1)[5];
        assert!(tight.fits && tight.memory < whole.memory && tight.batch * tight.accumulate == 8, "{tight:?}");
        assert!(sizes(0).iter().all(|size| !size.fits && size.batch == 8));
        assert!(all(256, None).expect("sound").iter().all(|size| size.fits), "a system that does not tell");
    }

    #[test]
    fn the_largest_has_memory_and_text() {
        let preset = |available, of_text| largest(&sizes(available), of_text).map(|size| size.preset);
        assert_eq!(preset(ALL, ALL), Some("1b"));
        assert_eq!(preset(ALL, 64 << 20), Some("3m"));
        assert_eq!(preset(sizes(ALL)[1].memory, ALL), Some("1m"));
        assert_eq!((preset(0, ALL), preset(ALL, 0)), (Some("0.1m"), Some("0.1m")), "the smallest, if none suits");
    }

    #[test]
    fn tokens_follow_the_parameters_as_far_as_there_is_text() {
        let size = sizes(ALL)[1];
        assert_eq!(size.tokens(ALL), 20 * size.parameters);
        assert_eq!((size.tokens(1000), size.tokens(0)), (1000, 1));
        assert_eq!((text_tokens(1000, true, 0.01), text_tokens(1000, false, 0.01)), (990, 247));
        for by_bytes in [true, false] {
            let bytes = bytes_of(1_000_000, by_bytes, 0.01);
            assert!(text_tokens(bytes, by_bytes, 0.01).abs_diff(1_000_000) <= 1);
        }
    }
}
