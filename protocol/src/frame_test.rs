use super::*;
use crate::wire::sample::digest;
use proptest::prelude::*;

fn scope() -> FrameScope {
    let key = AttemptKey { lineage: digest(2), seq: 4, attempt: 1, set: digest(8) };
    FrameScope { run: digest(1), key, codec: Codec::Int8, elements: 3 * CHUNK_ELEMENTS + 3 }
}

fn payload(elements: usize) -> Vec<u8> {
    (0..encoded_max(Codec::Int8, elements)).map(|i| i as u8).collect()
}

fn last() -> (FrameHeader, Vec<u8>) {
    let payload = payload(3);
    (FrameHeader::new(&scope(), FrameKind::Reduced, 3, &payload), payload)
}

#[test]
fn golden_header() {
    let (header, _) = last();
    assert_eq!(data_encoding::HEXLOWER.encode(&header.encode()), GOLDEN);
}

const GOLDEN: &str = concat!(
    "57530102020050000101010101010101020202020202020204000000000000000808080808080808010000000300000000800100",
    "000000000300000005000000733aaa0b32d3aefa9275ef713a14c668"
);

#[test]
fn a_frame_round_trips_and_belongs_to_its_reduction() {
    for (chunk, elements) in [(0, CHUNK_ELEMENTS), (3, 3)] {
        let payload = payload(elements);
        let header = FrameHeader::new(&scope(), FrameKind::Contrib, chunk, &payload);
        assert_eq!(FrameHeader::decode(&header.encode()), Ok(header));
        assert_eq!(header.payload_len(), payload.len());
        header.belongs_to(&scope()).unwrap();
        header.check_payload(&payload).unwrap();
    }
}

#[test]
fn frames_of_other_reductions_are_refused() {
    let (header, _) = last();
    let refused = |change: &dyn Fn(&mut FrameScope)| {
        let mut scope = scope();
        change(&mut scope);
        header.belongs_to(&scope).unwrap_err()
    };
    let elsewhere = |what| FrameError::Elsewhere { what };
    assert_eq!(refused(&|s| s.run = digest(9)), elsewhere("run"));
    assert_eq!(refused(&|s| s.key.lineage = digest(9)), elsewhere("lineage"));
    assert_eq!(refused(&|s| s.key.seq = 9), elsewhere("record"));
    assert_eq!(refused(&|s| s.key.attempt = 9), elsewhere("attempt"));
    assert_eq!(refused(&|s| s.key.set = digest(9)), elsewhere("attempt"));
    assert_eq!(refused(&|s| s.codec = Codec::Bf16), elsewhere("codec"));
    assert!(matches!(refused(&|s| s.elements += 1), FrameError::Geometry { value: 3, must: 4, .. }));
    assert!(matches!(refused(&|s| s.elements = 5), FrameError::Geometry { value: 3, must: 0, .. }));
}

#[test]
fn each_field_is_checked() {
    let (header, _) = last();
    let refused = |at: usize, with: &[u8]| {
        let mut bytes = header.encode();
        bytes[at..at + with.len()].copy_from_slice(with);
        FrameHeader::decode(&bytes).unwrap_err()
    };
    assert!(matches!(refused(0, &[0]), FrameError::Magic { .. }));
    assert_eq!(refused(2, &[2]), FrameError::Version { theirs: 2 });
    assert_eq!(refused(3, &[3]), FrameError::Unknown { field: "kind", value: 3 });
    assert_eq!(refused(4, &[0]), FrameError::Unknown { field: "codec", value: 0 });
    for (at, with) in [
        (5, &[1][..]),
        (6, &[76, 0]),
        (44, &2u32.to_le_bytes()),
        (48, &7u64.to_le_bytes()),
        (56, &0u32.to_le_bytes()),
        (56, &(CHUNK_ELEMENTS as u32 + 1).to_le_bytes()),
        (56, &u32::MAX.to_le_bytes()),
        (60, &4u32.to_le_bytes()),
        (60, &u32::MAX.to_le_bytes()),
    ] {
        assert!(matches!(refused(at, with), FrameError::Geometry { .. }), "byte {at}");
    }
    let mut beyond = header.encode();
    beyond[44..48].copy_from_slice(&u32::MAX.to_le_bytes());
    beyond[48..56].copy_from_slice(&(u64::from(u32::MAX) * CHUNK_ELEMENTS as u64).to_le_bytes());
    assert!(matches!(FrameHeader::decode(&beyond), Err(FrameError::Geometry { field: "element offset", .. })));
    assert_eq!(FrameHeader::decode(&header.encode()[1..]), Err(FrameError::Truncated { bytes: 79 }));
}

proptest! {
    #[test]
    fn any_bytes_decode_to_themselves_or_not_at_all(bytes in prop::collection::vec(any::<u8>(), 80)) {
        if let Ok(header) = FrameHeader::decode(&bytes) {
            prop_assert_eq!(header.encode().to_vec(), bytes);
        }
    }

    #[test]
    fn a_changed_byte_never_passes(at in 0usize..80 + 5, flip in 1u8..) {
        let (header, mut payload) = last();
        let mut bytes = header.encode();
        match at.checked_sub(80) {
            Some(at) => payload[at] ^= flip,
            None => bytes[at] ^= flip,
        }
        let passed = FrameHeader::decode(&bytes).and_then(|header| header.check_payload(&payload));
        prop_assert!(passed.is_err());
    }
}
