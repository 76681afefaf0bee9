use super::super::sample_test::{chain, genesis, skip, spec};
use super::*;
use crate::net::fetch::encode_records;
use starling_protocol::certificate::verify_split;
use starling_protocol::identity::Ed25519Verifier;
use starling_protocol::{Digest, wire};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Two chains that are the same up to record `shared`; ours ends with record `head`, theirs is longer.
fn two_chains(shared: usize, head: usize) -> (Vec<Link>, Vec<Link>) {
    let mut ours = vec![genesis()];
    ours.extend(chain(&genesis(), shared));
    let mut theirs = ours.clone();
    let last = ours[shared].clone();
    ours.extend(chain(&last, head - shared));
    // Two SKIPs of one place are the same record, so theirs commits to other tokens.
    let mut other = skip(&last, 2);
    other.record.tokens += 1;
    other.digest = other.record.digest();
    theirs.push(other.clone());
    theirs.extend(chain(&other, head - shared + 5));
    (ours, theirs)
}

fn serve(links: &[Link], request: FetchRequest) -> Result<Vec<u8>, FetchError> {
    let FetchRequest::Records { from_seq, max } = request else { panic!("only records are asked for") };
    let votes = |link: &Link| link.certificate.as_ref().map(wire::encode_certificate).unwrap_or_default();
    let wanted = links.iter().filter(|link| link.record.seq >= from_seq).take(usize::from(max));
    let pairs: Vec<_> = wanted.map(|link| (wire::encode_record(&link.record), votes(link))).collect();
    Ok(encode_records(&pairs).expect("they fit"))
}

async fn search(ours: &[Link], theirs: &[Link]) -> (Option<Split>, usize) {
    let asked = AtomicUsize::new(0);
    let held = |seq: u64| {
        let link = ours.iter().find(|link| link.record.seq == seq);
        let held = link.map(|link| (link.record.clone(), link.certificate.clone()));
        async move { Ok(held) }
    };
    let ask = |request, _| {
        asked.fetch_add(1, Ordering::Relaxed);
        let answer = serve(theirs, request);
        async move { answer }
    };
    let head = ours.last().expect("a head").record.seq;
    let found = find(head, held, ask).await.expect("the source answers");
    (found, asked.into_inner())
}

#[tokio::test]
async fn the_first_place_that_differs_is_found_with_its_proofs() {
    for (shared, head) in [(0, 1), (3, 4), (3, 40), (39, 40), (100, 300)] {
        let (ours, theirs) = two_chains(shared, head);
        let (found, asked) = search(&ours, &theirs).await;
        let split = found.expect("they differ");
        assert_eq!(split.parent, ours[shared].record);
        assert_eq!(split.ours.0, ours[shared + 1].record);
        assert_eq!(split.theirs.0, theirs[shared + 1].record);
        assert!(asked <= 22, "{asked} asked for {head}");
    }
}

/// The first difference proves something only if the votes on both sides hold.
#[tokio::test]
async fn a_chain_that_is_made_up_proves_nothing() {
    let (ours, theirs) = two_chains(5, 20);
    let (found, _) = search(&ours, &theirs).await;
    assert!(
        verify_split(&Ed25519Verifier, &spec(), &found.expect("they differ")).is_err(),
        "its votes are for another record"
    );
    let other_genesis = Link { digest: Digest([1; 32]), ..genesis() };
    let mut strange = theirs.clone();
    strange[0] = other_genesis;
    strange[0].record.state_root = Digest([2; 32]);
    let nothing_shared: Vec<Link> = chain(&strange[0], 30);
    assert_eq!(search(&ours, &nothing_shared).await.0, None);
    assert_eq!(search(&ours, &[]).await.0, None);
}
