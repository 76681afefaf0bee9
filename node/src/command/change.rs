//! `starling change`: amends what may change in a run; and `starling agree`, in a run without a creator.

use super::at_rest::open_at_rest;
use crate::cli::{AgreeArgs, ChangeArgs};
use crate::exit::{Code, Failure};
use crate::runtime::{AMENDMENT_FILE, home_of, next_amendment};
use crate::watch::status::{Answer, Change, Question, ask, is_running};
use crate::watch::terminal;
use anyhow::Context;
use starling_bootstrap::identity;
use starling_protocol::amendment::Changes;
use starling_protocol::identity::Ed25519Verifier;
use starling_protocol::run::Minority;
use starling_protocol::wire;
use std::path::Path;
use std::process::ExitCode;
use std::str::FromStr;

/// The keys that may change, for errors.
const KEYS: &str =
    "rounds, tokens, lr, lr_final, warmup_steps, weight_decay, clip, minority, grace_s, patience_s, share";

/// Keys, or sections of the run file, that never change in a run, and why; of two rows that fit the first one counts.
const FIXED: &[(&[&str], &str)] = &[
    (&["beginning"], "the run's first record has the state that it names"),
    (&["seq_len"], "every position of the run names a sequence of this length"),
    (SHAPE, "the shape of the model is that of every state and update"),
    (TOKENIZER, "the model knows the tokens of this one alone"),
    (&["data", "sources", "text", "holdout"], "every position of the run names a sequence of this text"),
    (&["codec", "k", "engine", "sync", "fragments", "overlap", "mixing"], "all updates of a run are made in one way"),
    (&["outer", "momentum"], "the outer optimizer's moments belong to it"),
    (&["steps", "batch", "accumulate"], "leases are cut to it"),
    (&["beta1", "beta2", "eps"], "the optimizer's moments belong to it"),
    (&["admission", "allow", "creator", "probation"], "who may join and vote must not change under those who have"),
    (&["seed", "name"], "it is part of the run's name"),
];

/// A run that begins from a model has its sizes and its tokenizer.
const SHAPE: &[&str] = &[
    "model", "preset", "d_model", "layers", "heads", "kv_heads", "ffn", "tied", "vocab", "rope_theta", "norm_eps",
];
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
        Answer::Amendment { id, number, bytes, agreed_by_all } => {
            // A node that ends before a record holds it hands it in again.
            let kept = data_encoding::HEXLOWER.decode(bytes.as_bytes()).context("the node's answer does not parse")?;
            keep(home, &kept)?;
            terminal::put(&if agreed_by_all {
                format!("amendment {number} ({id}): in force from the round after the record that holds it\n")
            } else {
                let begins: String = id.chars().take(16).collect();
                format!(
                    "amendment {number} ({id}): in force once a quorum's operators agree, each on its own node with\n  \
                     starling agree {begins} --home DIR\n"
                )
            });
            Ok(ExitCode::SUCCESS)
        }
        Answer::Error { message } => Err(Failure::message(Code::Refused, message)),
        _ => Err(Failure::message(Code::Refused, "the node answered another question: update it")),
    }
}

/// Leaves the amendment of a run in the folder of its node, which does not run.
fn leave(home: &Path, changes: Changes, from: u64) -> Result<ExitCode, Failure> {
    let refused = |why: String| Failure::message(Code::Refused, why);
    let store = open_at_rest(home)?;
    let run = store.run().context("the folder is bound to no run yet")?;
    let spec = wire::decode_spec(&run.spec).context("the folder's run does not decode")?;
    let head = store.head().ok_or_else(|| refused("the node has no record of the run yet: start it first".into()))?;
    if from > 0 && from <= head.round {
        return Err(refused(format!("--from-round {from}: that round is over; give `--from-round next`")));
    }
    let identity = identity::load(&home.join("key")).map_err(|e| Failure::new(Code::Refused, e))?;
    let settings = head.next.settings;
    let amendment = next_amendment(&identity, &spec, &settings, from, changes);
    amendment.check(&spec, &settings).map_err(|why| refused(why.to_string()))?;
    if !amendment.is_authorised(&Ed25519Verifier, &spec, &spec.digest()) {
        return Err(refused("only the run's creator (`creator` in the run file) may amend this run".into()));
    }
    keep(home, &wire::encode_amendment(&amendment))?;
    terminal::put(&format!(
        "amendment {} ({}) is in {}: the node's next start hands it in (`starling train --home {}`)\n",
        amendment.number,
        amendment.name(&spec.digest()),
        home.join(AMENDMENT_FILE).display(),
        home.display()
    ));
    Ok(ExitCode::SUCCESS)
}

fn keep(home: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let path = home.join(AMENDMENT_FILE);
    std::fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(())
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
        let short = key.rsplit_once('.').map_or(key, |(_, short)| short);
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
        "lr" if !key.starts_with("outer") => changes.lr = Some(number(key, value)?),
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
mod tests {
    use super::*;

    fn of(pairs: &[&str]) -> Result<Changes, String> {
        changes(&pairs.iter().map(|pair| (*pair).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn keys_are_those_of_the_run_file_with_their_section_or_without() {
        let asked = of(&["rounds=4000", "inner.lr=1e-3", "grace_s=20", "partition.minority=wait"]);
        let minority = Some(Minority::Wait);
        let changes =
            Changes { rounds: Some(4_000), lr: Some(1e-3), grace_ms: Some(20_000), minority, ..Changes::default() };
        assert_eq!(asked, Ok(changes));
    }

    #[test]
    fn what_cannot_change_is_refused_with_the_reason_and_the_way_out() {
        let from = ["data.sources", "codec", "sync.engine", "outer.lr", "admission.mode", "seed", "model.seq_len"];
        // A run that begins from a model has its sizes and its tokenizer.
        let anew = ["model.layers", "layers", "model.norm_eps", "data.tokenizer"];
        let from = from.map(|key| (key, "--from CHECKPOINT"));
        for (key, way) in from.into_iter().chain(anew.map(|key| (key, "starling new"))) {
            let why = of(&[&format!("{key}=1")]).expect_err(key);
            assert!(why.contains("cannot change") && why.contains(way), "{why}");
        }
        for (pair, words) in [
            ("validate_every=3", "node file"),
            ("colour=red", "no such key"),
            ("rounds", "KEY=VALUE"),
            ("rounds=many", "not a whole number"),
            ("grace_s=99999999", "too many"),
            ("minority=stay", "fork, wait or halt"),
            ("lr=nan", "not a number"),
        ] {
            let why = of(&[pair]).expect_err(pair);
            assert!(why.contains(words), "{why}");
        }
        assert!(of(&["rounds=1", "budget.rounds=2"]).expect_err("twice").contains("twice"));
    }

    #[test]
    fn a_round_is_a_number_or_the_next() {
        assert_eq!((from_round("next").ok(), from_round("12").ok()), (Some(0), Some(12)));
        assert!(from_round("0").is_err() && from_round("soon").is_err());
    }
}
