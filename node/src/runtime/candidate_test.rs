use super::super::sample_test::{commit, genesis};
use super::*;
use crate::net::fetch::FetchRefusal;

const UPDATE: &[u8] = b"an encoded update";
const HONEST: NodeId = NodeId([1; 32]);

fn candidate() -> Candidate {
    let record = commit(&genesis(), update::digest(UPDATE));
    let key = AttemptKey { lineage: record.lineage, seq: record.seq, attempt: 3, set: Digest([4; 32]) };
    Candidate { key, record, readys: vec![vec![7; 40]] }
}

fn wanted(sources: &[NodeId]) -> Wanted {
    let candidate = candidate();
    let (key, record) = (candidate.key, candidate.record.digest());
    Wanted { key, record, update: Expect::Exactly(UPDATE.len() as u64), sources: sources.to_vec() }
}

/// The answer of a source; the honest one's is right, and each other number has its fault.
fn answer(source: NodeId, request: FetchRequest, expected: Expect) -> Result<Vec<u8>, FetchError> {
    let mut candidate = candidate();
    let asked = candidate.record.digest();
    let absent = FetchError::Refused(FetchRefusal::NotFound);
    let bytes = match (request, source.0[0]) {
        (_, 2) => return Err(absent),
        (FetchRequest::Candidate(_), 3) => b"nonsense".to_vec(),
        (FetchRequest::Candidate(_), 4) => {
            candidate.key.attempt += 1;
            wire::encode_candidate(&candidate)
        }
        (FetchRequest::Candidate(_), 5) => {
            candidate.record.tokens += 1;
            wire::encode_candidate(&candidate)
        }
        (FetchRequest::Candidate(record), _) if record == asked => wire::encode_candidate(&candidate),
        (FetchRequest::UpdateByDigest(_), 6) => b"another of length".to_vec(),
        (FetchRequest::UpdateByDigest(_), 7) => return Err(absent),
        (FetchRequest::UpdateByDigest(digest), _) if digest == candidate.record.update => UPDATE.to_vec(),
        other => panic!("nobody asks for {other:?}"),
    };
    match expected {
        Expect::Exactly(exact) => assert_eq!(exact, UPDATE.len() as u64),
        Expect::AtMost(most) => assert!(bytes.len() as u64 <= most),
    }
    Ok(bytes)
}

#[tokio::test]
async fn a_candidate_comes_from_the_first_source_that_has_all_of_it() {
    let ask = |source, request, expected| async move { answer(source, request, expected) };
    let liars: Vec<NodeId> = (2..8).map(|fill| NodeId([fill; 32])).collect();
    let with_honest: Vec<NodeId> = liars.iter().copied().chain([HONEST]).collect();
    let arrived = wanted(&with_honest).fetch(ask).await.unwrap();
    assert_eq!(arrived.candidate, candidate());
    assert_eq!((arrived.update.digest, arrived.update.bytes.as_slice()), (update::digest(UPDATE), UPDATE));
    for liar in liars {
        let why = wanted(&[liar]).fetch(ask).await.map(drop).unwrap_err();
        assert!(why.starts_with(&liar.short()), "{why}");
    }
    assert!(wanted(&[]).fetch(ask).await.is_err());
}
