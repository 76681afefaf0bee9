//! A node that is no member costs this node only a place: none of its messages is kept, passed on or preferred.

use crate::bench::{BOOT, Bench, INCARNATION, Key, Keys, ME, digest, id, refusals, sent};
use crate::fixture::verified;
use starling_protocol::engine::PEERS_MAX;
use starling_protocol::engine::io::{Input, Output, Refusal, Time};
use starling_protocol::message::{Estimate, Evidence, Fork, Head, Join, Leave, Message, Phase, Question, Ready, Stamp};
use starling_protocol::message::{Start, Value, ValueKind, Vote, Witness};
use starling_protocol::{Digest, NodeId, wire};

/// One of many more strangers than there are places.
fn stranger(n: usize) -> NodeId {
    NodeId([(n % 251) as u8, (n / 251) as u8, 0, 9].repeat(8).try_into().expect("32 bytes"))
}

/// Feeds an input without the bench's watch, which looks at all peers after each input.
fn takes(bench: &mut Bench, input: Input) -> Vec<Output> {
    bench.now += 10;
    bench.engine.handle(input, Time(bench.now))
}

fn hears(bench: &mut Bench, from: NodeId, message: &Message) -> Vec<Output> {
    let bytes = wire::seal(&Key(from), &bench.spec.digest(), message).expect("a message of good shape");
    takes(bench, Input::Message { from, bytes })
}

fn meets(bench: &mut Bench, peer: NodeId) -> Vec<Output> {
    let mut outputs = takes(bench, Input::PeerUp { peer });
    let hello = bench.hello(BOOT);
    outputs.extend(hears(bench, peer, &hello));
    outputs
}

fn evidence_to(bench: &Bench, outputs: &[Output]) -> Vec<NodeId> {
    let sent = sent(&bench.spec, outputs).into_iter();
    sent.filter(|(_, message)| matches!(message, Message::Evidence(_))).map(|(to, _)| to).collect()
}

/// Two votes of `by` in one ballot.
fn two_votes(bench: &Bench, by: u8) -> Evidence {
    let vote = |fill| {
        let (question, value) = (bench.question(), Value::skip(digest(fill)));
        bench.seal(by, &Message::Vote(Vote { question, incarnation: INCARNATION, ballot: 0, value, voted: true }))
    };
    Evidence { first: vote(1), second: vote(2) }
}

/// A restarted voter hears its fellow voters, however many strangers bear witness and go again.
#[test]
fn strangers_that_bear_witness_mute_nobody() {
    let mut bench = Bench::flock(3);
    bench.commit();
    let key = bench.all_ready();
    let said = bench.rebuild(key);
    bench.restart(2_000);
    for n in 0..=PEERS_MAX {
        meets(&mut bench, stranger(n));
        let stamp = Stamp { seq: 1 << 40, instance: Question::RECORD, ballot: 0, phase: 2 };
        hears(&mut bench, stranger(n), &Message::Witness(Witness { incarnation: INCARNATION, stamp }));
        takes(&mut bench, Input::PeerDown { peer: stranger(n) });
    }
    let mut outputs = Vec::new();
    for peer in [2, 3] {
        outputs.extend(bench.meet(peer));
    }
    outputs.extend(bench.wait(5_000_000));
    let again = sent(&bench.spec, &outputs).into_iter().any(|(_, message)| message == Message::Estimate(said.clone()));
    assert!(again, "a voter that is mute with all voters here");
}

/// When all places are taken, a member takes the place of a stranger, and the stranger is told that there is no room.
#[test]
pub fn a_member_finds_a_place_among_strangers() {
    let mut bench = Bench::flock(3);
    bench.restart(2_000);
    for n in 0..PEERS_MAX {
        assert!(refusals(&meets(&mut bench, stranger(n))).is_empty());
    }
    assert_eq!(bench.engine.held().peers, PEERS_MAX);
    assert_eq!(refusals(&meets(&mut bench, stranger(PEERS_MAX))), [&Refusal::Full, &Refusal::Full]);
    let outputs = bench.greet(2, BOOT);
    let refused = |o: &Output| match o {
        Output::Refuse { peer, refusal: Refusal::Full } => Some(*peer),
        _ => None,
    };
    let refused: Vec<NodeId> = outputs.iter().filter_map(refused).collect();
    assert!(refused.len() == 1 && refused[0] != id(2), "{refused:?}");
    assert_eq!(bench.engine.held().peers, PEERS_MAX);
    assert!(bench.engine.view().members.iter().any(|member| member.id == id(2) && member.connected));
}

/// T8: keys cost nothing, so evidence against them, or from them, costs this node nothing.
#[test]
pub fn evidence_is_held_against_members_only_and_heard_from_members_only() {
    let mut bench = Bench::flock(4);
    bench.meet(9);
    for throwaway in 100..164 {
        for by in [3, 9] {
            let evidence = two_votes(&bench, throwaway);
            let outputs = bench.say(by, &Message::Evidence(evidence));
            assert_eq!(refusals(&outputs), [&Refusal::Stale], "counted, and nobody's fault");
            assert!(evidence_to(&bench, &outputs).is_empty());
        }
    }
    let evidence = two_votes(&bench, 2);
    assert_eq!(refusals(&bench.say(9, &Message::Evidence(evidence.clone()))), [&Refusal::Stale]);
    assert_eq!((bench.engine.held().evidence, bench.evidence.len()), (0, 0));
    // The other members hear a member's evidence about a member, and so do members that come later, after their Hello.
    let outputs = bench.say(3, &Message::Evidence(evidence.clone()));
    assert_eq!(evidence_to(&bench, &outputs), [id(2), id(3), id(4)]);
    bench.feed(Input::PeerDown { peer: id(4) });
    let up = bench.feed(Input::PeerUp { peer: id(4) });
    assert!(evidence_to(&bench, &up).is_empty(), "before its Hello");
    let hello = bench.hello(BOOT);
    let outputs = bench.say(4, &hello);
    assert_eq!(evidence_to(&bench, &outputs), [id(4)]);
    let outputs = bench.say(4, &hello);
    assert!(evidence_to(&bench, &outputs).is_empty(), "once for each connection");
    let outputs = bench.greet(10, BOOT);
    assert!(evidence_to(&bench, &outputs).is_empty(), "a stranger has no use for it");
}

/// One message of each kind that a stranger might send about the round under way, and whether it is looked at.
fn one_of_each(bench: &Bench) -> Vec<(Message, bool)> {
    let record = bench.record();
    let (lineage, parent, question) = (record.lineage, record.digest(), bench.question());
    let (seq, incarnation, ballot) = (question.seq, INCARNATION, 0);
    let value = Value::skip(digest(3));
    let set = Value { kind: ValueKind::Set, set: digest(8), members: vec![0b11], ..Value::skip(digest(8)) };
    let set = Value { contributors: 2, attempt: 1, ..set };
    let stamp = Stamp { seq, instance: Question::RECORD, ballot, phase: 2 };
    let (state_root, ticket) = (record.state_root, Vec::new());
    let join = Join { lineage, seq: record.seq, record: parent, state_root, incarnation, ticket };
    let fork = Fork { lineage, seq, parent, incarnation, record: digest(4), members: vec![0b11] };
    let vote = Vote { question: question.clone(), incarnation, ballot, value: value.clone(), voted: true };
    vec![
        (Message::Head(bench.chain_head(Phase::Training, 0)), true),
        (Message::Join(join), true),
        (Message::Witness(Witness { incarnation, stamp }), true),
        (Message::Leave(Leave { lineage, seq: record.seq }), true),
        (Message::Ready(bench.ready(9)), false),
        (Message::Ready(Ready { base: digest(0x44), round: 9, ..bench.ready(9) }), false),
        (Message::Estimate(Estimate { question: question.clone(), incarnation, ballot, value }), false),
        (Message::Vote(vote), false),
        (Message::Certificate(bench.certificate(&[2, 3, 4], &Value::skip(digest(3)))), false),
        (Message::Fork(fork), false),
        (Message::Start(Start { question: Question { instance: 1, ..question }, value: set }), false),
        (Message::Evidence(two_votes(bench, 2)), false),
    ]
}

/// A stranger's message costs only the verification of its own signature.
#[test]
pub fn only_messages_of_a_stranger_that_lead_to_a_seat_are_looked_at() {
    let mut bench = Bench::flock(4);
    bench.greet(9, BOOT);
    for (message, heeded) in one_of_each(&bench) {
        let (before, bytes) = (bench.still(), bench.seal(9, &message));
        let signatures = verified();
        let outputs = bench.feed(Input::Message { from: id(9), bytes });
        let sent = outputs.iter().filter(|o| matches!(o, Output::Send { .. })).count() as u64;
        assert!(verified() - signatures <= 1 + sent, "{message:?}");
        let counted: &[&Refusal] = if heeded { &[] } else { &[&Refusal::Stale] };
        assert_eq!(refusals(&outputs), counted, "{message:?}");
        assert!(heeded || bench.still() == before, "{message:?}");
    }
    assert_eq!(bench.engine.held().evidence, 0);
    // A member's message is looked at.
    let ready = bench.ready(3);
    assert!(refusals(&bench.say(3, &Message::Ready(ready))).is_empty());
}

/// Another node's message is free to send, and its signature costs a check: the sender is compared first.
#[test]
pub fn the_sender_of_a_message_is_compared_before_its_signature_is_checked() {
    let mut bench = Bench::flock(4);
    // Some kinds are passed on in a flock of several rows; this is none of them.
    let join = crate::admission::join(&bench, &[]);
    for bytes in [bench.seal(3, &join), bench.seal(ME, &join)] {
        bench.reconnect(2);
        let signatures = verified();
        let outputs = bench.feed(Input::Message { from: id(2), bytes: bytes.clone() });
        assert_eq!(refusals(&outputs), [&Refusal::Malformed { what: "sender" }]);
        assert_eq!(verified(), signatures);
        let checked = wire::check(&Keys, &bench.spec.digest(), &id(2), &id(ME), &bytes);
        assert_eq!(checked.map_err(|error| error.reason()).err(), Some("sender"));
    }
    // The same holds beside the channel.
    let hello = bench.hello(2_000);
    let hello = bench.seal(3, &hello);
    let signatures = verified();
    bench.feed(Input::Duplicate { peer: id(2), hello });
    assert_eq!(verified(), signatures);
}

/// A message that the driver has opened has the same effect as its bytes, and costs the engine nothing.
#[test]
fn a_message_opened_by_the_driver_is_heard_as_if_it_had_come_as_bytes() {
    let (mut one, mut other) = (Bench::flock(3), Bench::flock(3));
    let ready = one.ready(2);
    let lie = Ready { loss_q16: 99, ..ready.clone() };
    for message in [one.hello(BOOT), Message::Ready(ready), Message::Ready(lie), one.hello(BOOT)] {
        let bytes = one.seal(2, &message);
        let opened = wire::check(&Keys, &other.spec.digest(), &id(2), &id(ME), &bytes).expect("well signed");
        let from = id(2);
        let heard = one.feed(Input::Message { from, bytes: bytes.clone() });
        assert_eq!(heard, other.feed(Input::Opened { from, opened, bytes }));
        assert_eq!(one.still(), other.still());
    }
}

/// A READY that came before its sender had a seat here is not lost: it is said again to each node that comes to the
/// record.
#[test]
fn a_newcomers_ready_is_said_again_to_peers_that_come_to_its_record() {
    let mut bench = Bench::flock(3);
    bench.feed(Input::PeerDown { peer: id(2) });
    bench.greet(2, BOOT);
    let elsewhere = Head { record: Digest([0x70; 32]), ..bench.chain_head(Phase::Training, 0) };
    bench.say(2, &Message::Head(elsewhere));
    bench.trained();
    let head = bench.chain_head(Phase::Training, 0);
    let outputs = bench.say(2, &Message::Head(head));
    let again = sent(&bench.spec, &outputs).into_iter().filter(|(_, message)| matches!(message, Message::Ready(_)));
    assert_eq!(again.map(|(to, _)| to).collect::<Vec<_>>(), [id(2)]);
}
