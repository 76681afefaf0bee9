//! The block of lines at the bottom of the terminal: the picture in so many columns and rows.

use super::figures::{about, bytes, seconds, tokens};
use super::names::short;
use super::picture::{FIRST_STEP, Picture, Steps};
use super::words::tame;
use std::time::Instant;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Columns of the label before each line.
const LABEL: usize = 7;
/// Lines that one sentence may take.
const SENTENCE_LINES: usize = 3;
/// Cells of the bar.
const CELLS_MIN: usize = 6;
const CELLS_MAX: usize = 20;
/// Rows of the terminal that stay free of the block.
const ROWS_FREE: usize = 2;
/// Traffic below so many bytes a second is not shown.
const QUIET: f64 = 1024.0;

/// Some lines of the block, and how early they go when there is no room: the highest rank first.
struct Row {
    rank: u8,
    lines: Vec<String>,
}

/// The block. Each line is shorter than the terminal is wide, and there are fewer lines than it has rows.
pub fn lines(picture: &Picture, columns: usize, rows: usize, now: Instant) -> Vec<String> {
    let width = columns.saturating_sub(1).max(1);
    let room = rows.saturating_sub(ROWS_FREE).max(1);
    let cells = (width / 6).clamp(CELLS_MIN, CELLS_MAX);
    let last = picture.last.as_ref().map(|(text, at)| format!("{}: {text}", ago(*at, now)));
    let mut block = vec![
        Row { rank: 6, lines: line("run", &run(picture), width) },
        Row { rank: 0, lines: line("round", &round(picture, cells, now), width) },
        Row { rank: 1, lines: sentence("now", &doing(picture, now), width) },
        Row { rank: 2, lines: line("pace", &pace(picture, now), width) },
        Row { rank: 3, lines: line("loss", &losses(picture), width) },
        Row { rank: 4, lines: line("flock", &flock(picture), width) },
        Row { rank: 6, lines: line("if lost", &if_lost(picture), width) },
        Row { rank: 7, lines: line("traffic", &traffic(picture), width) },
        Row { rank: 5, lines: line("last", &last.into_iter().collect::<Vec<_>>(), width) },
    ];
    if let Some(warning) = &picture.warning {
        block.push(Row { rank: 0, lines: sentence("LOOK", &warning.text, width) });
    }
    let count = |block: &[Row]| block.iter().map(|row| row.lines.len()).sum::<usize>();
    while count(&block) > room && block.len() > 1 {
        let most = block.iter().map(|row| row.rank).max().unwrap_or_default();
        let at = block.iter().rposition(|row| row.rank == most).unwrap_or_default();
        block.remove(at);
    }
    block.into_iter().flat_map(|row| row.lines).take(room).collect()
}

/// One line with everything that changes from round to round, for an output that is no terminal.
pub fn progress(picture: &Picture, now: Instant) -> String {
    let steps = picture.steps_now().map(|steps| steps_text(steps, now));
    let round = numbered(picture).into_iter().chain(steps).collect::<Vec<_>>().join(", ");
    let parts = [vec![round], losses(picture), pace(picture, now), flock(picture).into_iter().take(1).collect()];
    let parts: Vec<String> = parts.into_iter().flatten().filter(|part| !part.is_empty()).collect();
    tame(&parts.join(" · "))
}

fn run(picture: &Picture) -> Vec<String> {
    let glance = picture.glance.as_ref();
    let lineage = glance.and_then(|glance| glance.lineage.as_deref());
    let role = glance.and_then(|glance| glance.role.as_ref()).map(|role| format!(", {role}")).unwrap_or_default();
    let run = Some(picture.run.clone()).filter(|run| !run.is_empty());
    let node = format!("this node {}{role}", picture.names.label(&picture.node));
    run.into_iter().chain([node]).chain(lineage.map(|lineage| format!("lineage {}", short(lineage)))).collect()
}

/// "round 12 of 3000"; nothing before the first.
fn numbered(picture: &Picture) -> Option<String> {
    let round = Some(picture.round()).filter(|round| *round > 0)?;
    Some(match picture.budget {
        (0, _) => format!("round {round}"),
        (most, _) => format!("round {round} of {most}"),
    })
}

fn steps_text(steps: &Steps, now: Instant) -> String {
    let left = steps.left(now).filter(|_| steps.step < steps.steps);
    let left = left.map(|left| format!(", {} to the last", about(left))).unwrap_or_default();
    format!("this node's step {} of {}{left}", steps.step, steps.steps)
}

fn round(picture: &Picture, cells: usize, now: Instant) -> Vec<String> {
    let Some(numbered) = numbered(picture) else { return Vec::new() };
    let numbered = numbered.trim_start_matches("round ").to_owned();
    let of_run = picture.pace.share(picture.budget, picture.committed.unwrap_or_default());
    // A run without an end has a bar for the steps of each.
    let of_round = || picture.steps_now().map(|steps| f64::from(steps.step) / f64::from(steps.steps.max(1)));
    let bar = of_run.or_else(of_round).map(|share| format!(" {}", bar(share, cells))).unwrap_or_default();
    let steps = picture.steps_now().map(|steps| steps_text(steps, now));
    [format!("{numbered}{bar}")].into_iter().chain(steps).collect()
}

fn bar(share: f64, cells: usize) -> String {
    let full = (share.clamp(0.0, 1.0) * cells as f64) as usize;
    let head = usize::from(full < cells);
    format!("[{}{}{}]", "=".repeat(full), ">".repeat(head), " ".repeat(cells - full - head))
}

/// The node's work, or what it waits for.
fn doing(picture: &Picture, now: Instant) -> String {
    if let Some((stage, since)) = &picture.stage {
        let passed = now.saturating_duration_since(*since).as_secs_f64();
        return if passed < 2.0 { stage.clone() } else { format!("{stage} ({})", seconds(passed)) };
    }
    let Some(glance) = &picture.glance else { return "starting".into() };
    let first_step = picture.first_step_for(now).filter(|passed| glance.trains && passed.as_secs() >= 2);
    match first_step {
        Some(passed) => format!("{FIRST_STEP} ({} so far)", seconds(passed.as_secs_f64())),
        None => glance.doing.clone(),
    }
}

fn pace(picture: &Picture, now: Instant) -> Vec<String> {
    let flock = picture.pace.tokens_per_second().map(|pace| format!("flock {} tokens/s", tokens(pace)));
    let own = picture.own_pace.map(|pace| format!("this node {} tokens/s", tokens(pace)));
    let left = picture.pace.left(picture.budget, now).map(|left| format!("{} to the run's end", about(left)));
    left.into_iter().chain(flock).chain(own).collect()
}

fn losses(picture: &Picture) -> Vec<String> {
    let (unit, place) = if picture.of_text { (" nats per token", "on held-out text") } else { ("", "in validation") };
    let training = match (picture.loss, picture.step_loss) {
        (Some(loss), _) => Some(format!("flock's training loss {loss:.3}{unit}")),
        (None, Some(loss)) => Some(format!("this node's training loss {loss:.3}{unit}")),
        (None, None) => None,
    };
    let held_out = picture.validation.map(|loss| format!("{place} {loss:.3}"));
    training.into_iter().chain(held_out).collect()
}

fn flock(picture: &Picture) -> Vec<String> {
    let Some(glance) = picture.glance.as_ref().filter(|glance| glance.lineage.is_some()) else { return Vec::new() };
    let verdict = if glance.quorum { "enough to decide" } else { "too few to decide" };
    let members = format!("{} of {} members here", glance.members_here, glance.members);
    let voters = format!("{} of {} voters, {verdict}", glance.voters_here, glance.voters);
    let guests = match glance.guests {
        0 => None,
        1 => Some("1 other node".to_owned()),
        count => Some(format!("{count} other nodes")),
    };
    [members, voters].into_iter().chain(guests).collect()
}

fn if_lost(picture: &Picture) -> Vec<String> {
    picture.glance.as_ref().map(|glance| glance.if_lost.clone()).unwrap_or_default()
}

fn traffic(picture: &Picture) -> Vec<String> {
    let way = |word: &str, rate: f64| (rate >= QUIET).then(|| format!("{word} {}/s", bytes(rate as u64)));
    let traffic = picture.traffic;
    let ways: Vec<String> = way("out", traffic.out).into_iter().chain(way("in", traffic.into)).collect();
    if ways.is_empty() { ways } else { vec![format!("this node's: {}", ways.join(", "))] }
}

fn ago(at: Instant, now: Instant) -> String {
    match now.saturating_duration_since(at).as_secs() / 60 {
        0 => "just now".into(),
        minutes @ 1..60 => format!("{minutes} min ago"),
        minutes => format!("{} h ago", minutes / 60),
    }
}

/// A line of parts, of which those that do not fit are left out; the first is cut. No line without parts.
fn line(label: &str, parts: &[String], width: usize) -> Vec<String> {
    let Some((first, others)) = parts.split_first() else { return Vec::new() };
    let mut line = format!("{label:LABEL$} {}", tame(first));
    for part in others.iter().map(|part| tame(part)) {
        if line.width() + part.width() + 3 <= width {
            line = format!("{line} · {part}");
        }
    }
    vec![cut(&line, width)]
}

/// A sentence on as many lines as it takes, up to a limit.
fn sentence(label: &str, text: &str, width: usize) -> Vec<String> {
    if text.is_empty() {
        return Vec::new();
    }
    let mut lines = vec![format!("{label:LABEL$}")];
    for word in tame(text).split_whitespace() {
        let used = lines.last().map_or(0, |line| line.width());
        if used > LABEL && used + 1 + word.width() > width && lines.len() < SENTENCE_LINES {
            lines.push(" ".repeat(LABEL));
        }
        if let Some(line) = lines.last_mut() {
            line.push(' ');
            line.push_str(word);
        }
    }
    lines.iter().map(|line| cut(line, width)).collect()
}

/// The text in at most so many columns; dots show that it was cut.
fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.trim_end().to_owned();
    }
    let (mut cut, mut used) = (String::new(), 0);
    for c in text.chars() {
        used += c.width().unwrap_or(0);
        if used + 1 > width {
            break;
        }
        cut.push(c);
    }
    cut.push('…');
    cut
}

#[cfg(test)]
#[path = "block_test.rs"]
mod tests;
