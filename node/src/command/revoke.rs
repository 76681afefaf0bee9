//! `starling revoke`: the creator's word, signed and spread by its running node.

use crate::cli::RevokeArgs;
use crate::exit::{Code, Failure};
use crate::runtime::home_of;
use crate::watch::status::{Answer, Question, Subject, ask};
use starling_bootstrap::ticket::Ticket;
use starling_protocol::{NodeId, wire};
use std::process::ExitCode;

/// Hands the revocation to the node and says what becomes of it.
pub fn run(args: &RevokeArgs) -> Result<ExitCode, Failure> {
    let home = home_of(args.node.run.as_deref(), args.node.home.as_deref())?;
    let subject = subject(args).map_err(|why| Failure::message(Code::Usage, why))?;
    match ask(&home, Question::Revoke(subject)).map_err(|e| Failure::new(Code::Refused, e))? {
        Answer::Revoked { subject } => {
            println!("revoked {subject}: in force once the flock's next records carry it");
            Ok(ExitCode::SUCCESS)
        }
        Answer::Error { message } => Err(Failure::message(Code::Refused, message)),
        _ => Err(Failure::message(Code::Refused, "the node answered another question: update it")),
    }
}

fn subject(args: &RevokeArgs) -> Result<Subject, String> {
    if let Some(id) = &args.id {
        NodeId::from_hex(id).ok_or_else(|| format!("--id {id}: not a node id; give 64 hex digits"))?;
        return Ok(Subject::Node { id: id.clone() });
    }
    let text = args.ticket.as_deref().unwrap_or_default();
    let ticket: Ticket = text.parse().map_err(|e| format!("--ticket: {e}"))?;
    let admission = wire::decode_ticket(&ticket.admission)
        .map_err(|_| "--ticket: this ticket admits nobody by itself, so there is nothing to revoke".to_string())?;
    Ok(Subject::Ticket { grant: admission.grant(&ticket.run()).to_string() })
}
