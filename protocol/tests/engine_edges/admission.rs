//! Admission: open, by list, by ticket. Nothing else changes who decides.

use crate::bench::{BOOT, Bench, INCARNATION, Key, commits, digest, id, refusals, sent, spec, voters};
use starling_protocol::admission::{Revocation, SubjectKind, Ticket};
use starling_protocol::engine::io::{Input, Output, Refusal};
use starling_protocol::message::{Join, Leave, Message, Statement, StatementKind};
use starling_protocol::record::{GrantUse, Record};
use starling_protocol::run::{AdmissionMode, AdmissionSpec, RunSpec};
use starling_protocol::{Digest, wire};

const CREATOR: u8 = 99;

fn run(mode: AdmissionMode) -> RunSpec {
    let allow = if mode == AdmissionMode::List { vec![id(7), id(8)] } else { Vec::new() };
    RunSpec { admission: AdmissionSpec { mode, allow, probation: 0 }, ..spec() }
}

fn flock(mode: AdmissionMode) -> Bench {
    Bench::flock_of(run(mode), &voters(3))
}

/// The Join of a node that stands where the engine stands.
pub fn join(bench: &Bench, ticket: &[u8]) -> Message {
    let record = bench.record();
    Message::Join(Join {
        lineage: record.lineage,
        seq: record.seq,
        record: record.digest(),
        state_root: record.state_root,
        incarnation: INCARNATION,
        ticket: ticket.to_vec(),
    })
}

/// The engine's answer to a stranger that asks to be let in.
fn ask(bench: &mut Bench, stranger: u8, ticket: &[u8]) -> Vec<Output> {
    bench.reconnect(stranger);
    let join = join(bench, ticket);
    bench.say(stranger, &join)
}

fn refused(why: &'static str) -> Refusal {
    Refusal::NotAdmitted { why }
}

/// The record after a round, which lists the nodes that asked in it.
fn after_a_round(bench: &mut Bench) -> Record {
    commits(&bench.commit())[0].clone()
}

#[test]
fn open_lets_in_all_that_know_the_run_eight_at_a_time() {
    let mut bench = flock(AdmissionMode::Open);
    for stranger in 7..17 {
        assert!(refusals(&ask(&mut bench, stranger, &[])).is_empty());
    }
    let record = after_a_round(&mut bench);
    let new = record.members().filter(|m| (7..17).map(id).any(|id| id == *m)).count();
    assert_eq!((new, record.voters().count()), (8, 3), "as learners, eight or half as many as there are voters");
}

#[test]
fn a_list_lets_in_the_nodes_on_it() {
    let mut bench = flock(AdmissionMode::List);
    assert_eq!(refusals(&ask(&mut bench, 9, &[])), [&refused("not_listed")]);
    assert!(refusals(&ask(&mut bench, 7, &[])).is_empty());
    let record = after_a_round(&mut bench);
    assert!(record.member(&id(7)).is_some() && record.member(&id(9)).is_none());
}

#[test]
fn a_ticket_lets_in_its_holder_in_time_and_so_often() {
    let mut bench = flock(AdmissionMode::Ticket);
    let digest = bench.spec.digest();
    let sign = |by: u8, run: &Digest, holder: Option<u8>, expires, uses| {
        wire::encode_ticket(&Ticket::sign(&Key(id(by)), run, 1, holder.map(id), expires, uses))
    };
    let answers = [
        (Vec::new(), "no_ticket"),
        (vec![1, 2, 3], "malformed_ticket"),
        (sign(2, &digest, None, 0, 0), "bad_signature"),
        (sign(CREATOR, &Digest([1; 32]), None, 0, 0), "bad_signature"),
        (sign(CREATOR, &digest, Some(8), 0, 0), "other_holder"),
    ];
    for (ticket, why) in answers {
        assert_eq!(refusals(&ask(&mut bench, 7, &ticket)), [&refused(why)]);
    }
    // One ticket is good for the first round only, the other for one node.
    let (soon, once) = (sign(CREATOR, &digest, Some(8), 1, 0), sign(CREATOR, &digest, None, 0, 1));
    let grant = wire::decode_ticket(&once).unwrap().grant(&digest);
    assert!(refusals(&ask(&mut bench, 7, &once)).is_empty());
    assert!(refusals(&ask(&mut bench, 8, &soon)).is_empty(), "nothing of it is used up yet");
    bench.reconnect(8);
    let record = after_a_round(&mut bench);
    assert!(record.member(&id(7)).is_some() && record.member(&id(8)).is_none());
    assert_eq!(record.grants, [GrantUse { grant, uses: 1 }]);
    assert_eq!(refusals(&ask(&mut bench, 8, &once)), [&refused("used_up")]);
    assert_eq!(refusals(&ask(&mut bench, 8, &soon)), [&refused("expired")]);
    assert!(refusals(&ask(&mut bench, 7, &[])).is_empty(), "who is a member needs none");
}

/// More than half of the voters pass on that the creator has revoked a ticket, and an identity.
#[test]
fn a_revoked_ticket_or_identity_lets_nobody_in_any_more() {
    let mut bench = flock(AdmissionMode::Ticket);
    let run = bench.spec.digest();
    let ticket = Ticket::sign(&Key(id(CREATOR)), &run, 1, None, 0, 0);
    let grant = ticket.grant(&run);
    let said = |id, grant| Statement { kind: StatementKind::Revoked, id, incarnation: 0, grant };
    let statements = vec![said(id(0), grant), said(id(8), Digest::default())];
    bench.trained();
    for member in [2, 3] {
        let ready = bench.ready(member);
        let ready = starling_protocol::message::Ready { statements: statements.clone(), ..ready };
        let outputs = bench.say(member, &Message::Ready(ready));
        if let Some(key) = outputs.iter().find_map(|o| match o {
            Output::Reduce { key, .. } => Some(*key),
            _ => None,
        }) {
            let said = bench.rebuild(key);
            for peer in [2, 3] {
                bench.say(peer, &Message::Estimate(said.clone()));
            }
            for peer in [2, 3] {
                let vote = bench.vote(peer, said.value.clone(), 0);
                bench.hear(peer, vote);
            }
        }
    }
    let record = bench.record();
    assert_eq!(record.seq, 1);
    let mut revoked = vec![grant, Digest(id(8).0)];
    revoked.sort_unstable();
    assert_eq!(record.revoked, revoked);
    let ticket = wire::encode_ticket(&ticket);
    assert_eq!(refusals(&ask(&mut bench, 7, &ticket)), [&refused("revoked_ticket")]);
    let other = wire::encode_ticket(&Ticket::sign(&Key(id(CREATOR)), &run, 2, None, 0, 0));
    assert_eq!(refusals(&ask(&mut bench, 8, &other)), [&refused("revoked_identity")]);
    assert!(refusals(&ask(&mut bench, 7, &other)).is_empty());
}

/// A newcomer on its way has no state yet, and asks for no seat: its ticket gives it more than a place among strangers.
#[test]
fn a_ticket_that_is_shown_on_the_way_gives_a_place_and_no_seat() {
    let mut bench = flock(AdmissionMode::Ticket);
    let run = bench.spec.digest();
    let good = wire::encode_ticket(&Ticket::sign(&Key(id(CREATOR)), &run, 1, None, 0, 0));
    let forged = wire::encode_ticket(&Ticket::sign(&Key(id(7)), &run, 1, None, 0, 0));
    let shows = |bench: &Bench, lineage: Digest, ticket: &[u8]| {
        let Message::Join(join) = join(bench, ticket) else { unreachable!("a Join") };
        Message::Join(Join { lineage, seq: 900, record: digest(9), state_root: Digest::default(), ..join })
    };
    let lineage = bench.record().lineage;
    bench.greet(7, BOOT);
    for (lineage, ticket) in [(lineage, &forged[..]), (lineage, &[]), (digest(3), &good[..])] {
        let message = shows(&bench, lineage, ticket);
        assert_eq!(refusals(&bench.say(7, &message)), [&Refusal::Stale], "its connection stays");
        assert_eq!((bench.engine.invited(), bench.engine.invitations()), (Vec::new(), 0));
    }
    let message = shows(&bench, lineage, &good);
    assert!(refusals(&bench.say(7, &message)).is_empty());
    bench.say(7, &message);
    assert_eq!((bench.engine.invited(), bench.engine.invitations()), (vec![id(7)], 1));
    assert!(after_a_round(&mut bench).member(&id(7)).is_none(), "it has not asked for a seat");
    assert!(refusals(&ask(&mut bench, 7, &good)).is_empty());
    assert!(after_a_round(&mut bench).member(&id(7)).is_some());
    assert_eq!(bench.engine.invited(), [], "a member's places are its own");
    // Another start of the newcomer has shown no ticket.
    bench.greet(8, BOOT);
    bench.say(8, &message);
    assert_eq!(bench.engine.invited(), [id(8)]);
    bench.greet(8, BOOT + 1);
    assert_eq!(bench.engine.invited(), []);
}

#[test]
fn listed_nodes_have_places_before_they_have_said_anything() {
    let mut bench = flock(AdmissionMode::List);
    assert_eq!(bench.engine.invited(), [id(7), id(8)]);
    ask(&mut bench, 7, &[]);
    after_a_round(&mut bench);
    assert_eq!(bench.engine.invited(), [id(8)]);
    assert_eq!(flock(AdmissionMode::Open).engine.invited(), []);
}

/// The newcomer's head admitted it, and it has to read the newer record to know better: its connection stays.
#[test]
fn a_newcomer_that_cannot_know_its_refusal_yet_is_not_shut_out() {
    let mut bench = flock(AdmissionMode::Ticket);
    let ticket = wire::encode_ticket(&Ticket::sign(&Key(id(CREATOR)), &bench.spec.digest(), 1, None, 1, 0));
    let early = join(&bench, &ticket);
    bench.commit();
    bench.reconnect(7);
    assert_eq!(refusals(&bench.say(7, &early)), [&Refusal::Stale], "counted, and its connection stays");
    let record = after_a_round(&mut bench);
    assert!(record.member(&id(7)).is_none(), "and does not let it in either");
    assert_eq!(refusals(&ask(&mut bench, 7, &ticket)), [&refused("expired")]);
}

#[test]
fn t8_a_hundred_identities_change_neither_members_nor_quorum() {
    let mut bench = flock(AdmissionMode::Ticket);
    let before = bench.engine.view();
    for stranger in 10..110 {
        bench.greet(stranger, BOOT);
        let join = join(&bench, &[]);
        // The creator is one of the strangers, and needs a ticket like all others.
        assert_eq!(refusals(&bench.say(stranger, &join)), [&refused("no_ticket")]);
    }
    let after = bench.engine.view();
    assert_eq!((after.head, after.quorum), (before.head, before.quorum.clone()));
    let record = after_a_round(&mut bench);
    assert_eq!((record.members().len(), record.voters().count()), (3, 3));
    assert_eq!(bench.engine.view().quorum.voters, before.quorum.voters);
    // Strangers do not vote either in an open run: newcomers contribute before they vote.
    let mut open = flock(AdmissionMode::Open);
    for stranger in 10..110 {
        open.greet(stranger, BOOT);
        let join = join(&open, &[]);
        assert!(refusals(&open.say(stranger, &join)).is_empty());
    }
    let record = after_a_round(&mut open);
    assert_eq!((record.members().len(), record.voters().count()), (11, 3));
    assert_ne!(record.state_root, digest(0));
}

/// The statements in a voter's READY while fifty strangers ask to be let in, after `then`.
fn said_in_a_crowd(then: impl Fn(&mut Bench)) -> Vec<Statement> {
    let mut bench = Bench::flock(4);
    let record = bench.record();
    let (lineage, seq, state_root) = (record.lineage, record.seq, record.state_root);
    let join = |incarnation| {
        let (record, ticket) = (record.digest(), Vec::new());
        Message::Join(Join { lineage, seq, record, state_root, incarnation, ticket })
    };
    for stranger in 10..60 {
        bench.greet(stranger, BOOT);
        bench.say(stranger, &join(BOOT));
    }
    then(&mut bench);
    let outputs = bench.trained();
    let said = sent(&bench.spec, &outputs).into_iter().find_map(|(_, message)| match message {
        Message::Ready(ready) => Some(ready.statements),
        _ => None,
    });
    said.expect("a READY")
}

/// Keys cost nothing, and a READY has room for eight statements.
#[test]
pub fn strangers_that_ask_to_be_let_in_hold_up_nothing_else() {
    let revoke = |bench: &mut Bench, n: u8| {
        let (kind, subject, run) = (SubjectKind::Identity, Digest([n; 32]), bench.spec.digest());
        let revocation = Revocation::sign(&Key(id(CREATOR)), &run, kind, subject);
        bench.feed(Input::Revoke { revocation });
    };
    let told = |said: Vec<Statement>| said.into_iter().map(|s| (s.kind, s.id.0[0])).collect::<Vec<_>>();
    let revoked: Vec<u8> = [3].into_iter().chain(71..78).collect();
    let said = said_in_a_crowd(|bench| revoked.iter().for_each(|n| revoke(bench, *n)));
    assert!(told(said).into_iter().eq(revoked.into_iter().map(|n| (StatementKind::Revoked, n))), "at once");
    // A member that has left, and a revocation.
    let leave = |bench: &mut Bench| {
        let record = bench.record();
        bench.say(2, &Message::Leave(Leave { lineage: record.lineage, seq: record.seq }));
    };
    let said = told(said_in_a_crowd(|bench| {
        (71..78).for_each(|n| revoke(bench, n));
        leave(bench);
    }));
    assert_eq!(said.len(), 8);
    assert_eq!(said[0], (StatementKind::Suspect, 2));
    // Members' matters leave places free, as they may go on for long.
    let said = told(said_in_a_crowd(leave));
    assert_eq!(said.len(), 8);
    assert_eq!(said.iter().filter(|(kind, _)| *kind == StatementKind::Joins).count(), 7, "{said:?}");
    assert!(said.contains(&(StatementKind::Suspect, 2)), "{said:?}");
}
