//! Text to tokens and back: bytes, or any Hugging Face `tokenizer.json`.

use crate::blocks::END_BYTE;
use crate::error::DataError;
use crate::limits::{TOKENIZER_BYTES_MAX, VOCAB_MAX};
use starling_protocol::Digest;
use std::convert::Infallible;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

const DIGEST_DOMAIN: &str = "starling data tokenizer v1";
/// The name of byte-level tokens in configuration, of which their digest is made.
const BYTES_NAME: &str = "bytes";

/// Names of the token that ends a document in known tokenizers; the first one present is taken.
const END_NAMES: &[&str] =
    &["<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]", "<|end▁of▁sentence|>", "[SEP]"];

/// The tokenizer of a corpus.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum TokenizerChoice {
    /// Each byte is a token.
    #[default]
    Bytes,
    /// A Hugging Face `tokenizer.json`.
    File(PathBuf),
}

impl FromStr for TokenizerChoice {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(if text == BYTES_NAME { Self::Bytes } else { Self::File(text.into()) })
    }
}

impl fmt::Display for TokenizerChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes => f.write_str(BYTES_NAME),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}

impl TokenizerChoice {
    /// The digest that [`Tokenizer::digest`] would give, without building the tokenizer.
    pub fn digest(&self) -> Result<Digest, DataError> {
        match self {
            Self::Bytes => Ok(bytes_digest()),
            Self::File(path) => Ok(Digest::of(DIGEST_DOMAIN, &[&read_bounded(path)?])),
        }
    }
}

/// Digest of byte-level tokens.
pub(crate) fn bytes_digest() -> Digest {
    Digest::of(DIGEST_DOMAIN, &[BYTES_NAME.as_bytes()])
}

/// A loaded tokenizer.
#[derive(Clone)]
pub struct Tokenizer {
    digest: Digest,
    vocab: u32,
    end: Option<u32>,
    model: Model,
}

#[derive(Clone)]
enum Model {
    Bytes,
    HuggingFace(Box<tokenizers::Tokenizer>),
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { digest, vocab, end, model: _ } = self;
        f.debug_struct("Tokenizer").field("digest", digest).field("vocab", vocab).field("end", end).finish()
    }
}

impl Tokenizer {
    /// Byte-level tokens: 256 values, 0 ends a document.
    pub fn bytes() -> Self {
        Self { digest: bytes_digest(), vocab: 256, end: Some(END_BYTE.into()), model: Model::Bytes }
    }

    /// Loads the tokenizer of choice.
    pub fn load(choice: &TokenizerChoice) -> Result<Self, DataError> {
        match choice {
            TokenizerChoice::Bytes => Ok(Self::bytes()),
            TokenizerChoice::File(path) => Self::from_file(path),
        }
    }

    /// Loads a Hugging Face `tokenizer.json`.
    ///
    /// Truncation and padding that the file may ask for are switched off. The names of special tokens in a text are
    /// read as text: only the end of a document gives the token that ends one.
    pub fn from_file(path: &Path) -> Result<Self, DataError> {
        let bytes = read_bounded(path)?;
        let refuse = |reason: String| DataError::Tokenizer { path: path.to_owned(), reason };
        let mut model = tokenizers::Tokenizer::from_bytes(&bytes)
            .map_err(|error| refuse(format!("its content is of another form{}", place_of(error.as_ref()))))?;
        model.with_padding(None);
        model.with_truncation(None).map_err(|error| refuse(error.to_string()))?;
        model.set_encode_special_tokens(true);
        // Ids may have gaps: a model needs a row for the highest one.
        let highest = model.get_vocab(true).into_values().max();
        let vocab = match highest {
            Some(id) if id < VOCAB_MAX => id + 1,
            Some(id) => return Err(refuse(format!("its token ids reach {id}; the bound is {VOCAB_MAX}"))),
            None => return Err(refuse("it has no tokens".to_owned())),
        };
        let added = model.get_added_tokens_decoder();
        let end = END_NAMES.iter().find_map(|name| {
            added.iter().find(|(_, token)| token.special && token.content == *name).map(|(&id, _)| id)
        });
        let digest = Digest::of(DIGEST_DOMAIN, &[&bytes]);
        Ok(Self { digest, vocab, end, model: Model::HuggingFace(Box::new(model)) })
    }

    /// Names the tokenizer in the run: the digest of the file's bytes, or of the constant `bytes`.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// One more than the highest token: rows of the embedding that a model needs.
    pub fn vocab(&self) -> u32 {
        self.vocab
    }

    /// The token that ends a document, if there is one.
    pub fn end(&self) -> Option<u32> {
        self.end
    }

    /// Whether each byte is a token.
    pub(crate) fn is_bytes(&self) -> bool {
        matches!(self.model, Model::Bytes)
    }

    /// Tokens of a text, without special tokens at its beginning or end.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, DataError> {
        match &self.model {
            Model::Bytes => Ok(text.bytes().map(u32::from).collect()),
            Model::HuggingFace(model) => {
                let encoding = model.encode_fast(text, false).map_err(encode_error)?;
                Ok(encoding.get_ids().to_vec())
            }
        }
    }

    /// Tokens of each text; uses all cores.
    pub(crate) fn encode_each(&self, texts: Vec<String>) -> Result<Vec<Vec<u32>>, DataError> {
        match &self.model {
            Model::Bytes => texts.iter().map(|text| self.encode(text)).collect(),
            Model::HuggingFace(model) => {
                let encodings = model.encode_batch_fast(texts, false).map_err(encode_error)?;
                Ok(encodings.iter().map(|encoding| encoding.get_ids().to_vec()).collect())
            }
        }
    }

    /// Text of tokens. Bytes that are not UTF-8, and values that are no tokens, become U+FFFD; special tokens are left
    /// out.
    pub fn decode(&self, tokens: &[u32]) -> Result<String, DataError> {
        match &self.model {
            Model::Bytes => {
                // 0xff is in no UTF-8 text.
                let bytes = tokens.iter().filter(|&&token| Some(token) != self.end);
                let bytes: Vec<u8> = bytes.map(|&token| u8::try_from(token).unwrap_or(0xff)).collect();
                Ok(String::from_utf8_lossy(&bytes).into_owned())
            }
            Model::HuggingFace(model) => model.decode(tokens, true).map_err(encode_error),
        }
    }
}

fn encode_error(error: tokenizers::Error) -> DataError {
    DataError::Encode { reason: error.to_string() }
}

/// The place of a fault in JSON, if the error names one.
fn place_of(error: &(dyn std::error::Error + Send + Sync + 'static)) -> String {
    match error.downcast_ref::<serde_json::Error>() {
        Some(error) if error.line() > 0 => format!(" at line {}, column {}", error.line(), error.column()),
        _ => String::new(),
    }
}

fn read_bounded(path: &Path) -> Result<Vec<u8>, DataError> {
    let refuse = |reason: String| DataError::Tokenizer { path: path.to_owned(), reason };
    let unreadable = |error: std::io::Error| refuse(starling_words::of(&error));
    let metadata = fs::metadata(path).map_err(unreadable)?;
    if !metadata.is_file() {
        return Err(refuse("it is not a file".to_owned()));
    }
    if metadata.len() > TOKENIZER_BYTES_MAX {
        return Err(refuse("it is larger than 128 MiB".to_owned()));
    }
    fs::read(path).map_err(unreadable)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A byte-level BPE of 256 bytes, two merges and an end token, as its `tokenizer.json`.
    pub(crate) fn byte_level_json() -> String {
        let mut extra = 256u32;
        let letters = (0..=255u8).map(|byte| match byte {
            b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
            _ => {
                extra += 1;
                char::from_u32(extra - 1).unwrap()
            }
        });
        let mut vocab: serde_json::Map<_, _> =
            letters.enumerate().map(|(id, letter)| (letter.to_string(), id.into())).collect();
        vocab.insert("th".to_owned(), 256.into());
        vocab.insert("the".to_owned(), 257.into());
        serde_json::json!({
            "version": "1.0", "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
            "padding": null,
            "added_tokens": [{"id": 300, "content": "<|endoftext|>", "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": true}],
            "normalizer": null,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
            "post_processor": null,
            "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
            "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                "vocab": vocab, "merges": [["t", "h"], ["th", "e"]]}
        })
        .to_string()
    }

    /// Writes the tokenizer above to a file in the folder.
    pub(crate) fn byte_level(folder: &Path) -> TokenizerChoice {
        let path = folder.join("tokenizer.json");
        fs::write(&path, byte_level_json()).unwrap();
        TokenizerChoice::File(path)
    }

    #[test]
    fn a_tokenizer_json_is_loaded_whole() {
        let folder = tempfile::tempdir().unwrap();
        let choice = byte_level(folder.path());
        let tokenizer = Tokenizer::load(&choice).unwrap();
        assert_eq!(tokenizer.vocab(), tokenizer.end().unwrap() + 1);
        assert_eq!(tokenizer.digest(), choice.digest().unwrap());
        assert_ne!(tokenizer.digest(), Tokenizer::bytes().digest());
        assert_eq!(tokenizer.encode("the thing").unwrap().len(), 1 + 1 + 4);
        // Truncation to 4 tokens, which the file asks for, is off; a special token's name is text.
        assert_eq!(tokenizer.encode("abcdef").unwrap().len(), 6);
        let spelled = tokenizer.encode("<|endoftext|>").unwrap();
        assert!(spelled.len() > 5 && !spelled.contains(&tokenizer.end().unwrap()));
    }

    #[test]
    fn a_file_that_is_no_tokenizer_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in
            [("empty.json", ""), ("other.json", "{\"model\": 1}"), ("cut.json", &byte_level_json()[..99])]
        {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            let error = Tokenizer::from_file(&path).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
        assert!(matches!(Tokenizer::from_file(folder.path()), Err(DataError::Tokenizer { .. })));
        let gone = Tokenizer::from_file(&folder.path().join("gone")).unwrap_err().to_string();
        assert!(gone.contains("gone cannot be used: no such file or folder; data.tokenizer"), "{gone}");
    }

    #[test]
    fn choices_are_written_as_they_are_read() {
        for text in ["bytes", "some/tokenizer.json"] {
            let choice: TokenizerChoice = text.parse().unwrap();
            assert_eq!(choice.to_string(), text);
        }
    }

    proptest! {
        #[test]
        fn decoding_gives_the_text_back(text in "\\PC{0,60}") {
            let folder = tempfile::tempdir().unwrap();
            for tokenizer in [Tokenizer::bytes(), Tokenizer::load(&byte_level(folder.path())).unwrap()] {
                let tokens = tokenizer.encode(&text).unwrap();
                prop_assert!(tokens.iter().all(|&token| token < tokenizer.vocab()));
                prop_assert_eq!(tokenizer.decode(&tokens).unwrap(), text.clone());
                prop_assert_eq!(tokenizer.encode_each(vec![text.clone()]).unwrap(), [tokens]);
            }
        }

        #[test]
        fn bytes_decode_anything(tokens in prop::collection::vec(any::<u32>(), 0..20)) {
            Tokenizer::bytes().decode(&tokens).unwrap();
        }
    }
}
