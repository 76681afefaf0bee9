//! The text of a new run file: keys that differ from their defaults or that are worth a change, each with a comment.

use super::answers::short;
use super::sizes::Size;
use crate::config::flock_tables::AdmissionName;
use starling_data::CRATES_SOURCE;
use toml::Value;

/// The choices that a new run file holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    pub name: String,
    /// The only node that may invite, revoke and amend the run.
    pub creator: Option<String>,
    /// The text, as the file names it.
    pub sources: Vec<String>,
    pub tokenizer: String,
    /// Bytes of text that are used, if more than the default are.
    pub bytes_max: Option<u64>,
    pub size: Size,
    pub tokens: u64,
    pub admission: AdmissionName,
    /// Node ids that a list admits.
    pub allow: Vec<String>,
}

/// The lines of a file.
struct Lines(String);

impl Lines {
    fn key(&mut self, comment: &str, key: &str, value: impl Into<Value>) {
        let value: Value = value.into();
        self.0 += &format!("# {comment}\n{key} = {value}\n");
    }

    fn table(&mut self, name: &str) {
        self.0 += &format!("\n[{name}]\n");
    }
}

/// The whole file.
pub fn text(choice: &Choice) -> String {
    let size = &choice.size;
    let mut lines = Lines(
        "# What all nodes of this run share. Every other key has its default; configs/run.toml explains them all.\n\n"
            .into(),
    );
    lines.key("Names the run, and its folder on each machine.", "name", choice.name.as_str());
    if let Some(creator) = &choice.creator {
        lines.key("The only node that may invite, revoke and change the run, for good.", "creator", creator.as_str());
    }
    lines.table("model");
    let parameters = format!("{} parameters. Other sizes: `starling new --help`.", short(size.parameters));
    lines.key(&parameters, "preset", size.preset);
    data(&mut lines, choice);
    lines.table("inner");
    lines.key("Sequences of a micro-batch: fewer take less memory.", "batch", i64::from(size.batch));
    lines.key("Micro-batches of a step.", "accumulate", i64::from(size.accumulate));
    lines.table("admission");
    let (comment, mode) = match choice.admission {
        AdmissionName::Open => ("Who may join: everybody (\"open\"); there are \"ticket\" and \"list\", too.", "open"),
        AdmissionName::Ticket => ("Who may join: holders of a ticket that the creator has signed.", "ticket"),
        AdmissionName::List => ("Who may join: the nodes that `allow` names.", "list"),
    };
    lines.key(comment, "mode", mode);
    if choice.admission == AdmissionName::List {
        let comment = "Node ids; `starling status --json` prints a node's.";
        lines.key(comment, "allow", strings(&choice.allow));
    }
    lines.table("budget");
    // The integers of TOML end there.
    let integer = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    lines.key("The run ends after so many tokens of all nodes together.", "tokens", integer(choice.tokens));
    lines.0
}

fn data(lines: &mut Lines, choice: &Choice) {
    lines.table("data");
    if choice.sources == [CRATES_SOURCE] {
        let comment = "Files, folders or globs. Empty: the sources of the crates that Starling is built from.";
        lines.key(comment, "sources", strings(&[]));
    } else {
        lines.key("Files, folders or globs; relative paths count from this file.", "sources", strings(&choice.sources));
    }
    let comment = "\"bytes\", or the path of a Hugging Face tokenizer.json.";
    lines.key(comment, "tokenizer", choice.tokenizer.as_str());
    if let Some(bytes) = choice.bytes_max {
        let comment = "Text beyond this many bytes is not used.";
        lines.key(comment, "bytes_max", i64::try_from(bytes).unwrap_or(i64::MAX));
    }
}

fn strings(list: &[String]) -> Value {
    Value::Array(list.iter().map(|text| Value::from(text.as_str())).collect())
}

#[cfg(test)]
mod tests {
    use super::super::sizes;
    use super::*;
    use crate::config::run_file::RunFile;
    use starling_protocol::run::{AdmissionMode, DataSpec, RunSpec};
    use starling_protocol::{Digest, NodeId};
    use std::path::Path;

    fn id(byte: u8) -> String {
        NodeId([byte; 32]).to_string()
    }

    fn choice(size: Size, admission: AdmissionName) -> Choice {
        Choice {
            name: "our-run".into(),
            creator: (admission == AdmissionName::Ticket).then(|| id(7)),
            sources: vec!["a \"quoted\" folder".into(), "it's/*.txt".into()],
            tokenizer: "bytes".into(),
            bytes_max: Some(100 << 20),
            size,
            tokens: size.tokens(u64::MAX),
            admission,
            allow: if admission == AdmissionName::List { vec![id(9), id(2)] } else { Vec::new() },
        }
    }

    fn read(choice: &Choice) -> (RunFile, RunSpec) {
        let text = text(choice);
        let file =
            RunFile::parse(&text, Path::new("RUN.toml")).unwrap_or_else(|failure| panic!("{}\n{text}", failure.error));
        let data = DataSpec { manifest: Digest::of("test", &[]), tokenizer: Digest::of("test", &[]) };
        let spec = file.spec(data, 256).unwrap_or_else(|failure| panic!("{}\n{text}", failure.error));
        (file, spec)
    }

    #[test]
    fn each_preset_and_each_way_to_join_is_read_back_as_it_was_chosen() {
        for size in sizes::all(256, None).expect("the presets are sound") {
            for (admission, mode) in [
                (AdmissionName::Open, AdmissionMode::Open),
                (AdmissionName::Ticket, AdmissionMode::Ticket),
                (AdmissionName::List, AdmissionMode::List),
            ] {
                let choice = choice(size, admission);
                let (file, spec) = read(&choice);
                assert_eq!((file.name.as_str(), file.model.preset.as_str()), ("our-run", size.preset));
                assert_eq!((&file.data.sources, file.data.bytes_max), (&choice.sources, 100 << 20));
                assert_eq!(file.data.tokenizer, "bytes");
                assert_eq!(spec.model.parameters(), size.parameters);
                assert_eq!((spec.inner.batch, spec.inner.accumulate), (size.batch, size.accumulate));
                assert_eq!((spec.budget.tokens, spec.budget.rounds), (choice.tokens, 0));
                assert!(spec.sync.gap_max > 0, "the flock chooses its steps");
                assert_eq!(spec.admission.mode, mode);
                assert_eq!(spec.creator.map(|creator| creator.to_string()), choice.creator);
                let allowed: Vec<_> = spec.admission.allow.iter().map(NodeId::to_string).collect();
                let expected = if mode == AdmissionMode::List { vec![id(2), id(9)] } else { Vec::new() };
                assert_eq!(allowed, expected);
            }
        }
    }

    #[test]
    fn the_default_corpus_is_an_empty_list() {
        let size = sizes::all(256, None).expect("the presets are sound")[0];
        let sources = vec![CRATES_SOURCE.into()];
        let (file, _) = read(&Choice { sources, bytes_max: None, ..choice(size, AdmissionName::Open) });
        assert_eq!((file.data.sources.len(), file.data.bytes_max), (0, 64 << 20));
    }

    #[test]
    fn every_key_has_a_comment_and_the_file_is_short() {
        let size = sizes::all(256, None).expect("the presets are sound")[3];
        let text = text(&choice(size, AdmissionName::List));
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.len() <= 40, "{text}");
        for pair in lines.windows(2).filter(|pair| !pair[1].starts_with('#') && pair[1].contains(" = ")) {
            assert!(pair[0].starts_with("# "), "{} has no comment:\n{text}", pair[1]);
        }
    }
}
