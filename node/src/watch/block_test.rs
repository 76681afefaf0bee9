//! Tests of the block: what it shows, and that it fits.

use super::*;
use crate::watch::event::{Committed, Event, RoundTiming};
use crate::watch::picture::Glance;
use std::time::Duration;

const ME: &str = "5e6f7a8b5e6f7a8b";
const OTHER: &str = "1a2b3c4d1a2b3c4d";

fn committed(round: u64) -> Event {
    Event::Committed(Committed {
        seq: round,
        round,
        record: String::new(),
        lineage: String::new(),
        state_root: String::new(),
        contributors: Vec::new(),
        members: 3,
        voters: 3,
        inner_steps: 50,
        codec: "bf16".into(),
        bits_per_value: 16.0,
        tokens: round * 24_000,
        loss: 2.314,
        bytes_sent: 0,
        timing: RoundTiming { tokens_per_second: 4_100.0, ..RoundTiming::default() },
    })
}

fn glance() -> Glance {
    Glance {
        lineage: Some("9c8d7e6f9c8d7e6f".into()),
        role: Some("voter".into()),
        members: 3,
        members_here: 2,
        voters: 3,
        voters_here: 2,
        quorum: true,
        guests: 1,
        doing: "training".into(),
        trains: true,
        names: vec![(ME.into(), Some("gpu-box".into())), (OTHER.into(), Some("attic".into()))],
        ..Glance::default()
    }
}

/// A node in round 125 of 3000; each round took two seconds.
fn flying() -> (Picture, Instant) {
    let (mut picture, mut now) = (Picture::new(ME.into()), Instant::now());
    (picture.run, picture.budget) = ("demo".into(), (3000, 0));
    for round in 1..=124 {
        now += Duration::from_secs(2);
        picture.take(&committed(round), now);
    }
    picture.take(&Event::Validated { round: 124, loss: 2.401, nats_per_byte: Some(0.6) }, now);
    picture.take(&Event::Step { round: 125, step: 1, steps: 50, loss: 2.3, tokens_per_second: 4_100.0 }, now);
    let later = now + Duration::from_secs(11);
    picture.take(&Event::Step { round: 125, step: 12, steps: 50, loss: 2.3, tokens_per_second: 4_100.0 }, later);
    picture.look(glance(), later);
    picture.last = Some(("peer 1a2b3c4d (attic) is here".into(), later));
    (picture, later)
}

#[test]
fn it_says_whose_each_figure_is() {
    let (picture, now) = flying();
    assert_eq!(
        lines(&picture, 101, 24, now),
        [
            "run     demo · this node 5e6f7a8b (gpu-box), voter · lineage 9c8d7e6f",
            "round   125 of 3000 [>               ] · this node's step 12 of 50, about 40 s to the last",
            "now     training",
            "pace    about 96 min to the run's end · flock 12.0k tokens/s · this node 4.1k tokens/s",
            "loss    flock's training loss 2.314 nats per token · on held-out text 2.401",
            "flock   2 of 3 members here · 2 of 3 voters, enough to decide · 1 other node",
            "last    just now: peer 1a2b3c4d (attic) is here",
        ]
    );
}

#[test]
fn it_fits_every_terminal() {
    let (mut picture, now) = flying();
    let wide = "模型\x1b[31m\n".repeat(60);
    picture.last = Some((wide.clone(), now));
    picture.run = wide.clone();
    picture.look(Glance { doing: wide, sent: 1 << 30, ..glance() }, now);
    for columns in [1, 2, 20, 41, 42, 60, 80, 81, 200] {
        for rows in [1, 3, 6, 8, 9, 24, 100] {
            let lines = lines(&picture, columns, rows, now);
            assert!(!lines.is_empty() && lines.len() <= rows.saturating_sub(ROWS_FREE).max(1), "{columns} x {rows}");
            for line in lines {
                assert!(line.width() <= columns.saturating_sub(1).max(1), "{columns} x {rows}: {line}");
                assert!(!line.contains(char::is_control), "{columns} x {rows}: {line:?}");
            }
        }
    }
}

#[test]
fn without_room_the_round_and_the_work_stay() {
    let (picture, now) = flying();
    let starts = |rows| {
        let lines = lines(&picture, 80, rows, now);
        lines.iter().map(|line| line.split(' ').next().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(starts(3), ["round"]);
    assert_eq!(starts(4), ["round", "now"]);
    assert_eq!(starts(6), ["round", "now", "pace", "loss"]);
}

#[test]
fn a_wait_is_told_in_full_on_a_narrow_terminal() {
    let (mut picture, now) = flying();
    let doing =
        "holding this round back for 1a2b3c4d (attic): it fetches the model to join, 12.0 MiB to go, about 40 s";
    picture.look(Glance { doing: doing.into(), trains: false, ..glance() }, now);
    let lines = lines(&picture, 60, 24, now);
    let from = lines.iter().position(|line| line.starts_with("now")).expect("it is shown");
    let said: Vec<&str> = lines[from..from + 3].iter().map(|line| line[LABEL..].trim()).collect();
    assert_eq!(said.join(" "), doing);
}

/// The part about the other voter stays where there is no room for both.
#[test]
fn a_flock_of_two_says_what_happens_when_one_is_lost() {
    let (mut picture, now) = flying();
    let if_lost = vec!["1a2b3c4d (attic): this node goes on at once".into(), "this node: the other one waits".into()];
    let flock = Glance { members: 2, voters: 2, guests: 0, if_lost, ..glance() };
    picture.look(flock, now);
    let said = |columns| {
        let lines = lines(&picture, columns, 24, now);
        lines.into_iter().find(|line| line.starts_with("if lost")).expect("it is shown")
    };
    assert_eq!(said(101), "if lost 1a2b3c4d (attic): this node goes on at once · this node: the other one waits");
    assert_eq!(said(60), "if lost 1a2b3c4d (attic): this node goes on at once");
}

#[test]
fn a_start_and_the_first_step_are_told() {
    let (mut picture, now) = (Picture::new(ME.into()), Instant::now());
    assert_eq!(lines(&picture, 80, 24, now), ["run     this node 5e6f7a8b", "now     starting"]);
    picture.stage = Some(("opening the device".into(), now));
    let later = now + Duration::from_secs(12);
    assert_eq!(lines(&picture, 80, 24, later)[1], "now     opening the device (12 s)");
    picture.stage = None;
    picture.take(&Event::Phase { phase: "training".into(), round: 1 }, now);
    picture.look(glance(), now);
    let said = lines(&picture, 80, 24, later).join(" ");
    assert!(said.contains("makes the first step (12 s so"), "{said}");
}

#[test]
fn trouble_is_loud() {
    let (mut picture, now) = flying();
    picture.take(&Event::Diverges { round: 125, why: "the loss is far too high".into() }, now);
    let starts = |rows| lines(&picture, 80, rows, now).last().cloned().unwrap_or_default();
    for rows in [4, 24] {
        assert_eq!(starts(rows), "LOOK    the training diverges (round 125): the loss is far too high");
    }
}

#[test]
fn losses_of_another_task_have_no_unit() {
    let (mut picture, now) = flying();
    picture.of_text = false;
    let block = lines(&picture, 101, 24, now);
    assert!(block.contains(&"loss    flock's training loss 2.314 · in validation 2.401".to_owned()), "{block:#?}");
    assert!(progress(&picture, now).contains("· flock's training loss 2.314 · in validation 2.401 ·"));
}

#[test]
fn a_line_of_progress_has_it_all() {
    let (picture, now) = flying();
    assert_eq!(
        progress(&picture, now),
        "round 125 of 3000, this node's step 12 of 50, about 40 s to the last · flock's training loss 2.314 nats per \
         token · on held-out text 2.401 · about 96 min to the run's end · flock 12.0k tokens/s · this node 4.1k tokens/s · \
         2 of 3 members here"
    );
}

#[test]
fn bars_fill() {
    assert_eq!((bar(0.0, 4), bar(0.5, 4), bar(1.0, 4)), ("[>   ]".into(), "[==> ]".into(), "[====]".into()));
    assert_eq!((bar(f64::NAN, 4), bar(7.0, 4)), ("[>   ]".into(), "[====]".into()));
}
