//! `starling invite`: a ticket from the running node, which knows its addresses best.

use crate::cli::HomeArgs;
use crate::exit::{Code, Failure};
use crate::train::home_of;
use crate::watch::status::{Answer, Question, ask};
use std::process::ExitCode;

/// Prints the ticket on standard output and nothing else.
pub fn run(args: &HomeArgs) -> Result<ExitCode, Failure> {
    let home = home_of(args.run.as_deref(), args.home.as_deref())?;
    match ask(&home, Question::Invite).map_err(|e| Failure::new(Code::Refused, e))? {
        Answer::Invite { ticket } => {
            println!("{ticket}");
            Ok(ExitCode::SUCCESS)
        }
        Answer::Error { message } => Err(Failure::message(Code::Refused, message)),
        Answer::Status(_) => Err(Failure::message(Code::Refused, "the node answered another question: update it")),
    }
}
