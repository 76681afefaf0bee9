//! Rounds wait for newcomers that fetch the state, and not for long.

use crate::admission::join;
use crate::bench::{BOOT, Bench, ME, digest, id, sent, spec};
use starling_protocol::Digest;
use starling_protocol::engine::io::{Input, Notice, Output};
use starling_protocol::message::{Head, Message, Phase, Pulse, StatementKind};
use starling_protocol::record::Role;
use starling_protocol::run::{AdmissionMode, AdmissionSpec, JoinSpec, RunSpec};

const SECOND: u64 = 1_000_000;

/// A newcomer's heartbeat while it fetches the state.
fn fetching(progress: u64) -> Message {
    let none = Digest::default();
    let phase = Phase::CatchingUp;
    Message::Head(Head {
        lineage: none,
        seq: 0,
        record: none,
        tokens: 0,
        phase,
        progress,
        awaits: None,
        pulse: Pulse::default(),
    })
}

/// A founder in its first round, and a newcomer that begins to fetch.
fn founder(spec: RunSpec) -> Bench {
    let mut bench = Bench::flock_of(spec, &[(ME, Role::Voter)]);
    bench.greet(2, BOOT);
    bench.say(2, &fetching(0));
    bench
}

/// The newcomer fetches a byte a second for so many seconds, or until the founder goes on; seconds that have passed.
fn fetch(bench: &mut Bench, seconds: u64) -> u64 {
    for second in 0..seconds {
        if bench.attempt().is_some() {
            return second;
        }
        bench.say(2, &fetching(bench.now / SECOND));
        bench.wait(SECOND);
    }
    seconds
}

/// The only voter's attempt becomes a record.
fn commit(bench: &mut Bench) {
    let (key, update, before) = (bench.running(), digest(9), bench.record().seq);
    bench.feed(Input::Reduced { key, update });
    bench.feed(Input::Applied { key, update, state_root: digest(8) });
    assert_eq!(bench.record().seq, before + 1);
}

#[test]
fn a_round_waits_until_a_newcomer_is_here_and_takes_it_along() {
    let mut bench = founder(spec());
    bench.trained();
    assert_eq!(fetch(&mut bench, 20), 20, "the founder waits");
    let hold = bench.engine.view().hold.expect("a round waits");
    assert_eq!((hold.on, hold.left.is_some()), (vec![id(2)], true));
    assert!(hold.patience < 41 * SECOND && hold.bytes > 0, "{} {}", hold.patience, hold.bytes);
    let mut outputs = bench.say(2, &Message::Head(bench.chain_head(Phase::Joining, 0)));
    assert_eq!(bench.attempt(), None, "it is about to ask");
    outputs.extend(bench.say(2, &join(&bench, &[])));
    assert!(bench.attempt().is_some(), "{outputs:?}");
    let waited = outputs.iter().find_map(|output| match output {
        Output::Notice(Notice::Waited { newcomers, micros }) => Some((newcomers.clone(), *micros / SECOND)),
        _ => None,
    });
    assert_eq!(waited, Some((vec![id(2)], 20)));
    commit(&mut bench);
    assert_eq!(bench.record().members().collect::<Vec<_>>(), [id(ME), id(2)], "the record lets it in");
}

/// The record that lets a node in has an update that this node fetches next. Without a wait, a fast voter would make
/// record after record without it.
#[test]
pub fn a_round_waits_for_a_member_that_fetches_the_record_that_let_it_in() {
    let mut bench = founder(spec());
    bench.say(2, &Message::Head(bench.chain_head(Phase::Joining, 0)));
    bench.say(2, &join(&bench, &[]));
    let before = bench.chain_head(Phase::CatchingUp, 0);
    bench.wait(2 * SECOND);
    bench.trained();
    commit(&mut bench);
    let ready = |outputs: &[Output]| sent(&spec(), outputs).iter().any(|(_, said)| matches!(said, Message::Ready(_)));
    bench.say(2, &Message::Head(before.clone()));
    let mut outputs = bench.trained();
    for second in 1..10 {
        // It would keep up if it had not just been let in.
        outputs.extend(bench.say(2, &Message::Head(Head { progress: second << 20, ..before.clone() })));
        outputs.extend(bench.wait(SECOND));
    }
    assert!(!ready(&outputs), "{outputs:?}");
    // It begins to train when others are done. To be counted, it needs the time that a round takes.
    let mut outputs = bench.say(2, &Message::Head(bench.chain_head(Phase::Training, 0)));
    outputs.extend(bench.wait(SECOND / 2));
    assert!(!ready(&outputs), "{outputs:?}");
    let said = bench.ready(2);
    let outputs = bench.say(2, &Message::Ready(said));
    assert!(ready(&outputs) && bench.attempt().is_some(), "{outputs:?}");
}

#[test]
fn a_newcomer_that_says_nothing_more_is_not_waited_for() {
    let mut bench = founder(spec());
    bench.trained();
    bench.wait(7 * SECOND);
    assert_eq!(bench.attempt(), None);
    bench.wait(2 * SECOND);
    assert!(bench.attempt().is_some(), "it has moved nothing for 8 s");
    // Nor is one that has the state and does not ask.
    let mut bench = founder(spec());
    bench.trained();
    bench.say(2, &Message::Head(bench.chain_head(Phase::Joining, 0)));
    bench.wait(SECOND);
    assert_eq!(bench.attempt(), None);
    bench.wait(2 * SECOND);
    assert!(bench.attempt().is_some());
}

#[test]
pub fn patience_with_newcomers_ends() {
    let mut bench = founder(RunSpec { join: JoinSpec { patience_ms: 10_000, share: 20 }, ..spec() });
    bench.trained();
    let waited = fetch(&mut bench, 60);
    assert!((10..12).contains(&waited), "{waited} s");
    // In the long run the newcomer has its share of the time, and no more: ten rounds of four seconds.
    let began = bench.now;
    for _ in 0..10 {
        commit(&mut bench);
        for _ in 0..4 {
            bench.say(2, &fetching(bench.now / SECOND));
            bench.wait(SECOND);
        }
        bench.forget_attempt();
        bench.trained();
        fetch(&mut bench, 60);
    }
    let waited = (bench.now - began) / SECOND - 40;
    assert!((8..14).contains(&waited), "{waited} s beside 40");
    // Nobody waits where the run says so.
    let mut bench = founder(RunSpec { join: JoinSpec { patience_ms: 0, share: 20 }, ..spec() });
    bench.trained();
    assert!(bench.attempt().is_some());
}

#[test]
pub fn rounds_wait_for_newcomers_that_the_run_may_let_in() {
    let admission = |mode, allow| AdmissionSpec { mode, allow, probation: 0 };
    let runs = [
        (admission(AdmissionMode::Open, Vec::new()), true),
        (admission(AdmissionMode::List, vec![id(ME), id(2)]), true),
        (admission(AdmissionMode::List, vec![id(ME), id(3)]), false),
        (admission(AdmissionMode::Ticket, Vec::new()), false),
    ];
    for (admission, waits) in runs {
        let mut bench = founder(RunSpec { admission: admission.clone(), ..spec() });
        bench.trained();
        assert_eq!(bench.attempt().is_none(), waits, "{admission:?}");
    }
}

/// Updates of the bench's model have fewer bytes than this newcomer fetches in the two seconds that a round takes. A founder
/// alone waits for it all the same.
#[test]
fn a_newcomer_that_keeps_up_is_not_waited_for() {
    for (members, bytes, waits) in [(1, 1 << 20, true), (2, 10_u64, true), (2, 1 << 20, false)] {
        let seats: Vec<(u8, Role)> = (1..=members).map(|n| (n, Role::Voter)).collect();
        let mut bench = Bench::flock_of(spec(), &seats);
        bench.greet(9, BOOT);
        bench.say(9, &fetching(0));
        for second in 1..3 {
            bench.wait(SECOND);
            bench.say(9, &fetching(second * bytes));
        }
        bench.trained();
        assert_eq!(bench.engine.view().hold.is_some(), waits, "{members} members, {bytes} B/s");
    }
}

/// One voter of three that hears a newcomer which the others do not hear holds up nobody for long.
#[test]
fn a_voter_that_waits_alone_goes_along_with_the_others() {
    let mut bench = Bench::flock(3);
    bench.greet(9, BOOT);
    bench.say(9, &fetching(0));
    bench.wait(2 * SECOND);
    bench.trained();
    let ready = |outputs: &[Output]| sent(&spec(), outputs).iter().any(|(_, said)| matches!(said, Message::Ready(_)));
    for peer in [2, 3] {
        let said = bench.ready(peer);
        assert!(!ready(&bench.say(peer, &Message::Ready(said))));
    }
    let mut outputs = Vec::new();
    for second in 0..3 {
        outputs.extend(bench.say(9, &fetching(second)));
        outputs.extend(bench.wait(SECOND));
    }
    assert!(ready(&outputs), "{outputs:?}");
    let joins = |said: &Message| matches!(said, Message::Ready(ready) if ready.statements.iter().any(|s| s.kind == StatementKind::Joins));
    assert!(!sent(&spec(), &outputs).iter().any(|(_, said)| joins(said)), "a node without the state is not let in");
}
