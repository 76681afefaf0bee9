//! `starling audit`: proof from the records on disk that no sample was used twice, and where each position went.

use super::at_rest::open_at_rest;
use crate::cli::AuditArgs;
use crate::config::node_file::NodeFile;
use crate::exit::{Code, Failure};
use crate::runtime::{home_of, store_failure};
use crate::watch::terminal;
use anyhow::Context;
use starling_data::Dataset;
use starling_protocol::audit::{Audit, Summary};
use starling_protocol::permutation::LEN_MAX;
use starling_protocol::run::RunSpec;
use starling_protocol::wire;
use starling_store::Store;
use std::process::ExitCode;

/// Records that one read takes.
const BATCH: usize = 256;

/// Reads every record of the node's store and prints the counts. A violation is a refusal, exit 1.
pub fn run(args: &AuditArgs) -> Result<ExitCode, Failure> {
    let home = home_of(args.run.as_deref(), args.home.as_deref())?;
    let store = open_at_rest(&home)?;
    let run = store.run().context("the folder is bound to no run yet: there is nothing to audit")?;
    let spec = wire::decode_spec(&run.spec).context("the folder's run does not decode")?;
    let length = epoch_length(args, &spec)?;
    let (summary, violation) = audit(&store, length)?;
    if summary.records == 0 && violation.is_none() {
        terminal::put("no records yet: this node has neither founded a flock nor met one\n");
        return Ok(ExitCode::SUCCESS);
    }
    terminal::put(&summary.to_string());
    match violation {
        None => Ok(ExitCode::SUCCESS),
        Some(why) => Err(Failure::message(
            Code::Refused,
            format!("the chain is not in order after record {}: {why}; report it, with this folder", summary.last_seq),
        )),
    }
}

/// Takes the records in order, from the first after which none is missing. The summary covers those before the first
/// that breaks a rule.
fn audit(store: &Store, length: u64) -> Result<(Summary, Option<String>), Failure> {
    let mut audit = Audit::new(length);
    // A node that joined later holds only a path of the records before, so the audit begins where its chain is whole.
    let mut next = store.whole_from().unwrap_or(0);
    loop {
        let links = store.records_from(next, BATCH).map_err(store_failure)?;
        if links.is_empty() {
            return Ok((audit.summary(), None));
        }
        for (record, _) in &links {
            let record = wire::decode_record(record).context("a record does not decode")?;
            if let Err(why) = audit.push(&record) {
                return Ok((audit.summary(), Some(why.to_string())));
            }
            next = record.seq.saturating_add(1);
        }
    }
}

/// Training sequences of an epoch. They depend on the text, which is in the cache where a node has trained.
fn epoch_length(args: &AuditArgs, spec: &RunSpec) -> Result<u64, Failure> {
    if let Some(task) = &spec.task {
        // Samples without numbers have no epochs.
        return Ok(if task.samples > 0 { task.samples } else { LEN_MAX });
    }
    let node = NodeFile { cache: args.cache.clone(), ..NodeFile::default() };
    let text = Dataset::open_cached(&node.cache_folder(), &spec.data.manifest)?;
    Ok(match text {
        Some(text) => text.train_sequences(spec.model.seq_len as usize).max(1),
        None => {
            terminal::put("the run's text is not in the cache (--cache): epochs are not told apart\n");
            LEN_MAX
        }
    })
}
