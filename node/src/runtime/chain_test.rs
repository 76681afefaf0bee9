use super::super::sample_test::{chain, genesis, skip, spec};
use super::*;
use crate::net::fetch::encode_records;
use std::sync::Mutex;

/// A source that holds these links, in order of their numbers.
fn serve(links: &[Link], request: FetchRequest) -> Result<Vec<u8>, FetchError> {
    let FetchRequest::Records { from_seq, max } = request else { panic!("only records are asked for") };
    let votes = |link: &Link| link.certificate.as_ref().map(wire::encode_certificate).unwrap_or_default();
    let pairs: Vec<_> = links
        .iter()
        .filter(|link| link.record.seq >= from_seq)
        .take(usize::from(max))
        .map(|link| (wire::encode_record(&link.record), votes(link)))
        .collect();
    Ok(encode_records(&pairs).unwrap())
}

async fn fetch(base: &Link, held: &[Link], target: &Link) -> Result<Vec<Link>, NoChain> {
    after(&spec(), base, target.record.seq, &target.digest, |request, _| async move { serve(held, request) }).await
}

#[tokio::test]
async fn a_certified_chain_is_taken_in_as_many_answers_as_it_needs() {
    let genesis = genesis();
    let links = chain(&genesis, usize::from(RECORDS_MAX) + 3);
    let asked = Mutex::new(Vec::new());
    let last = links.last().unwrap();
    let got = after(&spec(), &genesis, last.record.seq, &last.digest, |request, expected| {
        asked.lock().unwrap().push((request.clone(), expected));
        let links = &links;
        async move { serve(links, request) }
    })
    .await
    .unwrap();
    assert_eq!(got, links);
    let asked = asked.into_inner().unwrap();
    assert_eq!(asked.len(), 2);
    assert_eq!(asked[1].0, FetchRequest::Records { from_seq: u64::from(RECORDS_MAX) + 1, max: 3 });
    assert_eq!(fetch(&genesis, &links, &genesis).await.unwrap(), [], "nothing is missing");
}

#[tokio::test]
async fn a_link_without_a_quorum_of_the_record_before_is_refused() {
    let genesis = genesis();
    let mut links = chain(&genesis, 4);
    let target = links[3].clone();
    fetch(&genesis, &links, &target).await.unwrap();
    let refused = |what: &str, outcome: Result<Vec<Link>, NoChain>| match outcome {
        Err(NoChain::Other(why)) => assert!(why.contains(what), "{why}"),
        other => panic!("{what}: {other:?}"),
    };
    let good = links[1].clone();
    links[1].certificate = None;
    refused("without its votes", fetch(&genesis, &links, &target).await);
    links[1].certificate = links[2].certificate.clone();
    refused("another record", fetch(&genesis, &links, &target).await);
    links[1] = skip(&links[0], 1);
    refused("no quorum", fetch(&genesis, &links, &target).await);
    links[1] = good.clone();
    if let Some(vote) = links[1].certificate.as_mut().and_then(|certificate| certificate.votes.last_mut()) {
        *vote.last_mut().unwrap() ^= 1;
    }
    refused("record 2", fetch(&genesis, &links, &target).await);
    // A record that is certified, but does not follow the one before.
    links[1] = good;
    links[2].record.tokens += 1;
    links[2].digest = links[2].record.digest();
    assert!(fetch(&genesis, &links, &target).await.is_err());
}

#[tokio::test]
async fn another_chain_is_told_from_a_source_that_lags() {
    let genesis = genesis();
    let links = chain(&genesis, 3);
    let mut other = genesis.clone();
    other.record.lineage = Digest([9; 32]);
    other.digest = other.record.digest();
    let theirs = chain(&other, 3);
    assert_eq!(fetch(&genesis, &theirs, &theirs[2]).await, Err(NoChain::Diverged));
    assert_eq!(fetch(&links[1], &links, &theirs[2]).await, Err(NoChain::Diverged), "the end is not the one asked for");
    assert_eq!(fetch(&links[2], &links, &links[1]).await, Err(NoChain::Diverged), "the target is behind");
    assert!(matches!(fetch(&genesis, &links[..1], &links[2]).await, Err(NoChain::Gone(_))));
    assert!(matches!(fetch(&genesis, &links[1..], &links[2]).await, Err(NoChain::Gone(_))), "it begins too late");
    let mut far = links[2].clone();
    far.record.seq = RECORDS_GAP_MAX + 1;
    assert!(matches!(fetch(&genesis, &links, &far).await, Err(NoChain::Gone(why)) if why.contains("too long")));
}

#[test]
fn hostile_answers_are_refused() {
    let genesis = genesis();
    let links = chain(&genesis, 3);
    let answer = serve(&links, FetchRequest::Records { from_seq: 1, max: 3 }).unwrap();
    assert_eq!(decode(&answer, 3).unwrap().len(), 3);
    assert!(decode(&answer, 2).is_err(), "more than asked for");
    for cut in 0..answer.len() {
        assert!(decode(&answer[..cut], 3).is_err(), "cut at {cut}");
    }
}
