//! Meetings with other nodes: greetings, strangers, the wrong run, and admission.

use crate::admission::join;
use crate::bench::{BOOT, Bench, ME, commits, id, refusals, sent, spec};
use crate::lineages::newcomer;
use starling_protocol::engine::io::{Finish, Input, Notice, Output, Refusal};
use starling_protocol::engine::{MemberState, PEERS_MAX};
use starling_protocol::limits::PROTOCOL_VERSION;
use starling_protocol::message::{Hello, Join, Leave, Message, Phase, Ready};
use starling_protocol::outer::Rule;
use starling_protocol::run::{AdmissionMode, Codec};
use starling_protocol::{Digest, NodeId, wire};

#[test]
fn a_new_node_seeks_and_says_so() {
    let mut bench = Bench::seeker();
    let outputs = bench.feed(Input::Tick);
    assert!(outputs.contains(&Output::Notice(Notice::Seeking { peers: 0 })), "{outputs:?}");
    assert_eq!(bench.engine.view().phase, Phase::Seeking);
    let outputs = bench.feed(Input::PeerUp { peer: id(2) });
    let messages: Vec<Message> = sent(&spec(), &outputs).into_iter().map(|(_, message)| message).collect();
    assert!(matches!(messages[..2], [Message::Hello(_), Message::Head(_)]), "hello goes first: {messages:?}");
    assert!(bench.engine.wake_at().is_some_and(|at| at.0 <= bench.now + 1_000_000));
}

#[test]
fn a_node_alone_with_the_wrong_run_ends_and_names_the_keys() {
    let mut other = spec();
    other.model.layers = 6;
    let hello =
        Message::Hello(Hello { version: PROTOCOL_VERSION, spec: wire::encode_spec(&other), boot: 1, incarnation: 1 });
    let bytes = wire::seal(&crate::bench::Key(id(2)), &other.digest(), &hello).unwrap();
    let greeting = Input::Message { from: id(2), bytes };
    let ends = |outputs: &[Output]| outputs.iter().any(|output| matches!(output, Output::Finished { .. }));

    let mut lost = Bench::seeker();
    lost.feed(Input::PeerUp { peer: id(2) });
    let outputs = lost.feed(greeting.clone());
    let keys = vec!["model.layers: 2 here, 6 there".to_owned()];
    assert_eq!(refusals(&outputs), [&Refusal::RunMismatch { keys: keys.clone() }]);
    assert!(outputs.contains(&Output::Finished { reason: Finish::RunMismatch { peer: id(2), keys } }));
    assert!(lost.feed(Input::Tick).is_empty());

    let mut founder = Bench::founder();
    founder.feed(Input::PeerUp { peer: id(2) });
    let outputs = founder.feed(greeting.clone());
    assert_eq!(refusals(&outputs).len(), 1);
    assert!(!ends(&outputs), "a stranger ends no flock");
    let again = founder.feed(greeting.clone());
    assert_eq!(refusals(&again), [&Refusal::Stale], "a refused peer is not read any more, only counted");

    let mut met = Bench::seeker();
    met.greet(3, BOOT);
    met.feed(Input::PeerUp { peer: id(2) });
    assert!(!ends(&met.feed(greeting)), "it has met its own run before");
}

/// Any node may come first. So a newcomer that was told of peers waits for their word, and one that was told of nobody
/// waits for the word of all that are here.
#[test]
pub fn a_stranger_of_another_run_ends_no_newcomer_that_has_others_to_ask() {
    let mut other = spec();
    other.model.layers = 6;
    let of_another = |bench: &mut Bench, from: u8| {
        bench.feed(Input::PeerUp { peer: id(from) });
        let spec = wire::encode_spec(&other);
        let hello = Message::Hello(Hello { version: PROTOCOL_VERSION, spec, boot: 1, incarnation: 1 });
        let bytes = wire::seal(&crate::bench::Key(id(from)), &other.digest(), &hello).unwrap();
        let outputs = bench.feed(Input::Message { from: id(from), bytes });
        assert!(matches!(refusals(&outputs)[..], [Refusal::RunMismatch { .. }]), "{outputs:?}");
        outputs.iter().any(|output| matches!(output, Output::Finished { .. }))
    };
    let mut told = newcomer(&[2, 3], None, AdmissionMode::Open);
    assert!(!of_another(&mut told, 9), "nobody has named it");
    assert!(of_another(&mut told, 3), "the user has");
    let mut seeker = Bench::seeker();
    seeker.feed(Input::PeerUp { peer: id(2) });
    assert!(!of_another(&mut seeker, 9), "another one may be of this run");
    assert!(of_another(&mut seeker, 2), "it is not");
}

#[test]
fn bad_bytes_are_refused_with_their_reason() {
    let mut bench = Bench::founder();
    let good = bench.seal(2, &bench.hello(BOOT));
    let of_another = bench.seal(3, &bench.hello(BOOT));
    let mut refused = |bytes: Vec<u8>| {
        bench.reconnect(2);
        let outputs = bench.feed(Input::Message { from: id(2), bytes });
        refusals(&outputs).into_iter().cloned().collect::<Vec<_>>()
    };
    let mut version = good.clone();
    let later = PROTOCOL_VERSION + 1;
    version[..2].copy_from_slice(&later.to_le_bytes());
    assert_eq!(refused(version), [Refusal::Version { theirs: later, ours: PROTOCOL_VERSION }]);
    let mut flipped = good.clone();
    flipped[good.len() - 40] ^= 1;
    assert_eq!(refused(flipped), [Refusal::BadSignature]);
    assert_eq!(refused(good[..60].to_vec()), [Refusal::Malformed { what: "truncated" }]);
    assert_eq!(refused(vec![0xff; 100_000]), [Refusal::Malformed { what: "too_long" }]);
    assert_eq!(refused([&good[..], &[0]].concat()), [Refusal::Malformed { what: "trailing" }]);
    assert_eq!(refused(of_another), [Refusal::Malformed { what: "sender" }]);
    assert_eq!(refused(good), [], "and the good ones are taken");
}

#[test]
fn words_before_a_greeting_and_joins_from_nowhere_are_stale() {
    let mut bench = Bench::founder();
    let record = bench.record();
    let stale = |peer| Output::Notice(Notice::Refused { peer, refusal: Refusal::Stale });
    bench.feed(Input::PeerUp { peer: id(2) });
    let leave = Message::Leave(Leave { lineage: record.lineage, seq: 0 });
    assert!(bench.say(2, &leave).contains(&stale(id(2))));
    bench.greet(2, BOOT);
    let unknown = Join {
        lineage: record.lineage,
        seq: 3,
        record: Digest([3; 32]),
        state_root: Digest([4; 32]),
        incarnation: 1,
        ticket: Vec::new(),
    };
    let outputs = bench.say(2, &Message::Join(unknown));
    assert_eq!(refusals(&outputs), [&Refusal::Stale]);
    assert!(outputs.contains(&stale(id(2))));
}

#[test]
fn there_is_room_for_so_many_peers() {
    let mut bench = Bench::seeker();
    let id = |n: usize| NodeId([(n % 251) as u8, (n / 251) as u8, 0, 7].repeat(8).try_into().unwrap());
    let mut up = |n: usize| bench.engine.handle(Input::PeerUp { peer: id(n) }, starling_protocol::engine::io::Time(1));
    for n in 0..PEERS_MAX {
        assert!(refusals(&up(n)).is_empty());
    }
    assert_eq!(refusals(&up(PEERS_MAX)), [&Refusal::Full]);
    assert_eq!(bench.engine.held().peers, PEERS_MAX);
    bench.engine.handle(Input::PeerDown { peer: id(5) }, starling_protocol::engine::io::Time(1));
    let again = bench.engine.handle(Input::PeerUp { peer: id(PEERS_MAX) }, starling_protocol::engine::io::Time(1));
    assert!(refusals(&again).is_empty());
    assert_eq!(bench.engine.held().peers, PEERS_MAX);
}

#[test]
fn a_joiner_that_holds_the_state_is_named_in_the_next_record() {
    let mut bench = Bench::founder();
    bench.meet(2);
    bench.say(2, &join(&bench, &[]));
    let outputs = bench.trained();
    let reduce = outputs.iter().find_map(|output| match output {
        Output::Reduce { key, members, codec, .. } => Some((*key, members.len(), *codec)),
        _ => None,
    });
    let (key, members, codec) = reduce.expect("a flock of one needs nobody to begin");
    assert_eq!((members, codec), (1, Codec::Bf16));
    let outputs = bench.feed(Input::Reduced { key, update: Digest([9; 32]) });
    assert!(
        matches!(outputs[0], Output::Speculate { rule: Rule::Nesterov { lr: 0.9, momentum: 0.9, .. }, .. }),
        "{outputs:?}"
    );
    let outputs = bench.feed(Input::Applied { key, update: Digest([9; 32]), state_root: Digest([10; 32]) });
    let [next] = commits(&outputs)[..] else { panic!("{outputs:?}") };
    assert_eq!(next.members().collect::<Vec<_>>(), [id(ME), id(2)]);
    assert!(next.lease_of(&id(2)).is_some());
    assert!(outputs.contains(&Output::Notice(Notice::MemberJoined { member: id(2), round: 1 })));
    let view = bench.engine.view();
    assert_eq!((view.round, view.members.len(), view.quorum.voters), (1, 2, 1), "a learner first");
    assert!(view.members.iter().all(|member| member.state == MemberState::Working), "{view:?}");
}

#[test]
fn a_ready_that_lies_about_its_lease_is_refused() {
    let mut bench = Bench::flock(4);
    let record = bench.record();
    let good = bench.ready(3);
    let bad = [
        Ready { start: good.start + 1, ..good.clone() },
        Ready { samples: good.samples + 1, ..good.clone() },
        Ready { tokens: good.tokens + 1, ..good.clone() },
        Ready { steps: record.next.inner_steps + 1, ..good.clone() },
        Ready { round: good.round + 1, ..good.clone() },
        Ready { state_root: Digest([0xee; 32]), ..good.clone() },
    ];
    for ready in bad {
        bench.reconnect(3);
        let outputs = bench.say(3, &Message::Ready(ready.clone()));
        let what = "ready that does not fit its lease";
        assert_eq!(refusals(&outputs), [&Refusal::Malformed { what }], "{ready:?}");
    }
    bench.reconnect(3);
    assert!(refusals(&bench.say(3, &Message::Ready(good))).is_empty());
    // Node 9 is no member, so no lease is its own.
    bench.meet(9);
    let outputs = bench.say(9, &Message::Ready(bench.ready(9)));
    assert_eq!(refusals(&outputs), [&Refusal::Stale], "{outputs:?}");
}
