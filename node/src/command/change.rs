//! `starling change`: amends what may change in a run; and `starling agree`, in a run without a creator.

use super::at_rest::open_at_rest;
use crate::cli::{AgreeArgs, ChangeArgs};
use crate::exit::{Code, Failure};
use crate::runtime::waiting::{self, Beside, Stage};
use crate::runtime::{home_of, next_amendment};
use crate::watch::status::{Answer, Change, Question, ask, failure, is_running};
use crate::watch::terminal;
use anyhow::Context;
use starling_bootstrap::identity::{self, Identity};
use starling_protocol::amendment::{Amendment, Changes};
use starling_protocol::identity::Ed25519Verifier;
use starling_protocol::record::Record;
use starling_protocol::run::{Minority, RunSpec};
use starling_protocol::wire;
use std::path::Path;
use std::process::ExitCode;
use std::str::FromStr;

/// The keys that may change, for errors.
const KEYS: &str =
    "rounds, tokens, lr, lr_final, warmup_steps, weight_decay, clip, minority, grace_s, patience_s, share";

/// The sections of the run file and the keys in them that may change.
const MAY: &[(&str, &[&str])] = &[
    ("budget", &["rounds", "tokens"]),
    ("inner", &["lr", "lr_final", "warmup_steps", "weight_decay", "clip"]),
    ("partition", &["minority", "grace_s"]),
    ("join", &["patience_s", "share"]),
];

/// Keys, or sections of the run file, that never change in a run, and why; of two rows that fit the first one counts.
const FIXED: &[(&[&str], &str)] = &[
    (&["beginning"], "the run's first record has the state that it names"),
    (&["seq_len"], "every position of the run names a sequence of this length"),
    (SHAPE, "the shape of the model is that of every state and update"),
    (TOKENIZER, "the model knows the tokens of this one alone"),
    (&["data", "sources", "text", "holdout"], "every position of the run names a sequence of this text"),
    (
        &["codec", "k", "engine", "sync", "fragments", "overlap", "mixing"],
        "nodes add updates up as the run file says from the first round on",
    ),
    (&["outer", "momentum"], "the outer optimizer's moments belong to it"),
    (&["steps", "batch", "accumulate"], "leases are cut to it"),
    (&["beta1", "beta2", "eps"], "the optimizer's moments belong to it"),
    (&["admission", "allow", "creator", "probation"], "who may join and vote must not change under those who have"),
    (&["seed", "name"], "it is part of the run's name"),
];

/// A run that begins from a model has its sizes and its tokenizer.
const SHAPE: &[&str] =
    &["model", "preset", "d_model", "layers", "heads", "kv_heads", "ffn", "tied", "vocab", "rope_theta", "norm_eps"];
const TOKENIZER: &[&str] = &["tokenizer"];

/// Hands the amendment to the running node, or leaves it in a stopped node's folder for its next start.
pub fn run(args: &ChangeArgs) -> Result<ExitCode, Failure> {
    let changes = changes(&args.changes).map_err(|why| Failure::message(Code::Usage, why))?;
    let from = from_round(&args.from_round)?;
    let home = home_of(args.node.run.as_deref(), args.node.home.as_deref())?;
    if is_running(&home) {
        tell(&home, Question::Change(Change { changes, from }))
    } else {
        leave(&home, changes, from)
    }
}

/// Has the running node agree to an amendment.
pub fn agree(args: &AgreeArgs) -> Result<ExitCode, Failure> {
    let id = args.id.to_lowercase();
    if id.len() < 8 || !id.chars().all(|c| c.is_ascii_hexdigit()) {
        let why = format!("{}: not an amendment's id; give at least 8 of its hex digits (`starling status`)", args.id);
        return Err(Failure::message(Code::Usage, why));
    }
    let home = home_of(args.node.run.as_deref(), args.node.home.as_deref())?;
    tell(&home, Question::Agree { id })
}

fn tell(home: &Path, question: Question) -> Result<ExitCode, Failure> {
    match ask(home, question).map_err(|e| Failure::new(Code::Refused, e))? {
        Answer::Amendment { id, number, agreed_by_all, instead_of } => {
            let in_force = in_force(&id, agreed_by_all);
            terminal::put(&format!("amendment {number} ({id}): {in_force}\n{}", instead(instead_of.as_deref())));
            Ok(ExitCode::SUCCESS)
        }
        Answer::Error { message, code } => Err(failure(message, code)),
        _ => Err(Failure::message(Code::Refused, "the node answered another question: update it")),
    }
}

/// When an amendment is in force.
fn in_force(id: &str, agreed_by_all: bool) -> String {
    if agreed_by_all {
        return "in force from the round after the record that holds it".to_owned();
    }
    let begins: String = id.chars().take(16).collect();
    format!("in force once a quorum's operators agree, each on its own node with\n  starling agree {begins} --home DIR")
}

/// A line on the amendment whose place another one takes on this node.
fn instead(of: Option<&str>) -> String {
    of.map_or(String::new(), |of| format!("this takes the place of amendment {of} here\n"))
}

/// Leaves the amendment of a run in the folder of its node, which does not run.
fn leave(home: &Path, changes: Changes, from: u64) -> Result<ExitCode, Failure> {
    let refused = |why: String| Failure::message(Code::Refused, why);
    let store = open_at_rest(home)?;
    let run = store.run().context("the folder is bound to no run yet")?;
    let spec = wire::decode_spec(&run.spec).context("the folder's run does not decode")?;
    let head = store.head().ok_or_else(|| refused("the node has no record of the run yet: start it first".into()))?;
    let identity = identity::load(&home.join("key")).map_err(|e| Failure::new(Code::Refused, e))?;
    let (amendment, instead_of) = beside((&spec, &head), &identity, home, (from, changes))?;
    waiting::leave(home, &amendment)?;
    let instead_of = instead_of.map(|other| other.name(&spec.digest()).to_string());
    let is_idle = waiting::is_idle(&spec, &head, &amendment.changes);
    terminal::put(&(left_text((&spec, &amendment), home, is_idle) + &instead(instead_of.as_deref())));
    Ok(ExitCode::SUCCESS)
}

/// The next amendment, with the changes of one that waits in the folder and that nobody else knows; and the one whose
/// place it takes, if it takes one's.
fn beside(
    (spec, head): (&RunSpec, &Record),
    identity: &Identity,
    home: &Path,
    (from, changes): (u64, Changes),
) -> Result<(Amendment, Option<Amendment>), Failure> {
    let refused = |why: String| Failure::message(Code::Refused, why);
    let waits = (waiting::read(home, Stage::Left)?, waiting::read(home, Stage::HandedIn)?);
    let beside = waiting::beside((spec, head), waits, from);
    let changes = match &beside {
        Ok(Beside::Joins(other)) => other.changes.then(&changes),
        _ => changes,
    };
    if let Some(why) = waiting::never(spec, head, from, &changes) {
        return Err(Failure::message(Code::Usage, why));
    }
    let amendment = next_amendment(identity, spec, &head.next.settings, from, changes);
    amendment.check(spec, &head.next.settings).map_err(|why| Failure::message(waiting::code(&why), why))?;
    if !amendment.is_authorised(&Ed25519Verifier, spec, &spec.digest()) {
        return Err(refused("only the run's creator (`creator` in the run file) may amend this run".into()));
    }
    match beside {
        Ok(Beside::Instead(other)) => Ok((amendment, Some(other))),
        Ok(Beside::Alone | Beside::Joins(_)) => Ok((amendment, None)),
        Err(other) => Err(refused(waiting::in_the_way((spec, head), &other, home, false))),
    }
}

/// The fate of an amendment that was left for the node's next start.
fn left_text((spec, amendment): (&RunSpec, &Amendment), home: &Path, is_idle: bool) -> String {
    let (id, file, home) = (amendment.name(&spec.digest()).to_string(), Stage::Left.file(home), home.display());
    let mut text = format!(
        "amendment {} ({id}) is in {}: the node's next start hands it in (`starling train --home {home}`)\n  {}\n",
        amendment.number,
        file.display(),
        waiting::listed(&amendment.changes)
    );
    if spec.creator.is_none() {
        text += &format!("after that it is {}\n", in_force(&id, false));
    }
    if is_idle {
        text += "the run is over: this counts once the budget grows, too (`starling change rounds=... --home DIR`)\n";
    }
    text
}

/// The round of `--from-round`; 0 for the next.
fn from_round(text: &str) -> Result<u64, Failure> {
    if text == "next" {
        return Ok(0);
    }
    let why = || Failure::message(Code::Usage, format!("--from-round {text}: give `next`, or the number of a round"));
    text.parse().ok().filter(|round| *round > 0).ok_or_else(why)
}

/// The changes that pairs of keys and values ask for.
fn changes(pairs: &[String]) -> Result<Changes, String> {
    let mut changes = Changes::default();
    let mut named: Vec<&str> = Vec::new();
    for pair in pairs {
        let Some((key, value)) = pair.split_once('=') else {
            return Err(format!("{pair}: give KEY=VALUE, such as rounds=4000; the keys are {KEYS}"));
        };
        let (key, value) = (key.trim(), value.trim());
        let (section, short) = key.rsplit_once('.').map_or((None, key), |(section, short)| (Some(section), short));
        let is_of = |table: &str| section.is_none_or(|section| section == table);
        if !MAY.iter().any(|(table, keys)| is_of(table) && keys.contains(&short)) {
            return Err(fixed(key, short));
        }
        if named.contains(&short) {
            return Err(format!("{key} is named twice"));
        }
        named.push(short);
        set(&mut changes, key, short, value)?;
    }
    Ok(changes)
}

fn set(changes: &mut Changes, key: &str, short: &str, value: &str) -> Result<(), String> {
    match short {
        "rounds" => changes.rounds = Some(parsed(key, value, "a whole number")?),
        "tokens" => changes.tokens = Some(parsed(key, value, "a whole number")?),
        "lr" => changes.lr = Some(number(key, value)?),
        "lr_final" => changes.lr_final = Some(number(key, value)?),
        "warmup_steps" => changes.warmup_steps = Some(parsed(key, value, "a whole number")?),
        "weight_decay" => changes.weight_decay = Some(number(key, value)?),
        "clip" => changes.clip = Some(number(key, value)?),
        "minority" => changes.minority = Some(parsed::<Minority>(key, value, "fork, wait or halt")?),
        "grace_s" => changes.grace_ms = Some(millis(key, value)?),
        "patience_s" => changes.patience_ms = Some(millis(key, value)?),
        "share" => changes.share = Some(parsed(key, value, "a whole number")?),
        _ => return Err(fixed(key, short)),
    }
    Ok(())
}

fn parsed<T: FromStr>(key: &str, value: &str, what: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("{key}={value}: not {what}"))
}

/// A number that the status socket's JSON can hold.
fn number(key: &str, value: &str) -> Result<f64, String> {
    let number: f64 = parsed(key, value, "a number")?;
    if number.is_finite() { Ok(number) } else { Err(format!("{key}={value}: not a number")) }
}

fn millis(key: &str, value: &str) -> Result<u32, String> {
    let seconds: u32 = parsed(key, value, "a whole number of seconds")?;
    seconds.checked_mul(1_000).ok_or_else(|| format!("{key}={value}: too many seconds"))
}

/// Why a key cannot change, and the way out.
fn fixed(key: &str, short: &str) -> String {
    if short.starts_with("validat") {
        return format!(
            "{key} is each node's own, and not the run's: set it in the node file, and start the node again"
        );
    }
    // Two keys of the run file have the name `lr`.
    let meant = MAY.iter().find(|(_, keys)| keys.contains(&short) && key != "outer.lr");
    if let Some((section, _)) = meant {
        return format!("{key}: no such key; did you mean {section}.{short}?");
    }
    let section = key.split_once('.').map_or(key, |(section, _)| section);
    match FIXED.iter().find(|(keys, _)| keys.contains(&short) || keys.contains(&section)) {
        Some((keys, why)) if [SHAPE, TOKENIZER].contains(keys) => {
            format!("{key} cannot change in a run: {why}. A new run has its own: `starling new` writes its file")
        }
        Some((_, why)) => format!(
            "{key} cannot change in a run: {why}. A new run may begin from this one's model: `starling train --from \
             CHECKPOINT --run new.toml`"
        ),
        None => format!("{key}: no such key; those that may change are {KEYS}"),
    }
}

#[cfg(test)]
#[path = "change_test.rs"]
mod tests;
