use super::*;
use starling_protocol::{Digest, NodeId, sample};

fn of(pairs: &[&str]) -> Result<Changes, String> {
    changes(&pairs.iter().map(|pair| (*pair).to_owned()).collect::<Vec<_>>())
}

#[test]
fn keys_are_those_of_the_run_file_with_their_section_or_without() {
    let asked = of(&["rounds=4000", "inner.lr=1e-3", "grace_s=20", "partition.minority=wait"]);
    let minority = Some(Minority::Wait);
    let changes =
        Changes { rounds: Some(4_000), lr: Some(1e-3), grace_ms: Some(20_000), minority, ..Changes::default() };
    assert_eq!(asked, Ok(changes));
}

#[test]
fn what_cannot_change_is_refused_with_the_reason_and_the_way_out() {
    let from = ["data.sources", "codec", "sync.engine", "outer.lr", "admission.mode", "seed", "model.seq_len"];
    // A run that begins from a model has its sizes and its tokenizer.
    let anew = ["model.layers", "layers", "model.norm_eps", "data.tokenizer"];
    let from = from.map(|key| (key, "--from CHECKPOINT"));
    for (key, way) in from.into_iter().chain(anew.map(|key| (key, "starling new"))) {
        let why = of(&[&format!("{key}=1")]).expect_err(key);
        assert!(why.contains("cannot change") && why.contains(way), "{why}");
    }
    for (pair, words) in [
        ("validate_every=3", "node file"),
        ("colour=red", "no such key"),
        ("outer.clip=0.5", "no such key; did you mean inner.clip?"),
        ("sync.lr=1", "no such key; did you mean inner.lr?"),
        ("data.share=10", "no such key; did you mean join.share?"),
        ("model.rounds=9", "no such key; did you mean budget.rounds?"),
        ("nonsense.clip=0.5", "no such key; did you mean inner.clip?"),
        ("run.inner.clip=0.5", "no such key; did you mean inner.clip?"),
        (".rounds=9", "no such key; did you mean budget.rounds?"),
        ("rounds", "KEY=VALUE"),
        ("rounds=many", "not a whole number"),
        ("grace_s=99999999", "too many"),
        ("minority=stay", "fork, wait or halt"),
        ("lr=nan", "not a number"),
    ] {
        let why = of(&[pair]).expect_err(pair);
        assert!(why.contains(words), "{why}");
    }
    assert!(of(&["rounds=1", "budget.rounds=2"]).expect_err("twice").contains("twice"));
}

#[test]
fn a_round_is_a_number_or_the_next() {
    assert_eq!((from_round("next").ok(), from_round("12").ok()), (Some(0), Some(12)));
    assert!(from_round("0").is_err() && from_round("soon").is_err());
}

/// A run of 100 rounds whose creator is this node, after so many.
fn creators(round: u64) -> (RunSpec, Record, Identity) {
    let identity = Identity::generate().expect("a key");
    let spec = RunSpec { creator: Some(identity.node_id()), ..sample::spec() };
    let voters = sample::voters([identity.node_id()], 1, 0, 240);
    let record = Record { round, ..sample::genesis(&spec, Digest([1; 32]), Digest([2; 32]), voters) };
    (spec, record, identity)
}

#[test]
fn two_calls_at_rest_make_one_amendment_until_it_is_handed_in() {
    let folder = tempfile::tempdir().expect("a folder");
    let ((spec, head, identity), home) = (creators(100), folder.path());
    let call = |pair: &str| {
        let changes = of(&[pair]).expect("it parses");
        let (amendment, _) = beside((&spec, &head), &identity, home, (0, changes))?;
        waiting::leave(home, &amendment).map(|()| amendment).map_err(Failure::from)
    };
    let first = call("lr=1e-3").expect("it is left");
    assert!(left_text((&spec, &first), home, true).contains("this counts once the budget grows"));
    let both = call("rounds=4000").expect("it joins the first");
    let changes = Changes { rounds: Some(4_000), lr: Some(1e-3), ..Changes::default() };
    assert_eq!((both.number, both.changes), (1, changes));
    let text = left_text((&spec, &both), home, false);
    assert!(text.contains("  budget.rounds = 4000, inner.lr = 0.001\n"), "{text}");
    assert_eq!(call("rounds=500").expect("the later value counts").changes.rounds, Some(500));
    // The node was started, and ended before a record held it.
    waiting::hand_in(home, &both).expect("written");
    let refused = call("clip=0.5").expect_err("others may know it");
    assert_eq!(refused.code, Code::Refused);
    let why = refused.error.to_string();
    assert!(why.contains("was handed in before this node ended") && why.contains("budget.rounds = 4000"), "{why}");
    assert_eq!(waiting::read(home, Stage::HandedIn).expect("it is read"), Some(both), "nothing is written over it");
}

#[test]
fn a_round_that_never_comes_is_wrong_usage_and_one_that_waits_gives_way() {
    let folder = tempfile::tempdir().expect("a folder");
    let ((spec, head, identity), home) = (creators(10), folder.path());
    let call = |from, pair: &str| beside((&spec, &head), &identity, home, (from, of(&[pair]).expect("it parses")));
    let wrong = [
        (10, "lr=1e-4", "that round is over"),
        (101, "lr=1e-4", "a round up to 100"),
        (0, "lr=0", "the run cannot have these terms"),
        (0, "share=70", "the run cannot have these terms"),
        (0, "grace_s=0", "the run cannot have these terms"),
    ];
    for (from, pair, words) in wrong {
        let refused = call(from, pair).expect_err(words);
        assert_eq!(refused.code, Code::Usage);
        assert!(refused.error.to_string().contains(words), "{}", refused.error);
    }
    let (far, _) = call(90, "lr=1e-4").expect("the run comes there");
    waiting::hand_in(home, &far).expect("written");
    let (near, instead_of) = call(0, "clip=0.5").expect("it comes first");
    assert_eq!(instead_of.as_ref(), Some(&far));
    assert_eq!((near.from, near.changes.lr, near.changes.clip), (0, None, Some(0.5)), "the other one is given up");
    assert_eq!(call(90, "clip=0.5").expect_err("of one round").code, Code::Refused);
}

#[test]
fn without_a_creator_the_others_have_to_agree_and_a_later_word_takes_the_place_of_an_earlier_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let ((spec, head, identity), home) = (creators(10), folder.path());
    let spec = RunSpec { creator: None, ..spec };
    let call = |pair: &str| beside((&spec, &head), &identity, home, (0, of(&[pair]).expect("it parses")));
    let (first, instead_of) = call("lr=1e-4").expect("anybody may propose");
    assert_eq!((first.signature, instead_of), (None, None));
    let id = first.name(&spec.digest()).to_string();
    let text = left_text((&spec, &first), home, false);
    let agree = format!("a quorum's operators agree, each on its own node with\n  starling agree {}", &id[..16]);
    assert!(text.contains("hands it in") && text.contains(&agree), "{text}");
    waiting::hand_in(home, &first).expect("written");
    let (second, instead_of) = call("clip=0.5").expect("an operator may think better of it");
    assert_eq!((second.changes.lr, instead_of), (None, Some(first)));
    assert_eq!(instead(Some(&id)), format!("this takes the place of amendment {id} here\n"));
}

#[test]
fn nobody_else_amends_a_run_with_a_creator() {
    let folder = tempfile::tempdir().expect("a folder");
    let (spec, head, identity) = creators(10);
    let spec = RunSpec { creator: Some(NodeId([9; 32])), ..spec };
    let changes = of(&["lr=1e-3"]).expect("it parses");
    let refused = beside((&spec, &head), &identity, folder.path(), (0, changes)).expect_err("it is another's run");
    assert!(refused.error.to_string().contains("only the run's creator"), "{}", refused.error);
}
