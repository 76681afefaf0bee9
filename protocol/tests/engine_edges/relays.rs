//! Words that members of a flock of several rows pass on: two rows of four, of whom three vote.

use crate::bench::{BOOT, Bench, INCARNATION, ME, id, refusals, sent, spec, voters};
use starling_protocol::NodeId;
use starling_protocol::engine::MemberState;
use starling_protocol::engine::io::{Input, Output, Refusal};
use starling_protocol::grid::Grid;
use starling_protocol::message::{
    Head, Message, Phase, Pulse, Question, Start, Value, ValueKind, Want, member_bits, member_indices,
};
use starling_protocol::record::Role;
use starling_protocol::scale::{SMALL, with};
use std::collections::BTreeSet;

/// A bench in which this member votes, or learns.
fn rows(me: Role) -> Bench {
    let others = |n: u8| if n <= if me == Role::Voter { 3 } else { 4 } { Role::Voter } else { Role::Learner };
    let members: Vec<(u8, Role)> = (1..=8).map(|n| (n, if n == ME { me } else { others(n) })).collect();
    Bench::flock_of(spec(), &members)
}

/// A bench in which this member learns, beside three voters and so many learners from this one on.
fn learning(from: u8, learners: u8) -> Bench {
    let role = |n| if (2..=4).contains(&n) { Role::Voter } else { Role::Learner };
    Bench::flock_of(spec(), &(1..=4).chain(from..from + learners).map(|n| (n, role(n))).collect::<Vec<_>>())
}

fn grid(bench: &Bench) -> Grid {
    bench.record().grid()
}

/// Members by their place seen from this one: of its row, of its column, and of neither.
fn around(bench: &Bench) -> (Vec<u8>, Vec<u8>, Vec<u8>) {
    let (grid, me) = (grid(bench), id(ME));
    let others: Vec<u8> = bench.record().members().map(|member| member.0[0]).filter(|n| *n != ME).collect();
    let (near, far): (Vec<u8>, Vec<u8>) = others.into_iter().partition(|n| grid.are_neighbours(&me, &id(*n)));
    let (row, column) = near.into_iter().partition(|n| grid.share_a_row(&me, &id(*n)));
    (row, column, far)
}

fn ready(bench: &Bench, n: u8) -> Vec<u8> {
    bench.seal(n, &Message::Ready(bench.ready(n)))
}

/// The receivers of these very bytes.
fn receivers(outputs: &[Output], said: &[u8]) -> Vec<u8> {
    let to = outputs.iter().filter_map(|output| match output {
        Output::Send { to, bytes, .. } if bytes == said => Some(to.0[0]),
        _ => None,
    });
    to.collect()
}

fn wants(bench: &Bench, outputs: &[Output]) -> Vec<(NodeId, Want)> {
    let want = |(to, message)| if let Message::Want(want) = message { Some((to, want)) } else { None };
    sent(&bench.spec, outputs).into_iter().filter_map(want).collect()
}

#[test]
pub fn a_ready_of_a_neighbour_goes_on_along_the_other_way_once() {
    with(SMALL, || {
        let mut bench = rows(Role::Voter);
        let (row, column, far) = around(&bench);
        assert_eq!((row.len(), column.len(), far.len()), (3, 1, 3));
        for (signer, onward) in [(column[0], &row), (row[0], &column)] {
            let said = ready(&bench, signer);
            assert_eq!(receivers(&bench.hear(signer, said.clone()), &said), *onward);
            assert_eq!(receivers(&bench.hear(signer, said.clone()), &said), [0u8; 0], "it was passed on before");
        }
        let said = ready(&bench, far[0]);
        assert_eq!(receivers(&bench.hear(far[0], said.clone()), &said), [0u8; 0], "it is not for this node to pass on");
        let own = bench.trained();
        let told = sent(&bench.spec, &own).into_iter().filter(|(_, m)| matches!(m, Message::Ready(_)));
        let told: Vec<u8> = told.map(|(to, _)| to.0[0]).collect();
        assert!(told.len() == 4 && told.iter().all(|n| !far.contains(n)), "row and column: {told:?}");
    });
}

#[test]
fn an_attempt_begins_with_readys_that_neighbours_have_passed_on() {
    with(SMALL, || {
        let mut bench = rows(Role::Voter);
        let (row, column, far) = around(&bench);
        bench.trained();
        for signer in row.iter().chain(&column) {
            let said = ready(&bench, *signer);
            bench.hear(*signer, said);
        }
        for signer in far {
            assert_eq!(bench.attempt(), None);
            let said = ready(&bench, signer);
            assert!(refusals(&bench.hear(row[0], said.clone())).is_empty());
            assert!(refusals(&bench.hear(column[0], said)).is_empty(), "the other way");
        }
        assert!(bench.attempt().is_some());
    });
}

#[test]
pub fn words_of_others_come_from_neighbours_only_and_well_signed() {
    with(SMALL, || {
        let mut bench = rows(Role::Voter);
        let (row, _, far) = around(&bench);
        let said = ready(&bench, far[0]);
        assert_eq!(refusals(&bench.hear(far[1], said.clone())), [&Refusal::Stale]);
        bench.greet(9, 1_000);
        assert_eq!(refusals(&bench.hear(9, said.clone())), [&Refusal::Stale], "a stranger");
        let own = ready(&bench, ME);
        assert_eq!(refusals(&bench.hear(row[0], own)), [&Refusal::Stale]);
        let join = crate::admission::join(&bench, &[]);
        let join = bench.seal(far[0], &join);
        assert!(matches!(refusals(&bench.hear(row[1], join))[..], [Refusal::Malformed { .. }]), "no such kind");
        let mut forged = said;
        forged[60] ^= 1;
        assert_eq!(refusals(&bench.hear(row[0], forged)), [&Refusal::BadSignature]);
    });
    let mut bench = Bench::flock_of(spec(), &voters(4));
    let said = ready(&bench, 3);
    assert_eq!(refusals(&bench.hear(2, said)), [&Refusal::Stale], "in one row nobody passes anything on");
}

#[test]
fn a_ready_that_contradicts_another_is_evidence_whoever_brings_it() {
    with(SMALL, || {
        let mut bench = rows(Role::Voter);
        let (row, column, far) = around(&bench);
        let (one, mut other) = (ready(&bench, far[0]), bench.ready(far[0]));
        other.tokens -= 1;
        let other = bench.seal(far[0], &Message::Ready(other));
        bench.hear(row[0], one);
        let outputs = bench.hear(column[0], other);
        let against = |output: &Output| matches!(output, Output::Evidence { against, .. } if *against == id(far[0]));
        assert!(outputs.iter().any(against), "{outputs:?}");
        assert_eq!(refusals(&outputs), [&Refusal::Stale], "the relay is innocent");
    });
}

#[test]
pub fn neighbours_are_asked_in_turn_for_readys_that_are_lacking_and_answer() {
    with(SMALL, || {
        let mut bench = rows(Role::Voter);
        let (row, column, far) = around(&bench);
        bench.trained();
        for signer in row.iter().chain(&column).chain(&far[..2]) {
            let (by, said) = (if far.contains(signer) { row[0] } else { *signer }, ready(&bench, *signer));
            bench.hear(by, said);
        }
        let place = bench.record().member_index(&id(far[2])).expect("a member");
        let asked = bench.wait(2_200_000);
        let wants = wants(&bench, &asked);
        assert!(wants.iter().all(|(_, want)| member_indices(&want.members).eq([place])), "{wants:?}");
        let whom: Vec<u8> = wants.iter().map(|(to, _)| to.0[0]).collect();
        assert!(whom.len() >= 4 && whom[..4].iter().all(|n| row.contains(n) || column.contains(n)), "{whom:?}");
        assert!(whom.windows(2).all(|pair| pair[0] != pair[1]), "in turn: {whom:?}");

        let want = Want {
            members: member_bits([bench.record().member_index(&id(row[0])).expect("a member"), place]),
            ..wants[0].1.clone()
        };
        let (said, asks) = (ready(&bench, row[0]), Message::Want(want.clone()));
        assert_eq!(receivers(&bench.say(column[0], &asks), &said), [column[0]]);
        assert_eq!(refusals(&bench.say(column[0], &asks)), [&Refusal::Stale], "too soon");
        assert_eq!(refusals(&bench.say(far[0], &asks)), [&Refusal::Stale], "no neighbour");
        let past = Message::Want(Want { round: want.round + 1, ..want });
        assert_eq!(refusals(&bench.say(row[1], &past)), [&Refusal::Stale], "another round");
    });
}

/// The READYs of voters were passed on before this node had its seat: it asks for them, though it knows of no quorum.
#[test]
fn a_node_that_is_ready_asks_also_before_a_quorum_is() {
    with(SMALL, || {
        let mut bench = rows(Role::Learner);
        let (row, column, _) = around(&bench);
        let training = bench.wait(2_200_000);
        assert!(wants(&bench, &training).is_empty());
        bench.trained();
        let asked = bench.wait(2_200_000);
        let (wants, record) = (wants(&bench, &asked), bench.record());
        assert!(!wants.is_empty() && wants.iter().all(|(to, _)| row.contains(&to.0[0]) || column.contains(&to.0[0])));
        let voters: Vec<usize> = record.voters().filter_map(|voter| record.member_index(&voter.id)).collect();
        assert!(wants.iter().all(|(_, want)| voters.iter().all(|at| member_indices(&want.members).any(|m| m == *at))));
    });
}

#[test]
fn a_neighbour_that_comes_back_is_told_what_it_has_missed() {
    with(SMALL, || {
        let mut bench = rows(Role::Voter);
        let (row, column, _) = around(&bench);
        let said = ready(&bench, column[0]);
        bench.hear(column[0], said.clone());
        bench.feed(Input::PeerDown { peer: id(row[0]) });
        assert_eq!(receivers(&bench.feed(Input::PeerUp { peer: id(row[0]) }), &said), [row[0]]);
    });
}

#[test]
pub fn a_start_goes_on_along_the_row_of_a_learner_once() {
    with(SMALL, || {
        let mut bench = rows(Role::Learner);
        let (row, column, _) = around(&bench);
        let voter = (2..=8).find(|n| bench.record().voters().any(|voter| voter.id == id(*n))).expect("a voter");
        let all = member_bits(0..8);
        let set = crate::bench::digest(7);
        let value =
            Value { kind: ValueKind::Set, digest: set, tokens: 8, contributors: 8, attempt: 1, set, members: all };
        let start = |bench: &Bench, attempt| {
            let question = Question { instance: attempt, ..bench.question() };
            let value = Value { attempt, ..value.clone() };
            bench.seal(voter, &Message::Start(Start { question, value }))
        };
        let said = start(&bench, 1);
        let by = if grid(&bench).are_neighbours(&id(ME), &id(voter)) { voter } else { row[0] };
        let told = receivers(&bench.hear(by, said.clone()), &said);
        // This learner sits in the first row.
        let (below, beside): (Vec<u8>, Vec<u8>) = told.iter().partition(|n| column.contains(n));
        assert!(beside.len() == 2 && beside.iter().all(|n| row.contains(n)) && below == column, "{told:?}");
        assert_eq!(receivers(&bench.hear(by, said.clone()), &said), [0u8; 0]);
        let later = start(&bench, 2);
        assert_eq!(receivers(&bench.hear(by, later.clone()), &later), told);
        assert_eq!(receivers(&bench.hear(by, said.clone()), &said), [0u8; 0], "of an earlier attempt");
    });
}

fn said(bench: &Bench, n: u8, beat: u64, down: &[u8]) -> Vec<u8> {
    bench.seal(n, &Message::Head(bench.head(beat, down)))
}

/// The reason for which the bench does not count on a member.
fn fault(bench: &Bench, n: u8) -> Option<&'static str> {
    let view = bench.engine.view();
    let member = view.members.iter().find(|member| member.id == id(n)).expect("a member");
    match member.state {
        MemberState::Out(why) => Some(why),
        _ => None,
    }
}

#[test]
pub fn a_head_goes_to_those_that_do_not_hear_its_signer() {
    with(SMALL, || {
        let mut bench = rows(Role::Voter);
        let (row, column, far) = around(&bench);
        let voters: Vec<u8> = row.iter().copied().filter(|n| *n <= 3).collect();
        let of = |bench: &Bench, n: u8, beat| said(bench, n, beat, &[]);
        // Heads were passed on when the members met.
        bench.wait(300_000);
        let learner = of(&bench, column[0], 1);
        assert_eq!(receivers(&bench.hear(column[0], learner.clone()), &learner), voters, "up to the voters");
        let next = of(&bench, column[0], 2);
        assert_eq!(receivers(&bench.hear(column[0], next.clone()), &next), [0u8; 0], "too soon");
        for other in [row[0], far[0]] {
            let head = of(&bench, other, 1);
            assert_eq!(receivers(&bench.hear(other, head.clone()), &head), [0u8; 0]);
        }

        let led = |bench: &Bench| {
            let head = grid(bench).head_of(&id(ME)).filter(|head| *head != id(ME));
            head.is_some_and(|head| bench.record().voters().any(|voter| voter.id == head))
        };
        let mut bench = (5..=60)
            .map(|from| learning(from, 4))
            .find(led)
            .expect("in one of them a voter leads this learner's column");
        let (row, column, _) = around(&bench);
        bench.wait(300_000);
        let voter = of(&bench, column[0], 1);
        let told: BTreeSet<u8> = receivers(&bench.hear(column[0], voter.clone()), &voter).into_iter().collect();
        assert_eq!(told, row.iter().copied().collect(), "along the row");
        let mate = of(&bench, row[0], 1);
        assert_eq!(receivers(&bench.hear(row[0], mate.clone()), &mate), column, "to the head of the column");
    });
}

#[test]
fn a_member_that_is_heard_through_others_is_there_as_long_as_its_heads_are_new() {
    with(SMALL, || {
        let mut bench = rows(Role::Voter);
        let (row, column, far) = around(&bench);
        bench.feed(Input::PeerDown { peer: id(far[0]) });
        let old = said(&bench, far[0], 1, &[]);
        for beat in 1..=8 {
            let head = said(&bench, far[0], beat, &[]);
            assert!(refusals(&bench.hear(row[0], head)).is_empty());
            assert_eq!(refusals(&bench.hear(column[0], old.clone())), [&Refusal::Stale], "an old one shows no life");
            row.iter().chain(&column).chain(&far[1..]).for_each(|n| drop(bench.meet(*n)));
            bench.wait(3_000_000);
            assert_eq!(fault(&bench, far[0]), None);
        }
        let grid = grid(&bench);
        let elsewhere = |n: &&u8| !grid.are_neighbours(&id(**n), &id(far[0]));
        for _ in 0..5 {
            bench.hear(row[0], old.clone());
            row.iter().chain(&column).filter(elsewhere).for_each(|n| drop(bench.meet(*n)));
            bench.wait(3_000_000);
        }
        assert_eq!(fault(&bench, far[0]), Some("nothing was heard of it"));
    });
}

#[test]
pub fn a_member_that_its_neighbours_reach_is_not_silent() {
    with(SMALL, || {
        let mut bench = rows(Role::Voter);
        let (row, column, far) = around(&bench);
        let grid = grid(&bench);
        bench.feed(Input::PeerDown { peer: id(far[0]) });
        let newest = said(&bench, far[0], 1, &[]);
        bench.hear(row[0], newest);
        let near: Vec<u8> =
            row.iter().chain(&column).copied().filter(|n| grid.are_neighbours(&id(*n), &id(far[0]))).collect();
        let wait = |bench: &mut Bench, beat: u64, down: &[u8]| {
            for beat in beat..beat + 5 {
                row.iter().chain(&column).for_each(|n| drop(bench.meet(*n)));
                for n in &near {
                    let head = said(bench, *n, beat, down);
                    bench.hear(*n, head);
                }
                bench.wait(3_000_000);
            }
        };
        wait(&mut bench, 10, &[]);
        assert_eq!(fault(&bench, far[0]), None, "the member that passed its Heads on may be gone");
        wait(&mut bench, 20, &[far[0]]);
        assert_eq!(fault(&bench, far[0]), Some("its connection is down"));
    });
}

/// A voter and a learner of another row may be all that passes on a member's Heads. The last one's words are old then.
#[test]
fn a_member_makes_no_progress_only_if_its_heads_come_and_show_none() {
    with(SMALL, || {
        for heads_come in [true, false] {
            let mut bench = rows(Role::Voter);
            let (row, column, far) = around(&bench);
            bench.feed(Input::PeerDown { peer: id(far[0]) });
            for beat in 1..=5 {
                let waits = Head { phase: Phase::Ready, ..bench.head(beat, &[]) };
                let waits = bench.seal(far[0], &Message::Head(waits));
                if heads_come || beat == 1 {
                    bench.hear(row[0], waits);
                }
                for n in row.iter().chain(&column).chain(&far[1..]) {
                    bench.meet(*n);
                    let lives = said(&bench, *n, beat, &[]);
                    bench.hear(if far.contains(n) { row[0] } else { *n }, lives);
                }
                bench.wait(3_000_000);
            }
            assert_eq!(fault(&bench, far[0]), heads_come.then_some("it makes no progress"));
        }
    });
}

#[test]
pub fn a_peer_that_has_missed_records_is_told_of_the_head() {
    with(SMALL, || {
        let mut bench = rows(Role::Voter);
        let past: Vec<Head> = (0..3)
            .map(|_| {
                bench.commit();
                bench.chain_head(Phase::Training, 0)
            })
            .collect();
        let heads = |bench: &Bench, outputs: &[Output], to: u8| {
            let said = sent(&bench.spec, outputs).into_iter();
            said.filter(|(peer, message)| *peer == id(to) && matches!(message, Message::Head(_))).count()
        };
        let (row, column, far) = around(&bench);
        for n in row.into_iter().chain(column).chain(far).filter(|n| *n > 3) {
            for (beat, head, told) in [(900, &past[0], 1), (901, &past[1], 0), (902, &past[2], 0)] {
                let pulse = Pulse { boot: BOOT, incarnation: INCARNATION, beat, ..Pulse::default() };
                let outputs = bench.say(n, &Message::Head(Head { pulse, ..head.clone() }));
                assert_eq!(heads(&bench, &outputs, n), told, "at {}", head.seq);
            }
        }
    });
}

/// A node that is given the votes of a record may lack its update. Those that went on with that record send it no Heads,
/// so it knows of a source only if the node that gives it the votes says where it stands (seed 527 of the simulator).
#[test]
fn a_peer_that_is_given_a_certificate_is_told_of_the_head_too() {
    with(SMALL, || {
        let one_row =
            Bench::flock_of(spec(), &[1, 2, 3, 4].map(|n| (n, if n < 4 { Role::Voter } else { Role::Learner })));
        for (mut bench, heads) in [(rows(Role::Voter), 1), (one_row, 0)] {
            let behind = bench.chain_head(Phase::Settling, 0);
            bench.commit();
            let members: Vec<u8> = bench.record().members().map(|member| member.0[0]).filter(|n| *n != ME).collect();
            bench.wait(3_000_000);
            members.iter().filter(|n| **n < 4).for_each(|n| drop(bench.meet(*n)));
            for n in members.into_iter().filter(|n| *n > 3) {
                let pulse = Pulse { boot: BOOT, incarnation: INCARNATION, beat: 900, ..Pulse::default() };
                let outputs = bench.say(n, &Message::Head(Head { pulse, ..behind.clone() }));
                let said: Vec<Message> =
                    sent(&bench.spec, &outputs).into_iter().filter(|(to, _)| *to == id(n)).map(|(_, m)| m).collect();
                let count = |is: fn(&&Message) -> bool| said.iter().filter(is).count();
                assert_eq!(count(|m| matches!(m, Message::Certificate(_))), 1, "{said:?}");
                assert_eq!(count(|m| matches!(m, Message::Head(_))), heads, "{said:?}");
            }
        }
    });
}

#[test]
pub fn a_member_is_down_when_most_of_its_neighbours_say_so() {
    with(SMALL, || {
        let mut bench = rows(Role::Voter);
        let (row, column, far) = around(&bench);
        let grid = grid(&bench);
        let head = said(&bench, far[0], 1, &[]);
        bench.hear(row[0], head);
        let near: Vec<u8> = (2..=8).filter(|n| grid.are_neighbours(&id(*n), &id(far[0]))).collect();
        assert_eq!((near.len(), fault(&bench, far[0])), (4, None));
        for (at, n) in near.iter().enumerate() {
            assert_eq!(fault(&bench, far[0]), (at > 2).then_some("its connection is down"), "{at} of four say so");
            let by = if row.contains(n) || column.contains(n) { *n } else { row[0] };
            let head = said(&bench, *n, 2, &[far[0]]);
            bench.hear(by, head);
            bench.wait(200_000);
        }
    });
}

#[test]
pub fn learners_leave_it_to_voters_whether_a_learner_elsewhere_is_there() {
    with(SMALL, || {
        // Three rows: a learner of the third is no neighbour of most of the second, and neither votes.
        let below = |bench: &Bench| grid(bench).cell_of(&id(ME)).is_some_and(|cell| cell.row() > 0);
        let mut bench = (8..=11)
            .map(|learners| learning(5, learners))
            .find(below)
            .expect("this learner sits below the first row in one of them");
        let grid = grid(&bench);
        assert_eq!(grid.rows(), 3);
        let all = bench.record().next.members.len() as u8;
        let elsewhere = |n: &u8| *n > 4 && !grid.are_neighbours(&id(ME), &id(*n));
        let learners: Vec<u8> = (2..=all).filter(elsewhere).collect();
        learners.iter().for_each(|n| drop(bench.feed(Input::PeerDown { peer: id(*n) })));
        for _ in 0..10 {
            (2..=all).filter(|n| !learners.contains(n)).for_each(|n| drop(bench.meet(n)));
            bench.wait(3_000_000);
        }
        assert!(learners.iter().all(|n| fault(&bench, *n).is_none()), "{:?}", bench.engine.view().members);
        let contacts = bench.engine.contacts().expect("a flock of rows");
        assert_eq!(contacts, grid.neighbours(&id(ME)).collect());
    });
}

#[test]
pub fn a_decision_goes_down_the_columns_and_along_the_rows() {
    with(SMALL, || {
        let mut bench = rows(Role::Voter);
        let (row, column, _) = around(&bench);
        let key = bench.all_ready();
        let outputs = bench.decide(key);
        let told = sent(&bench.spec, &outputs).into_iter().filter(|(_, m)| matches!(m, Message::Certificate(_)));
        let told: BTreeSet<u8> = told.map(|(to, _)| to.0[0]).collect();
        let learner = row.iter().find(|n| **n > 3).expect("three of four vote");
        assert!(told.contains(&column[0]), "{told:?}");
        assert!(told.iter().all(|n| column.contains(n) || n == learner), "{told:?}");
    });
}

#[test]
pub fn a_flock_of_rows_has_eight_attempts_and_the_last_is_of_voters() {
    with(SMALL, || {
        let mut bench = rows(Role::Voter);
        let mut key = bench.all_ready();
        let mut sizes = Vec::new();
        for attempt in 1..=8 {
            bench.forget_attempt();
            let outputs =
                bench.feed(Input::ReduceFailed { key, suspect: None, refused: false, reason: "a test".into() });
            assert!(!outputs.is_empty(), "attempt {attempt}");
            for _ in 0..100 {
                bench.wait(100_000);
                [2, 3].into_iter().for_each(|voter| drop(bench.echo(voter)));
                (2..=8).for_each(|n| drop(bench.meet(n)));
                if bench.attempt().is_some() {
                    break;
                }
            }
            key = bench.running();
            assert_eq!(key.attempt, attempt);
            sizes.push(bench.engine.view().attempt.map_or(0, |(_, members)| members.len()));
        }
        assert_eq!(sizes, [8, 8, 8, 8, 8, 8, 8, 3]);
    });
}
