//! What an engine makes of strangers, liars and garbage.

mod bench;
mod garbage;

use bench::{Bench, hello, key, ready, refusals, sent, spec};
use starling_protocol::engine::io::{Finish, Input, Notice, Output, Refusal};
use starling_protocol::engine::{MemberState, PEERS_MAX};
use starling_protocol::limits::PROTOCOL_VERSION;
use starling_protocol::message::{Form, Head, Join, Message, Phase, Ready, Report};
use starling_protocol::run::Codec;
use starling_protocol::{Digest, NodeId, Signer, wire};

#[test]
fn a_new_node_seeks_and_says_so() {
    let mut bench = Bench::new(false);
    let outputs = bench.feed(Input::Tick);
    assert!(outputs.contains(&Output::Notice(Notice::Seeking { peers: 0 })), "{outputs:?}");
    assert_eq!(bench.engine.view().phase, Phase::Seeking);
    let outputs = bench.feed(Input::PeerUp { peer: key(2).id() });
    let messages = sent(&outputs, &key(2).id());
    assert!(matches!(messages[..], [Message::Hello(_), Message::Head(_)]), "hello goes first: {messages:?}");
    assert!(bench.engine.wake_at().is_some_and(|at| at.0 <= bench.now + 1_000_000));
}

#[test]
fn a_node_alone_with_the_wrong_run_ends_and_names_the_keys() {
    let mut other = spec();
    other.model.layers = 6;
    let foreign = wire::seal(&key(2), &other.digest(), &hello(&other, 1)).unwrap();
    let greeting = Input::Message { from: key(2).id(), bytes: foreign };

    let mut lost = Bench::new(false);
    lost.feed(Input::PeerUp { peer: key(2).id() });
    let outputs = lost.feed(greeting.clone());
    let keys = vec!["model.layers: 2 here, 6 there".to_owned()];
    assert_eq!(refusals(&outputs), [&Refusal::RunMismatch { keys: keys.clone() }]);
    let reason = Finish::RunMismatch { peer: key(2).id(), keys };
    assert!(outputs.contains(&Output::Finished { reason }));
    assert!(lost.feed(Input::Tick).is_empty());

    let (mut founder, _) = Bench::founder();
    founder.feed(Input::PeerUp { peer: key(2).id() });
    let outputs = founder.feed(greeting.clone());
    assert_eq!(refusals(&outputs).len(), 1);
    assert!(!outputs.iter().any(|output| matches!(output, Output::Finished { .. })), "a stranger ends no flock");
    assert!(refusals(&founder.feed(greeting)).is_empty(), "a refused peer is not read any more");

    let mut met = Bench::new(false);
    met.meet(3, 1);
    met.feed(Input::PeerUp { peer: key(2).id() });
    let foreign = wire::seal(&key(2), &other.digest(), &hello(&other, 1)).unwrap();
    let outputs = met.feed(Input::Message { from: key(2).id(), bytes: foreign });
    assert!(!outputs.iter().any(|output| matches!(output, Output::Finished { .. })), "it has met its own run before");
}

#[test]
fn bad_bytes_are_refused_with_their_reason() {
    let (mut bench, _) = Bench::founder();
    let mut refused = |bytes: Vec<u8>| {
        bench.feed(Input::PeerDown { peer: key(2).id() });
        bench.meet(2, 1);
        let outputs = bench.feed(Input::Message { from: key(2).id(), bytes });
        refusals(&outputs).into_iter().cloned().collect::<Vec<_>>()
    };
    let good = wire::seal(&key(2), &spec().digest(), &hello(&spec(), 1)).unwrap();
    let mut version = good.clone();
    version[0] = 9;
    assert_eq!(refused(version), [Refusal::Version { theirs: 9, ours: PROTOCOL_VERSION }]);
    let mut flipped = good.clone();
    *flipped.last_mut().unwrap() ^= 1;
    assert_eq!(refused(flipped), [Refusal::BadSignature]);
    assert!(matches!(refused(good[..60].to_vec())[..], [Refusal::Malformed { .. }]));
    assert!(matches!(refused(vec![0xff; 100_000])[..], [Refusal::Malformed { .. }]));
    let of_another = wire::seal(&key(3), &spec().digest(), &hello(&spec(), 1)).unwrap();
    assert_eq!(refused(of_another), [Refusal::Malformed { what: "sender" }]);
    let elsewhere = Message::Form(Form {
        lineage: Digest([1; 32]),
        seq: 5,
        parent: Digest([2; 32]),
        attempt: u32::MAX,
        members: vec![key(2).id()],
        live: vec![key(2).id()],
    });
    let leap = wire::seal(&key(2), &spec().digest(), &elsewhere).unwrap();
    assert!(matches!(refused(leap)[..], [Refusal::Malformed { .. }]));
}

#[test]
fn words_before_a_greeting_and_words_of_the_past_are_stale() {
    let (mut bench, record) = Bench::founder();
    let stale = |peer| Output::Notice(Notice::Refused { peer, refusal: Refusal::Stale });
    bench.feed(Input::PeerUp { peer: key(2).id() });
    let old = Message::Report(Report {
        lineage: record.lineage,
        seq: 0,
        attempt: 0,
        set: Digest::default(),
        record: Digest::default(),
    });
    assert!(bench.say(2, &old).contains(&stale(key(2).id())));
    bench.say(2, &hello(&spec(), 1));
    assert!(bench.say(2, &old).contains(&stale(key(2).id())));
    let unknown = Join { lineage: record.lineage, seq: 3, record: Digest([3; 32]), state_root: Digest([4; 32]) };
    let outputs = bench.say(2, &Message::Join(unknown));
    assert!(outputs.contains(&stale(key(2).id())) && refusals(&outputs).is_empty());
}

#[test]
fn a_ready_that_lies_about_its_lease_is_refused() {
    let (mut bench, record) = Bench::founder();
    bench.meet(2, 1);
    // Node 2 is no member, so no lease is its own.
    let outputs = bench.say(2, &Message::Ready(ready(&record, vec![])));
    assert!(matches!(refusals(&outputs)[..], [Refusal::Malformed { .. }]), "{outputs:?}");
}

#[test]
fn the_first_of_two_readys_stays_and_the_second_is_refused() {
    let (mut bench, record) = Bench::founder();
    bench.meet(2, 1);
    let first = Ready { seq: 9, round: 9, parent: Digest([6; 32]), ..ready(&record, vec![]) };
    let second = Ready { payload: Digest([7; 32]), ..first.clone() };
    assert!(refusals(&bench.say(2, &Message::Ready(first.clone()))).is_empty());
    assert!(refusals(&bench.say(2, &Message::Ready(first.clone()))).is_empty(), "a repetition is none");
    let outputs = bench.say(2, &Message::Ready(second.clone()));
    assert!(matches!(refusals(&outputs)[..], [Refusal::Equivocation { .. }]));
    // A new start of the process has lost the first and may make another.
    bench.feed(Input::PeerDown { peer: key(2).id() });
    bench.meet(2, 2);
    assert!(refusals(&bench.say(2, &Message::Ready(second))).is_empty());
}

#[test]
fn two_processes_under_one_key_are_noticed() {
    let (mut bench, _) = Bench::founder();
    bench.meet(2, 1);
    assert!(refusals(&bench.say(2, &hello(&spec(), 2))).is_empty(), "a restart");
    let outputs = bench.say(2, &hello(&spec(), 1));
    assert_eq!(refusals(&outputs), [&Refusal::IdentityInUse], "the first speaks again");

    // This node's own key: the newer start gives way.
    let (mut older, _) = Bench::founder();
    assert_eq!(refusals(&older.say(1, &hello(&spec(), 2_000))), [&Refusal::IdentityInUse]);
    assert_eq!(older.engine.view().phase, Phase::Training, "the older one flies on");
    let (mut newer, _) = Bench::founder();
    let outputs = newer.say(1, &hello(&spec(), 500));
    assert!(outputs.contains(&Output::Finished { reason: Finish::Fenced }));
}

#[test]
fn there_is_room_for_so_many_peers() {
    let mut bench = Bench::new(false);
    let id = |n: usize| NodeId([(n % 251) as u8, (n / 251) as u8].repeat(16).try_into().unwrap());
    for n in 0..PEERS_MAX {
        assert!(refusals(&bench.feed(Input::PeerUp { peer: id(n) })).is_empty());
    }
    assert_eq!(refusals(&bench.feed(Input::PeerUp { peer: id(PEERS_MAX) })), [&Refusal::Full]);
    bench.feed(Input::PeerDown { peer: id(5) });
    assert!(refusals(&bench.feed(Input::PeerUp { peer: id(PEERS_MAX) })).is_empty());
}

#[test]
fn a_joiner_that_holds_the_state_is_named_in_the_next_record() {
    let (mut bench, record) = Bench::founder();
    bench.meet(2, 1);
    let head = Head {
        lineage: record.lineage,
        seq: 0,
        record: record.digest(),
        tokens: 0,
        phase: Phase::Joining,
        progress: 0,
        report: None,
    };
    bench.say(2, &Message::Head(head));
    let (lineage, state_root) = (record.lineage, record.state_root);
    bench.say(2, &Message::Join(Join { lineage, seq: 0, record: record.digest(), state_root }));
    let lease = record.next.members[0].clone();
    let outputs = bench.feed(Input::Trained {
        round: 1,
        parent: record.digest(),
        samples: lease.count,
        tokens: lease.count * 4,
        steps: 2,
        loss_q16: 3,
        payload: Digest([8; 32]),
        step_us: 10,
    });
    let reduce = outputs.iter().find_map(|output| match output {
        Output::Reduce { key, members, codec } => Some((*key, members.len(), *codec)),
        _ => None,
    });
    let (key_of, members, codec) = reduce.expect("a flock of one needs nobody to begin");
    assert_eq!((members, codec), (1, Codec::Bf16));
    let outputs = bench.feed(Input::Reduced { key: key_of, update: Digest([9; 32]) });
    assert!(matches!(outputs[0], Output::Speculate { outer_lr: 0.9, momentum: 0.9, .. }), "{outputs:?}");
    let outputs = bench.feed(Input::Applied { key: key_of, state_root: Digest([10; 32]) });
    let Output::PersistReport { token, record: next, .. } = &outputs[0] else { panic!("{outputs:?}") };
    assert_eq!(next.members().collect::<Vec<_>>().len(), 2);
    assert!(next.lease_of(&key(2).id()).is_some());
    let outputs = bench.feed(Input::Durable { token: *token });
    let Output::Commit { token, record: committed, .. } = &outputs[0] else { panic!("{outputs:?}") };
    assert_eq!(committed, next);
    let outputs = bench.feed(Input::Durable { token: *token });
    assert!(outputs.contains(&Output::Notice(Notice::MemberJoined { member: key(2).id(), round: 1 })));
    let view = bench.engine.view();
    assert_eq!((view.round, view.members.len()), (1, 2));
    assert!(view.members.iter().all(|member| member.state == MemberState::Working), "{view:?}");
}
