//! The source of a run's specification: its file, or a ticket.

use crate::cli::TrainArgs;
use crate::config::run_file::RunFile;
use crate::exit::{Code, Failure};
use anyhow::Context;
use starling_bootstrap::ticket::Ticket;
use starling_protocol::run::RunSpec;
use starling_protocol::wire;
use std::path::Path;

/// The source of a run's specification.
pub enum Origin {
    File(Box<RunFile>),
    Ticket(Box<Ticket>, Box<RunSpec>),
}

impl Origin {
    /// Reads the source that the command line names.
    pub fn from_args(args: &TrainArgs) -> Result<Self, Failure> {
        if let Some(text) = &args.join {
            let ticket = read_ticket(text)?;
            let spec = wire::decode_spec(&ticket.spec)
                .map_err(|e| Failure::message(Code::Usage, format!("the ticket's run does not decode: {e}")))?;
            return Ok(Self::Ticket(Box::new(ticket), Box::new(spec)));
        }
        let path =
            args.run.as_deref().ok_or_else(|| Failure::message(Code::Usage, "give --run RUN.toml or --join TICKET"))?;
        Ok(Self::File(Box::new(RunFile::load(path)?)))
    }

    /// The admission ticket that the node shows when it asks to be admitted; empty without one.
    pub fn admission(&self) -> Vec<u8> {
        match self {
            Self::File(_) => Vec::new(),
            Self::Ticket(ticket, _) => ticket.admission.clone(),
        }
    }

    /// The run's name.
    pub fn name(&self) -> &str {
        match self {
            Self::File(file) => &file.name,
            Self::Ticket(_, spec) => &spec.name,
        }
    }
}

/// Reads a ticket: text, or a file that holds it.
fn read_ticket(text: &str) -> Result<Ticket, Failure> {
    let usage = |e: String| Failure::message(Code::Usage, e);
    let text = match text.parse::<Ticket>() {
        Ok(ticket) => return Ok(ticket),
        Err(_) if Path::new(text).is_file() => std::fs::read_to_string(text)
            .with_context(|| format!("cannot read the ticket file {text}"))
            .map_err(|e| Failure::new(Code::Usage, e))?,
        Err(e) => return Err(usage(format!("--join: {e}"))),
    };
    text.trim().parse().map_err(|e| usage(format!("--join: the file's ticket does not parse: {e}")))
}
