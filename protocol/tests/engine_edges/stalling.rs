//! T20, T21: withholding, stalling and griefing cost the node that does it its place in the round, and no other node.

use crate::bench::{BOOT, Bench, INCARNATION, digest, id, refusals};
use starling_protocol::engine::io::{AttemptKey, Input, Notice, Output, Refusal};
use starling_protocol::engine::{MemberState, MemberView};
use starling_protocol::message::{
    Awaited, Awaits, Estimate, Head, Message, Phase, Ready, Statement, StatementKind, Value, ValueKind, Vote,
    member_bits, member_indices,
};
use starling_protocol::run::EngineKind;
use starling_protocol::{Digest, NodeId};

const SECOND: u64 = 1_000_000;
/// A second in which all members report their progress.
fn beat(bench: &mut Bench, progress: [u64; 3]) -> Vec<Output> {
    let mut outputs = Vec::new();
    for (peer, progress) in (2..).zip(progress) {
        let head = bench.chain_head(Phase::Reducing, progress);
        outputs.extend(bench.say(peer, &Message::Head(head)));
    }
    outputs.extend(bench.wait(SECOND));
    outputs
}

/// The nodes that are blamed for the failed attempts.
pub fn blamed(outputs: &[Output]) -> Vec<Option<NodeId>> {
    let blamed = |output: &Output| match output {
        Output::Notice(Notice::AttemptFailed { suspect, .. }) => Some(*suspect),
        _ => None,
    };
    outputs.iter().filter_map(blamed).collect()
}

/// The honest answer the vote on the next set. Returns the members of the attempt that follows.
pub fn agree(bench: &mut Bench, outputs: Vec<Output>) -> Vec<NodeId> {
    let out = |member: &MemberView| matches!(member.state, MemberState::Out(_));
    let members = bench.engine.view().members;
    let honest: Vec<u8> = members.iter().filter(|m| !out(m) && m.id != id(1)).map(|m| m.id.0[0]).collect();
    agree_among(bench, outputs, &honest)
}

/// The same, with answers of these members only.
fn agree_among(bench: &mut Bench, mut outputs: Vec<Output>, honest: &[u8]) -> Vec<NodeId> {
    outputs.extend(bench.wait(SECOND));
    let sent = crate::bench::sent(&bench.spec, &outputs);
    let said = sent.into_iter().rev().find_map(|(_, message)| match message {
        Message::Estimate(estimate) if estimate.value.kind == ValueKind::Set => Some(estimate),
        _ => None,
    });
    let Some(Estimate { question, ballot, value, .. }) = said else { panic!("no vote on a set: {outputs:?}") };
    let mut outputs = Vec::new();
    let incarnation = INCARNATION;
    for peer in honest.iter().copied() {
        let (question, value) = (question.clone(), value.clone());
        outputs.extend(bench.say(peer, &Message::Estimate(Estimate { question, incarnation, ballot, value })));
    }
    for peer in [2, 3] {
        let (question, value) = (question.clone(), value.clone());
        let vote = Vote { question, incarnation, ballot, value, voted: true };
        outputs.extend(bench.say(peer, &Message::Vote(vote)));
    }
    outputs.extend(bench.wait(SECOND));
    let attempt = bench.engine.view().attempt;
    attempt.unwrap_or_else(|| panic!("no attempt follows: {outputs:?}")).1
}

fn goes_on_without(bench: &mut Bench, outputs: Vec<Output>, gone: NodeId) {
    let out: Vec<NodeId> = (bench.engine.view().members.into_iter())
        .filter(|member| matches!(member.state, MemberState::Out(_)))
        .map(|member| member.id)
        .collect();
    assert_eq!(out, [gone], "nobody else is left out");
    let members = agree(bench, outputs);
    assert_eq!(members, [1, 2, 3, 4].map(id).into_iter().filter(|id| *id != gone).collect::<Vec<_>>());
}

/// The number of ring hops that have arrived at each member, in ring order, when the one at `staller` sends only so
/// many.
fn standstill(members: usize, staller: usize, sends: u64) -> Vec<u64> {
    let hops = 2 * (members as u64 - 1);
    let (mut sent, mut arrived) = (vec![0; members], vec![0; members]);
    for place in (0..members * members).map(|turn| turn % members) {
        // A member's first hop is its own; each further one needs the hop that has arrived before it.
        let may = hops.min(arrived[place] + 1).min(if place == staller { sends } else { hops });
        sent[place] = may;
        arrived[(place + 1) % members] = sent[place];
    }
    arrived
}

/// T20: withholding at any hop costs the member that withholds its place, not its honest neighbour.
#[test]
fn t20_a_member_that_stops_at_any_hop_is_left_out() {
    for staller in [2, 3, 4] {
        for hop in 0..6 {
            let mut bench = Bench::flock(4);
            let key = bench.all_ready();
            let ring = starling_protocol::ring::order(&bench.record().digest(), [1, 2, 3, 4].map(id));
            let place = |n: u8| ring.iter().position(|member| *member == id(n)).unwrap();
            let arrived = standstill(4, place(staller), hop);
            assert_eq!(arrived.iter().min(), Some(&hop), "the starved has what was sent");
            if arrived[place(1)] == 6 {
                // This node has everything: it holds the result, and waits for no stream.
                continue;
            }
            bench.feed(Input::ReduceProgress { key, bytes: arrived[place(1)], awaits: None });
            let mut outputs = Vec::new();
            for _ in 0..120 {
                for peer in [2, 3, 4] {
                    let arrived = arrived[place(peer)];
                    let phase = if arrived == 6 { Phase::Settling } else { Phase::Reducing };
                    let head = bench.chain_head(phase, arrived);
                    outputs.extend(bench.say(peer, &Message::Head(head)));
                }
                outputs.extend(bench.wait(SECOND));
                if !blamed(&outputs).is_empty() {
                    break;
                }
            }
            assert_eq!(blamed(&outputs), [Some(id(staller))], "{staller} stopped at hop {hop}: {arrived:?}");
            goes_on_without(&mut bench, outputs, id(staller));
        }
    }
}

/// A receiver that takes nothing, so that its neighbour is blamed, is found out at its next neighbour.
#[test]
fn t20_both_ends_of_a_bad_link_are_suspected() {
    let mut bench = Bench::flock(4);
    let key = bench.all_ready();
    let ring = starling_protocol::ring::order(&bench.record().digest(), [1, 2, 3, 4].map(id));
    // The liar is two places after this node, so that its neighbours in the next ring are not both this node.
    let me = ring.iter().position(|member| *member == id(1)).unwrap();
    let (victim, liar) = (ring[(me + 1) % 4], ring[(me + 2) % 4]);
    let stall = |bench: &mut Bench, key, peers: &[u8]| {
        bench.feed(Input::ReduceProgress { key, bytes: 3, awaits: None });
        let mut outputs = Vec::new();
        for _ in 0..120 {
            for peer in peers {
                let head = bench.chain_head(Phase::Reducing, if id(*peer) == liar { 1 } else { 3 });
                outputs.extend(bench.say(*peer, &Message::Head(head)));
            }
            outputs.extend(bench.wait(SECOND));
            if !blamed(&outputs).is_empty() {
                break;
            }
        }
        outputs
    };
    let outputs = stall(&mut bench, key, &[2, 3, 4]);
    assert_eq!(blamed(&outputs), [Some(victim)], "who sends on the link, at first");
    let honest: Vec<u8> = [2, 3, 4].into_iter().filter(|n| id(*n) != victim).collect();
    agree_among(&mut bench, outputs, &honest);
    let key = bench.running();
    let outputs = stall(&mut bench, key, &honest);
    assert_eq!(blamed(&outputs), [Some(liar)], "who was at both bad links");
}

/// A flock of four whose updates go by owners.
fn owners() -> Bench {
    let mut spec = crate::bench::spec();
    spec.sync.engine = EngineKind::Owners;
    Bench::flock_of(spec, &crate::bench::voters(4))
}

/// Nothing moves, and some members wait for others. Returns this node's outputs.
pub fn stand_still(bench: &mut Bench, key: AttemptKey, waiting: &[(u8, Awaited, NodeId)]) -> Vec<Output> {
    let awaits = |n: u8| waiting.iter().find(|(waiter, ..)| *waiter == n).map(|(_, what, from)| (*what, *from));
    let awaits = |n: u8| awaits(n).map(|(what, from)| Awaits { what, from });
    bench.feed(Input::ReduceProgress { key, bytes: 3, awaits: awaits(1) });
    let mut outputs = Vec::new();
    for _ in 0..120 {
        for peer in [2, 3, 4] {
            let head = Head { awaits: awaits(peer), ..bench.chain_head(Phase::Reducing, 3) };
            outputs.extend(bench.say(peer, &Message::Head(head)));
        }
        outputs.extend(bench.wait(SECOND));
        if !blamed(&outputs).is_empty() {
            return outputs;
        }
    }
    panic!("the round hangs");
}

/// T20: with owners, the members are asked that wait for something that depends on nothing else. Sums depend on parts.
#[test]
fn t20_a_member_that_withholds_from_owners_or_as_one_is_left_out() {
    use Awaited::{Part, Room, Sum};
    for staller in [2, 3, 4] {
        let honest: Vec<u8> = [1, 2, 3, 4].into_iter().filter(|n| *n != staller).collect();
        let by = |from: &[u8], what, of| from.iter().map(|n| (*n, what, id(of))).collect::<Vec<_>>();
        // The staller withholds its parts from all, while it waits for their sums; its part from one owner only, for
        // whose sums the others wait; its sums; its reading.
        let from_one = [by(&honest[2..], Part, staller), by(&honest[..2], Sum, honest[2])].concat();
        for waiting in [
            [by(&honest, Part, staller), by(&[staller], Sum, honest[0])].concat(),
            from_one,
            by(&honest, Sum, staller),
            [by(&honest[..2], Room, staller), by(&[honest[2]], Sum, staller)].concat(),
        ] {
            let mut bench = owners();
            let key = bench.all_ready();
            let outputs = stand_still(&mut bench, key, &waiting);
            assert_eq!(blamed(&outputs), [Some(id(staller))], "{waiting:?}");
            goes_on_without(&mut bench, outputs, id(staller));
        }
    }
}

/// A member that says that it waits for data that it has received gets one owner blamed, and not another after that.
#[test]
fn t20_a_member_that_reports_one_owner_after_the_other_is_left_out() {
    let mut bench = owners();
    let key = bench.all_ready();
    let lie = |victim: u8| [(4, Awaited::Part, id(victim)), (1, Awaited::Sum, id(4)), (2, Awaited::Sum, id(4))];
    let outputs = stand_still(&mut bench, key, &lie(3));
    assert_eq!(blamed(&outputs), [Some(id(3))], "its word against nobody's");
    agree_among(&mut bench, outputs, &[2, 4]);
    let key = bench.running();
    let outputs = stand_still(&mut bench, key, &lie(2));
    assert_eq!(blamed(&outputs), [Some(id(4))], "it was at both bad links");
}

/// A report that names a node outside the attempt, or its own sender, names nobody.
#[test]
fn nobody_is_blamed_for_what_means_nothing() {
    let mut bench = owners();
    let key = bench.all_ready();
    let outputs = stand_still(&mut bench, key, &[(2, Awaited::Part, id(9)), (3, Awaited::Part, id(3))]);
    assert_eq!(blamed(&outputs), [None]);
}

/// A byte now and then is no progress: a member that holds up all others far longer than any reduction took is left
/// out.
#[test]
fn t20_a_byte_a_second_does_not_hold_up_the_round() {
    let mut bench = Bench::flock(4);
    let key = bench.all_ready();
    // Bytes come so slowly to this node, which then has the fewest of all.
    let ring = starling_protocol::ring::order(&bench.record().digest(), [1, 2, 3, 4].map(id));
    let me = ring.iter().position(|member| *member == id(1)).unwrap();
    let staller = ring[(me + 3) % 4];
    let mut outputs = Vec::new();
    let mut seconds = 0;
    while blamed(&outputs).is_empty() {
        seconds += 1;
        assert!(seconds < 1_200, "the round hangs on the staller");
        bench.feed(Input::ReduceProgress { key, bytes: seconds, awaits: None });
        outputs = beat(&mut bench, [10_000 + seconds, 10_000 + seconds, 10_000 + seconds]);
    }
    assert!(seconds > 100, "slow is not dead: {seconds} s");
    assert_eq!(blamed(&outputs), [Some(staller)]);
    goes_on_without(&mut bench, outputs, staller);
}

/// T21: one voter that always wants to give up keeps nobody from going on without it.
#[test]
fn t21_one_that_gives_up_is_gone_on_without() {
    let mut bench = Bench::flock(4);
    for round in 1..=3 {
        let head = bench.record();
        let key = bench.all_ready();
        let skip = starling_protocol::engine::succession::skip(&head, head.digest()).unwrap();
        let (question, value) = (bench.question(), Value::skip(skip.digest()));
        let estimate = Estimate { question, incarnation: INCARNATION, ballot: 0, value };
        let mut outputs = bench.say(4, &Message::Estimate(estimate));
        // In later rounds no node expects anything of that voter any more.
        assert_eq!(outputs.contains(&Output::Abandon { key }), round == 1, "its part of the attempt will not come");
        let mut members = bench.engine.view().attempt.map(|(_, members)| members);
        if round == 1 {
            // The others vote on the set that goes on, and none of them gives up.
            outputs.extend(bench.wait(2_000_000));
            members = Some(agree(&mut bench, outputs));
        }
        assert_eq!(members, Some(vec![id(1), id(2), id(3)]));
        let key = bench.running();
        let said = bench.rebuild(key);
        assert_eq!(said.value.kind, ValueKind::Commit);
        for peer in [2, 3] {
            bench.say(peer, &Message::Estimate(said.clone()));
        }
        // Both votes are for this round, even if the first of them decides it.
        let votes = [2, 3].map(|peer| (peer, bench.vote(peer, said.value.clone(), 0)));
        for (peer, vote) in votes {
            bench.hear(peer, vote);
        }
        assert_eq!((bench.record().round, bench.engine.view().round), (round, round), "every round commits");
        for peer in [2, 3, 4] {
            let head = bench.chain_head(Phase::Training, 0);
            bench.say(peer, &Message::Head(head));
        }
        if bench.record().member(&id(4)).is_none() {
            // The voter was left out for so long that it is no member any more: the end of the test.
            return assert_eq!(round, 2);
        }
    }
    panic!("who contributes nothing is removed");
}

/// A node has begun the vote on a set, and only a member that spoiled an attempt is left beside it. The node takes that
/// member back: the set that it named first has a member that is gone. Found by the simulator (seed 1220).
#[test]
fn a_member_that_spoiled_an_attempt_is_better_than_nobody() {
    let mut bench = Bench::flock(3);
    let key = bench.all_ready();
    let reason = "its sums are wrong".to_owned();
    let mut outputs = bench.feed(Input::ReduceFailed { key, suspect: Some(id(2)), refused: true, reason });
    outputs.extend(bench.wait(SECOND));
    let named = |bench: &Bench, outputs: &[Output]| {
        let said = crate::bench::sent(&bench.spec, outputs).into_iter().rev().map(|(_, message)| message);
        let mut said = said.filter_map(|message| match message {
            Message::Estimate(Estimate { question, ballot, value, .. }) => Some((question, ballot, value)),
            Message::Vote(Vote { question, ballot, value, .. }) => Some((question, ballot, value)),
            _ => None,
        });
        said.next().unwrap_or_else(|| panic!("nothing is named: {outputs:?}"))
    };
    let (question, ballot, value) = named(&bench, &outputs);
    let members = |value: &Value| member_indices(&value.members).collect::<Vec<_>>();
    assert_eq!((value.kind, members(&value)), (ValueKind::Set, vec![0, 2]));

    bench.feed(Input::PeerDown { peer: id(3) });
    let other = Value { digest: digest(55), set: digest(55), members: member_bits([0, 1]), ..value };
    let estimate = Estimate { question, incarnation: INCARNATION, ballot, value: other };
    let mut outputs = Vec::new();
    for _ in 0..5 {
        let head = bench.chain_head(Phase::Ready, 0);
        bench.say(2, &Message::Head(head));
        outputs.extend(bench.wait(SECOND));
    }
    outputs.extend(bench.say(2, &Message::Estimate(estimate)));
    outputs.extend(bench.wait(SECOND));
    assert_eq!(members(&named(&bench, &outputs).2), [0, 1], "{outputs:?}");
}

/// A voter is gone, and the two that are left do not agree at once. Ballots follow each other as fast as messages
/// travel, and do not wait longer each time for the dead voter's statement. Found by the simulator (seed 11754).
#[test]
fn nobody_waits_for_the_votes_of_those_that_are_gone() {
    let mut bench = Bench::flock(3);
    let head = bench.record();
    let key = bench.all_ready();
    let skip = starling_protocol::engine::succession::skip(&head, head.digest()).unwrap();
    let gives_up = || Value::skip(skip.digest());
    bench.feed(Input::Reduced { key, update: digest(9) });
    let mut outputs = bench.feed(Input::Applied { key, update: digest(9), state_root: digest(10) });
    bench.feed(Input::PeerDown { peer: id(3) });
    let incarnation = INCARNATION;
    for _ in 0..60 {
        for (_, message) in crate::bench::sent(&bench.spec, &std::mem::take(&mut outputs)) {
            let answer = match message {
                Message::Estimate(Estimate { question, ballot, .. }) => {
                    Message::Estimate(Estimate { question, incarnation, ballot, value: gives_up() })
                }
                Message::Vote(Vote { question, ballot, value, .. }) => {
                    let voted = value == gives_up() && ballot > 4;
                    Message::Vote(Vote { question, incarnation, ballot, value: gives_up(), voted })
                }
                _ => continue,
            };
            outputs.extend(bench.say(2, &answer));
        }
        let head = bench.chain_head(Phase::Settling, 0);
        outputs.extend(bench.say(2, &Message::Head(head)));
        outputs.extend(bench.wait(100_000));
        if bench.record().seq > 0 {
            return;
        }
    }
    panic!("6 s after the death they have not agreed: {:?}", bench.engine.view());
}

/// T21: statements against others count when more than half of the voters make them, and only from voters.
#[test]
fn t21_one_that_always_suspects_changes_nothing() {
    let mut bench = Bench::flock(4);
    let said = |kind, n| Statement { kind, id: id(n), incarnation: 0, grant: Digest::default() };
    let statements = vec![said(StatementKind::Suspect, 2), said(StatementKind::Suspect, 3)];
    let ready = Ready { statements, ..bench.ready(4) };
    bench.say(4, &Message::Ready(ready));
    let mut outputs = bench.trained();
    for member in [2, 3] {
        let ready = bench.ready(member);
        outputs.extend(bench.say(member, &Message::Ready(ready)));
    }
    assert!(bench.engine.view().attempt.is_some_and(|(_, members)| members.len() == 4), "{outputs:?}");
    let key = bench.running();
    let said = bench.rebuild(key);
    for peer in [2, 3, 4] {
        bench.say(peer, &Message::Estimate(said.clone()));
        let vote = bench.vote(peer, said.value.clone(), 0);
        bench.hear(peer, vote);
    }
    assert_eq!((bench.record().seq, bench.record().members().len()), (1, 4));
    // Votes of nodes that do not vote, and of former vote states, are stale.
    bench.greet(9, BOOT);
    for (from, incarnation) in [(9, INCARNATION), (3, INCARNATION + 1)] {
        let value = Value::skip(digest(1));
        let vote = Vote { question: bench.question(), incarnation, ballot: 0, value, voted: true };
        assert_eq!(refusals(&bench.say(from, &Message::Vote(vote))), [&Refusal::Stale]);
    }
}
