use super::*;
use starling_protocol::control::Room;
use starling_protocol::record::{Contributor, Measured};
use starling_protocol::run::Codec;
use starling_protocol::{Digest, NodeId, sample};

/// The newest record of a flock of `nodes`, in rounds of `steps`, in which each states these microseconds.
fn record(nodes: u8, steps: u32, [step_us, overhead_us, reduce_us]: [u32; 3]) -> (RunSpec, Record) {
    let mut spec = sample::spec();
    let founders = sample::voters([NodeId([1; 32])], 1, 0, 8);
    let mut record = sample::genesis(&spec, Digest([2; 32]), Digest([6; 32]), founders);
    let measured = Measured { step_us, overhead_us, reduce_us, upload_kbps: 20_500, norm_bits: 0 };
    let one = |node: u8| Contributor {
        member: NodeId([node; 32]),
        ready: Digest([node; 32]),
        start: 0,
        samples: 1,
        tokens: 1,
        steps,
        loss_q16: 1,
        measured,
    };
    record.contributors = (1..=nodes).map(one).collect();
    (record.next.inner_steps, record.next.overheads, record.seq) = (steps, [overhead_us; 3], 7);
    let members = sample::voters((1..=nodes).map(|node| NodeId([node; 32])), 1, 0, 8);
    (record.next.members, spec.outer.momentum) = (members, 0.0);
    (spec, record)
}

fn text(nodes: u8, steps: u32, gap_max: u32, stated: [u32; 3]) -> String {
    let (mut spec, record) = record(nodes, steps, stated);
    spec.sync.gap_max = gap_max;
    ChoiceStatus::of(&spec, &record).text()
}

#[test]
fn the_limit_that_binds_is_named() {
    let slow_line = text(4, 60, 512, [50_000, 900_000, 800_000]);
    assert!(
        slow_line.contains("shorter rounds would lose more to adding updates up, over the nodes' lines"),
        "{slow_line}"
    );
    assert!(slow_line.contains("4 contributors; a step takes 0.050 s, and a round 0.90 s beyond its steps, 0.80 s"));
    assert!(slow_line.contains("\n01010101  "), "who stated what: {slow_line}");
    let slow_commit = text(4, 60, 512, [50_000, 900_000, 100_000]);
    assert!(slow_commit.contains("to the commit: votes, disks and processors"), "{slow_commit}");
    let free = text(4, 4, 512, [500_000, 50_000, 10_000]);
    assert!(free.contains("nearly all of the time is training"), "{free}");
    let bound = text(4, 60, 64, [50_000, 9_000_000, 8_000_000]);
    assert!(bound.contains("sync.gap_max = 64 binds: 120 steps would give"), "{bound}");
    let moving = text(4, 60, 512, [50_000, 9_000_000, 8_000_000]);
    assert!(moving.contains("the next records will move there"), "{moving}");
    let fixed = text(4, 60, 0, [50_000, 9_000_000, 8_000_000]);
    assert!(fixed.contains("which the run file fixes") && fixed.contains("sync.adapt = true"), "{fixed}");
}

#[test]
fn codecs_are_compared_where_the_flock_chooses_one() {
    let (mut spec, mut record) = record(4, 60, [50_000, 900_000, 800_000]);
    (spec.sync.gap_max, spec.sync.coarsest) = (512, Some(Codec::Int4));
    let bytes = Room::of(&spec).expect("it has room").bytes(Codec::Int8) as u64;
    // A line that is full for half a second.
    let kbps = u32::try_from(16 * bytes * 3 / 4 / 500).expect("it fits");
    record.contributors.iter_mut().for_each(|contributor| contributor.measured.upload_kbps = kbps);
    let chosen = ChoiceStatus::of(&spec, &record);
    assert_eq!(chosen.codecs.iter().map(|row| &row.codec[..]).collect::<Vec<_>>(), ["int8", "int4"]);
    let [int8, int4] = &chosen.codecs[..] else { panic!("two rows: {chosen:?}") };
    assert!((int8.overhead_seconds, int4.overhead_seconds < 0.7) == (0.9, true) && int4.goodput > int8.goodput);
    let text = chosen.text();
    assert!(text.contains("int8 by a ring, which the flock has chosen: the median line is full for 0.50 s"), "{text}");
    let fixed = ChoiceStatus::of(&RunSpec { sync: sample::spec().sync, ..spec }, &record).text();
    assert!(fixed.contains("updates travel as int8 by a ring, which the run file says"), "{fixed}");
}

#[test]
fn what_is_not_known_is_said() {
    assert!(text(1, 30, 512, [50_000, 1, 1]).contains("without averaging there is nothing to choose\n"));
    assert!(text(2, 30, 512, [50_000, 0, 0]).ends_with(
        "that takes three rounds of two nodes or more, whose voters measured it\nupdates travel as int8 by a ring.\n"
    ));
    assert!(text(0, 30, 512, [50_000, 1, 1]).contains("the number is that of the round before\n"));
    let (mut spec, mut record) = record(0, 30, [50_000, 1, 1]);
    (record.seq, spec.sync.gap_max) = (0, 512);
    assert!(ChoiceStatus::of(&spec, &record).text().contains("which are the run file's"));
    (spec.outer.momentum, spec.sync.gap_max) = (0.9, 0);
    let fixed = ChoiceStatus::of(&spec, &record).text();
    assert!(fixed.contains("cannot choose another number with an outer.momentum above 0.3"), "{fixed}");
}

#[test]
fn it_survives_its_way_to_the_command() {
    let (spec, record) = record(3, 30, [50_000, 400_000, 300_000]);
    let choice = ChoiceStatus::of(&spec, &record);
    let sent = serde_json::to_string(&choice).expect("it can be sent");
    assert_eq!(serde_json::from_str::<ChoiceStatus>(&sent).expect("it parses"), choice);
    assert_eq!(choice.numbers.iter().map(|number| number.inner_steps).collect::<Vec<_>>(), [30, 15, 60]);
}
