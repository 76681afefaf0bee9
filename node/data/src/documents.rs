//! The documents of a file, streamed: only one buffer, or one line of .jsonl, is in memory.

use crate::error::DataError;
use crate::kind::{Form, Packing};
use crate::limits::{JSONL_LINE_BYTES_MAX, SNIFF_BYTES, ZSTD_WINDOW_LOG_MAX};
use crate::sources::{SourceFile, Stamp};
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use std::cell::Cell;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::ops::ControlFlow;

const BUFFER_BYTES: usize = 256 << 10;

/// Whether the sink wants more text.
pub(crate) type Flow = Result<ControlFlow<()>, DataError>;

/// Takes the text of documents piece by piece.
pub(crate) trait DocumentSink {
    /// Takes the next bytes of the document. `Break`: the sink wants no more, and has ended the document.
    fn text(&mut self, bytes: &[u8]) -> Flow;
    /// Ends the document. `cut`: only its beginning was wanted, and it may end inside a character.
    fn end(&mut self, cut: bool) -> Result<(), DataError>;
}

/// The end of reading a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Read,
    /// A search found the file, and it is not text.
    Skipped,
    /// The sink wants no more text.
    Full,
}

/// Reads one file into `sink`; `read` counts the bytes taken from disk.
pub(crate) fn read_file(
    file: &SourceFile,
    field: &str,
    read: &Cell<u64>,
    sink: &mut dyn DocumentSink,
) -> Result<Outcome, DataError> {
    let handle = File::open(&file.path).map_err(DataError::unreadable(&file.path))?;
    let counted = BufReader::with_capacity(BUFFER_BYTES, Counted { inner: &handle, read });
    let mut text = match unpacked(file.kind.packing, counted) {
        Ok(stream) => BufReader::with_capacity(BUFFER_BYTES, stream),
        Err(error) => return Err(unreadable(file, error)),
    };
    let outcome = match file.kind.form {
        Form::Text => read_text(file, &mut text, sink),
        Form::Jsonl => read_lines(file, field, &mut text, sink),
    }?;
    // The list and the fingerprint describe the file as it was listed. A changed file must not be cached under them.
    let now = handle.metadata().map_err(DataError::unreadable(&file.path))?;
    if Stamp::of(&now) != file.stamp {
        return Err(DataError::Changed { path: file.path.clone() });
    }
    Ok(outcome)
}

struct Counted<'a, R> {
    inner: R,
    read: &'a Cell<u64>,
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.inner.read(buffer)?;
        self.read.set(self.read.get() + bytes as u64);
        Ok(bytes)
    }
}

fn unpacked<'a>(packing: Packing, raw: impl BufRead + 'a) -> io::Result<Box<dyn Read + 'a>> {
    Ok(match packing {
        Packing::Plain => Box::new(raw),
        // Several members in a row are one file, as `cat a.gz b.gz` produces.
        Packing::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(raw)),
        Packing::Zstd => {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(raw)?;
            decoder.window_log_max(ZSTD_WINDOW_LOG_MAX)?;
            Box::new(decoder)
        }
    })
}

fn unreadable(file: &SourceFile, source: io::Error) -> DataError {
    let path = file.path.clone();
    match file.kind.packing {
        Packing::Plain => DataError::Unreadable { path, source },
        Packing::Gzip | Packing::Zstd => DataError::Unpack { path, source },
    }
}

/// Reads the whole file as one document.
fn read_text(file: &SourceFile, text: &mut impl Read, sink: &mut dyn DocumentSink) -> Result<Outcome, DataError> {
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut left = file.take;
    let mut filled = fill(text, &mut buffer[..SNIFF_BYTES]).map_err(|error| unreadable(file, error))?;
    if buffer[..filled].contains(&0) {
        return match file.named {
            true => Err(DataError::NotText { path: file.path.clone() }),
            false => Ok(Outcome::Skipped),
        };
    }
    while filled > 0 {
        let wanted = filled.min(usize::try_from(left).unwrap_or(usize::MAX));
        if sink.text(&buffer[..wanted])?.is_break() {
            return Ok(Outcome::Full);
        }
        left -= wanted as u64;
        if left == 0 {
            sink.end(true)?;
            return Ok(Outcome::Read);
        }
        filled = fill(text, &mut buffer).map_err(|error| unreadable(file, error))?;
    }
    sink.end(false)?;
    Ok(Outcome::Read)
}

/// Reads until `buffer` is full or the stream ends.
fn fill(stream: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match stream.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(bytes) => filled += bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Reads each line that is not blank as one document.
fn read_lines(
    file: &SourceFile,
    field: &str,
    text: &mut impl BufRead,
    sink: &mut dyn DocumentSink,
) -> Result<Outcome, DataError> {
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let mut bounded = text.take(JSONL_LINE_BYTES_MAX as u64 + 1);
        let bytes = bounded.read_until(b'\n', &mut line).map_err(|error| unreadable(file, error))?;
        if bytes == 0 {
            break;
        }
        if bytes > JSONL_LINE_BYTES_MAX {
            return Err(DataError::LineTooLong { path: file.path.clone(), line: number, max: JSONL_LINE_BYTES_MAX });
        }
        // Some editors begin a file with a byte order mark, which is no JSON.
        let json = line.strip_prefix(b"\xef\xbb\xbf").filter(|_| number == 1).unwrap_or(&line);
        if json.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let path = || file.path.clone();
        match field_of(json, field) {
            Ok(Some(document)) => {
                if sink.text(document.as_bytes())?.is_break() {
                    return Ok(Outcome::Full);
                }
                sink.end(false)?;
            }
            Ok(None) => return Err(DataError::NoField { path: path(), line: number, field: field.to_owned() }),
            Err(error) => {
                return Err(DataError::Json { path: path(), line: number, reason: plain_reason(&error) });
            }
        }
    }
    Ok(Outcome::Read)
}

/// Removes serde_json's own line number from a message: it is always 1 here, which would mislead.
fn plain_reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let reason = text.rsplit_once(" at line ").map_or(text.as_str(), |(reason, _)| reason);
    format!("{reason} (column {})", error.column())
}

/// The string under `field` of a JSON object. Other fields are only checked for syntax.
fn field_of(json: &[u8], field: &str) -> Result<Option<String>, serde_json::Error> {
    struct Field<'a>(&'a str);

    impl<'de> DeserializeSeed<'de> for Field<'_> {
        type Value = Option<String>;

        fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
            deserializer.deserialize_map(self)
        }
    }

    impl<'de> Visitor<'de> for Field<'_> {
        type Value = Option<String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "an object with a string {:?}", self.0)
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut text = None;
            while let Some(key) = map.next_key::<String>()? {
                if key == self.0 {
                    text = Some(map.next_value()?);
                } else {
                    map.next_value::<IgnoredAny>()?;
                }
            }
            Ok(text)
        }
    }

    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let text = Field(field).deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(text)
}

#[cfg(test)]
#[path = "documents_test.rs"]
mod tests;
