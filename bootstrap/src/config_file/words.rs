//! The messages of the TOML reader in the words of those who write the files: values and keys, and no types of Rust.

/// The dotted key of the value that is wrong, or of the table around a key that is; `None` at the top of a file.
///
/// The reader's text names it only if there is no input to show an excerpt of.
pub fn key_of(error: &toml::de::Error) -> Option<String> {
    let mut bare = error.clone();
    bare.set_input(None);
    let text = bare.to_string();
    let key = text.trim_end().rsplit('\n').next()?.strip_prefix("in `")?.strip_suffix('`')?;
    Some(key.to_owned())
}

/// The key of "missing field `x`".
pub fn missing(message: &str) -> Option<&str> {
    message.strip_prefix("missing field `")?.strip_suffix('`')
}

/// The value of "unknown variant `x`, expected one of `a`, `b`", and those that there are.
pub fn unknown_value(message: &str) -> Option<(&str, Vec<&str>)> {
    let (value, rest) = message.strip_prefix("unknown variant `")?.split_once('`')?;
    Some((value, rest.split('`').skip(1).step_by(2).collect()))
}

/// Any other message about the value of `key`. One about the syntax of TOML is plain already.
pub fn plain(message: &str, key: &str) -> String {
    let wrong = message.strip_prefix("invalid type: ").or_else(|| message.strip_prefix("invalid value: "));
    if let Some((got, expected)) = wrong.and_then(|wrong| wrong.rsplit_once(", expected ")) {
        return format!("{key} is {}: give {}", value(got), wanted(expected));
    }
    let length = message.strip_prefix("invalid length ").and_then(|rest| rest.split_once(", expected "));
    if let Some((got, expected)) = length {
        return format!("{key} has {got} in a list: give lists {}", of_length(expected));
    }
    if message == "wanted string or table" {
        return format!("{key} is no text: give a text in quotes");
    }
    if key.is_empty() { message.to_owned() } else { format!("{key}: {message}") }
}

/// A value as serde names it: "string "four"", "integer `4`", "sequence".
fn value(got: &str) -> String {
    let quoted = || got.split('`').nth(1).unwrap_or(got);
    match got.split(' ').next() {
        Some("string") => got.replacen("string", "the text", 1),
        Some("integer" | "floating") => format!("the number {}", quoted()),
        Some("boolean") => quoted().to_owned(),
        Some("sequence") => "a list".to_owned(),
        Some("map") => "a table".to_owned(),
        _ => got.to_owned(),
    }
}

/// The kind of value that a key takes, from serde's or our own name of it.
fn wanted(expected: &str) -> String {
    let whole = |most: u64| format!("a whole number from 0 to {most}");
    match expected {
        "u8" => whole(u8::MAX.into()),
        "u16" => whole(u16::MAX.into()),
        "u32" => whole(u32::MAX.into()),
        "u64" | "usize" | "u128" => "a whole number of 0 or more".to_owned(),
        "i8" | "i16" | "i32" | "i64" | "isize" | "i128" => "a whole number".to_owned(),
        "f32" | "f64" => "a number".to_owned(),
        "a boolean" => "true or false".to_owned(),
        "a string" | "a borrowed string" | "path string" | "a borrowed path" | "a character" => {
            "a text in quotes".to_owned()
        }
        "a sequence" => "a list in brackets".to_owned(),
        _ if expected.starts_with("a tuple of size ") => format!("a list {}", of_length(expected)),
        _ if expected == "a map" || expected.starts_with("struct ") => "a table".to_owned(),
        _ if expected.starts_with("enum ") => "a text in quotes".to_owned(),
        _ => expected.to_owned(),
    }
}

/// "of 2" for "a tuple of size 2".
fn of_length(expected: &str) -> String {
    match expected.rsplit(' ').next().filter(|size| size.bytes().all(|b| b.is_ascii_digit())) {
        Some(size) => format!("of {size}"),
        None => "of another length".to_owned(),
    }
}
