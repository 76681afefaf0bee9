//! The first bytes of a bulk stream: they name the attempt of its frames in full.
//!
//! ```text
//! magic u32 = 0x4b4c_4253 ("SBLK") | version u16 = 1 | reserved u16 = 0
//! run [32] | lineage [32] | seq u64 | set [32] | attempt u32                          little-endian, 116 bytes
//! ```

use starling_protocol::Digest;
use starling_protocol::engine::io::AttemptKey;

pub(crate) const OPENING_BYTES: usize = 116;
const MAGIC: u32 = 0x4b4c_4253;
const VERSION: u16 = 1;

/// Why an opening is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum OpeningError {
    #[error("not a bulk stream of this protocol")]
    Malformed,
    #[error("bulk version {0}; this node speaks {VERSION}")]
    Version(u16),
}

pub(super) fn encode(run: &Digest, key: &AttemptKey) -> [u8; OPENING_BYTES] {
    let mut out = [0; OPENING_BYTES];
    out[..4].copy_from_slice(&MAGIC.to_le_bytes());
    out[4..6].copy_from_slice(&VERSION.to_le_bytes());
    out[8..40].copy_from_slice(&run.0);
    out[40..72].copy_from_slice(&key.lineage.0);
    out[72..80].copy_from_slice(&key.seq.to_le_bytes());
    out[80..112].copy_from_slice(&key.set.0);
    out[112..].copy_from_slice(&key.attempt.to_le_bytes());
    out
}

pub(super) fn decode(bytes: &[u8; OPENING_BYTES]) -> Result<(Digest, AttemptKey), OpeningError> {
    let version = u16::from_le_bytes([bytes[4], bytes[5]]);
    if u32::from_le_bytes(field(bytes, 0)) != MAGIC || bytes[6..8] != [0, 0] {
        return Err(OpeningError::Malformed);
    }
    if version != VERSION {
        return Err(OpeningError::Version(version));
    }
    let key = AttemptKey {
        lineage: Digest(field(bytes, 40)),
        seq: u64::from_le_bytes(field(bytes, 72)),
        attempt: u32::from_le_bytes(field(bytes, 112)),
        set: Digest(field(bytes, 80)),
    };
    Ok((Digest(field(bytes, 8)), key))
}

/// The run and the attempt of an opening, if it is one.
#[cfg(feature = "byzantine")]
pub(crate) fn opening_of(bytes: &[u8; OPENING_BYTES]) -> Option<(Digest, AttemptKey)> {
    decode(bytes).ok()
}

/// The `N` bytes at `at`; all callers stay within the fixed layout.
fn field<const N: usize>(bytes: &[u8; OPENING_BYTES], at: usize) -> [u8; N] {
    std::array::from_fn(|i| bytes[at + i])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden_bytes() {
        let key = AttemptKey { lineage: Digest([2; 32]), seq: 0x0304, attempt: 5, set: Digest([6; 32]) };
        let bytes = encode(&Digest([1; 32]), &key);
        let hex = format!(
            "53424c4b01000000{}{}0403000000000000{}05000000",
            "01".repeat(32),
            "02".repeat(32),
            "06".repeat(32)
        );
        assert_eq!(data_encoding::HEXLOWER.encode(&bytes), hex);
        assert_eq!(decode(&bytes), Ok((Digest([1; 32]), key)));
        let mut other = bytes;
        other[4] = 2;
        assert_eq!(decode(&other), Err(OpeningError::Version(2)));
        other[6] = 1;
        assert_eq!(decode(&other), Err(OpeningError::Malformed));
    }

    proptest! {
        #[test]
        fn only_canonical_bytes_decode(mut bytes in proptest::collection::vec(any::<u8>(), OPENING_BYTES), real in any::<bool>()) {
            if real {
                bytes[..8].copy_from_slice(&[0x53, 0x42, 0x4c, 0x4b, 1, 0, 0, 0]);
            }
            let bytes: [u8; OPENING_BYTES] = bytes.try_into().unwrap();
            match decode(&bytes) {
                Ok((run, key)) => prop_assert_eq!(encode(&run, &key), bytes),
                Err(_) => prop_assert!(!real),
            }
        }
    }
}
