//! Events in words, for a person at the terminal.

use super::event::Event;
use super::figures::{about, bytes, seconds};
use super::names::{Names, short};
use starling_words::{count, is_obeyed};
use std::collections::BTreeMap;

/// A wait for newcomers is worth a line of its own from this time on, in seconds.
const LONG_WAIT_S: f64 = 1.0;

const SPLIT_BRAIN: &str = "two records are certified at one place, which must never be: this node has stopped; keep \
                           its folder and log (--json shows both certificates), and report it";

/// How much a line matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// A person wants to find it again.
    Notable,
    /// It tells how far something is, and the next such line makes it old.
    Progress,
}

/// The line for an event that a person wants to see; `None` for the others.
pub fn line(event: &Event, names: &Names) -> Option<(Weight, String)> {
    let weight = match event {
        Event::Waiting { .. } | Event::Fetching { .. } | Event::Validated { .. } => Weight::Progress,
        _ => Weight::Notable,
    };
    Some((weight, tame(&text(event, names)?)))
}

/// One line without characters that move the cursor or the order of letters. Texts of peers are tamed where they
/// arrive; file names and messages of libraries are not.
pub fn tame(text: &str) -> String {
    let shown = |c| match c {
        '\n' => ' ',
        c if is_obeyed(c) => '?',
        c => c,
    };
    text.chars().map(shown).collect()
}

/// The reason for which this node waits, as a sentence without an end. `on` are the nodes that it waits for.
pub fn waiting(on: &str, why: &str) -> String {
    match why {
        _ if on.is_empty() => format!("waiting: {why}"),
        "members that still train" => format!("waiting for {on}: still training for this round"),
        "newcomers that fetch the state" => format!("holding this round back for {on}: fetching the model to join"),
        "the vote on the record" => format!("waiting for the vote of {on} on the result of this round"),
        "the members' next record, which is to let this node in" => {
            "has the model: takes part once the flock has ended the round under way".into()
        }
        _ if why.starts_with("the round waits") => format!("{why} ({on})"),
        _ => format!("waiting for {on}: {why}"),
    }
}

/// A transfer that is too slow for the flock to wait for, in words.
fn slow_line(size: &str, mbit: f64, needed_mbit: Option<f64>, patience_s: f64) -> String {
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

fn met(lineage: &str, yields: bool) -> String {
    if yields {
        return format!(
            "met lineage {}, which has the better right to this run: this node takes its state",
            short(lineage)
        );
    }
    format!(
        "met lineage {lineage} of this run, which has no record in common with what is here, so neither follows the \
         other; `--adopt-lineage {lineage}` joins it, and gives up what is here"
    )
}

fn amended(number: u32, changes: &BTreeMap<String, String>, round: u64) -> String {
    if changes.is_empty() {
        return format!("round {round}: the run file's terms are in force again, without amendments");
    }
    let pairs: Vec<String> = changes.iter().map(|(key, value)| format!("{key} = {value}")).collect();
    format!("from round {round} on the run is amended (number {number}): {}", pairs.join(", "))
}

fn fetching((here, of): (u64, Option<u64>), seconds: f64, left_s: Option<f64>) -> String {
    let pace = bytes((here as f64 / seconds.max(1e-3)) as u64);
    let of = of.map(|of| format!(" of {}", bytes(of))).unwrap_or_default();
    let left = left_s.map(|left| format!(", {} left", about(left))).unwrap_or_default();
    format!("fetching the model: {}{of}, {pace}/s{left}", bytes(here))
}

/// The words for each event, in one table, so that none is forgotten; none for an event that a person does not want to
/// see.
fn text(event: &Event, names: &Names) -> Option<String> {
    let node = |id: &String| names.label(id);
    let list = |ids: &[String]| names.list(ids);
    Some(match event {
        Event::Started { run, home, device, parameters, memory_bytes, disk_bytes, metrics, .. } => {
            let took = format!("memory budget {}; state in {home}, up to {}", bytes(*memory_bytes), bytes(*disk_bytes));
            let metrics = metrics.as_ref().map(|url| format!("; metrics at {url}")).unwrap_or_default();
            format!("run {run}: {parameters} parameters on {device}; {took}{metrics}")
        }
        Event::Residuals { kept, lost, norm } => {
            format!("the residuals of {kept} of {} fragments are kept (norm {norm:.3e})", kept + lost)
        }
        Event::Data { train_sequences, validation_bytes, .. } => {
            format!("data: {train_sequences} training sequences, {} of text held out", bytes(*validation_bytes))
        }
        Event::Listening { address } => format!("listening on {address}"),
        Event::PeerUp { peer } => format!("peer {} is here", node(peer)),
        Event::PeerDown { peer, reason } => format!("peer {} is gone: {reason}", node(peer)),
        Event::HolePunched { peer } => format!("a direct way to {} was opened through its router", node(peer)),
        Event::NoDirectWay { peer } => format!(
            "no direct way to {}: routers on both sides let nothing in; forward a port on one, and name it with --advertise",
            node(peer)
        ),
        Event::DialFailed { peer, address, reason } => {
            format!("cannot reach {} at {address}: {reason}; it is tried again (`starling status` counts)", node(peer))
        }
        Event::Founded { lineage } => format!("founded a flock, lineage {}", short(lineage)),
        Event::WaitedForNewcomers { seconds: s, .. } if *s < LONG_WAIT_S => return None,
        Event::WaitedForNewcomers { newcomers, seconds: s } => {
            format!("the round waited {} for {}", seconds(*s), list(newcomers))
        }
        Event::Waiting { on, why } => waiting(&list(on), why),
        // Other events show absent peers; this is the only one that shows a partner's fault.
        Event::Exchanged { round, partner: Some(partner), alone: Some(reason), why: Some(why), .. }
            if matches!(reason.as_str(), "refused" | "norm" | "late") =>
        {
            format!("round {round}: went on without {}: {why}", node(partner))
        }
        Event::AttemptStarted { attempt, .. } if *attempt == 0 => return None,
        Event::AttemptStarted { round, attempt, members } => {
            format!("round {round}: attempt {attempt} with {}", list(members))
        }
        Event::AttemptFailed { round, attempt, suspect, reason } => {
            let suspect = suspect.as_ref().map(|s| format!(" (suspect: {})", node(s))).unwrap_or_default();
            format!("round {round}: attempt {attempt} failed: {reason}{suspect}")
        }
        Event::Validated { round, loss, .. } => {
            format!("round {round}: loss on held-out text {loss:.4} nats per token")
        }
        Event::MemberJoined { member, round } => format!("{} joins from round {round} on", node(member)),
        Event::MemberLeft { member, round, reason } => format!("{} left at round {round}: {reason}", node(member)),
        Event::Skipped { seq, .. } => format!("record {seq}: the round's attempts failed; it is tried anew"),
        Event::QuorumLost { policy, missing, grace_s } => quorum_lost(policy, &list(missing), *grace_s),
        Event::Rejoined => "enough voters are in reach again".to_string(),
        Event::Forked { lineage, members } => {
            format!("goes on as lineage {} with {}", short(lineage), list(members))
        }
        Event::LineageMet { lineage, yields } => met(lineage, *yields),
        Event::SplitBrain { .. } => SPLIT_BRAIN.to_string(),
        Event::Evidence { against, what, .. } => format!(
            "{} has signed two different statements of one place ({what}; --json shows both): it is to be removed, \
             whether it lies or its key is in use twice",
            node(against)
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
        Event::Amended { number, changes, round, .. } => amended(*number, changes, *round),
        Event::Merged { lineage, round } => {
            format!("round {round}: the difference of lineage {} is merged", short(lineage))
        }
        Event::CatchingUp { seq, sources, afresh } => {
            let what = if *afresh { "the model's state" } else { "the updates" };
            format!("fetching {what} up to record {seq} from {}", count(*sources, "peer"))
        }
        Event::Fetching { bytes, of, seconds, left_s } => fetching((*bytes, *of), *seconds, *left_s),
        Event::SlowLine { bytes: n, mbit, needed_mbit, patience_s } => {
            slow_line(&bytes(*n), *mbit, *needed_mbit, *patience_s)
        }
        Event::CaughtUp { seq, bytes: n, seconds: s } => {
            format!("caught up with record {seq}: {} in {s:.1} s", bytes(*n))
        }
        Event::CatchUpFailed { reason } => format!("cannot catch up yet: {reason}"),
        Event::Refused { peer, reason } => format!("refused {}: {reason}", node(peer)),
        Event::Diverges { round, why } => format!("THE TRAINING DIVERGES in round {round}: {why}"),
        Event::Trainer { here: true, why } => format!("the trainer is here: {why}"),
        Event::Trainer { here: false, why } => format!("NO TRAINER, this node only votes, serves and stores: {why}"),
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
fn quorum_lost(policy: &str, missing: &str, grace_s: f64) -> String {
    let next = without_quorum(policy, grace_s);
    format!("the quorum is lost ({missing} missing): this node {next} (partition.minority = \"{policy}\")")
}

/// Why a node decides nothing that would be enough by itself.
pub const STARTED_AGAIN: &str = "it was started again, and decides nothing alone before another voter has answered";

/// The same while it lasts: `left_s` are the seconds until `fork` takes effect, if it is to. A node that was
/// `started_again` may miss nobody.
pub fn cut_off(policy: &str, missing: &str, left_s: Option<f64>, started_again: bool) -> String {
    let next = without_quorum(policy, left_s.unwrap_or_default());
    let missing = if missing.is_empty() { String::new() } else { format!(" ({missing} missing)") };
    let because = if started_again { format!("; {STARTED_AGAIN}") } else { String::new() };
    format!("too few voters are in reach to decide{missing}: this node {next}{because}")
}

fn without_quorum(policy: &str, left_s: f64) -> String {
    match policy {
        "fork" if left_s < 1.0 => "goes on as a lineage of its own now, with all that are here".to_string(),
        "fork" => format!("goes on as a lineage of its own in {left_s:.0} s"),
        "wait" => "ends its inner steps and waits for them".to_string(),
        _ => "has stopped training until they are back".to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_moves_the_cursor_or_turns_letters_round() {
        assert_eq!(tame("a\x1b[2Jb\rc\nd\u{202e}e\u{2069}f\u{9b}g"), "a?[2Jb?c d?e?f?g");
        assert_eq!(tame("a\u{61c}b\u{2028}c\u{2029}d"), "a?b?c?d");
        assert_eq!(tame("/home/müller/模型"), "/home/müller/模型");
    }

    #[test]
    fn a_wait_is_a_sentence() {
        for why in ["members that still train", "newcomers that fetch the state", "the vote on the record", "other"] {
            let said = waiting("1a2b3c4d (box)", why);
            assert!(said.contains("1a2b3c4d (box)") && said.contains("for "), "{said}");
        }
        assert_eq!(waiting("", "no flock met yet"), "waiting: no flock met yet");
        let lets_in = waiting("1a2b3c4d", "the members' next record, which is to let this node in");
        assert!(lets_in.starts_with("has the model: takes part once"), "{lets_in}");
    }

    #[test]
    fn a_node_without_a_quorum_says_when_it_goes_on() {
        let said = |policy, left| cut_off(policy, "1a2b3c4d (box)", left, false);
        assert_eq!(
            said("fork", Some(47.6)),
            "too few voters are in reach to decide (1a2b3c4d (box) missing): this node goes on as a lineage of its own \
             in 48 s"
        );
        assert!(said("fork", Some(0.0)).ends_with("of its own now, with all that are here"));
        assert!(said("wait", None).ends_with("waits for them"));
        assert!(said("halt", None).ends_with("until they are back"));
        assert_eq!(
            cut_off("fork", "", Some(47.6), true),
            "too few voters are in reach to decide: this node goes on as a lineage of its own in 48 s; it was started \
             again, and decides nothing alone before another voter has answered"
        );
    }

    #[test]
    fn losses_are_in_nats_a_token() {
        let said = line(&Event::Validated { round: 5, loss: 2.5, nats_per_byte: 0.7 }, &Names::default());
        assert_eq!(said, Some((Weight::Progress, "round 5: loss on held-out text 2.5000 nats per token".into())));
    }

    #[test]
    fn nodes_have_their_names() {
        let mut names = Names::default();
        names.note("1a2b3c4d5e6f", "gpu-box");
        let said = line(&Event::PeerUp { peer: "1a2b3c4d5e6f".into() }, &names);
        assert_eq!(said, Some((Weight::Notable, "peer 1a2b3c4d (gpu-box) is here".into())));
        assert_eq!(line(&Event::Phase { phase: "training".into(), round: 1 }, &names), None);
    }
}
