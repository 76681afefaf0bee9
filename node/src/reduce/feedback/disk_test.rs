use super::super::alone_test::{Alone, Fate, begun, delta, fate, mark, me, member, open, reduce, without, zeros};
use super::*;
use crate::reduce::passed::Passed;
use crate::reduce::{FragmentFeedback, Restored};
use starling_protocol::Digest;
use starling_protocol::run::Codec;
use starling_store::StoreOptions;
use std::path::Path;

/// Runs with one fragment and with several.
const COUNTS: [u32; 2] = [1, 3];

fn file(folder: &Path, name: &str) -> std::path::PathBuf {
    folder.join("private").join(name)
}

/// The numbers of kept and lost fragments, and whether the kept ones have a residual.
fn found(restored: Restored) -> (usize, usize, bool) {
    (restored.kept, restored.lost, restored.norm > 0.0)
}

#[test]
fn after_a_kill_the_head_record_says_which_file_is_true() {
    for count in COUNTS {
        let folder = tempfile::tempdir().unwrap();
        let (mut node, key) = begun(folder.path(), count);
        let settled = node.left();
        assert!(node.left_of(&node.restarted()) == settled, "before the next is staged");
        let head = node.head.record.seq;
        node.feedback.stage(&key);
        let (before, restored) = node.restart();
        assert!(node.left_of(&before) == settled, "nothing is decided yet");
        assert_eq!(found(restored), (count as usize, 0, true));
        // The killed process hears of the decision later, or reads it on its disk.
        for fate in [Fate::Skipped, Fate::LeftOut] {
            let other = node.restarted();
            other.pass(&node.passing(fate));
            assert!(node.left_of(&other) == settled, "{fate:?}");
        }
        let taken = node.passing(Fate::Taken);
        node.decide(Fate::Taken);
        let after = node.left();
        assert!(after != settled);
        before.pass(&taken);
        assert!(node.left_of(&before) == after, "it was taken in");
        assert!(node.left_of(&node.restarted()) == after);
        let (undecided, _) = FragmentFeedback::restore(&node.store, &me(), head, node.fragments);
        assert!(node.left_of(&undecided) == settled, "the record was not on the disk yet");
        // Later records without this node change nothing, whether it hears of them or reads them.
        let known = node.restarted();
        for fate in [Fate::LeftOut, Fate::Skipped, Fate::Skipped, Fate::LeftOut, Fate::LeftOut] {
            known.pass(&node.passing(fate));
            node.decide(fate);
            node.feedback.keep();
            assert!(node.left_of(&node.restarted()) == after && node.left_of(&known) == after, "{fate:?}");
        }
    }
}

/// The flock takes a codec that leaves nothing out.
#[test]
fn residuals_and_their_files_go_with_the_codec() {
    let folder = tempfile::tempdir().unwrap();
    let (mut node, key) = begun(folder.path(), 1);
    assert!(!zeros(&node.left()), "there is something to give up");
    node.feedback.stage(&key);
    let passed = Passed { codec: Codec::Int8, ..node.passing(Fate::Taken) };
    node.feedback.pass(&passed);
    assert!(zeros(&node.left()));
    assert_eq!(node.feedback.offered_norm(Codec::Int8, 1, &node.delta), None);
    node.feedback.keep();
    assert_eq!(node.store.private_names().unwrap(), Vec::<String>::new());
    node.decide(Fate::Taken);
    assert!(zeros(&node.left()) && found(node.restart().1) == (0, 0, false));
}

/// A node is killed in the middle of a round and never hears of its decision. It catches up over records of all kinds,
/// some of which stepped what it had staged.
#[test]
fn a_catch_up_takes_out_of_each_fragment_what_records_took_in() {
    for count in COUNTS {
        let folder = tempfile::tempdir().unwrap();
        let (mut node, key) = begun(folder.path(), count);
        node.feedback.stage(&key);
        let (late, staged) = (node.restarted(), node.turn());
        let mut passed = vec![node.passing(Fate::Taken)];
        node.decide(Fate::Taken);
        let after = node.left();
        for fate in [Fate::LeftOut, Fate::Skipped, Fate::LeftOut, Fate::LeftOut, Fate::LeftOut] {
            passed.push(node.passing(fate));
            node.decide(fate);
        }
        passed.iter().for_each(|passed| late.pass(passed));
        assert!(node.left_of(&late) == after, "what was staged is true after the first of them, and stays so");
        // The same, but a record on the way took in an attempt that no file has.
        let (late, lost) = (node.restarted(), node.turn());
        late.pass(&node.passing(Fate::Taken));
        let expected = without(&after, lost.clone());
        assert!(node.left_of(&late) == expected, "lost, and only there");
        assert!(count == 1 || lost != staged);
        node.decide(Fate::Taken);
        let (behind, restored) = node.restart();
        assert!(node.left_of(&behind) == expected, "the disk is a record behind");
        assert_eq!(found(restored), (count as usize - 1, 1, count > 1));
    }
}

#[test]
fn a_residual_that_cannot_be_known_counts_as_nothing() {
    for count in COUNTS {
        let folder = tempfile::tempdir().unwrap();
        let (mut node, _) = begun(folder.path(), count);
        let none = without(&node.left(), node.turn());
        // A record takes in an attempt of this node that no file has.
        let lost = node.restarted();
        let mut unknown = node.next(Fate::Taken);
        unknown.contributors[0].ready = Digest([0xee; 32]);
        lost.pass(&Passed::of(&unknown, &me()));
        assert!(node.left_of(&lost) == none);
        // The records of another lineage do not match the files.
        let old = node.restarted();
        let mut elsewhere = node.next(Fate::Taken);
        elsewhere.lineage = Digest([0xdd; 32]);
        old.pass(&Passed::of(&elsewhere, &me()));
        assert!(node.left_of(&old) == none);
        // Settled residuals are written after the decision if they were not before.
        node.decide(Fate::Taken);
        assert!(node.left_of(&node.restarted()) == none, "the disk is a record behind");
        node.feedback.keep();
        assert!(node.left_of(&node.restarted()) == node.left());
        node.feedback.forget().unwrap();
        let (after, restored) = node.restart();
        assert!(zeros(&node.left()) && zeros(&node.left_of(&after)));
        assert_eq!(restored, Restored::default(), "and nothing is on the disk");
    }
}

#[test]
fn a_torn_file_is_nothing_and_no_other_one_is_taken_for_it() {
    for (count, damage) in COUNTS.into_iter().flat_map(|count| [(count, 0), (count, 1), (count, 2)]) {
        let folder = tempfile::tempdir().unwrap();
        let (mut node, key) = begun(folder.path(), count);
        let (settled, turn) = (node.left(), node.turn());
        let of_turn = node.of_turn();
        let last = mark(&of_turn).unwrap();
        node.feedback.stage(&key);
        let disk = of_turn.disk.as_ref().unwrap();
        let place = disk.files().iter().position(|file| *file == Some(last)).unwrap();
        let path = file(folder.path(), &disk.names[place]);
        let mut bytes = std::fs::read(&path).unwrap();
        match damage {
            0 => bytes.truncate(bytes.len() / 2),
            1 => bytes[200_000] ^= 1,
            _ => bytes.clear(),
        }
        std::fs::write(&path, bytes).unwrap();
        let (after, restored) = node.restart();
        assert_eq!(found(restored), (count as usize - 1, 1, count > 1), "damage {damage}");
        assert!(node.left_of(&after) == without(&settled, turn.clone()), "damage {damage}");
        assert!(!path.exists() && node.left_of(&node.restarted()) == without(&settled, turn), "also the next time");
        // The staged file is whole, and true once the record is decided.
        after.pass(&node.passing(Fate::Taken));
        node.decide(Fate::Taken);
        assert!(node.left_of(&after) == node.left(), "damage {damage}");
    }
}

#[test]
fn files_of_something_else_are_refused_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let (node, _) = begun(folder.path(), 3);
    let (settled, private) = (node.left(), folder.path().join("private"));
    let names = || node.store.private_names().unwrap();
    let ours = names();
    let kept = |expected: Vec<f32>, lost: usize, why: &str| {
        let (after, restored) = node.restart();
        assert!(node.left_of(&after) == expected, "{why}");
        assert_eq!(found(restored), (3 - lost, lost, lost < 3), "{why}");
    };
    kept(settled.clone(), 0, "as they are");
    // The two files of one fragment are interchangeable; the files of two fragments are not.
    let swap = |a: &str, b: &str| {
        let (a, b) = (private.join(a), private.join(b));
        let held = std::fs::read(&a).unwrap();
        std::fs::rename(&b, &a).unwrap();
        std::fs::write(&b, held).unwrap();
    };
    swap("residuals-1-a", "residuals-1-b");
    kept(settled.clone(), 0, "the two of one fragment");
    let lost = |fragments: &[usize]| {
        let all = settled.clone();
        fragments.iter().fold(all, |left, fragment| without(&left, node.fragments.range(*fragment)))
    };
    // Files of earlier layouts, of more fragments than the run has, and with other names.
    let strays = ["residuals", "residuals-2", "residuals-a", "residuals-3-a", "residuals-0-c", "residuals-0-a-1"];
    for name in strays {
        std::fs::copy(private.join("residuals-0-a"), private.join(name)).unwrap();
    }
    kept(settled.clone(), 0, "beside others");
    assert_eq!(names(), ours, "they are gone");
    swap("residuals-0-a", "residuals-2-a");
    swap("residuals-0-b", "residuals-2-b");
    kept(lost(&[0, 2]), 2, "of two fragments");
    assert_eq!(names(), ["residuals-1-a", "residuals-1-b"]);
    // A name of ours with content that an earlier program may have written.
    for name in ["residuals-1-a", "residuals-1-b"] {
        let mut file = node.store.write_private(name, 400).unwrap();
        file.write(&[7; 400]).unwrap();
        file.commit().unwrap();
    }
    let (after, restored) = node.restart();
    assert!(zeros(&node.left_of(&after)) && restored == Restored { kept: 0, lost: 1, norm: 0.0 });
    assert_eq!(names(), [""; 0]);
}

#[test]
fn files_of_another_node_or_model_are_refused() {
    for (count, wanted) in [(3, "node"), (3, "fragments"), (1, "size")] {
        let folder = tempfile::tempdir().unwrap();
        let (node, _) = begun(folder.path(), count);
        let head = node.head.record.seq;
        let chunk = starling_protocol::limits::CHUNK_ELEMENTS;
        let other = |n, elements| starling_protocol::update::Fragments::new(n, elements, chunk);
        let elements = node.fragments.elements();
        let (me, fragments) = match wanted {
            "node" => (member(1), node.fragments),
            "fragments" => (me(), other(2, elements)),
            _ => (me(), other(1, elements + 1)),
        };
        let (_, restored) = FragmentFeedback::restore(&node.store, &me, head, fragments);
        assert_eq!(found(restored), (0, fragments.count(), false), "of another {wanted}");
        assert_eq!(node.store.private_names().unwrap(), [""; 0], "of another {wanted}");
    }
}

#[test]
fn a_full_disk_keeps_what_it_has() {
    let folder = tempfile::tempdir().unwrap();
    let (node, key) = begun(folder.path(), 3);
    let (head, last, offer) = (node.head.record.clone(), mark(&node.of_turn()), node.delta[node.turn()].to_vec());
    let fragments = node.fragments;
    drop(node);
    let full = StoreOptions { ballast_bytes: 0, reserve_bytes: u64::MAX / 4, max_bytes: 0 };
    let store = Arc::new(Store::open(folder.path(), full).unwrap().store);
    let (all, _) = FragmentFeedback::restore(&store, &me(), head.seq, fragments);
    let feedback = all.of_round(head.round + 1);
    assert!(last.is_some() && mark(&feedback) == last);
    reduce(&feedback, key, &offer);
    let disk = feedback.disk.as_ref().unwrap();
    assert!(matches!(disk.stage(&feedback.residuals, &key), Err(StoreError::Full { .. })));
    all.stage(&key);
    assert!(disk.has(&last.unwrap()) && !disk.has(&key.into()));
}

/// Contributed values are the decoded ones plus the residuals: over rounds of all kinds, with restarts between them,
/// and with the disk's content after each.
#[test]
fn over_restarts_nothing_is_lost_or_counted_twice() {
    for count in COUNTS {
        let folder = tempfile::tempdir().unwrap();
        let elements = delta(1).len();
        let (mut offered, mut said) = (vec![0.0f64; elements], vec![0.0f64; elements]);
        for seq in 1..30 {
            // A restart before each round.
            let mut node = Alone::on(folder.path(), count);
            let update = node.reduce(node.key(0));
            node.feedback.stage(&node.key(0));
            if fate(seq) == Fate::Taken {
                let turn = node.turn();
                said[turn.clone()].iter_mut().zip(&update).for_each(|(said, x)| *said += f64::from(*x));
                let offer = &node.delta[turn.clone()];
                offered[turn].iter_mut().zip(offer).for_each(|(offered, x)| *offered += f64::from(*x));
            }
            node.decide(fate(seq));
            let left = node.left_of(&node.restarted());
            let wrong = (0..elements).map(|e| (offered[e] - said[e] - f64::from(left[e])).abs()).fold(0.0, f64::max);
            assert!(wrong < 1e-6, "{wrong} is lost or counted twice after {seq}");
            assert!(!zeros(&left), "and there is something to lose");
        }
    }
}

#[test]
fn a_start_tells_what_it_found() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(Alone::on(folder.path(), 2).restart().1, Restored::default());
    let (node, _) = begun(folder.path(), 2);
    let squares: f64 = [1, 2].map(|round| node.feedback.of_round(round).squares()).iter().sum();
    let left = node.left();
    drop(node);
    let (store, fragments) = (open(folder.path()), super::super::alone_test::fragments(2));
    let (_, restored) = FragmentFeedback::restore(&store, &me(), store.head().unwrap().seq, fragments);
    assert_eq!((restored.kept, restored.lost), (2, 0));
    assert!((restored.norm - squares.sqrt()).abs() < 1e-12 && restored.norm > 0.0);
    assert!(!zeros(&left));
}
