//! The output on the terminal: a progress line on a terminal, one line a round otherwise, or JSON.

use super::event::{Committed, Event, Line};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Shows events to a person or a program.
pub struct Screen {
    node: String,
    mode: Mode,
    started: Instant,
    budget_rounds: u64,
    budget_tokens: u64,
    first_tokens: Option<u64>,
    validation: Option<f64>,
    peers: usize,
}

enum Mode {
    Json,
    Lines,
    Bar(ProgressBar),
}

impl Screen {
    /// `node` is the full id. A budget of 0 has no bound.
    pub fn new(node: String, json: bool, budget_rounds: u64, budget_tokens: u64) -> Self {
        let mode = if json {
            Mode::Json
        } else if std::io::stderr().is_terminal() {
            let bar = ProgressBar::with_draw_target(Some(budget_rounds.max(1)), ProgressDrawTarget::stderr());
            let template = if budget_rounds > 0 {
                "{spinner} round {pos}/{len} [{bar:24}] {msg}"
            } else {
                "{spinner} round {pos} {msg}"
            };
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style.progress_chars("=> "));
            }
            bar.enable_steady_tick(Duration::from_millis(500));
            Mode::Bar(bar)
        } else {
            Mode::Lines
        };
        let started = Instant::now();
        Self { node, mode, started, budget_rounds, budget_tokens, first_tokens: None, validation: None, peers: 0 }
    }

    /// Shows one event.
    pub fn show(&mut self, event: &Event) {
        match event {
            Event::PeerUp { .. } => self.peers += 1,
            Event::PeerDown { .. } => self.peers = self.peers.saturating_sub(1),
            Event::Validated { nats_per_byte, .. } => self.validation = Some(*nats_per_byte),
            _ => {}
        }
        if matches!(self.mode, Mode::Json) {
            if let Ok(line) = serde_json::to_string(&Line::now(&self.node, event)) {
                let mut out = std::io::stdout().lock();
                // A reader that went away must not stop the training.
                let _ = writeln!(out, "{line}").and_then(|()| out.flush());
            }
            return;
        }
        if let Event::Step { round, step, steps, loss, tokens_per_second } = event {
            if let Mode::Bar(bar) = &self.mode {
                bar.set_message(format!(
                    "step {step}/{steps} of round {round} · loss {loss:.3} · {tokens_per_second:.0} tok/s · {} peers",
                    self.peers
                ));
            }
            return;
        }
        if let Event::Committed(committed) = event {
            let line = self.committed_line(committed);
            if let Mode::Bar(bar) = &self.mode {
                bar.set_position(committed.round);
                bar.println(&line);
            } else {
                self.line(&line);
            }
        } else if let Some(line) = plain_line(event) {
            self.line(&line);
        }
    }

    /// A line for a person; nothing in JSON mode.
    pub fn line(&self, text: &str) {
        match &self.mode {
            Mode::Json => {}
            Mode::Bar(bar) => bar.println(text),
            Mode::Lines => {
                let mut out = std::io::stdout().lock();
                let _ = writeln!(out, "{text}").and_then(|()| out.flush());
            }
        }
    }

    /// Takes the progress bar away, so that later output stays readable.
    pub fn close(&self) {
        if let Mode::Bar(bar) = &self.mode {
            bar.finish_and_clear();
        }
    }

    fn committed_line(&mut self, c: &Committed) -> String {
        let first = *self.first_tokens.get_or_insert(c.tokens);
        let rounds =
            if self.budget_rounds > 0 { format!("{}/{}", c.round, self.budget_rounds) } else { c.round.to_string() };
        let validation = self.validation.map(|v| format!(" · val {v:.3} nats/byte")).unwrap_or_default();
        format!(
            "round {rounds} · loss {:.3}{validation} · {:.0} tok/s · {} contributed · {} sent · {}{}",
            c.loss,
            c.timing.tokens_per_second,
            c.contributors.len(),
            bytes(c.bytes_sent),
            seconds(self.started.elapsed().as_secs_f64()),
            self.time_left(c, first),
        )
    }

    /// Estimates the time left by the pace since this process's first commit.
    fn time_left(&self, c: &Committed, first_tokens: u64) -> String {
        let elapsed = self.started.elapsed().as_secs_f64();
        let left_rounds = self.budget_rounds.checked_sub(c.round).filter(|_| self.budget_rounds > 0);
        let by_rounds = left_rounds.map(|left| left as f64 * c.timing.seconds);
        let pace = (c.tokens - first_tokens) as f64 / elapsed.max(1e-3);
        let left_tokens = self.budget_tokens.checked_sub(c.tokens).filter(|_| self.budget_tokens > 0);
        let by_tokens = left_tokens.filter(|_| pace > 0.0).map(|left| left as f64 / pace);
        let left = match (by_rounds, by_tokens) {
            (Some(a), Some(b)) => a.min(b),
            (Some(a), None) | (None, Some(a)) => a,
            (None, None) => return String::new(),
        };
        format!(" · {} left", seconds(left))
    }
}

/// A transfer that is too slow for the flock to wait for, in words.
fn slow_line_text(size: &str, mbit: f64, needed_mbit: Option<f64>, patience_s: f64) -> String {
    let arrives = format!("the state of {size} arrives at {mbit:.1} Mbit/s");
    let then = "it arrives only if a round of the flock takes longer than the transfer of an update";
    match needed_mbit {
        Some(needed) => format!(
            "{arrives}; the flock waits {patience_s:.0} s for newcomers (join.patience_s), in which {needed:.0} Mbit/s are \
             needed: without a faster line or source this node may not get in, since {then}"
        ),
        None => format!("{arrives}; this flock does not wait for newcomers (join.patience_s = 0): {then}"),
    }
}

/// The line for an event that a person wants to see; `None` for the others.
fn plain_line(event: &Event) -> Option<String> {
    let short = |id: &String| id.chars().take(8).collect::<String>();
    let list = |ids: &Vec<String>| ids.iter().map(short).collect::<Vec<_>>().join(", ");
    Some(match event {
        Event::Started { run, home, device, parameters, memory_bytes, disk_bytes, metrics, .. } => {
            let metrics = metrics.as_ref().map(|url| format!("; metrics at {url}")).unwrap_or_default();
            let (memory, disk) = (bytes(*memory_bytes), bytes(*disk_bytes));
            format!(
                "run {run}: {parameters} parameters on {device}; memory budget {memory}; state in {home}, up to \
                 {disk}{metrics}"
            )
        }
        Event::Residuals { kept, lost, norm } => {
            format!("the residuals of {kept} of {} fragments are kept (norm {norm:.3e})", kept + lost)
        }
        Event::Data { train_sequences, validation_bytes, order1_entropy, .. } => format!(
            "data: {train_sequences} training sequences, {} held out (order-1 entropy {order1_entropy:.3} nats/byte)",
            bytes(*validation_bytes)
        ),
        Event::Listening { address } => format!("listening on {address}"),
        Event::PeerUp { peer } => format!("peer {} is here", short(peer)),
        Event::PeerDown { peer, reason } => format!("peer {} is gone: {reason}", short(peer)),
        Event::HolePunched { peer } => format!("a direct way to {} was opened through its router", short(peer)),
        Event::NoDirectWay { peer } => format!(
            "no direct way to {}: routers on both sides let nothing in; forward a port on one, and name it with --advertise",
            short(peer)
        ),
        Event::DialFailed { address, reason } => format!("cannot reach {address}: {reason}"),
        Event::Founded { lineage } => format!("founded a flock, lineage {}", short(lineage)),
        Event::WaitedForNewcomers { newcomers, seconds: s } => {
            format!("the round waited {} for {}", seconds(*s), list(newcomers))
        }
        Event::Waiting { on, why } if on.is_empty() => format!("waiting: {why}"),
        Event::Waiting { on, why } => format!("waiting for {}: {why}", list(on)),
        // Other events show absent peers; this is the only one that shows a partner's fault.
        Event::Exchanged { round, partner: Some(partner), alone: Some(reason), why: Some(why), .. }
            if matches!(reason.as_str(), "refused" | "norm" | "late") =>
        {
            format!("round {round}: went on without {}: {why}", short(partner))
        }
        Event::AttemptStarted { attempt, .. } if *attempt == 0 => return None,
        Event::AttemptStarted { round, attempt, members } => {
            format!("round {round}: attempt {attempt} with {}", list(members))
        }
        Event::AttemptFailed { round, attempt, suspect, reason } => {
            let suspect = suspect.as_ref().map(|s| format!(" (suspect: {})", short(s))).unwrap_or_default();
            format!("round {round}: attempt {attempt} failed: {reason}{suspect}")
        }
        Event::Validated { round, loss, nats_per_byte } => {
            format!("round {round}: validation loss {loss:.4} nats/token, {nats_per_byte:.4} nats/byte")
        }
        Event::MemberJoined { member, round } => format!("{} joins from round {round} on", short(member)),
        Event::MemberLeft { member, round, reason } => format!("{} left at round {round}: {reason}", short(member)),
        Event::Skipped { seq, .. } => format!("record {seq}: the round's attempts failed; it is tried anew"),
        Event::QuorumLost { policy, missing, grace_s } => quorum_lost_text(policy, &list(missing), *grace_s),
        Event::Rejoined => "enough voters are in reach again".to_string(),
        Event::Forked { lineage, members } => {
            format!("goes on as lineage {} with {}", short(lineage), list(members))
        }
        Event::LineageMet { lineage, yields: true } => {
            format!("met lineage {}, which has the better right to this run: this node takes its state", short(lineage))
        }
        Event::LineageMet { lineage, .. } => {
            format!(
                "met lineage {lineage} of this run, which has no record in common with what is here, so neither follows the \
                 other; `--adopt-lineage {lineage}` joins it, and gives up what is here"
            )
        }
        Event::SplitBrain { .. } => "two records are certified at one place, which must never be: this node has \
             stopped; keep its folder and log (--json shows both certificates), and report it"
            .to_string(),
        Event::Evidence { against, what, .. } => format!(
            "{} has signed two different statements of one place ({what}; --json shows both): it is to be removed, \
             whether it lies or its key is in use twice",
            short(against)
        ),
        Event::NewIncarnation { why, .. } => format!("signs under a new vote state, as a learner at first: {why}"),
        Event::OwnFault { detail } => {
            format!("this node is at fault: {detail}; check its memory and disk")
        }
        Event::RolledBack { from_seq, to_seq } => format!(
            "this node was off the flock's head: dropped record {from_seq} and fetches the flock's state at {to_seq}"
        ),
        Event::DifferenceKept { lineage, tokens } => {
            format!("left lineage {}; its difference over {tokens} tokens is kept, to be merged", short(lineage))
        }
        Event::DifferenceLost { lineage, reason } => {
            format!("the difference of lineage {} is not merged from here: {reason}", short(lineage))
        }
        Event::Merged { lineage, round } => {
            format!("round {round}: the difference of lineage {} is merged", short(lineage))
        }
        Event::CatchingUp { seq, sources, afresh } => {
            let what = if *afresh { "state" } else { "updates" };
            format!("fetching {what} up to record {seq} from {sources} peers")
        }
        Event::Fetching { bytes: n, of, seconds: s, left_s } => {
            let pace = bytes((*n as f64 / s.max(1e-3)) as u64);
            let of = of.map(|of| format!(" of {}", bytes(of))).unwrap_or_default();
            let left = left_s.map(|left| format!(", about {} left", seconds(left))).unwrap_or_default();
            format!("fetching: {}{of}, {pace}/s{left}", bytes(*n))
        }
        Event::SlowLine { bytes: n, mbit, needed_mbit, patience_s } => {
            slow_line_text(&bytes(*n), *mbit, *needed_mbit, *patience_s)
        }
        Event::CaughtUp { seq, bytes: n, seconds: s } => {
            format!("caught up with record {seq}: {} in {s:.1} s", bytes(*n))
        }
        Event::CatchUpFailed { reason } => format!("cannot catch up yet: {reason}"),
        Event::Refused { peer, reason } => format!("refused {}: {reason}", short(peer)),
        Event::Checkpoint { path, round } => format!("checkpoint of round {round}: {path}"),
        Event::CheckpointFailed { reason } => format!("no checkpoint was written: {reason}"),
        Event::Finished { reason } => format!("finished: {reason}"),
        Event::Phase { .. }
        | Event::Step { .. }
        | Event::Trained { .. }
        | Event::Exchanged { .. }
        | Event::Fetched { .. }
        | Event::Committed(_) => return None,
    })
}

/// The text of a quorum loss, and of what happens next.
fn quorum_lost_text(policy: &str, missing: &str, grace_s: f64) -> String {
    let next = match policy {
        "fork" => format!("goes on as a lineage of its own in {grace_s:.0} s"),
        "wait" => "ends its inner steps and waits for them".to_string(),
        _ => "has stopped training until they are back".to_string(),
    };
    format!("the quorum is lost ({missing} missing): this node {next} (partition.minority = \"{policy}\")")
}

/// Bytes as a person reads them.
pub fn bytes(n: u64) -> String {
    let (mut value, mut unit) = (n as f64, 0);
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{n} B") } else { format!("{value:.1} {}", units[unit]) }
}

/// Seconds as a person reads them.
fn seconds(s: f64) -> String {
    let s = s.max(0.0).round() as u64;
    match s {
        0..60 => format!("{s} s"),
        60..3600 => format!("{} min {:02} s", s / 60, s % 60),
        _ => format!("{} h {:02} min", s / 3600, s % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        assert_eq!(bytes(17), "17 B");
        assert_eq!(bytes(3 << 20), "3.0 MiB");
        assert_eq!(seconds(59.4), "59 s");
        assert_eq!(seconds(61.0), "1 min 01 s");
        assert_eq!(seconds(7260.0), "2 h 01 min");
    }
}
