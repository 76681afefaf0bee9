//! The first bytes of a pair's stream: they name the exchange.
//!
//! ```text
//! magic u32 = 0x5241_5053 ("SPAR") | version u16 = 1 | reserved u16 = 0
//! run [32] | lineage [32] | round u64 | base [32] | exchange u32                      little-endian, 116 bytes
//! ```

use super::{PairKey, Place};
use starling_protocol::Digest;

pub(super) const OPENING_BYTES: usize = 116;
const MAGIC: u32 = 0x5241_5053;
const VERSION: u16 = 1;

/// Why an opening is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum OpeningError {
    #[error("not a pair's stream of this protocol")]
    Malformed,
    #[error("version {0} of pairs; this node speaks {VERSION}")]
    Version(u16),
}

pub(super) fn encode(run: &Digest, key: &PairKey) -> [u8; OPENING_BYTES] {
    let mut out = [0; OPENING_BYTES];
    out[..4].copy_from_slice(&MAGIC.to_le_bytes());
    out[4..6].copy_from_slice(&VERSION.to_le_bytes());
    out[8..40].copy_from_slice(&run.0);
    out[40..72].copy_from_slice(&key.place.lineage.0);
    out[72..80].copy_from_slice(&key.place.round.to_le_bytes());
    out[80..112].copy_from_slice(&key.place.base.0);
    out[112..].copy_from_slice(&key.exchange.to_le_bytes());
    out
}

pub(super) fn decode(bytes: &[u8; OPENING_BYTES]) -> Result<(Digest, PairKey), OpeningError> {
    let version = u16::from_le_bytes([bytes[4], bytes[5]]);
    let exchange = u32::from_le_bytes(field(bytes, 112));
    if u32::from_le_bytes(field(bytes, 0)) != MAGIC || bytes[6..8] != [0, 0] {
        return Err(OpeningError::Malformed);
    }
    if version != VERSION {
        return Err(OpeningError::Version(version));
    }
    if exchange == 0 {
        return Err(OpeningError::Malformed);
    }
    let place = Place {
        lineage: Digest(field(bytes, 40)),
        round: u64::from_le_bytes(field(bytes, 72)),
        base: Digest(field(bytes, 80)),
    };
    Ok((Digest(field(bytes, 8)), PairKey { place, exchange }))
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
        let place = Place { lineage: Digest([2; 32]), base: Digest([6; 32]), round: 0x0304 };
        let key = PairKey { place, exchange: 5 };
        let bytes = encode(&Digest([1; 32]), &key);
        let (run, lineage, base) = ("01".repeat(32), "02".repeat(32), "06".repeat(32));
        let hex = format!("5350415201000000{run}{lineage}0403000000000000{base}05000000");
        assert_eq!(data_encoding::HEXLOWER.encode(&bytes), hex);
        assert_eq!(decode(&bytes), Ok((Digest([1; 32]), key)));
        let mut other = bytes;
        other[112] = 0;
        assert_eq!(decode(&other), Err(OpeningError::Malformed), "exchanges count from 1");
        other[4] = 2;
        assert_eq!(decode(&other), Err(OpeningError::Version(2)));
        other[6] = 1;
        assert_eq!(decode(&other), Err(OpeningError::Malformed));
    }

    proptest! {
        #[test]
        fn only_canonical_bytes_decode(mut bytes in proptest::collection::vec(any::<u8>(), OPENING_BYTES), real in any::<bool>()) {
            if real {
                bytes[..8].copy_from_slice(&[0x53, 0x50, 0x41, 0x52, 1, 0, 0, 0]);
                bytes[115] |= 1;
            }
            let bytes: [u8; OPENING_BYTES] = bytes.try_into().unwrap();
            match decode(&bytes) {
                Ok((run, key)) => prop_assert_eq!(encode(&run, &key), bytes),
                Err(_) => prop_assert!(!real),
            }
        }
    }
}
