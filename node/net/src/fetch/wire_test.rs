use super::*;
use proptest::prelude::*;

fn hex(bytes: &[u8]) -> String {
    data_encoding::HEXLOWER.encode(bytes)
}

fn requests() -> Vec<FetchRequest> {
    let digest = Digest([0xab; 32]);
    vec![
        FetchRequest::Spec,
        FetchRequest::SnapshotManifests,
        FetchRequest::StateChunk(digest),
        FetchRequest::Records { from_seq: 0x0102, max: 16 },
        FetchRequest::Update { seq: 0x0304 },
        FetchRequest::DataManifest(digest),
        FetchRequest::ShardPiece { shard: digest, piece: 3 },
        FetchRequest::Candidate(digest),
        FetchRequest::UpdateByDigest(digest),
        FetchRequest::Path { to: 0x0506, known: Arc::from([]) },
        FetchRequest::Path { to: 7, known: Arc::from([(0x0102, digest), (0, Digest([0xcd; 32]))]) },
        FetchRequest::ChunksHeld(digest),
        FetchRequest::UpdatePieces(digest),
        FetchRequest::UpdatePiece { update: digest, piece: 0x0708 },
    ]
}

fn decode(bytes: &[u8]) -> Result<FetchRequest, FetchWireError> {
    let (head, body) = bytes.split_first_chunk().ok_or(FetchWireError::Truncated("head"))?;
    let (kind, len) = FetchRequest::body_len(head)?;
    let beginning = body.get(..len).ok_or(FetchWireError::Truncated("body"))?;
    if body.len() != len + FetchRequest::rest_len(kind, beginning)? {
        return Err(FetchWireError::Truncated("body"));
    }
    FetchRequest::decode_body(kind, body)
}

#[test]
fn golden_bytes() {
    let ab = "ab".repeat(32);
    let golden = [
        "53460201".to_owned(),
        "53460202".to_owned(),
        format!("53460203{ab}"),
        "5346020402010000000000001000".to_owned(),
        "534602050403000000000000".to_owned(),
        format!("53460206{ab}"),
        format!("53460207{ab}03000000"),
        format!("53460208{ab}"),
        format!("53460209{ab}"),
        "5346020a060500000000000000".to_owned(),
        format!("5346020a0700000000000000020201000000000000{ab}0000000000000000{}", "cd".repeat(32)),
        format!("5346020b{ab}"),
        format!("5346020c{ab}"),
        format!("5346020d{ab}08070000"),
    ];
    assert_eq!(requests().len(), golden.len());
    for (request, golden) in requests().iter().zip(golden) {
        assert_eq!(hex(&request.encode()), golden);
        assert_eq!(decode(&request.encode()), Ok(request.clone()));
    }
    assert_eq!(hex(&encode_answer(Ok(0x0506))), "465202000605000000000000");
    assert_eq!(hex(&encode_answer(Err(FetchRefusal::Busy))), "465202020000000000000000");
    assert_eq!(hex(&encode_snapshots(&[(7, vec![1, 2])]).unwrap()), "010700000000000000020000000102");
    assert_eq!(
        hex(&encode_records(&[(vec![9], vec![7]), (vec![], vec![])]).unwrap()),
        "0200010000000901000000070000000000000000"
    );
}

#[test]
fn a_bit_stands_for_each_place() {
    let held = [0b1000_0001, 0b0000_0010];
    let places: Vec<_> = (0..40).filter(|place| is_held(&held, *place)).collect();
    assert_eq!(places, [0, 7, 9], "and none beyond the end");
    assert!(!is_held(&held, usize::MAX));
}

#[test]
fn every_status_round_trips_and_others_are_refused() {
    for refusal in [FetchRefusal::NotFound, FetchRefusal::Busy, FetchRefusal::BadRequest, FetchRefusal::Internal] {
        assert_eq!(decode_answer(&encode_answer(Err(refusal))), Ok(Err(refusal)));
    }
    let mut head = encode_answer(Ok(1));
    head[3] = 9;
    assert_eq!(decode_answer(&head), Err(FetchWireError::Status(9)));
    head[3] = 1;
    assert_eq!(decode_answer(&head), Err(FetchWireError::RefusalPayload(1)));
    head[2] = 1;
    assert_eq!(decode_answer(&head), Err(FetchWireError::Version(1)));
}

#[test]
fn limits_hold_both_ways() {
    let request = FetchRequest::Records { from_seq: 0, max: RECORDS_MAX + 1 };
    assert_eq!(decode(&request.encode()), Err(FetchWireError::TooManyRecords(RECORDS_MAX + 1)));
    let known = |count: usize| FetchRequest::Path { to: 1, known: vec![(1, Digest([2; 32])); count].into() };
    assert_eq!(decode(&known(LOCATOR_MAX).encode()), Ok(known(LOCATOR_MAX)));
    assert_eq!(known(LOCATOR_MAX + 1).encode(), known(LOCATOR_MAX).encode(), "no more are sent");
    let mut many = known(LOCATOR_MAX).encode();
    many[REQUEST_HEAD_BYTES + 8] += 1;
    let too_many = FetchRequest::rest_len(10, &many[REQUEST_HEAD_BYTES..][..9]);
    assert!(matches!(too_many, Err(FetchWireError::TooMany { .. })), "before anything is allocated: {too_many:?}");
    assert!(FetchRequest::decode_body(10, &[&many[REQUEST_HEAD_BYTES..], &[0; 40]].concat()).is_err());
    assert!(encode_records(&vec![(vec![], vec![]); usize::from(RECORDS_MAX) + 1]).is_err());
    assert!(encode_records(&[(vec![0; RECORD_BYTES_MAX + 1], vec![])]).is_err());
    assert!(encode_records(&[(vec![], vec![0; CONTROL_BYTES_MAX + 1])]).is_err());
    assert!(encode_snapshots(&vec![(0, vec![]); usize::from(SNAPSHOTS_MAX) + 1]).is_err());
    // A length far beyond the bytes that follow is refused before anything is allocated for it.
    let lying = [&[1u8][..], &7u64.to_le_bytes(), &u32::MAX.to_le_bytes()].concat();
    assert!(matches!(decode_snapshots(&lying), Err(FetchWireError::TooMany { .. })));
    let short = [&[1u8][..], &7u64.to_le_bytes(), &100u32.to_le_bytes(), &[0; 99]].concat();
    assert_eq!(decode_snapshots(&short), Err(FetchWireError::Truncated("snapshot list")));
}

proptest! {
    #[test]
    fn hostile_bytes_are_refused_or_canonical(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        if let Ok(request) = decode(&bytes) {
            prop_assert_eq!(request.encode(), bytes.clone());
        }
        if let Ok(records) = decode_records(&bytes) {
            prop_assert_eq!(encode_records(&records).unwrap(), bytes.clone());
        }
        if let Ok(snapshots) = decode_snapshots(&bytes) {
            prop_assert_eq!(encode_snapshots(&snapshots).unwrap(), bytes.clone());
        }
        if let Some(head) = bytes.first_chunk()
            && let Ok(answer) = decode_answer(head)
        {
            prop_assert_eq!(&encode_answer(answer)[..], &head[..]);
        }
    }

    #[test]
    fn lists_round_trip(lists in proptest::collection::vec((any::<u64>(), proptest::collection::vec(any::<u8>(), 0..40)), 0..4)) {
        prop_assert_eq!(decode_snapshots(&encode_snapshots(&lists).unwrap()).unwrap(), lists.clone());
        let records: Vec<_> = lists.into_iter().map(|(n, bytes)| (bytes, n.to_le_bytes().to_vec())).collect();
        prop_assert_eq!(decode_records(&encode_records(&records).unwrap()).unwrap(), records);
    }
}
