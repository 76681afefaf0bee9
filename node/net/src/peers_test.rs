//! The table of peers, event by event.

use super::event::ROUND_TRIP_EVERY;
use super::peers::*;
use starling_bootstrap::process::Process;
use starling_protocol::NodeId;
use std::time::Duration;
use tokio::time::Instant;

const SMALL: NodeId = NodeId([1; 32]);
const LARGE: NodeId = NodeId([9; 32]);
const ONE: Process = Process(1);
const TWO: Process = Process(2);

fn table(me: NodeId, other: NodeId) -> PeerTable<&'static str> {
    let mut table = PeerTable::new(me);
    table.connected(other, "/ip4/127.0.0.1/tcp/1".parse().unwrap());
    assert!(table.process_up(&other, ONE).is_none(), "it has not said what it speaks");
    table
}

fn task<S>(step: Option<Step<S>>) -> Task {
    match step {
        Some(Step::Open(task) | Step::Answer(task, _) | Step::Hear(task, _)) => task,
        None => panic!("nothing to do"),
    }
}

fn serial<S>(step: Option<Step<S>>) -> u64 {
    task(step).serial
}

#[test]
fn the_smaller_id_opens_once_the_other_is_known_to_be_a_node() {
    let mut small = table(SMALL, LARGE);
    assert!(small.identified(&LARGE, "well-known".into(), false).0.is_none());
    let (step, is_new) = small.identified(&LARGE, "node".into(), true);
    assert!(matches!(step, Some(Step::Open(task)) if (task.peer, task.process) == (LARGE, ONE)) && is_new);
    let (again, is_new) = small.identified(&LARGE, "node".into(), true);
    assert!(again.is_none() && !is_new, "one session is enough");
    assert_eq!(small.incoming(&LARGE, ONE, "stream").err(), Some("control_not_its_turn"));
    let mut large = table(LARGE, SMALL);
    assert!(large.identified(&SMALL, "node".into(), true).0.is_none());
    assert!(matches!(large.incoming(&SMALL, ONE, "stream"), Ok(Some(Step::Answer(_, "stream")))));
    assert_eq!(large.incoming(&NodeId([2; 32]), ONE, "stream").err(), Some("control_not_connected"));
}

#[test]
fn an_ended_session_is_opened_again_after_growing_pauses() {
    let mut table = table(SMALL, LARGE);
    let mut now = Instant::now();
    let mut current = serial(table.identified(&LARGE, "node".into(), true).0);
    for pause in [400, 800, 1600, 3200, 6400, 10_000, 10_000] {
        assert!(table.ended(&LARGE, current, false, now).is_none());
        assert_eq!(table.wake_at(), Some(now + Duration::from_millis(pause)));
        assert!(table.due(now).is_empty());
        now += Duration::from_millis(pause);
        current = serial(table.due(now).pop());
    }
    // A session that worked is followed by a short pause.
    table.ended(&LARGE, current, true, now);
    assert_eq!(table.wake_at(), Some(now + PAUSE_MIN));
    assert!(table.ended(&LARGE, current, true, now).is_none(), "an end counts once");
}

#[test]
fn round_trip_times_of_nodes_are_told_now_and_then() {
    let mut table = table(SMALL, LARGE);
    let (now, time) = (Instant::now(), Duration::from_millis(3));
    assert!(!table.round_trip(&LARGE, time, now), "not known to be a node yet");
    let _ = table.identified(&LARGE, "node".into(), true);
    assert!(table.round_trip(&LARGE, time, now));
    assert!(!table.round_trip(&LARGE, time, now + ROUND_TRIP_EVERY / 2));
    assert!(table.round_trip(&LARGE, time, now + ROUND_TRIP_EVERY));
    assert!(!table.round_trip(&SMALL, time, now), "nobody");
}

#[test]
fn a_new_stream_replaces_the_old_one() {
    let mut table = table(LARGE, SMALL);
    let first = serial(table.incoming(&SMALL, ONE, "one").unwrap());
    assert!(table.incoming(&SMALL, ONE, "two").unwrap().is_none());
    assert!(table.incoming(&SMALL, ONE, "three").unwrap().is_none());
    let step = table.ended(&SMALL, first, true, Instant::now());
    assert!(matches!(&step, Some(Step::Answer(_, "three"))));
    assert!(table.ended(&SMALL, first, true, Instant::now()).is_none());
    assert_eq!(table.sessions(), 1);
}

#[test]
fn a_lost_peer_is_forgotten_when_its_session_has_ended() {
    let mut table = table(SMALL, LARGE);
    let current = serial(table.identified(&LARGE, "node".into(), true).0);
    table.disconnected(&LARGE, "reset".into());
    assert!(table.status(|_| true).is_empty());
    assert_eq!(table.sessions(), 1);
    assert!(table.ended(&LARGE, current, true, Instant::now()).is_none());
    assert!(table.is_empty() && table.wake_at().is_none());
    // The peer connects anew before the old session's end was noticed: the new session follows it.
    table.connected(LARGE, "/ip4/127.0.0.1/tcp/1".parse().unwrap());
    let _ = table.process_up(&LARGE, ONE);
    let current = serial(table.identified(&LARGE, "node".into(), true).0);
    table.disconnected(&LARGE, "reset".into());
    table.connected(LARGE, "/ip4/127.0.0.1/tcp/1".parse().unwrap());
    let _ = table.process_up(&LARGE, ONE);
    assert!(table.identified(&LARGE, "node".into(), true).0.is_none());
    let now = Instant::now();
    assert!(table.ended(&LARGE, current, true, now).is_none());
    assert!(matches!(table.due(now + PAUSE_MIN).pop(), Some(Step::Open(_))));
}

/// The opener's side: this node opens a stream to each process, and one of them is a session.
#[test]
fn a_second_process_is_heard_beside_the_session() {
    let mut table = table(SMALL, LARGE);
    let session = task(table.identified(&LARGE, "node".into(), true).0);
    let step = table.process_up(&LARGE, TWO);
    assert!(matches!(&step, Some(Step::Hear(task, None)) if task.process == TWO));
    let guest = task(step);
    assert!(table.process_up(&LARGE, TWO).is_none() && table.process_up(&LARGE, ONE).is_none(), "once");
    let now = Instant::now();
    assert!(table.ended(&LARGE, guest.serial, false, now).is_none());
    assert_eq!(table.sessions(), 1, "the session is not touched");
    assert!(table.due(now).is_empty(), "it is heard again after a pause");
    let again = task(table.due(now + GUEST_PAUSE).pop());
    assert_eq!((again.process, table.wake_at()), (TWO, None));
    // The guest's connection goes: the guest is forgotten, and the session stays.
    table.process_down(&LARGE, TWO);
    table.ended(&LARGE, again.serial, false, now);
    assert!(table.due(now + 2 * GUEST_PAUSE).is_empty());
    // The session's stream breaks: its process gets the session again, though another process is there.
    let _ = table.process_up(&LARGE, Process(0));
    assert!(table.ended(&LARGE, session.serial, true, now).is_none());
    let due = table.due(now + PAUSE_MIN);
    assert!(matches!(&due[..], [Step::Open(task)] if task.process == ONE));
}

/// The other side: the guest opens a stream, and neither side's session is replaced.
#[test]
fn a_second_process_replaces_nothing_until_it_is_admitted() {
    let mut table = table(LARGE, SMALL);
    assert_eq!(table.admit(&SMALL), None);
    let session = task(table.incoming(&SMALL, ONE, "older").unwrap());
    let _ = table.process_up(&SMALL, TWO);
    assert_eq!(table.admit(&SMALL), None, "nobody waits");
    let step = table.incoming(&SMALL, TWO, "newer").unwrap();
    assert!(matches!(&step, Some(Step::Hear(task, Some("newer"))) if task.process == TWO));
    let guest = task(step);
    assert_eq!(table.incoming(&SMALL, TWO, "again").err(), Some("control_of_guest"));
    assert!(!session.end.is_ended());
    assert_eq!(table.admit(&SMALL), Some(ONE));
    assert!(session.end.is_ended() && guest.end.is_ended());
    let now = Instant::now();
    assert!(table.ended(&SMALL, guest.serial, false, now).is_none());
    assert!(table.ended(&SMALL, session.serial, true, now).is_none());
    let step = table.incoming(&SMALL, TWO, "once more").unwrap();
    assert!(matches!(step, Some(Step::Answer(task, "once more")) if task.process == TWO));
}

/// A process that was killed is replaced as soon as its connection is gone.
#[test]
fn a_guest_has_the_next_session_when_the_former_is_gone() {
    let mut table = table(SMALL, LARGE);
    let session = task(table.identified(&LARGE, "node".into(), true).0);
    let guest = task(table.process_up(&LARGE, TWO));
    table.process_down(&LARGE, ONE);
    assert!(session.end.is_ended() && !guest.end.is_ended());
    let now = Instant::now();
    table.ended(&LARGE, session.serial, true, now);
    assert!(guest.end.is_ended(), "it is no guest any more");
    table.ended(&LARGE, guest.serial, false, now);
    let due = table.due(now + PAUSE_MIN);
    assert!(matches!(&due[..], [Step::Open(task)] if task.process == TWO));
}
