use super::super::sample_test::{chain, genesis};
use super::*;

fn runs(lengths: &[usize]) -> Vec<usize> {
    let links = chain(&genesis(), lengths.len());
    let wanted = links.into_iter().map(|link| (link, Codec::Int8));
    let length = |(link, _): &Wanted| lengths[link.record.seq as usize - 1];
    let runs = together(wanted, length);
    let numbers: Vec<u64> = runs.iter().flatten().map(|(link, _)| link.record.seq).collect();
    assert_eq!(numbers, (1..=lengths.len() as u64).collect::<Vec<_>>(), "each once, in their order");
    runs.iter().map(Vec::len).collect()
}

#[test]
fn small_updates_are_asked_for_together_and_large_ones_alone() {
    const SMALL: usize = 1000;
    assert_eq!(runs(&[]), [0; 0]);
    assert_eq!(runs(&[SMALL; 6]), [6], "six records take one round trip");
    assert_eq!(runs(&[SMALL; 20]), [TOGETHER_MAX, TOGETHER_MAX, 4]);
    assert_eq!(runs(&[TOGETHER_BYTES / 2; 4]), [2, 2]);
    assert_eq!(runs(&[TOGETHER_BYTES / 2 + 1; 3]), [1, 1, 1]);
    assert_eq!(runs(&[0, TOGETHER_BYTES + 1, 0, SMALL, usize::MAX, 0]), [1, 1, 2, 1, 1], "no small one waits for it");
}

#[test]
fn the_record_before_an_update_has_its_codec() {
    let genesis = genesis();
    let links = chain(&genesis, 3);
    let expected: Vec<Codec> = [&genesis, &links[0], &links[1]].map(|link| link.record.next.codec).to_vec();
    assert_eq!(codecs(&genesis, &links).collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn what_runs_beside_another_ends_with_it() {
    let (told, mut tells) = mpsc::channel(1);
    let aside = async {
        told.send(1).await.expect("it is heard");
        std::future::pending().await
    };
    assert_eq!(beside(tells.recv(), aside).await, Some(1));
    assert_eq!(beside(async { 2 }, async {}).await, 2);
}
