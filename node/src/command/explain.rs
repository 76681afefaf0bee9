//! `starling explain`: why the next round has as many inner steps as it has.

use super::at_rest::{open_at_rest, require_home};
use super::status::the_only_home;
use crate::cli::ExplainArgs;
use crate::exit::{Code, Failure};
use crate::runtime::home_of;
use crate::watch::choice::ChoiceStatus;
use crate::watch::status::{Answer, Question, ask, is_running};
use crate::watch::terminal;
use anyhow::Context;
use starling_protocol::wire;
use std::path::Path;
use std::process::ExitCode;

/// Asks the node if it runs, else reads the newest record on its disk.
pub fn run(args: &ExplainArgs) -> Result<ExitCode, Failure> {
    let home = match (&args.node.run, &args.node.home) {
        (None, None) => the_only_home()?,
        (run, home) => home_of(run.as_deref(), home.as_deref())?,
    };
    require_home(&home)?;
    let choice = if is_running(&home) { asked(&home)? } else { read(&home)? };
    let Some(choice) = choice else {
        return Err(Failure::message(
            Code::Refused,
            "no records yet: this node has neither founded a flock nor met one; start it with `starling train`",
        ));
    };
    if args.json {
        terminal::put(&(serde_json::to_string_pretty(&choice).context("cannot print the choice")? + "\n"));
    } else {
        terminal::put(&choice.text());
    }
    Ok(ExitCode::SUCCESS)
}

fn asked(home: &Path) -> Result<Option<ChoiceStatus>, Failure> {
    match ask(home, Question::Status).map_err(|e| Failure::new(Code::Refused, e))? {
        Answer::Status(status) => Ok(status.choice),
        Answer::Error { message, .. } => Err(Failure::message(Code::Refused, message)),
        _ => Err(Failure::message(Code::Refused, "the node answered another question: update it")),
    }
}

fn read(home: &Path) -> Result<Option<ChoiceStatus>, Failure> {
    let store = open_at_rest(home)?;
    let run = store.run().context("the folder is bound to no run yet: start the node with `starling train`")?;
    let spec = wire::decode_spec(&run.spec).context("the folder's run does not decode")?;
    Ok(store.head().map(|record| ChoiceStatus::of(&spec, &record)))
}
