//! `starling revoke`: the creator's word, signed and spread by its running node.

use crate::cli::RevokeArgs;
use crate::exit::{Code, Failure};
use crate::runtime::{home_of, read_ticket};
use crate::watch::status::{Answer, Question, Subject, ask, failure};
use crate::watch::terminal;
use starling_bootstrap::identity;
use starling_protocol::NodeId;
use starling_protocol::identity::Ed25519Verifier;
use std::path::Path;
use std::process::ExitCode;

/// Hands the revocation to the node and says what becomes of it.
pub fn run(args: &RevokeArgs) -> Result<ExitCode, Failure> {
    let home = home_of(args.node.run.as_deref(), args.node.home.as_deref())?;
    let subject = subject(args, &home)?;
    match ask(&home, Question::Revoke(subject)).map_err(|e| Failure::new(Code::Refused, e))? {
        Answer::Revoked { subject } => {
            terminal::put(&format!("revoked {subject}: in force once the flock's next records carry it\n"));
            Ok(ExitCode::SUCCESS)
        }
        Answer::Error { message, code } => Err(failure(message, code)),
        _ => Err(Failure::message(Code::Refused, "the node answered another question: update it")),
    }
}

fn subject(args: &RevokeArgs, home: &Path) -> Result<Subject, Failure> {
    let usage = |why: String| Failure::message(Code::Usage, why);
    if let Some(id) = &args.id {
        node_id("--id", id)?;
        return Ok(Subject::Node { id: id.clone() });
    }
    let ticket = read_ticket("--ticket", args.ticket.as_deref().unwrap_or_default())?;
    let Some(admission) = &ticket.admission else {
        return Err(usage("--ticket: this ticket admits nobody by itself, so there is nothing to revoke".into()));
    };
    let holder = args.holder.as_deref().map(|holder| node_id("--holder", holder)).transpose()?;
    if admission.made_out && holder.is_none() {
        let why = "--ticket: it is made out to one node, which it does not name: add --holder with that node's id";
        return Err(usage(why.into()));
    }
    let creator = identity::load(&home.join("key")).map_err(|e| Failure::new(Code::Refused, e))?.node_id();
    let signed = admission.ticket(&holder.unwrap_or(creator));
    if !signed.verify(&Ed25519Verifier, &ticket.run, &creator) {
        let why = "--ticket: this node has not signed it: name the node that made it, and with --holder the one that \
                   it is made out to";
        return Err(Failure::message(Code::Refused, why));
    }
    Ok(Subject::Ticket { grant: signed.grant(&ticket.run).to_string() })
}

fn node_id(flag: &str, text: &str) -> Result<NodeId, Failure> {
    let why = || Failure::message(Code::Usage, format!("{flag} {text}: not a node id; give 64 hex digits"));
    NodeId::from_hex(text).ok_or_else(why)
}
