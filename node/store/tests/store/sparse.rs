//! Chains with records left out: what a node that joined later holds of the time before.

use crate::support::{History, create, image, open, options, scratch};
use starling_protocol::Digest;
use starling_protocol::path::Link;
use starling_protocol::record::RecordKind;
use starling_protocol::wire;
use starling_store::{Opened, Store};

const SMALL: usize = 40;

/// A history with a fork, and each of its records: its genesis, eight commits, a FORK, and eight more.
fn forked() -> Vec<History> {
    let mut history = History::genesis(SMALL);
    let mut all = vec![history.clone()];
    for n in 1..18 {
        if n == 9 {
            history.advance_unchanged(RecordKind::Fork)
        } else {
            drop(history.advance(n))
        }
        all.push(history.clone());
    }
    all
}

/// A path to record 15 as a source shows it: through the FORK, without the records on both sides of it.
fn way(all: &[History]) -> Vec<Link> {
    [all[0].link(), all[7].stone(), all[8].link(), all[9].link(), all[14].stone(), all[15].link()].to_vec()
}

fn held(store: &Store) -> Vec<u64> {
    (0..30).filter(|seq| store.record(*seq).unwrap().is_some()).collect()
}

fn seqs(links: &[(Vec<u8>, Vec<u8>)]) -> Vec<u64> {
    links.iter().map(|(record, _)| wire::decode_record(record).unwrap().seq).collect()
}

#[test]
fn a_newcomer_holds_the_way_to_its_snapshot_and_goes_on() {
    let (dir, all) = (scratch(), forked());
    let store = create(dir.path());
    all[15].adopt(&store, &way(&all));
    let mut history = all[15].clone();
    history.commit(&store);
    for store in [&store, &open(image(dir.path()).path())] {
        history.assert_loaded_from(store);
        assert_eq!(held(store), [0, 7, 8, 9, 14, 15, 16]);
        let ancestry = store.ancestry();
        let reaches: Vec<_> = ancestry.reaches().iter().map(|reach| (reach.lineage, reach.last)).collect();
        assert_eq!(reaches, [(all[0].record.lineage, 8), (all[9].record.lineage, 16)]);
        assert_eq!(store.whole_from(), Some(15));
        // Answers end where a record, or its votes, are missing.
        assert_eq!(seqs(&store.records_from(0, 9).unwrap()), [0]);
        assert_eq!(seqs(&store.records_from(8, 9).unwrap()), [8, 9]);
        assert_eq!(seqs(&store.records_from(15, 9).unwrap()), [15, 16]);
        for nowhere in [1, 7, 10, 14, 17] {
            assert_eq!(seqs(&store.records_from(nowhere, 9).unwrap()), [0; 0], "from {nowhere}");
        }
        let places: Vec<u64> = store.locator().unwrap().0.into_iter().map(|place| place.0).collect();
        assert_eq!(
            places,
            [16, 15, 9, 8, 0],
            "of what has its votes, ever further apart, where a lineage was left, and the genesis"
        );
    }
}

#[test]
fn a_store_keeps_the_records_that_it_held_up_to_the_start_of_the_way() {
    let all = forked();
    for (kept, from) in [(5, 5), (5, 3), (5, 0), (12, 9), (8, 8)] {
        let dir = scratch();
        let (mut history, store) = History::founded(dir.path(), SMALL);
        for step in &all[1..=kept] {
            if step.record.kind == RecordKind::Fork {
                store.commit(&step.record, None, &step.certificate()).unwrap();
                history = step.clone();
            } else {
                let update = history.advance(step.record.seq as u32);
                history.put(&store, &update);
            }
        }
        let mut shown = vec![all[from].link()];
        shown.extend(way(&all).into_iter().filter(|link| link.record.seq > from as u64));
        all[15].adopt(&store, &shown);
        let mut expected: Vec<u64> = (0..=from as u64).collect();
        expected.extend(shown[1..].iter().map(|link| link.record.seq));
        let reopened = image(dir.path());
        for store in [&store, &open(reopened.path())] {
            assert_eq!(held(store), expected, "{kept} held, shown from {from}");
            all[15].assert_loaded_from(store);
        }
    }
}

/// Whether a store that was given these records is whole when it is opened again.
fn sound(all: &[History], spoil: impl Fn(&mut Vec<Link>)) -> bool {
    let dir = scratch();
    let store = create(dir.path());
    let mut shown = way(all);
    spoil(&mut shown);
    let manifest = all[15].manifest();
    for (index, digest) in manifest.chunks.iter().enumerate() {
        store.begin_adopt(&manifest).unwrap();
        store.put_chunk(digest, &all[15].chunk(index)).unwrap();
    }
    let adopted = store.finish_adopt(&manifest, &shown).is_ok();
    let Opened { damage, .. } = Store::open(image(dir.path()).path(), options()).unwrap();
    assert_eq!(damage, None, "what is refused is not written");
    adopted
}

#[test]
fn a_way_that_leads_nowhere_is_not_taken() {
    let all = forked();
    assert!(sound(&all, |_| {}));
    assert!(!sound(&all, |way| drop(way.remove(0))), "no genesis");
    assert!(!sound(&all, |way| drop(way.remove(3))), "a fork is never left out");
    assert!(!sound(&all, |way| drop(way.remove(2))), "nor the record before it");
    assert!(!sound(&all, |way| way[3].certificate = None), "a fork without its votes");
    assert!(!sound(&all, |way| way[5].certificate = None));
    assert!(!sound(&all, |way| way[5].certificate = way[2].certificate.clone()), "another record's votes");
    assert!(!sound(&all, |way| way.swap(1, 4)));
    assert!(!sound(&all, |way| way[1].record.run = Digest([9; 32])));
    // A stone whose child is not there.
    assert!(!sound(&all, |way| way[4] = all[13].stone()));
}
