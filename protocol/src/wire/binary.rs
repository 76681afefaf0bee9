//! bincode with all options that keep a decoder safe.

use super::WireError;
use bincode::config;
use bincode::error::DecodeError;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Appends the encoding of `value` to `out`.
pub fn append<T: Serialize>(value: &T, out: &mut Vec<u8>) {
    let encoding = config::standard().with_fixed_int_encoding().with_little_endian();
    // Wire types are structs of integers, floats, arrays and sized lists; for these an encoder into memory has no
    // error to return.
    let bytes = bincode::serde::encode_to_vec(value, encoding).expect("wire types always encode");
    out.extend_from_slice(&bytes);
}

/// The one byte string of `value`.
pub fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    let mut bytes = Vec::new();
    append(value, &mut bytes);
    bytes
}

/// Decodes all of `bytes`, which must be the canonical encoding of a `T` and at most `LIMIT` long.
pub fn decode<T, const LIMIT: usize>(what: &'static str, bytes: &[u8]) -> Result<T, WireError>
where
    T: Serialize + DeserializeOwned,
{
    match decode_front::<T, LIMIT>(what, bytes)? {
        (value, []) => Ok(value),
        (_, rest) => Err(WireError::Trailing { what, bytes: rest.len() }),
    }
}

/// Decodes a canonical `T` at the front of `bytes`, all of which are at most `LIMIT` long. Returns it and the rest.
pub fn decode_front<'a, T, const LIMIT: usize>(what: &'static str, bytes: &'a [u8]) -> Result<(T, &'a [u8]), WireError>
where
    T: Serialize + DeserializeOwned,
{
    if bytes.len() > LIMIT {
        return Err(WireError::TooLong { what, bytes: bytes.len(), limit: LIMIT });
    }
    let encoding = config::standard().with_fixed_int_encoding().with_little_endian().with_limit::<LIMIT>();
    let (value, used): (T, usize) =
        bincode::serde::decode_from_slice(bytes, encoding).map_err(|error| refusal(what, bytes.len(), error))?;
    let (front, rest) = bytes.split_at_checked(used).ok_or(WireError::NotCanonical { what })?;
    let mut again = Vec::with_capacity(front.len());
    append(&value, &mut again);
    if again != front { Err(WireError::NotCanonical { what }) } else { Ok((value, rest)) }
}

fn refusal(what: &'static str, bytes: usize, error: DecodeError) -> WireError {
    match error {
        DecodeError::UnexpectedEnd { additional } => {
            WireError::Truncated { what, bytes, least: bytes.saturating_add(additional) }
        }
        DecodeError::OtherString(detail) => WireError::Malformed { what, detail },
        other => WireError::Malformed { what, detail: other.to_string() },
    }
}
