//! A member whose data was refused in a reduction is left out at once, by all. False reports do not pay.

use crate::bench::{Bench, id, sent};
use crate::stalling::{agree, blamed};
use starling_protocol::NodeId;
use starling_protocol::engine::io::{AttemptKey, Input, Output};
use starling_protocol::message::{Awaited, Awaits, Head, Message, Phase};

fn refuse(bench: &mut Bench, key: AttemptKey, suspect: u8, refused: bool) -> Vec<Output> {
    let reason = "a frame was refused".to_owned();
    bench.feed(Input::ReduceFailed { key, suspect: Some(id(suspect)), refused, reason })
}

/// `from` reports that it has refused data of `of`.
pub fn report_refusal(bench: &mut Bench, from: u8, of: u8) -> Vec<Output> {
    let awaits = Some(Awaits { what: Awaited::Refused, from: id(of) });
    let head = Head { awaits, ..bench.chain_head(Phase::Ready, 0) };
    bench.say(from, &Message::Head(head))
}

fn members(numbers: [u8; 3]) -> [NodeId; 3] {
    numbers.map(id)
}

#[test]
fn a_member_whose_frame_is_refused_is_out_at_once_and_the_others_are_told() {
    let mut bench = Bench::flock(4);
    let key = bench.all_ready();
    let outputs = refuse(&mut bench, key, 3, true);
    assert_eq!(blamed(&outputs), [Some(id(3))]);
    let report = Some(Awaits { what: Awaited::Refused, from: id(3) });
    let told = sent(&bench.spec, &outputs).into_iter().filter_map(|(to, message)| match message {
        Message::Head(head) if head.awaits == report => Some(to),
        _ => None,
    });
    assert_eq!(told.collect::<Vec<_>>(), members([2, 3, 4]));
    assert_eq!(agree(&mut bench, outputs), members([1, 2, 4]));
    // A broken stream is not certainly anybody's fault.
    let mut bench = Bench::flock(4);
    let key = bench.all_ready();
    let outputs = refuse(&mut bench, key, 3, false);
    assert_eq!(agree(&mut bench, outputs), [1, 2, 3, 4].map(id));
}

#[test]
fn a_reported_member_is_left_out_and_a_reporter_of_a_second_one_is_left_out_itself() {
    let mut bench = Bench::flock(4);
    bench.all_ready();
    let mut outputs = report_refusal(&mut bench, 2, 3);
    assert_eq!(blamed(&outputs), [Some(id(3))]);
    // A member reports once in a round, whatever it says.
    outputs.extend(report_refusal(&mut bench, 2, 4));
    assert_eq!(agree(&mut bench, outputs), members([1, 2, 4]));
    // That is decided. In the next round the member reports another one.
    let key = bench.running();
    bench.decide(key);
    bench.all_ready();
    let outputs = report_refusal(&mut bench, 2, 4);
    assert_eq!(agree(&mut bench, outputs), members([1, 3, 4]));
}

#[test]
fn nobody_believes_it_of_itself_or_of_strangers() {
    let mut bench = Bench::flock(4);
    bench.all_ready();
    let outputs = report_refusal(&mut bench, 2, 1);
    assert_eq!(agree(&mut bench, outputs), members([1, 3, 4]), "the reporter is the liar");
    let mut bench = Bench::flock(4);
    bench.all_ready();
    for (from, of) in [(2, 2), (2, 77)] {
        assert_eq!(blamed(&report_refusal(&mut bench, from, of)), []);
    }
    bench.meet(9);
    assert_eq!(blamed(&report_refusal(&mut bench, 9, 2)), []);
}
