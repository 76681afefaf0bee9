//! `starling invite`: a ticket from the running node, which knows its addresses best.

use crate::cli::InviteArgs;
use crate::exit::{Code, Failure};
use crate::runtime::home_of;
use crate::watch::status::{Answer, Question, Terms, ask, failure};
use crate::watch::terminal;
use starling_protocol::NodeId;
use std::process::ExitCode;

/// Prints the ticket on standard output and nothing else.
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
            Ok(ExitCode::SUCCESS)
        }
        Answer::Error { message, code } => Err(failure(message, code)),
        Answer::Status(_) | Answer::Revoked { .. } | Answer::Checkpoint { .. } | Answer::Amendment { .. } => {
            Err(Failure::message(Code::Refused, "the node answered another question: update it"))
        }
    }
}
