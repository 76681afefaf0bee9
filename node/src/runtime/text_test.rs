use super::*;

fn id(n: u8) -> NodeId {
    NodeId([n; 32])
}

/// Strangers take a request and never answer. Their ids sort before the member's.
#[tokio::test]
async fn slow_strangers_do_not_keep_the_manifest_from_a_newcomer() {
    let member = id(255);
    let now = Instant::now();
    for known in [true, false] {
        let peers: Vec<NodeId> = (0..7).map(id).chain([member]).collect();
        let mut search = Search::<()>::new();
        let is_stranger = |peer: &NodeId| !known || *peer != member;
        search.ask(now, peers, is_stranger, |peer| {
            let answer = async move { if peer == member { (peer, Some(())) } else { std::future::pending().await } };
            answer.boxed()
        });
        assert_eq!(search.answers.next().await, Some((member, Some(()))), "known: {known}");
    }
}

#[tokio::test]
async fn a_member_is_asked_beside_any_number_of_strangers_and_each_gets_a_turn() {
    let strangers: Vec<NodeId> = (0..100).map(id).collect();
    let (member, mut now) = (id(255), Instant::now());
    let mut search = Search::<()>::new();
    let refuses = |peer: NodeId| async move { (peer, None) }.boxed();
    let is_stranger = |peer: &NodeId| *peer != member;
    search.ask(now, strangers.clone(), is_stranger, refuses);
    assert_eq!(search.asking.len(), STRANGERS_ASKED);
    let all: Vec<NodeId> = strangers.iter().copied().chain([member]).collect();
    search.ask(now, all.clone(), is_stranger, refuses);
    assert!(search.asking.contains(&member), "it came later");
    let mut met = BTreeSet::new();
    for _ in 0..100 {
        while let Some((peer, _)) = search.answers.next().await {
            search.asking.remove(&peer);
            met.insert(peer);
        }
        now += Duration::from_secs(1);
        search.ask(now, all.clone(), is_stranger, refuses);
    }
    assert_eq!(met.len(), 101);
    search.ask(now, Vec::new(), is_stranger, refuses);
    assert!(search.asked.is_empty(), "who is gone is forgotten");
}

#[test]
fn a_share_that_was_not_asked_for_is_said() {
    let zero = Digest::default();
    let manifest = |train_bytes, validation_bytes| DataManifest {
        vocab: 256,
        tokenizer: zero,
        train_tokens: train_bytes,
        validation_tokens: validation_bytes,
        train_bytes,
        validation_bytes,
        order1_micronats: 0,
        shards: Vec::new(),
    };
    let said = other_share(&manifest(900 << 10, 100 << 10), 0.01).expect("a tenth is not a hundredth");
    for part in ["100.0 KiB of 1000.0 KiB", "10.0 %", "asks for 1.0 %"] {
        assert!(said.contains(part), "{part} is missing in: {said}");
    }
    assert_eq!(other_share(&manifest(900 << 10, 100 << 10), 0.1), None);
    assert_eq!(other_share(&manifest(990 << 10, 14 << 10), 0.01), None, "blocks are no finer");
}
