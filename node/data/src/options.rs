//! The options of a corpus.

use crate::error::DataError;
use crate::tokenizer::TokenizerChoice;

/// The source that means the default corpus: the crates in Starling's Cargo.lock, as cargo unpacked them here.
pub const CRATES_SOURCE: &str = "@crates";

/// The sources, and how they become tokens. Every option decides the manifest, except the place of the files.
#[derive(Clone, Debug, PartialEq)]
pub struct CorpusOptions {
    /// Files, folders, globs, or [`CRATES_SOURCE`]; read in this order, each source sorted by path.
    pub sources: Vec<String>,
    /// Field of a .jsonl object that holds the text.
    pub field: String,
    pub tokenizer: TokenizerChoice,
    /// Share of the text that is held out for validation, 0.001 to 0.5.
    pub holdout: f64,
    /// Bytes of text after which reading stops; `u64::MAX` for all of it.
    pub bytes_max: u64,
}

impl Default for CorpusOptions {
    fn default() -> Self {
        Self {
            sources: default_sources(),
            field: "text".to_owned(),
            tokenizer: TokenizerChoice::Bytes,
            holdout: 0.01,
            bytes_max: u64::MAX,
        }
    }
}

impl CorpusOptions {
    /// Refuses options that cannot make a corpus.
    pub fn validate(&self) -> Result<(), DataError> {
        if self.sources.is_empty() {
            return Err(DataError::NoSources);
        }
        if !(0.001..=0.5).contains(&self.holdout) {
            return Err(DataError::Holdout { share: self.holdout });
        }
        Ok(())
    }

    /// One block in this many is held out.
    pub(crate) fn holdout_every(&self) -> u64 {
        (1.0 / self.holdout).round() as u64
    }
}

/// The default corpus, which needs no download.
pub fn default_sources() -> Vec<String> {
    vec![CRATES_SOURCE.to_owned()]
}
