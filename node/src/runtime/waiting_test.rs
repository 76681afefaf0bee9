use super::*;
use starling_protocol::NodeId;
use starling_protocol::amendment::Settings;
use starling_protocol::sample;

/// A run of 100 rounds with a creator, and its record of this round.
fn at(round: u64) -> (RunSpec, Record) {
    let spec = RunSpec { creator: Some(NodeId([9; 32])), ..sample::spec() };
    assert_eq!((spec.budget.rounds, spec.budget.tokens), (100, 0));
    let voters = sample::voters([NodeId([9; 32])], 1, 0, 240);
    let record = Record { round, ..sample::genesis(&spec, Digest([1; 32]), Digest([2; 32]), voters) };
    (spec, record)
}

fn rounds(rounds: u64) -> Changes {
    Changes { rounds: Some(rounds), ..Changes::default() }
}

fn rate() -> Changes {
    Changes { lr: Some(1e-3), ..Changes::default() }
}

fn next(from: u64, changes: Changes) -> Amendment {
    Amendment::next(&Settings::default(), from, changes)
}

#[test]
fn a_second_amendment_joins_one_that_nobody_knows() {
    let (spec, head) = at(100);
    let (left, handed_in) = (next(0, rounds(200)), next(0, rounds(300)));
    let place = |left: &Amendment, handed_in: &Amendment| {
        beside((&spec, &head), (Some(left.clone()), Some(handed_in.clone())), 0)
    };
    assert_eq!(place(&left, &handed_in), Ok(Beside::Joins(left.clone())), "it was to take the place of the other");
    let past = Amendment { number: 2, ..left.clone() };
    assert_eq!(place(&past, &past), Ok(Beside::Alone), "both are of no use");
    assert_eq!(place(&past, &handed_in), Err(Box::new(handed_in.clone())), "others may know it");
    let idle = next(0, rate());
    assert_eq!(place(&past, &idle), Ok(Beside::Joins(idle.clone())), "no record can hold it after the end");
    assert_eq!(beside((&spec, &head), (None, None), 0), Ok(Beside::Alone));
}

#[test]
fn one_that_was_handed_in_gives_way_to_an_earlier_round_and_in_a_run_without_a_creator() {
    let (spec, head) = at(10);
    let place = |spec: &RunSpec, other: u64, from| beside((spec, &head), (None, Some(next(other, rate()))), from);
    let (far, soon) = (next(50, rate()), next(12, rate()));
    assert_eq!(place(&spec, 50, 0), Ok(Beside::Instead(far.clone())));
    assert_eq!(place(&spec, 50, 49), Ok(Beside::Instead(far.clone())));
    assert_eq!(place(&spec, 50, 50), Err(Box::new(far)), "of two of one round chance would decide");
    assert_eq!(place(&spec, 12, 0), Err(Box::new(soon.clone())), "the next record may hold it");
    let nobodys = RunSpec { creator: None, ..spec };
    assert_eq!(place(&nobodys, 12, 0), Ok(Beside::Instead(soon)), "an operator may think better of it");
}

#[test]
fn one_that_waits_is_told_with_its_values_its_round_and_the_way_out() {
    let home = Path::new("home");
    let (spec, head) = at(10);
    let said = |from: u64, runs: bool| in_the_way((&spec, &head), &next(from, rate()), home, runs);
    let name = next(50, rate()).name(&spec.digest()).short();
    let far = said(50, true);
    let way = "--from-round next";
    for words in [name.as_str(), "inner.lr = 0.001, from round 50 on", "10 are committed", "stop this node", way] {
        assert!(far.contains(words), "`{words}` is missing in: {far}");
    }
    assert!(said(0, true).contains("is on its way: wait until `starling status`"), "{}", said(0, true));
    assert!(said(0, false).contains("start the node (`starling train --home home`)"), "{}", said(0, false));
    let (spec, over) = at(100);
    let idle = in_the_way((&spec, &over), &next(0, rate()), home, true);
    assert!(idle.contains("the run is over") && idle.contains("starling change rounds=..."), "{idle}");
}

#[test]
fn a_round_that_is_over_or_that_never_comes_is_refused() {
    let (spec, head) = at(10);
    let said = |from, changes| never(&spec, &head, from, &changes);
    assert!(said(10, rate()).is_some_and(|why| why.contains("that round is over, 10 rounds are committed")));
    for fine in [0, 11, 100] {
        assert_eq!(said(fine, rate()), None, "{fine}");
    }
    assert!(said(101, rate()).is_some_and(|why| why.ends_with("`--from-round next`, or a round up to 100")));
    // The record of round 101 is the last one that can add to the budget.
    assert_eq!((said(102, rounds(4_000)), said(102, rounds(0))), (None, None));
    assert!(said(103, rounds(4_000)).is_some_and(|why| why.contains("up to 102")));
    assert!(said(60, rounds(50)).is_some_and(|why| why.contains("up to 50")), "the run ends by it before");
    let endless = RunSpec { budget: Budget { rounds: 0, tokens: 0 }, ..spec.clone() };
    assert_eq!(never(&endless, &head, u64::MAX, &rate()), None);
    // The changes so far count.
    let (_, mut lengthened) = at(10);
    lengthened.next.settings.changes = rounds(500);
    assert_eq!(never(&spec, &lengthened, 400, &rate()), None);
}

#[test]
fn after_the_end_only_a_larger_budget_is_of_use() {
    let (spec, over) = at(100);
    assert!(is_idle(&spec, &over, &rate()) && is_idle(&spec, &over, &rounds(100)));
    assert!(!is_idle(&spec, &over, &rounds(101)) && !is_idle(&spec, &at(99).1, &rate()));
    assert_eq!(never(&spec, &over, 102, &rounds(101)), None);
    assert!(never(&spec, &over, 103, &rounds(4_000)).is_some(), "the run never comes there");
    let by_tokens = RunSpec { budget: Budget { rounds: 0, tokens: 50 }, ..spec };
    let mut over = over;
    over.tokens = 50;
    assert!(is_idle(&by_tokens, &over, &rate()));
    assert!(!is_idle(&by_tokens, &over, &Changes { tokens: Some(51), ..Changes::default() }));
}

#[test]
fn what_the_folder_holds_is_handed_in_once_when_it_can_count() {
    assert_eq!(fate(Ok(()), false, false), Fate::HandIn);
    assert_eq!(fate(Ok(()), true, false), Fate::Stays, "it was handed in");
    assert_eq!(fate(Ok(()), false, true), Fate::Stays, "the run is over");
    assert_eq!(fate(Err(NotAmended::NoRecord), false, false), Fate::Stays, "the node will have one");
    let past = NotAmended::NotNext { number: 1, next: 2 };
    assert_eq!(fate(Err(past.clone()), false, false), Fate::Goes(past));
}

#[test]
fn terms_that_no_run_may_have_are_wrong_usage() {
    assert_eq!(code(&NotAmended::Values("inner.lr = 0".into())), Code::Usage);
    let refused = [NotAmended::NotCreators, NotAmended::OneAtATime, NotAmended::NotNext { number: 1, next: 2 }];
    assert_eq!(refused.each_ref().map(code), [Code::Refused; 3]);
}

#[test]
fn an_operator_agrees_to_one_amendment_at_a_time() {
    let row = |changes, agreed| (next(0, changes).name(&Digest([5; 32])), next(0, changes), agreed);
    let (others, own) = (row(rate(), false), row(rounds(200), true));
    let (own_name, other_name) = (own.0, others.0);
    let known = [others, own];
    assert_eq!(agreed_before(&known, &other_name), Some(&own_name));
    assert_eq!(agreed_before(&known, &own_name), None);
    assert_eq!(agreed_before(&known[..1], &own_name), None, "nobody here agrees to it");
}

#[test]
fn a_file_is_whole_or_told_of() {
    let folder = tempfile::tempdir().expect("a folder");
    let home = folder.path();
    let held = |stage| read(home, stage).map_err(|error| error.to_string());
    let (first, second) = (next(0, rate()), next(0, rounds(200)));
    assert_eq!((held(Stage::Left), held(Stage::HandedIn)), (Ok(None), Ok(None)));
    leave(home, &first).expect("written");
    assert_eq!((held(Stage::Left), held(Stage::HandedIn)), (Ok(Some(first)), Ok(None)));
    hand_in(home, &second).expect("written");
    assert_eq!((held(Stage::Left), held(Stage::HandedIn)), (Ok(None), Ok(Some(second.clone()))));
    assert_eq!(fs::read_dir(home).expect("a folder").count(), 1, "no temporary file stays");
    let path = Stage::HandedIn.file(home);
    let bytes = fs::read(&path).expect("it is there");
    for wrong in [bytes[..bytes.len() - 1].to_vec(), vec![0; 1 << 20]] {
        fs::write(&path, wrong).expect("written");
        let why = held(Stage::HandedIn).expect_err("no amendment");
        assert!(why.contains("remove the file"), "{why}");
    }
    forget(home, Stage::HandedIn);
    assert_eq!(held(Stage::HandedIn), Ok(None));
    fs::create_dir(&path).expect("a folder in its place");
    assert!(held(Stage::HandedIn).is_err_and(|why| why.contains("cannot read the amendment in")));
    assert!(hand_in(home, &second).is_err());
}
