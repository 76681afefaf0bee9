use super::*;
use proptest::prelude::*;

fn hex(bytes: &[u8]) -> String {
    data_encoding::HEXLOWER.encode(bytes)
}

fn requests() -> Vec<FetchRequest> {
    let digest = Digest([0xab; 32]);
    vec![
        FetchRequest::Spec,
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
        FetchRequest::Start { to: 0x0506, known: Arc::from([]) },
        FetchRequest::Start { to: 7, known: Arc::from([(0x0102, digest)]) },
        FetchRequest::Beginning,
        FetchRequest::Schema,
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
        "5346020e060500000000000000".to_owned(),
        format!("5346020e0700000000000000010201000000000000{ab}"),
        "5346020f".to_owned(),
        "53460210".to_owned(),
    ];
    assert_eq!(requests().len(), golden.len());
    for (request, golden) in requests().iter().zip(golden) {
        assert_eq!(hex(&request.encode()), golden);
        assert_eq!(decode(&request.encode()), Ok(request.clone()));
    }
    assert_eq!(hex(&encode_answer(Ok(0x0506))), "465202000605000000000000");
    assert_eq!(hex(&encode_answer(Err(FetchRefusal::Busy))), "465202020000000000000000");
    let start = Start { seq: 7, manifest: vec![1, 2], path: vec![3], records: vec![4, 5] };
    assert_eq!(hex(&encode_start(&start).unwrap()), "070000000000000002000000010201000000030405");
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
    let too_many = FetchRequest::rest_len(14, &many[REQUEST_HEAD_BYTES..][..9]);
    assert!(matches!(too_many, Err(FetchWireError::TooMany { .. })), "{too_many:?}");
    assert!(FetchRequest::decode_body(14, &[&many[REQUEST_HEAD_BYTES..], &[0; 40]].concat()).is_err());
    let former = FetchRequest::body_len(&[0x53, 0x46, 2, 2]);
    assert_eq!(former, Err(FetchWireError::Kind(2)), "a kind of former versions");
    assert!(encode_records(&vec![(vec![], vec![]); usize::from(RECORDS_MAX) + 1]).is_err());
    assert!(encode_records(&[(vec![0; RECORD_BYTES_MAX + 1], vec![])]).is_err());
    assert!(encode_records(&[(vec![], vec![0; CONTROL_BYTES_MAX + 1])]).is_err());
    let start = |manifest, path, records| Start {
        seq: 0,
        manifest: vec![0; manifest],
        path: vec![0; path],
        records: vec![0; records],
    };
    let most = (SNAPSHOT_BYTES_MAX, PATH_BYTES_MAX, RECORDS_BYTES_MAX as usize);
    assert!(encode_start(&start(most.0 + 1, 0, 0)).is_err());
    assert!(encode_start(&start(0, most.1 + 1, 0)).is_err());
    assert!(encode_start(&start(0, 0, most.2 + 1)).is_err());
    let longest = encode_start(&start(1, most.1, most.2)).unwrap();
    assert!(decode_start(&longest).is_ok());
    assert!(matches!(decode_start(&[&longest[..], &[0]].concat()), Err(FetchWireError::TooMany { .. })));
    // A length far beyond the bytes that follow is refused before anything is allocated for it.
    let lying = [&7u64.to_le_bytes()[..], &u32::MAX.to_le_bytes()].concat();
    assert!(matches!(decode_start(&lying), Err(FetchWireError::TooMany { .. })));
    let lying = [&7u64.to_le_bytes()[..], &0u32.to_le_bytes(), &u32::MAX.to_le_bytes()].concat();
    assert!(matches!(decode_start(&lying), Err(FetchWireError::TooMany { .. })));
    let short = [&7u64.to_le_bytes()[..], &100u32.to_le_bytes(), &[0; 99]].concat();
    assert_eq!(decode_start(&short), Err(FetchWireError::Truncated("start")));
    let whole = encode_start(&start(3, 2, 0)).unwrap();
    (0..whole.len()).for_each(|cut| assert!(decode_start(&whole[..cut]).is_err(), "cut at {cut}"));
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
        if let Ok(start) = decode_start(&bytes) {
            prop_assert_eq!(encode_start(&start).unwrap(), bytes.clone());
        }
        if let Some(head) = bytes.first_chunk()
            && let Ok(answer) = decode_answer(head)
        {
            prop_assert_eq!(&encode_answer(answer)[..], &head[..]);
        }
    }

    #[test]
    fn lists_round_trip(lists in proptest::collection::vec((any::<u64>(), proptest::collection::vec(any::<u8>(), 0..40)), 0..4)) {
        let part = |n: usize| lists.get(n).map(|(_, bytes)| bytes.clone()).unwrap_or_default();
        let start = Start { seq: lists.len() as u64, manifest: part(0), path: part(1), records: part(2) };
        prop_assert_eq!(decode_start(&encode_start(&start).unwrap()).unwrap(), start);
        let records: Vec<_> = lists.into_iter().map(|(n, bytes)| (bytes, n.to_le_bytes().to_vec())).collect();
        prop_assert_eq!(decode_records(&encode_records(&records).unwrap()).unwrap(), records);
    }
}
