//! Round trips and refusals by property.

use super::hostile_test::{Trusting, body_of, envelope, message, refused, run};
use super::*;
use crate::identity::Ed25519Verifier;
use crate::limits::{RTTS_MAX, SET_BYTES_MAX, STATEMENTS_MAX, VOTE_BYTES_MAX, VOTERS_MAX};
use crate::message::{Certificate, Message, PeerRtt, Ready, Statement, StatementKind, Value, Vote};
use crate::{Digest, NodeId};
use proptest::prelude::*;

/// Decodes bytes as one kind of document and encodes the result again; None if the bytes are refused.
type There = fn(&[u8]) -> Option<Vec<u8>>;

const DOCUMENTS: [There; 8] = [
    |bytes| decode_record(bytes).ok().map(|record| encode_record(&record)),
    |bytes| decode_spec(bytes).ok().map(|spec| encode_spec(&spec)),
    |bytes| decode_certificate(bytes).ok().map(|certificate| encode_certificate(&certificate)),
    |bytes| decode_vote_state(bytes).ok().map(|vote_state| encode_vote_state(&vote_state)),
    |bytes| decode_candidate(bytes).ok().map(|candidate| encode_candidate(&candidate)),
    |bytes| decode_ticket(bytes).ok().map(|ticket| encode_ticket(&ticket)),
    |bytes| decode_revocation(bytes).ok().map(|revocation| encode_revocation(&revocation)),
    |bytes| decode_amendment(bytes).ok().map(|amendment| encode_amendment(&amendment)),
];

/// The samples of [`DOCUMENTS`], in the same order.
fn documents() -> [Vec<u8>; 8] {
    [
        encode_record(&sample::record()),
        encode_spec(&sample::spec()),
        encode_certificate(&sample::certificate()),
        encode_vote_state(&sample::vote_state()),
        encode_candidate(&sample::candidate()),
        encode_ticket(&sample::ticket()),
        encode_revocation(&sample::revocation()),
        encode_amendment(&sample::amendment()),
    ]
}

fn statements() -> impl Strategy<Value = Vec<Statement>> {
    let one = (any::<[u8; 32]>(), any::<u64>(), any::<bool>()).prop_map(|(id, incarnation, joins)| {
        let (kind, incarnation) = if joins { (StatementKind::Joins, incarnation) } else { (StatementKind::Suspect, 0) };
        Statement { kind, id: NodeId(id), incarnation, grant: Digest::default() }
    });
    prop::collection::btree_set(one, 0..=STATEMENTS_MAX).prop_map(|set| set.into_iter().collect())
}

fn rtts() -> impl Strategy<Value = Vec<PeerRtt>> {
    prop::collection::btree_map(0u16..1024, any::<u16>(), 0..=RTTS_MAX)
        .prop_map(|map| map.into_iter().map(|(peer, rtt)| PeerRtt { peer, rtt }).collect())
}

proptest! {
    #[test]
    fn readies_round_trip_within_their_size(
        statements in statements(), rtts in rtts(), numbers: [u32; 4], bytes: [u8; 32], leave: bool,
    ) {
        let (count, said) = (rtts.len(), statements.len());
        let ready = Message::Ready(Ready {
            round: 1 + u64::from(numbers[0]),
            base: Digest(bytes),
            start: numbers[1].into(),
            samples: 1 + u64::from(numbers[2]),
            loss_q16: numbers[3],
            merges: leave.then_some(Digest(bytes)),
            merged_tokens: u64::from(leave),
            statements,
            rtts,
            leave,
            ..sample::ready()
        });
        let sealed = seal(&sample::signer(), &run(), &ready).unwrap();
        let most = 384 + 80 * said + 4 * count;
        prop_assert!(sealed.len() <= most, "{} bytes with {said} statements, {count} measured peers", sealed.len());
        let opened = open(&Ed25519Verifier, &run(), &sealed).unwrap();
        prop_assert_eq!(opened.message, ready);
    }

    /// A vote on a record fits into a certificate, whatever its values; a vote on a set never is in one.
    #[test]
    fn votes_on_records_fit_into_certificates(numbers: [u64; 4], ballot: u32, attempt: u32, fill: u8, voted: bool) {
        let value = Value {
            digest: Digest([fill; 32]),
            tokens: numbers[0].max(1),
            contributors: (numbers[1] as u32).max(1),
            attempt,
            ..sample::value()
        };
        let vote = Vote { incarnation: numbers[2], ballot, value, voted, ..sample::vote() };
        let sealed = seal(&sample::signer(), &run(), &Message::Vote(vote)).unwrap();
        prop_assert!(sealed.len() <= VOTE_BYTES_MAX, "{} bytes", sealed.len());
        let full = Certificate { votes: vec![sealed; VOTERS_MAX], ..sample::certificate() };
        prop_assert!(seal(&sample::signer(), &run(), &Message::Certificate(full)).is_ok());
    }

    #[test]
    fn sets_round_trip(members in prop::collection::vec(any::<u8>(), 1..=SET_BYTES_MAX), last in 1u8..) {
        let Message::Fork(mut fork) = message("fork") else { unreachable!() };
        fork.members = members;
        if let Some(end) = fork.members.last_mut() {
            *end = last;
        }
        let fork = Message::Fork(fork);
        let sealed = seal(&sample::signer(), &run(), &fork).unwrap();
        prop_assert_eq!(open(&Ed25519Verifier, &run(), &sealed).unwrap().message, fork);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..600), tag in 0u16..18) {
        let _ = open(&Trusting, &run(), &bytes);
        for decode in DOCUMENTS {
            if let Some(again) = decode(&bytes) {
                prop_assert_eq!(&again, &bytes);
            }
        }
        let body = [&tag.to_le_bytes(), &bytes[..]].concat();
        if let Ok(opened) = open(&Trusting, &run(), &envelope(&body)) {
            prop_assert_eq!(body_of(&opened.message), body);
        }
    }

    /// A changed byte gives another value or a refusal, never a second encoding of the same value.
    #[test]
    fn mutations_are_refused_or_canonical(
        which in 0usize..15 + 8,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mutate = |bytes: &[u8]| {
            let mut bytes = bytes.to_vec();
            for (at, with) in &changes {
                let at = at.index(bytes.len());
                bytes[at] = *with;
            }
            bytes
        };
        match sample::messages().get(which) {
            Some(message) => {
                let body = mutate(&body_of(message));
                match open(&Trusting, &run(), &envelope(&body)) {
                    Ok(opened) => prop_assert_eq!(body_of(&opened.message), body),
                    Err(error) => prop_assert_eq!(error, refused(&body), "the same bytes, the same refusal"),
                }
            }
            None => {
                let which = which - sample::messages().len();
                let bytes = mutate(&documents()[which]);
                if let Some(again) = DOCUMENTS[which](&bytes) {
                    prop_assert_eq!(again, bytes);
                }
            }
        }
    }
}

#[test]
fn each_document_is_the_sample_of_its_decoder() {
    for (document, decode) in documents().into_iter().zip(DOCUMENTS) {
        assert_eq!(decode(&document), Some(document));
    }
    assert_eq!(sample::messages().len(), 15, "the number above follows the kinds of messages");
}
