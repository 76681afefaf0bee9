//! Values as JSON in a fixed order and layout: a value that fits on a line has one line.

use starling_protocol::{Digest, NodeId};
use std::fmt::Write;

/// Characters of a line, unless a single value is longer.
const WIDTH: usize = 118;
/// Larger integers are not exact in every reader's numbers: they are written as text.
const EXACT_MAX: u64 = 1 << 53;

#[derive(Clone, Debug)]
pub enum Json {
    Null,
    Bool(bool),
    Number(u64),
    Text(String),
    List(Vec<Json>),
    Fields(Vec<(&'static str, Json)>),
}

/// An object: its fields in the order given.
macro_rules! object {
    ($($name:literal: $value:expr),* $(,)?) => {
        $crate::json::Json::Fields(vec![$(($name, $crate::json::Json::from($value))),*])
    };
}
pub(crate) use object;

impl Json {
    /// The text of a file.
    pub fn text(&self) -> String {
        let mut out = String::new();
        self.write(0, 0, &mut out);
        out.push('\n');
        out
    }

    /// Adds fields of another object behind this one's.
    pub fn and(self, more: Json) -> Self {
        match (self, more) {
            (Self::Fields(mut fields), Self::Fields(more)) => {
                fields.extend(more);
                Self::Fields(fields)
            }
            (other, _) => other,
        }
    }

    /// The value on one line.
    fn line(&self) -> String {
        match self {
            Self::Null => "null".to_owned(),
            Self::Bool(value) => value.to_string(),
            Self::Number(value) if *value > EXACT_MAX => format!("\"{value}\""),
            Self::Number(value) => value.to_string(),
            Self::Text(text) => format!("{text:?}"),
            Self::List(items) => format!("[{}]", items.iter().map(Self::line).collect::<Vec<_>>().join(", ")),
            Self::Fields(fields) => {
                let field = |(name, value): &(&str, Json)| format!("\"{name}\": {}", value.line());
                format!("{{{}}}", fields.iter().map(field).collect::<Vec<_>>().join(", "))
            }
        }
    }

    /// Writes the value; `before` characters of the line are taken, and at most a comma follows.
    fn write(&self, indent: usize, before: usize, out: &mut String) {
        let line = self.line();
        let (brackets, names): (_, Vec<Option<&str>>) = match self {
            Self::List(items) if !items.is_empty() => ("[]", items.iter().map(|_| None).collect()),
            Self::Fields(fields) if !fields.is_empty() => ("{}", fields.iter().map(|(name, _)| Some(*name)).collect()),
            _ => return out.push_str(&line),
        };
        if before + line.len() < WIDTH {
            return out.push_str(&line);
        }
        out.push_str(&brackets[..1]);
        let mut column = WIDTH;
        for (at, (value, name)) in self.values().zip(names).enumerate() {
            let name = name.map_or_else(String::new, |name| format!("\"{name}\": "));
            let scalar = matches!(value, Self::Number(_) | Self::Bool(_) | Self::Null);
            // Numbers fill lines; any other value begins a line.
            let length = value.line().len() + 2;
            if at > 0 {
                out.push(',');
            }
            if scalar && name.is_empty() && column + length < WIDTH {
                let _ = write!(out, " {}", value.line());
                column += length;
            } else {
                let _ = write!(out, "\n{:indent$}{name}", "", indent = indent + 2);
                value.write(indent + 2, indent + 2 + name.len(), out);
                column = if scalar { indent + 2 + length } else { WIDTH };
            }
        }
        let _ = write!(out, "\n{:indent$}{}", "", &brackets[1..]);
    }

    fn values(&self) -> Box<dyn Iterator<Item = &Json> + '_> {
        match self {
            Self::List(items) => Box::new(items.iter()),
            Self::Fields(fields) => Box::new(fields.iter().map(|(_, value)| value)),
            _ => Box::new(std::iter::empty()),
        }
    }
}

/// Bytes as lower-case hex.
pub fn hex(bytes: &[u8]) -> Json {
    Json::Text(data_encoding::HEXLOWER.encode(bytes))
}

/// Floats in the form that is hashed: little endian, one after another.
pub fn floats(values: &[f32]) -> Json {
    hex(&values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>())
}

/// The bits of one f32, most significant digit first.
pub fn bits(value: f32) -> Json {
    Json::Text(format!("{:08x}", value.to_bits()))
}

/// The bits of one f64, most significant digit first.
pub fn wide_bits(value: f64) -> Json {
    Json::Text(format!("{:016x}", value.to_bits()))
}

macro_rules! numbers {
    ($($type:ty),*) => {
        $(impl From<$type> for Json {
            fn from(value: $type) -> Self {
                Self::Number(value as u64)
            }
        })*
    };
}
numbers!(u8, u16, u32, u64, usize);

impl From<bool> for Json {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<&str> for Json {
    fn from(value: &str) -> Self {
        Self::Text(value.to_owned())
    }
}

impl From<String> for Json {
    fn from(value: String) -> Self {
        Self::Text(value)
    }
}

impl From<Digest> for Json {
    fn from(value: Digest) -> Self {
        Self::Text(value.to_string())
    }
}

impl From<NodeId> for Json {
    fn from(value: NodeId) -> Self {
        Self::Text(value.to_string())
    }
}

impl<T: Into<Json>> From<Vec<T>> for Json {
    fn from(values: Vec<T>) -> Self {
        Self::List(values.into_iter().map(Into::into).collect())
    }
}

impl<T: Into<Json>> From<Option<T>> for Json {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

#[test]
fn a_short_value_stands_on_one_line_and_large_numbers_are_text() {
    let small = object! {"a": 1u8, "b": vec![true, false], "c": "x", "d": None::<u8>};
    assert_eq!(small.text(), "{\"a\": 1, \"b\": [true, false], \"c\": \"x\", \"d\": null}\n");
    assert_eq!(Json::from(EXACT_MAX + 1).text(), "\"9007199254740993\"\n");
    let long = object! {"numbers": vec![1_000_000_000u64; 12], "z": vec![hex(&[0xab; 60])]};
    let numbers = ["1000000000"; 9].join(", ");
    let expect = format!(
        "{{\n  \"numbers\": [\n    {numbers},\n    1000000000, 1000000000, 1000000000\n  ],\n  \"z\": [\n    \"{}\"\n  ]\n}}\n",
        "ab".repeat(60)
    );
    assert_eq!(long.text(), expect);
}
