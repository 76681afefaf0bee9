use super::*;
use crate::kind::FileKind;
use std::fs;
use std::io::Write;
use std::path::Path;

/// Collects documents; full after `max` bytes.
struct Collected {
    documents: Vec<Vec<u8>>,
    open: Vec<u8>,
    left: usize,
    cut: bool,
}

impl DocumentSink for Collected {
    fn text(&mut self, bytes: &[u8]) -> Flow {
        let taken = bytes.len().min(self.left);
        self.open.extend_from_slice(&bytes[..taken]);
        self.left -= taken;
        if self.left == 0 {
            self.end(true)?;
            return Ok(ControlFlow::Break(()));
        }
        Ok(ControlFlow::Continue(()))
    }

    fn end(&mut self, cut: bool) -> Result<(), DataError> {
        self.cut |= cut;
        self.documents.push(std::mem::take(&mut self.open));
        Ok(())
    }
}

fn source(path: &Path) -> SourceFile {
    let stamp = Stamp::of(&fs::metadata(path).unwrap());
    SourceFile { path: path.to_owned(), kind: FileKind::of_named(path), stamp, take: u64::MAX, named: true }
}

fn read(file: &SourceFile, max: usize) -> (Result<Outcome, DataError>, Collected, u64) {
    let mut sink = Collected { documents: Vec::new(), open: Vec::new(), left: max, cut: false };
    let count = Cell::new(0);
    (read_file(file, "text", &count, &mut sink), sink, count.get())
}

fn write(folder: &tempfile::TempDir, name: &str, bytes: &[u8]) -> SourceFile {
    let path = folder.path().join(name);
    fs::write(&path, bytes).unwrap();
    source(&path)
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn every_packing_gives_the_same_document() {
    let folder = tempfile::tempdir().unwrap();
    let text: Vec<u8> = (0..700_000u32).map(|i| b'a' + (i % 23) as u8).collect();
    let members = [gzip(&text[..300_000]), gzip(&text[300_000..])].concat();
    let frames = [zstd::encode_all(&text[..9], 1).unwrap(), zstd::encode_all(&text[9..], 1).unwrap()].concat();
    for (name, bytes) in [("a.txt", text.clone()), ("a.txt.gz", members), ("a.zst", frames)] {
        let file = write(&folder, name, &bytes);
        let (outcome, sink, count) = read(&file, usize::MAX);
        assert_eq!(outcome.unwrap(), Outcome::Read);
        assert_eq!(count, bytes.len() as u64, "{name}");
        assert!(sink.documents == [text.clone()], "{name}");
    }
}

#[test]
fn damaged_packings_name_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let text = vec![b'x'; 100_000];
    let (gz, zst) = (gzip(&text), zstd::encode_all(&text[..], 1).unwrap());
    let cases = [
        ("cut.gz", gz[..gz.len() - 9].to_vec()),
        ("cut.zst", zst[..zst.len() - 1].to_vec()),
        ("not.gz", text.clone()),
        ("not.zst", text.clone()),
    ];
    for (name, bytes) in cases {
        let (outcome, ..) = read(&write(&folder, name, &bytes), usize::MAX);
        let error = outcome.unwrap_err();
        assert!(matches!(error, DataError::Unpack { .. }) && error.to_string().contains(name), "{error}");
    }
}

#[test]
fn a_bomb_stops_where_the_sink_is_full() {
    let folder = tempfile::tempdir().unwrap();
    let bomb = zstd::encode_all(io::repeat(b'x').take(256 << 20), 1).unwrap();
    assert!(bomb.len() < 64 << 10);
    let (outcome, sink, _) = read(&write(&folder, "bomb.zst", &bomb), 100_000);
    assert_eq!(outcome.unwrap(), Outcome::Full);
    assert_eq!(sink.documents, [vec![b'x'; 100_000]]);
}

#[test]
fn a_window_above_the_bound_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    // Only a frame header: magic, descriptor without size, window of 2^(10 + 21) bytes.
    let frame = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 21 << 3, 0x01, 0x00, 0x00];
    let (outcome, ..) = read(&write(&folder, "wide.zst", &frame), usize::MAX);
    let error = outcome.unwrap_err().to_string();
    assert!(error.contains("memory") || error.contains("window"), "{error}");
}

#[test]
fn lines_of_jsonl_are_documents() {
    let folder = tempfile::tempdir().unwrap();
    let lines =
        "\u{feff}{\"text\": \"a\\nb\", \"x\": [1, {\"text\": 2}]}\r\n\n  \n{\"id\":1,\"text\":\"\"}\n{\"text\":\"c\"}";
    let (outcome, sink, _) = read(&write(&folder, "a.jsonl", lines.as_bytes()), usize::MAX);
    assert_eq!(outcome.unwrap(), Outcome::Read);
    assert_eq!(sink.documents, [b"a\nb".to_vec(), Vec::new(), b"c".to_vec()]);
}

#[test]
fn bad_lines_are_named_by_number() {
    let folder = tempfile::tempdir().unwrap();
    let nested = format!("{{\"x\":{}", "[".repeat(100_000));
    let cases: [&[u8]; 7] = [
        b"{\"text\": \"a\"",
        b"[1]",
        b"{\"text\": 1}",
        b"{\"other\": \"a\"}",
        b"{\"text\": \"\\ud800\"}",
        b"{\"text\": \"\xff\"}",
        nested.as_bytes(),
    ];
    for case in cases {
        let bytes = [b"{\"text\":\"ok\"}\n", case].concat();
        let (outcome, ..) = read(&write(&folder, "a.jsonl", &bytes), usize::MAX);
        let error = outcome.unwrap_err().to_string();
        assert!(error.contains("a.jsonl:2:"), "{error}");
        assert!(!error.contains("at line"), "{error}");
    }
}

#[test]
fn a_line_without_end_is_refused_at_the_bound() {
    let folder = tempfile::tempdir().unwrap();
    let head = b"{\"text\":\"".chain(io::repeat(b'x').take(JSONL_LINE_BYTES_MAX as u64));
    let file = write(&folder, "a.jsonl.zst", &zstd::encode_all(head, 1).unwrap());
    let (outcome, ..) = read(&file, usize::MAX);
    assert!(matches!(outcome, Err(DataError::LineTooLong { line: 1, .. })));
}

#[test]
fn a_file_that_is_not_text_is_an_error_if_named_and_skipped_if_found() {
    let folder = tempfile::tempdir().unwrap();
    let mut file = write(&folder, "a.txt", b"PK\0\0");
    assert!(matches!(read(&file, usize::MAX).0, Err(DataError::NotText { .. })));
    file.named = false;
    assert_eq!(read(&file, usize::MAX).0.unwrap(), Outcome::Skipped);
}

#[test]
fn a_file_that_changed_since_it_was_listed_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(&folder, "a.txt", b"before");
    fs::write(&file.path, "after it was listed").unwrap();
    assert!(matches!(read(&file, usize::MAX).0, Err(DataError::Changed { .. })));
}

#[test]
fn only_the_wanted_beginning_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let mut file = write(&folder, "a.txt", &[b'x'; 20_000]);
    file.take = 10_000;
    let (outcome, sink, _) = read(&file, usize::MAX);
    assert_eq!(outcome.unwrap(), Outcome::Read);
    assert!(sink.cut && sink.documents == [vec![b'x'; 10_000]]);
}
