//! The tokens of a text in their order, for a model that is to be measured on it: nothing is held out or kept.

use crate::blocks::{Block, BlockBuilder};
use crate::documents::{DocumentSink, Flow, Outcome, read_file};
use crate::error::DataError;
use crate::sources;
use crate::tokenizer::Tokenizer;
use std::cell::Cell;
use std::ops::ControlFlow;

/// A text as a model reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlainText {
    /// Each document ends with the tokenizer's end token, if there is one.
    pub tokens: Vec<u32>,
    /// Bytes of the text, and one for each end token: as the manifest of a data set counts them.
    pub bytes: u64,
    pub documents: u64,
    /// The text goes on after the bytes that were wanted.
    pub is_cut: bool,
}

/// Reads files, folders or globs as [`crate::prepare()`] does, up to so many bytes of text.
///
/// # Errors
/// As there. A text without two tokens is [`DataError::Empty`].
pub fn plain_text(
    sources: &[String],
    field: &str,
    tokenizer: &Tokenizer,
    bytes_max: u64,
) -> Result<PlainText, DataError> {
    let files = sources::list(sources, &mut |_| {})?;
    let mut intake =
        Intake { tokenizer, left: bytes_max, builder: BlockBuilder::default(), text: PlainText::default() };
    for file in &files {
        if read_file(file, field, &Cell::new(0), &mut intake)? == Outcome::Full {
            break;
        }
    }
    let text = intake.finish()?;
    if text.tokens.len() < 2 { Err(DataError::Empty { files: files.len() }) } else { Ok(text) }
}

struct Intake<'a> {
    tokenizer: &'a Tokenizer,
    /// Bytes of text still wanted.
    left: u64,
    builder: BlockBuilder,
    text: PlainText,
}

impl DocumentSink for Intake<'_> {
    fn text(&mut self, bytes: &[u8]) -> Flow {
        let wanted = bytes.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        self.builder.push(&bytes[..wanted]);
        self.left -= wanted as u64;
        self.take_blocks()?;
        if wanted < bytes.len() {
            self.text.is_cut = true;
            self.end(true)?;
            return Ok(ControlFlow::Break(()));
        }
        Ok(ControlFlow::Continue(()))
    }

    fn end(&mut self, cut: bool) -> Result<(), DataError> {
        if self.builder.end_document(cut) {
            self.text.documents += 1;
        }
        self.take_blocks()
    }
}

impl Intake<'_> {
    fn take_blocks(&mut self) -> Result<(), DataError> {
        while let Some(block) = self.builder.pop() {
            self.take(&block)?;
        }
        Ok(())
    }

    fn take(&mut self, block: &Block) -> Result<(), DataError> {
        let end = self.tokenizer.end();
        self.text.bytes += block.text.len() as u64;
        for (segment, ended) in block.segments() {
            if self.tokenizer.is_bytes() {
                self.text.tokens.extend(segment.iter().map(|byte| u32::from(*byte)));
            } else {
                self.text.tokens.extend(self.tokenizer.encode(&String::from_utf8_lossy(segment))?);
            }
            if let Some(end) = end.filter(|_| ended) {
                self.text.tokens.push(end);
                self.text.bytes += 1;
            }
        }
        Ok(())
    }

    fn finish(mut self) -> Result<PlainText, DataError> {
        for block in std::mem::take(&mut self.builder).finish() {
            self.take(&block)?;
        }
        Ok(self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(sources: &[&std::path::Path], bytes_max: u64) -> Result<PlainText, DataError> {
        let sources: Vec<String> = sources.iter().map(|path| path.to_string_lossy().into_owned()).collect();
        plain_text(&sources, "text", &Tokenizer::bytes(), bytes_max)
    }

    #[test]
    fn documents_follow_one_another_and_each_has_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a.txt"), dir.path().join("b.jsonl"));
        std::fs::write(&a, "one\n").unwrap();
        std::fs::write(&b, "{\"text\": \"two\"}\n{\"text\": \"three\"}\n").unwrap();
        let whole: Vec<u32> = b"one\n\0two\0three\0".iter().map(|byte| u32::from(*byte)).collect();
        let text = read(&[dir.path()], u64::MAX).unwrap();
        assert_eq!(text, PlainText { tokens: whole.clone(), bytes: 15, documents: 3, is_cut: false });
        assert_eq!(read(&[&a, &b], u64::MAX).unwrap(), text);
        let cut = read(&[dir.path()], 6).unwrap();
        assert_eq!((&cut.tokens[..7], cut.bytes, cut.is_cut), (b"one\n\0tw".map(u32::from).as_slice(), 8, true));
        // All bytes that were wanted are all that there are.
        assert!(!read(&[&a], 4).unwrap().is_cut);
    }

    #[test]
    fn a_long_text_is_read_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("long.txt");
        let text: String = (0..40_000).map(|n| format!("line {n}\n")).collect();
        std::fs::write(&path, &text).unwrap();
        let read = read(&[&path], u64::MAX).unwrap();
        let bytes: Vec<u8> = read.tokens.iter().map(|token| *token as u8).collect();
        assert_eq!(bytes, [text.as_bytes(), b"\0"].concat());
    }

    #[test]
    fn a_text_without_two_tokens_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("empty.txt");
        std::fs::write(&path, "").unwrap();
        assert!(matches!(read(&[&path], u64::MAX), Err(DataError::Empty { files: 1 })));
        assert!(matches!(read(&[&dir.path().join("none.txt")], u64::MAX), Err(DataError::NotFound { .. })));
    }
}
