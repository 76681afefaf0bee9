//! Words that members of a flock of several rows pass on: two rows of four, of whom three vote.

use crate::bench::{Bench, ME, id, refusals, sent, spec, voters};
use starling_protocol::NodeId;
use starling_protocol::engine::io::{Input, Output, Refusal};
use starling_protocol::grid::Grid;
use starling_protocol::message::{Message, Question, Start, Value, ValueKind, Want, member_bits, member_indices};
use starling_protocol::record::Role;
use starling_protocol::scale::{SMALL, with};

/// A bench in which this member votes, or learns.
fn rows(me: Role) -> Bench {
    let others = |n: u8| if n <= if me == Role::Voter { 3 } else { 4 } { Role::Voter } else { Role::Learner };
    let members: Vec<(u8, Role)> = (1..=8).map(|n| (n, if n == ME { me } else { others(n) })).collect();
    Bench::flock_of(spec(), &members)
}

fn grid(bench: &Bench) -> Grid {
    bench.record().grid()
}

/// Members by their place seen from this one: of its row, of its column, and of neither.
fn around(bench: &Bench) -> (Vec<u8>, Vec<u8>, Vec<u8>) {
    let (grid, me) = (grid(bench), id(ME));
    let others: Vec<u8> = (2..=8).collect();
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
fn a_ready_of_a_neighbour_goes_on_along_the_other_way_once() {
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
fn words_of_others_come_from_neighbours_only_and_well_signed() {
    with(SMALL, || {
        let mut bench = rows(Role::Voter);
        let (row, _, far) = around(&bench);
        let said = ready(&bench, far[0]);
        assert_eq!(refusals(&bench.hear(far[1], said.clone())), [&Refusal::Stale]);
        bench.greet(9, 1_000);
        assert_eq!(refusals(&bench.hear(9, said.clone())), [&Refusal::Stale], "a stranger");
        let own = ready(&bench, ME);
        assert_eq!(refusals(&bench.hear(row[0], own)), [&Refusal::Stale]);
        let leave = bench.seal(
            far[0],
            &Message::Leave(starling_protocol::message::Leave { lineage: crate::bench::digest(1), seq: 1 }),
        );
        assert!(matches!(refusals(&bench.hear(row[1], leave))[..], [Refusal::Malformed { .. }]), "no such kind");
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
fn neighbours_are_asked_in_turn_for_readys_that_are_lacking_and_answer() {
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
fn a_start_goes_on_along_the_row_of_a_learner_once() {
    with(SMALL, || {
        let mut bench = rows(Role::Learner);
        let (row, _, _) = around(&bench);
        let voter = (2..=8).find(|n| bench.record().voters().any(|voter| voter.id == id(*n))).expect("a voter");
        let all = member_bits(0..8);
        let set = crate::bench::digest(7);
        let value =
            Value { kind: ValueKind::Set, digest: set, tokens: 8, contributors: 8, attempt: 1, set, members: all };
        let question = Question { instance: 1, ..bench.question() };
        let said = bench.seal(voter, &Message::Start(Start { question, value }));
        let by = if grid(&bench).are_neighbours(&id(ME), &id(voter)) { voter } else { row[0] };
        let told = receivers(&bench.hear(by, said.clone()), &said);
        assert!(told.len() == 2 && told.iter().all(|n| row.contains(n)), "{told:?}");
        assert_eq!(receivers(&bench.hear(by, said.clone()), &said), [0u8; 0]);
    });
}

#[test]
fn a_decision_goes_down_the_columns_and_along_the_rows() {
    with(SMALL, || {
        let mut bench = rows(Role::Voter);
        let (row, column, _) = around(&bench);
        let key = bench.all_ready();
        let outputs = bench.decide(key);
        let told = sent(&bench.spec, &outputs).into_iter().filter(|(_, m)| matches!(m, Message::Certificate(_)));
        let told: std::collections::BTreeSet<u8> = told.map(|(to, _)| to.0[0]).collect();
        let learner = row.iter().find(|n| **n > 3).expect("three of four vote");
        assert!(told.contains(&column[0]), "{told:?}");
        assert!(told.iter().all(|n| column.contains(n) || n == learner), "{told:?}");
    });
}
