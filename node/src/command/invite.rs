//! `starling invite`: a ticket from the running node, which knows its addresses best.

use super::qr;
use crate::cli::InviteArgs;
use crate::exit::{Code, Failure};
use crate::runtime::home_of;
use crate::watch::status::{Answer, Question, Terms, ask, failure};
use crate::watch::terminal::{self, Shape};
use starling_protocol::NodeId;
use std::io::{IsTerminal, Write, stderr, stdout};
use std::process::ExitCode;

/// Prints the ticket on standard output, and nothing else there unless it is a terminal.
pub fn run(args: &InviteArgs) -> Result<ExitCode, Failure> {
    let home = home_of(args.node.run.as_deref(), args.node.home.as_deref())?;
    if let Some(holder) = args.holder.as_deref().filter(|holder| NodeId::from_hex(holder).is_none()) {
        let why = format!("--holder {holder}: not a node id; give 64 hex digits (`starling status --json` prints one)");
        return Err(Failure::message(Code::Usage, why));
    }
    let terms = Terms { expires: args.expires, uses: args.uses, holder: args.holder.clone() };
    match ask(&home, Question::Invite(terms)).map_err(|e| Failure::new(Code::Refused, e))? {
        Answer::Invite { ticket } => {
            terminal::put(&format!("{ticket}\n"));
            if args.qr {
                show(&ticket);
            }
            Ok(ExitCode::SUCCESS)
        }
        Answer::Error { message, code } => Err(failure(message, code)),
        Answer::Status(_) | Answer::Revoked { .. } | Answer::Checkpoint { .. } | Answer::Amendment { .. } => {
            Err(Failure::message(Code::Refused, "the node answered another question: update it"))
        }
    }
}

/// Shows the ticket as a QR code: below the ticket on a terminal, and otherwise on standard error, so that a pipe gets
/// the ticket alone.
fn show(ticket: &str) {
    let below = stdout().is_terminal();
    let shape = if below { Shape::of(stdout()) } else { Shape::of(stderr()) };
    match qr::lines(ticket, shape) {
        Ok(code) if below => terminal::put(&code),
        Ok(code) => say(&code),
        Err(why) => say(&format!("starling: {why}\n")),
    }
}

/// Writes to standard error; the ticket is out, so that a reader that went away is no failure.
fn say(text: &str) {
    let _ = stderr().write_all(text.as_bytes());
}
