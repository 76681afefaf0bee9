//! The file of the run's tokenizer. It goes into checkpoints, and lies in the node's folder for those who use the
//! model.

use super::origin::RunSource;
use crate::exit::Failure;
use anyhow::Context;
use std::path::Path;

/// Its name in checkpoints, in the node's folder and in exported models.
pub const TOKENIZER_FILE: &str = "tokenizer.json";

/// The tokenizer's file by name, if the run has one here: none for byte-level tokens, and for a node that came by
/// ticket. Leaves a copy in the node's folder.
pub fn tokenizer_file(run: &RunSource, home: &Path) -> Result<Vec<(String, Vec<u8>)>, Failure> {
    let RunSource::File(file) = run else { return Ok(Vec::new()) };
    if file.data.tokenizer == "bytes" {
        return Ok(Vec::new());
    }
    let bytes = std::fs::read(&file.data.tokenizer).context("cannot read the tokenizer again")?;
    if let Err(e) = copy(&bytes, home) {
        let (home, why) = (home.display(), starling_words::of(&e));
        tracing::warn!("no copy of the tokenizer in {home}: {why}; `starling generate --home` needs --tokenizer");
    }
    Ok(vec![(TOKENIZER_FILE.into(), bytes)])
}

/// A reader finds the whole file or none.
fn copy(bytes: &[u8], home: &Path) -> std::io::Result<()> {
    let target = home.join(TOKENIZER_FILE);
    if std::fs::read(&target).is_ok_and(|there| there == bytes) {
        return Ok(());
    }
    let unfinished = home.join(format!(".{TOKENIZER_FILE}.new"));
    std::fs::write(&unfinished, bytes)?;
    std::fs::rename(&unfinished, &target)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::run_file::RunFile;

    #[test]
    fn a_file_is_copied_and_bytes_have_none() {
        let dir = tempfile::tempdir().expect("a folder");
        let run = dir.path().join("run.toml");
        let origin = |tokenizer: &str| {
            let text = format!("name = \"sized\"\n[data]\ntokenizer = \"{tokenizer}\"\n");
            std::fs::write(&run, text).expect("it may be written");
            RunSource::File(Box::new(RunFile::load(&run).expect("it is sound")))
        };
        let home = dir.path().join("home");
        std::fs::create_dir(&home).expect("a folder");
        assert!(tokenizer_file(&origin("bytes"), &home).expect("none is needed").is_empty());
        assert!(tokenizer_file(&origin("mine.json"), &home).is_err(), "it is not there");
        std::fs::write(dir.path().join("mine.json"), b"{}").expect("it may be written");
        for _ in 0..2 {
            let files = tokenizer_file(&origin("mine.json"), &home).expect("it is there");
            assert_eq!(files, [("tokenizer.json".to_owned(), b"{}".to_vec())]);
            assert_eq!(std::fs::read(home.join(TOKENIZER_FILE)).expect("a copy"), b"{}");
        }
        assert_eq!(std::fs::read_dir(&home).expect("a folder").count(), 1);
    }
}
