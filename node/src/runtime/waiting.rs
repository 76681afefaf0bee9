//! Amendments that wait in a node's folder, and the place of a new one beside them.
//!
//! A node that does not run gets an amendment by a file, which its next start hands in. Until then nobody else knows of
//! it, so that a second one joins it. Others may know one that was handed in: a second one of its number would
//! contradict it.

use super::kept;
use crate::exit::Code;
use anyhow::Context;
use starling_protocol::Digest;
use starling_protocol::amendment::{Amendment, Changes, NotAmended};
use starling_protocol::limits::AMENDMENT_BYTES_MAX;
use starling_protocol::record::Record;
use starling_protocol::run::{Budget, RunSpec};
use starling_protocol::wire;
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

/// How far an amendment in a node's folder has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It was left while the node did not run; the node's next start hands it in.
    Left,
    /// The node has handed it in. It stays until a record holds it, or another one of its number.
    HandedIn,
}

impl Stage {
    /// The file of an amendment that has come so far.
    pub fn file(self, home: &Path) -> PathBuf {
        home.join(match self {
            Self::Left => "amendment-left",
            Self::HandedIn => "amendment",
        })
    }
}

/// The amendment that the folder holds, if there is one that has come so far.
///
/// # Errors
/// The file cannot be read, or it holds no amendment.
pub fn read(home: &Path, stage: Stage) -> anyhow::Result<Option<Amendment>> {
    let path = stage.file(home);
    let cannot = || format!("cannot read the amendment in {}", path.display());
    let file = match File::open(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened.with_context(cannot)?,
    };
    let mut bytes = Vec::new();
    file.take(AMENDMENT_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).with_context(cannot)?;
    match wire::decode_amendment(&bytes) {
        Ok(amendment) => Ok(Some(amendment)),
        Err(_) => anyhow::bail!("{} holds no amendment that this release can read: remove the file", path.display()),
    }
}

/// Leaves an amendment for the node's next start. A reader finds this one or the one before, and never a part.
///
/// # Errors
/// The file cannot be written.
pub fn leave(home: &Path, amendment: &Amendment) -> anyhow::Result<()> {
    let path = Stage::Left.file(home);
    let written = kept::write(&path, &wire::encode_amendment(amendment));
    written.with_context(|| format!("cannot write the amendment to {}", path.display()))
}

/// Keeps an amendment that is handed in now, in place of what the folder holds.
///
/// # Errors
/// The file cannot be written.
pub fn hand_in(home: &Path, amendment: &Amendment) -> anyhow::Result<()> {
    leave(home, amendment)?;
    let path = Stage::HandedIn.file(home);
    fs::rename(Stage::Left.file(home), &path).with_context(|| format!("cannot write {}", path.display()))
}

/// Removes an amendment that is of no use any more.
pub fn forget(home: &Path, stage: Stage) {
    // A file that stays is of no use at the next start, either.
    let _ = fs::remove_file(stage.file(home));
}

/// What becomes of an amendment that the folder holds.
#[derive(Debug, PartialEq, Eq)]
pub enum Fate {
    HandIn,
    Stays,
    /// It is of no use any more, for this reason.
    Goes(NotAmended),
}

/// The fate of an amendment that the engine has checked. `known`: the engine has it. An idle one stays, so that one
/// that adds to the budget can join it.
pub fn fate(checked: Result<(), NotAmended>, known: bool, idle: bool) -> Fate {
    match checked {
        Ok(()) if known || idle => Fate::Stays,
        Ok(()) => Fate::HandIn,
        Err(NotAmended::NoRecord | NotAmended::OneAtATime) => Fate::Stays,
        Err(why) => Fate::Goes(why),
    }
}

/// The place of a new amendment beside the one that the folder holds.
#[derive(Debug, PartialEq)]
pub enum Beside {
    Alone,
    /// Nobody else knows the other one, or no record can hold it: the new one has its changes as well.
    Joins(Amendment),
    /// The new one takes the other one's place.
    Instead(Amendment),
}

/// Places a new amendment, which may be in force from the round `from` on (0: the next), beside those that the folder
/// of a node at rest holds.
///
/// # Errors
/// The amendment that is in the way: a record may hold it soon, and two of one number contradict each other.
pub fn beside(
    (spec, head): (&RunSpec, &Record),
    (left, handed_in): (Option<Amendment>, Option<Amendment>),
    from: u64,
) -> Result<Beside, Box<Amendment>> {
    let is_next = |kept: &Amendment| kept.follows(&head.next.settings);
    if let Some(left) = left.filter(is_next) {
        return Ok(Beside::Joins(left));
    }
    let Some(other) = handed_in.filter(is_next) else { return Ok(Beside::Alone) };
    if is_idle(spec, head, &other.changes) {
        return Ok(Beside::Joins(other));
    }
    // The one whose round comes first is in force, and the other one is forgotten then.
    let comes_first = !is_due(&other, head) && (from == 0 || from < other.from);
    if spec.creator.is_none() || comes_first { Ok(Beside::Instead(other)) } else { Err(Box::new(other)) }
}

/// Whether the record after the head may hold an amendment.
pub fn is_due(amendment: &Amendment, head: &Record) -> bool {
    amendment.is_due(head.round.saturating_add(1))
}

/// The words for an amendment that another one is in the way of, in a run with a creator. `runs`: the node does.
pub fn in_the_way((spec, head): (&RunSpec, &Record), other: &Amendment, home: &Path, runs: bool) -> String {
    let (told, home) = (told(&spec.digest(), other), home.display());
    if is_idle(spec, head, &other.changes) {
        format!(
            "{told} is known already, and the run is over: stop this node, and add to the budget then (`starling \
             change rounds=... --home {home}`); its next start hands in both as one"
        )
    } else if !is_due(other, head) {
        format!(
            "{told} waits for that round, {} are committed, and one amendment waits at a time: to have another one in \
             its place, stop this node, name all values with an earlier round (`starling change ... --from-round next \
             --home {home}`), and start it again",
            head.round
        )
    } else if runs {
        format!("{told} is on its way: wait until `starling status` shows it as in force, and change the rest then")
    } else {
        format!(
            "{told} was handed in before this node ended, and another one would contradict it: start the node \
             (`starling train --home {home}`), and change the rest once `starling status` shows it as in force"
        )
    }
}

/// The amendment to which this node's operator agrees, of those that the engine knows, if it is another than this one.
pub fn agreed_before<'a>(proposals: &'a [(Digest, Amendment, bool)], name: &Digest) -> Option<&'a Digest> {
    proposals.iter().find(|(known, _, agreed)| *agreed && known != name).map(|(known, ..)| known)
}

/// The exit code of a command whose amendment is refused: terms that no run may have are wrong usage.
pub fn code(why: &NotAmended) -> Code {
    match why {
        NotAmended::Values(_) | NotAmended::Empty => Code::Usage,
        _ => Code::Refused,
    }
}

/// An amendment for a person.
fn told(run: &Digest, amendment: &Amendment) -> String {
    let from = if amendment.from == 0 { String::new() } else { format!(", from round {} on", amendment.from) };
    format!("amendment {} ({}: {}{from})", amendment.number, amendment.name(run).short(), listed(&amendment.changes))
}

/// Changed values, each under its key.
pub fn listed(changes: &Changes) -> String {
    let pairs: Vec<String> = changes.entries().into_iter().map(|(key, value)| format!("{key} = {value}")).collect();
    pairs.join(", ")
}

/// Why an amendment cannot be in force from this round on (0: the next), if so: the round is over, or the run ends
/// before it.
pub fn never(spec: &RunSpec, head: &Record, from: u64, changes: &Changes) -> Option<String> {
    let round = head.round;
    if from == 0 {
        return None;
    }
    if from <= round {
        return Some(format!(
            "--from-round {from}: that round is over, {round} rounds are committed; give `--from-round next`"
        ));
    }
    let last = last_round(spec, head, changes).filter(|last| from > *last)?;
    let up_to = if last > round { format!(", or a round up to {last}") } else { String::new() };
    Some(format!(
        "--from-round {from}: the run ends before that round, so that the amendment would never be in force; give \
         `--from-round next`{up_to}"
    ))
}

/// The last round from which on an amendment can be in force; none if the budget names no last round.
fn last_round(spec: &RunSpec, head: &Record, changes: &Changes) -> Option<u64> {
    let now = head.next.settings.in_force(spec);
    let end = |budget: &Budget| if budget.rounds == 0 { u64::MAX } else { budget.rounds };
    let (before, after) = (end(&now.budget), end(&changes.apply(&now).budget));
    // The record of the first round after the end can hold an amendment that adds to the budget.
    let last = if is_spent(&now.budget, head) {
        head.round.saturating_add(2)
    } else if after > before {
        before.saturating_add(2)
    } else {
        after
    };
    (last < u64::MAX).then_some(last)
}

/// Whether the run is over, and would still be with these changes.
pub fn is_idle(spec: &RunSpec, head: &Record, changes: &Changes) -> bool {
    let now = head.next.settings.in_force(spec);
    is_spent(&now.budget, head) && is_spent(&changes.apply(&now).budget, head)
}

fn is_spent(budget: &Budget, head: &Record) -> bool {
    let spent = |limit: u64, used: u64| limit != 0 && used >= limit;
    spent(budget.rounds, head.round) || spent(budget.tokens, head.tokens)
}

#[cfg(test)]
#[path = "waiting_test.rs"]
mod tests;
