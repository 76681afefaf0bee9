//! TOML files with helpful errors: unknown keys are refused, with the line and the nearest right key.
//!
//! A silently ignored key is a setting that its writer believes in. So every structure that is parsed here carries
//! `#[serde(deny_unknown_fields)]`.

use serde::de::DeserializeOwned;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Bytes of a configuration file.
pub const CONFIG_BYTES_MAX: u64 = 1 << 20;

/// The reason why a configuration file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read {}: {source}", path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[error("{} is larger than {CONFIG_BYTES_MAX} bytes: is it a configuration file?", path.display())]
    TooLarge { path: PathBuf },
    #[error("{}: unknown key `{key}` at line {line}; {hint}", path.display())]
    UnknownKey { path: PathBuf, key: String, line: usize, hint: String },
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
    toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(1, |span| line_of(text, span.start));
        match UnknownKey::of(error.message()) {
            Some(UnknownKey { key, hint }) => ConfigError::UnknownKey { path: path.to_path_buf(), key, line, hint },
            None => ConfigError::Invalid { path: path.to_path_buf(), line, message: error.message().to_owned() },
        }
    })
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
