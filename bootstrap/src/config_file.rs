//! TOML files with helpful errors: they name the file, the line and the key, and say what to write there. Unknown keys
//! are refused with the nearest right one.
//!
//! A silently ignored key is a setting that its writer believes in. So every structure that is parsed here carries
//! `#[serde(deny_unknown_fields)]`.

mod keys;
mod words;

use serde::de::DeserializeOwned;
use std::io::Read;
use std::path::{Path, PathBuf};

pub use keys::line_of_key;

/// Bytes of a configuration file.
pub const CONFIG_BYTES_MAX: u64 = 1 << 20;

/// The reason why a configuration file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read {}: {}; check the path", path.display(), starling_words::of(source))]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[error("{} is larger than {CONFIG_BYTES_MAX} bytes: is it a configuration file?", path.display())]
    TooLarge { path: PathBuf },
    #[error("{}: unknown key `{key}` at line {line}; {hint}", path.display())]
    UnknownKey { path: PathBuf, key: String, line: usize, hint: String },
    #[error("{}: {}the key `{key}` is missing; write {example}", path.display(), place(*line))]
    MissingKey { path: PathBuf, key: String, line: Option<usize>, example: String },
    #[error("{}: line {line}: {message}", path.display())]
    Invalid { path: PathBuf, line: usize, message: String },
}

/// Reads and parses the file at `path`.
pub fn load<T: DeserializeOwned>(path: &Path) -> Result<T, ConfigError> {
    parse(&read(path)?, path)
}

/// Reads a text file of at most [`CONFIG_BYTES_MAX`] bytes.
pub fn read(path: &Path) -> Result<String, ConfigError> {
    let unreadable = |source| ConfigError::Unreadable { path: path.to_path_buf(), source };
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(unreadable)?;
    file.take(CONFIG_BYTES_MAX + 1).read_to_string(&mut text).map_err(unreadable)?;
    if text.len() as u64 > CONFIG_BYTES_MAX {
        return Err(ConfigError::TooLarge { path: path.to_path_buf() });
    }
    Ok(text)
}

/// Parses the `text` of the file at `path`; the path is for messages only.
pub fn parse<T: DeserializeOwned>(text: &str, path: &Path) -> Result<T, ConfigError> {
    parse_with(text, path, &[])
}

/// The same for a file with keys that must be there: the message for a missing one, such as `inner.steps`, gives its
/// example.
pub fn parse_with<T: DeserializeOwned>(text: &str, path: &Path, examples: &[(&str, &str)]) -> Result<T, ConfigError> {
    toml::from_str(text).map_err(|error| refusal(&error, text, path, examples))
}

fn refusal(error: &toml::de::Error, text: &str, path: &Path, examples: &[(&str, &str)]) -> ConfigError {
    let (path, message, within) = (path.to_path_buf(), error.message(), words::key_of(error));
    let line = error.span().map_or(1, |span| line_of(text, span.start));
    if let Some(UnknownKey { key, hint }) = UnknownKey::of(message) {
        return ConfigError::UnknownKey { path, key, line, hint };
    }
    if let Some(missing) = words::missing(message) {
        let key = within.as_ref().map_or_else(|| missing.to_owned(), |table| format!("{table}.{missing}"));
        let example = examples.iter().find(|(of, _)| *of == key).map(|(_, example)| (*example).to_owned());
        let example = example.unwrap_or_else(|| format!("`{missing} = ...`"));
        // The span of the top of a file is all of it.
        return ConfigError::MissingKey { path, key, line: within.map(|_| line), example };
    }
    let key = within.unwrap_or_default();
    let message = match words::unknown_value(message) {
        Some((value, known)) => format!("{key} = \"{value}\" is not known: {}", value_hint(value, &known)),
        None => words::plain(message, &key),
    };
    ConfigError::Invalid { path, line, message }
}

/// The beginning of a message about a line, if the line is known.
fn place(line: Option<usize>) -> String {
    line.map(|line| format!("line {line}: ")).unwrap_or_default()
}

/// Advice in place of a value that is none of `known`.
fn value_hint(value: &str, known: &[&str]) -> String {
    match nearest(value, known.iter().copied()) {
        Some(near) => format!("did you mean \"{near}\"?"),
        None => format!("there are {}", known.join(", ")),
    }
}

fn line_of(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|b| *b == b'\n').count() + 1
}

struct UnknownKey {
    key: String,
    hint: String,
}

impl UnknownKey {
    /// Parses serde's "unknown field `x`, expected one of `a`, `b`".
    fn of(message: &str) -> Option<Self> {
        let rest = message.strip_prefix("unknown field `")?;
        let (key, rest) = rest.split_once('`')?;
        let known: Vec<&str> = rest.split('`').skip(1).step_by(2).collect();
        let hint = match former(key, &known).or_else(|| nearest(key, known.iter().copied())) {
            Some(new) if former(key, &known).is_some() => format!("it is called `{new}` now"),
            Some(near) => format!("did you mean `{near}`?"),
            None if known.is_empty() => "no keys are allowed there".to_owned(),
            None => format!("known here: {}", known.join(", ")),
        };
        Some(Self { key: key.to_owned(), hint })
    }
}

/// Keys and values that had another name before 1.0, with their present names.
const FORMER: &[(&str, &str)] = &[("pairs", "gossip"), ("plant", "mutation")];

/// The present name of a key or a value, if `name` is its former one and the present one is among `known`.
pub fn former<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let (_, now) = FORMER.iter().find(|(before, _)| *before == name)?;
    known.iter().copied().find(|known| known == now)
}

/// The candidate that is nearest to the misspelled `wrong`, if any is near enough.
pub fn nearest<'a>(wrong: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // The distance of a very long text is not worth computing.
    let wrong: String = wrong.chars().take(64).flat_map(char::to_lowercase).collect();
    let scored = candidates.into_iter().map(|c| (strsim::damerau_levenshtein(&wrong, c), c));
    let (distance, best) = scored.min_by_key(|(distance, _)| *distance)?;
    let near_enough = distance <= 1 + best.chars().count() / 4;
    (near_enough && distance < best.chars().count()).then_some(best)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, Default, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    struct Outer {
        listen: Vec<String>,
        relay: bool,
        limits: Inner,
    }

    #[derive(Debug, Default, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    struct Inner {
        connections: u32,
    }

    fn message(text: &str) -> String {
        parse::<Outer>(text, Path::new("b.toml")).unwrap_err().to_string()
    }

    #[test]
    fn unknown_keys_name_line_and_neighbour() {
        assert_eq!(
            message("relay = true\n\nlisen = []\n"),
            "b.toml: unknown key `lisen` at line 3; did you mean `listen`?"
        );
        assert_eq!(
            message("relay = true\n[limits]\nconections = 1\n"),
            "b.toml: unknown key `conections` at line 3; did you mean `connections`?"
        );
        assert!(message("zzz = 1").ends_with("known here: listen, relay, limits"), "{}", message("zzz = 1"));
    }

    #[test]
    fn former_names_lead_to_those_of_today() {
        #[derive(Debug, Default, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        struct Sync {
            gossip: u32,
        }
        let said = parse::<Sync>("pairs = 1", Path::new("r.toml")).unwrap_err().to_string();
        assert_eq!(said, "r.toml: unknown key `pairs` at line 1; it is called `gossip` now");
        assert!(message("pairs = 1").contains("known here"), "where there is no such key it is unknown");
    }

    #[test]
    fn wrong_types_and_broken_toml_name_the_line() {
        assert!(message("\nrelay = 7").starts_with("b.toml: line 2: "), "{}", message("\nrelay = 7"));
        assert!(message("relay = true\nlisten = [").contains("line 2"), "{}", message("relay = true\nlisten = ["));
        assert!(parse::<Outer>("limits.connections = 4", Path::new("b.toml")).unwrap().limits.connections == 4);
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Mode {
        Open,
        List,
    }

    #[derive(Debug, Default, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    struct Table {
        count: u32,
        small: u8,
        size: Option<usize>,
        rate: f64,
        on: bool,
        name: String,
        path: PathBuf,
        list: Vec<String>,
        pairs: Vec<(u32, f64)>,
        mode: Option<Mode>,
        below: Inner,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct File {
        name: String,
        #[serde(default)]
        table: Table,
        #[serde(default)]
        each: Vec<Each>,
    }

    #[derive(Debug, Deserialize)]
    struct Each {
        kind: String,
    }

    /// Every kind of wrong value; no message has a name of Rust in it.
    #[test]
    fn wrong_values_name_the_key_and_what_to_write() {
        let head = "name = \"x\"\n[table]\n";
        let said = |text: &str| {
            let examples = [("name", "a name, such as `name = \"my-run\"`")];
            parse_with::<File>(text, Path::new("r.toml"), &examples).unwrap_err().to_string()
        };
        let whole = "give a whole number from 0 to 4294967295";
        assert_eq!(
            said(&format!("{head}below = {{ connections = [] }}\n")),
            format!("r.toml: line 3: table.below.connections is a list: {whole}")
        );
        let rows = [
            ("count = \"four\"", "table.count is the text \"four\": give a whole number from 0 to 4294967295"),
            ("count = -1", "table.count is the number -1: give a whole number from 0 to 4294967295"),
            ("count = 1.5", "table.count is the number 1.5: give a whole number from 0 to 4294967295"),
            ("small = 256", "table.small is the number 256: give a whole number from 0 to 255"),
            ("size = true", "table.size is true: give a whole number of 0 or more"),
            ("rate = \"fast\"", "table.rate is the text \"fast\": give a number"),
            ("on = 1", "table.on is the number 1: give true or false"),
            ("on = \"a, expected b\"", "table.on is the text \"a, expected b\": give true or false"),
            ("name = 7", "table.name is the number 7: give a text in quotes"),
            ("path = []", "table.path is a list: give a text in quotes"),
            ("list = \"a\"", "table.list is the text \"a\": give a list in brackets"),
            ("list = [\"a\", 2]", "table.list is the number 2: give a text in quotes"),
            ("pairs = [[1]]", "table.pairs has 1 in a list: give lists of 2"),
            ("mode = 3", "table.mode is no text: give a text in quotes"),
            ("mode = \"lists\"", "table.mode = \"lists\" is not known: did you mean \"list\"?"),
            ("mode = \"secret\"", "table.mode = \"secret\" is not known: there are open, list"),
            ("below = 3", "table.below is the number 3: give a table"),
        ];
        for (row, message) in rows {
            assert_eq!(said(&format!("{head}{row}\n")), format!("r.toml: line 3: {message}"), "{row}");
        }
        assert_eq!(
            said("[table]\ncount = 1\n"),
            "r.toml: the key `name` is missing; write a name, such as `name = \"my-run\"`"
        );
        let each = said("name = \"x\"\n\n[[each]]\n");
        assert_eq!(each, "r.toml: line 3: the key `each.kind` is missing; write `kind = ...`");
        let good = parse::<File>("name = \"x\"\n[[each]]\nkind = \"k\"\n", Path::new("r.toml")).unwrap();
        assert!(good.name == "x" && good.each[0].kind == "k" && good.table.mode.is_none());
    }

    #[test]
    fn files_that_cannot_be_read_say_so() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("none.toml");
        assert!(load::<Outer>(&missing).unwrap_err().to_string().contains("cannot read"));
        let large = dir.path().join("large.toml");
        std::fs::write(&large, vec![b' '; CONFIG_BYTES_MAX as usize + 1]).unwrap();
        assert!(matches!(load::<Outer>(&large), Err(ConfigError::TooLarge { .. })));
    }

    #[test]
    fn nearest_is_near() {
        assert_eq!(nearest("Listen", ["listen", "relay"]), Some("listen"));
        assert_eq!(nearest("ip5", ["ip4", "tcp"]), Some("ip4"));
        assert_eq!(nearest("bandwidth", ["listen", "relay"]), None);
        assert_eq!(nearest("x", ["a"]), None);
        assert_eq!(nearest("x", []), None);
    }
}
