//! `deserialize_with` functions that check a count against a named limit before they allocate.
//!
//! A limit on bytes does not suffice: a count has eight bytes whatever its value, and a decoder that believes it
//! reserves memory, or loops, for elements that never come.

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use std::fmt;
use std::marker::PhantomData;

/// A list of at most `MAX` elements, refused by its announced count.
pub fn list<'de, D, T, const MAX: usize>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    deserializer.deserialize_seq(ListVisitor::<T, MAX>(PhantomData))
}

struct ListVisitor<T, const MAX: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for ListVisitor<T, MAX> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {MAX} elements")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
        let announced = access.size_hint().unwrap_or(0);
        if announced > MAX {
            return Err(A::Error::custom(format_args!("a list of {announced} elements, the limit is {MAX}")));
        }
        let mut items = Vec::with_capacity(announced);
        while let Some(item) = access.next_element()? {
            if items.len() == MAX {
                return Err(A::Error::custom(format_args!("a list of more than {MAX} elements")));
            }
            items.push(item);
        }
        Ok(items)
    }
}

/// A list of at most `MAX` byte strings of at most `BYTES` each.
pub fn blobs<'de, D, const MAX: usize, const BYTES: usize>(deserializer: D) -> Result<Vec<Vec<u8>>, D::Error>
where
    D: Deserializer<'de>,
{
    struct Blob<const BYTES: usize>(Vec<u8>);

    impl<'de, const BYTES: usize> Deserialize<'de> for Blob<BYTES> {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            bytes::<D, BYTES>(deserializer).map(Self)
        }
    }

    let blobs = list::<D, Blob<BYTES>, MAX>(deserializer)?;
    Ok(blobs.into_iter().map(|blob| blob.0).collect())
}

/// At most `MAX` bytes. Borrowed from the input until the length is known to be in bounds.
pub fn bytes<'de, D, const MAX: usize>(deserializer: D) -> Result<Vec<u8>, D::Error>
where
    D: Deserializer<'de>,
{
    deserializer.deserialize_bytes(BytesVisitor::<MAX>)
}

struct BytesVisitor<const MAX: usize>;

impl<'de, const MAX: usize> Visitor<'de> for BytesVisitor<MAX> {
    type Value = Vec<u8>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {MAX} bytes")
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Self::Value, E> {
        if bytes.len() > MAX {
            return Err(E::custom(format_args!("{} bytes, the limit is {MAX}", bytes.len())));
        }
        Ok(bytes.to_vec())
    }
}

/// Text of at most `MAX` bytes. Borrowed from the input until the length is known to be in bounds.
pub fn text<'de, D, const MAX: usize>(deserializer: D) -> Result<String, D::Error>
where
    D: Deserializer<'de>,
{
    deserializer.deserialize_str(TextVisitor::<MAX>)
}

struct TextVisitor<const MAX: usize>;

impl<'de, const MAX: usize> Visitor<'de> for TextVisitor<MAX> {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "text of at most {MAX} bytes")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        if text.len() > MAX {
            return Err(E::custom(format_args!("text of {} bytes, the limit is {MAX}", text.len())));
        }
        Ok(text.to_owned())
    }
}
