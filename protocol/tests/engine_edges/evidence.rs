//! A node that contradicts itself is shown to all, and is removed by a record.

use crate::bench::{BOOT, Bench, INCARNATION, ME, digest, id, refusals, sent};
use starling_protocol::engine::io::{Input, Output, Refusal};
use starling_protocol::engine::succession;
use starling_protocol::evidence::Contradiction;
use starling_protocol::message::{
    Estimate, Evidence, Head, Join, Message, Phase, Pulse, Ready, Statement, StatementKind, Value, Vote,
};
use starling_protocol::{Digest, NodeId};

/// The nodes against which the outputs hold evidence, and the kinds of statement.
fn held(outputs: &[Output]) -> Vec<(NodeId, Contradiction)> {
    let mut held = Vec::new();
    for output in outputs {
        if let Output::Evidence { against, what, .. } = output {
            held.push((*against, *what));
        }
    }
    held
}

/// The nodes to which evidence was sent.
fn told(bench: &Bench, outputs: &[Output]) -> Vec<NodeId> {
    let sent = sent(&bench.spec, outputs).into_iter();
    sent.filter(|(_, message)| matches!(message, Message::Evidence(_))).map(|(to, _)| to).collect()
}

fn vote(bench: &Bench, by: u8, tokens: u64) -> Vec<u8> {
    let value = Value { tokens, ..a_commit() };
    let question = bench.question();
    bench.seal(by, &Message::Vote(Vote { question, incarnation: INCARNATION, ballot: 0, value, voted: true }))
}

fn a_commit() -> Value {
    let Value { digest: record, .. } = Value::skip(digest(0x31));
    let kind = starling_protocol::message::ValueKind::Commit;
    Value { kind, digest: record, tokens: 1, contributors: 1, attempt: 0, set: digest(0x32), members: Vec::new() }
}

/// Two votes of `by` in one ballot.
fn two_votes(bench: &Bench, by: u8) -> Evidence {
    Evidence { first: vote(bench, by, 1), second: vote(bench, by, 2) }
}

fn statements(bench: &Bench, outputs: &[Output]) -> Vec<Statement> {
    let ready = sent(&bench.spec, outputs).into_iter().find_map(|(_, message)| match message {
        Message::Ready(ready) => Some(ready),
        _ => None,
    });
    ready.expect("READY is said").statements
}

fn revoked(n: u8) -> Statement {
    Statement { kind: StatementKind::Revoked, id: id(n), incarnation: 0, grant: Digest::default() }
}

#[test]
fn two_words_in_one_ballot_are_kept_shown_passed_on_and_lead_to_removal() {
    let mut bench = Bench::flock(4);
    let key = bench.all_ready();
    let said = bench.rebuild(key);
    let other = Estimate { value: Value { tokens: said.value.tokens + 1, ..said.value.clone() }, ..said.clone() };
    assert!(refusals(&bench.say(2, &Message::Estimate(said.clone()))).is_empty());
    assert!(refusals(&bench.say(2, &Message::Estimate(said.clone()))).is_empty(), "the same again is no lie");
    let outputs = bench.say(2, &Message::Estimate(other));
    assert_eq!(refusals(&outputs), [&Refusal::Equivocation { what: "two different votes in one ballot" }]);
    assert_eq!(held(&outputs), [(id(2), Contradiction::Estimate)]);
    assert_eq!(told(&bench, &outputs), [id(3), id(4)]);
    let shown = bench.engine.view().evidence;
    assert_eq!(shown.iter().map(|e| (e.against, e.what, e.revoked)).collect::<Vec<_>>(), [(id(2), "estimate", false)]);
    // The others decide this round, and the next READY states what is known.
    let Estimate { question, ballot, value, .. } = said;
    for peer in [3, 4] {
        let (question, value) = (question.clone(), value.clone());
        let estimate = Estimate { question, incarnation: INCARNATION, ballot, value };
        bench.say(peer, &Message::Estimate(estimate));
    }
    for peer in [3, 4] {
        let (question, value) = (question.clone(), value.clone());
        bench.say(peer, &Message::Vote(Vote { question, incarnation: INCARNATION, ballot, value, voted: true }));
    }
    assert_eq!(bench.record().seq, 1);
    for peer in [3, 4] {
        let head = bench.chain_head(Phase::Training, 0);
        bench.say(peer, &Message::Head(head));
    }
    bench.meet_again(2);
    let outputs = bench.trained();
    assert_eq!(statements(&bench, &outputs), [revoked(2)]);
    for peer in [2, 3, 4] {
        let ready = bench.ready(peer);
        bench.say(peer, &Message::Ready(ready));
    }
    let key = bench.running();
    let said = bench.rebuild(key);
    for peer in [3, 4] {
        bench.say(peer, &Message::Estimate(said.clone()));
    }
    for peer in [3, 4] {
        let (question, value) = (said.question.clone(), said.value.clone());
        bench.say(peer, &Message::Vote(Vote { question, incarnation: INCARNATION, ballot: 0, value, voted: true }));
    }
    let record = bench.record();
    assert_eq!((record.seq, record.revoked.clone()), (2, vec![Digest(id(2).0)]));
    assert!(record.member(&id(2)).is_none() && record.member(&id(3)).is_some());
    assert!(bench.engine.view().evidence[0].revoked);
}

#[test]
fn two_readys_of_one_round_are_evidence() {
    let mut bench = Bench::flock(3);
    let ready = bench.ready(2);
    assert!(held(&bench.say(2, &Message::Ready(ready.clone()))).is_empty());
    let outputs = bench.say(2, &Message::Ready(Ready { loss_q16: 99, ..ready.clone() }));
    assert_eq!(held(&outputs), [(id(2), Contradiction::Ready)]);
    // Once is enough.
    bench.reconnect(2);
    let outputs = bench.say(2, &Message::Ready(Ready { loss_q16: 100, ..ready }));
    assert!(held(&outputs).is_empty() && told(&bench, &outputs).is_empty());
}

#[test]
fn evidence_of_others_is_checked_held_and_passed_on_once() {
    let mut bench = Bench::flock(4);
    let before = bench.still();
    let good = two_votes(&bench, 2);
    let same = Evidence { first: vote(&bench, 2, 1), second: bench.seal(2, &bench.hello(BOOT)) };
    let mixed = Evidence { first: vote(&bench, 2, 1), second: vote(&bench, 4, 2) };
    let mut forged = good.clone();
    forged.second[50] ^= 1;
    let cut = Evidence { second: good.second[..80].to_vec(), ..good.clone() };
    let bad = [(same, "no_contradiction"), (mixed, "two_senders"), (forged, "not_signed"), (cut, "malformed")];
    for (evidence, why) in bad {
        let outputs = bench.say(3, &Message::Evidence(evidence));
        assert_eq!(refusals(&outputs), [&Refusal::FalseEvidence { why }]);
        assert!(held(&outputs).is_empty() && told(&bench, &outputs).is_empty());
        bench.meet_again(3);
    }
    assert_eq!(bench.still(), before);
    let outputs = bench.say(3, &Message::Evidence(good.clone()));
    assert_eq!(held(&outputs), [(id(2), Contradiction::Vote)]);
    assert_eq!(told(&bench, &outputs), [id(2), id(3), id(4)]);
    let again = Evidence { first: vote(&bench, 2, 3), second: vote(&bench, 2, 4) };
    for evidence in [good, again] {
        let outputs = bench.say(4, &Message::Evidence(evidence));
        assert!(refusals(&outputs).is_empty() && held(&outputs).is_empty() && told(&bench, &outputs).is_empty());
    }
}

#[test]
fn evidence_outlives_a_restart_and_is_told_to_peers_that_come() {
    let mut bench = Bench::flock(3);
    let evidence = two_votes(&bench, 2);
    bench.say(3, &Message::Evidence(evidence.clone()));
    bench.restart(BOOT + 10);
    assert_eq!(bench.engine.view().evidence.len(), 1);
    let outputs = bench.meet(3);
    let told = sent(&bench.spec, &outputs);
    assert!(told.contains(&(id(3), Message::Evidence(evidence))), "{told:?}");
}

#[test]
fn a_node_that_contradicted_itself_is_not_let_in() {
    let mut bench = Bench::flock(3);
    let record = bench.record();
    let join = Message::Join(Join {
        lineage: record.lineage,
        seq: record.seq,
        record: record.digest(),
        state_root: record.state_root,
        incarnation: INCARNATION + 1,
        ticket: Vec::new(),
    });
    bench.reconnect(2);
    assert!(refusals(&bench.say(2, &join)).is_empty());
    let evidence = two_votes(&bench, 2);
    bench.say(3, &Message::Evidence(evidence));
    let outputs = bench.say(2, &join);
    assert_eq!(refusals(&outputs), [&Refusal::NotAdmitted { why: "contradicted_itself" }]);
    // The engine also ceases to speak for a node that it named as joining before.
    let outputs = bench.trained();
    assert_eq!(statements(&bench, &outputs), [revoked(2)]);
}

/// The engine's own key is in use elsewhere: it shows the evidence, and leaves the statement to others.
#[test]
fn evidence_against_the_own_key_is_shown_and_said_by_others() {
    let mut bench = Bench::flock(4);
    let evidence = two_votes(&bench, ME);
    assert_eq!(held(&bench.say(3, &Message::Evidence(evidence))), [(id(ME), Contradiction::Vote)]);
    let outputs = bench.trained();
    assert!(statements(&bench, &outputs).is_empty());
}

/// The engine comes back from another lineage, which came to nothing, to the very round in which it said a READY. The
/// contribution behind that READY is gone, and another contribution is that of a new start.
#[test]
fn a_second_contribution_of_one_round_is_a_new_starts() {
    let mut bench = Bench::flock(3);
    let (record, outputs) = (bench.record(), bench.trained());
    let ready = |bench: &Bench, outputs: &[Output]| {
        let mut said = sent(&bench.spec, outputs).into_iter().rev().filter_map(|(_, message)| match message {
            Message::Ready(ready) => Some(ready),
            _ => None,
        });
        said.next().expect("READY is said")
    };
    let first = ready(&bench, &outputs);
    let skip = succession::skip(&record, record.digest()).unwrap();
    let again = succession::skip(&skip, skip.digest()).unwrap();
    let mut fork = succession::skip(&record, record.digest()).unwrap();
    fork.lineage = digest(0x66);
    fork.next.members.retain(|member| member.id != id(ME));
    bench.feed(Input::PeerDown { peer: id(2) });
    bench.greet(9, BOOT);
    for target in [fork, again.clone()] {
        let (lineage, seq, tokens) = (target.lineage, target.seq, target.tokens);
        let head = Head {
            lineage,
            seq,
            record: target.digest(),
            tokens,
            phase: Phase::Training,
            progress: 0,
            awaits: None,
            pulse: Pulse::default(),
        };
        // Of forks of one record the one with more tokens wins, and the lineage that was left wins over its forks.
        let mut ancestry = bench.way(&Head { lineage: record.lineage, seq: 0, ..head.clone() });
        ancestry.follow(Some(&record), &target);
        let mut outputs = bench.say(9, &Message::Head(head.clone()));
        // A fork is followed if a voter has gone with it.
        outputs.extend(bench.say(3, &Message::Head(head.clone())));
        outputs.extend(bench.wait(5_000_000));
        outputs.extend(bench.claim(9, &head, &ancestry));
        outputs.extend(bench.wait(5_000_000));
        assert!(outputs.iter().any(|output| matches!(output, Output::CatchUp { .. })), "{outputs:?}");
        bench.feed(Input::CaughtUp { record: target, certificate: None, ancestry });
    }
    bench.greet(2, BOOT);
    bench.wait(10_000_000);
    bench.head = Some((again, None));
    let mut work = bench.ready(ME);
    work.payload = digest(0x44);
    let Ready { round, base, samples, tokens, steps, loss_q16, payload, measured, .. } = work;
    let outputs = bench.feed(Input::Trained { round, base, samples, tokens, steps, loss_q16, payload, measured });
    let second = ready(&bench, &outputs);
    assert_eq!((second.lineage, second.round, second.base), (first.lineage, first.round, first.base));
    assert!(second.payload != first.payload && second.boot > first.boot, "{first:?} {second:?}");
}
