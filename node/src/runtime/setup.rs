//! `starling train`: from the command line to the end of the process.

use super::again::Again;
use super::guest;
use super::origin::Asked;
use super::settings;
use super::start::{self, telemetry_failure};
use super::weights::Load;
use crate::cli::TrainArgs;
use crate::config::node_file::NodeFile;
use crate::config::run_file::RunFile;
use crate::exit::{Code, Failure};
use crate::watch::terminal;
use starling_bootstrap::telemetry;
use starling_protocol::engine::io::Finish;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Vulkan drivers log complaints that do not matter to a node with a device.
const QUIET_LOGS: &str = "wgpu_hal=off";

/// Runs `starling train`; `load` reads the model that a new run begins from.
pub fn train(args: &TrainArgs, load: Load) -> Result<ExitCode, Failure> {
    let again = match &args.home {
        Some(home) if args.run.is_none() && args.join.is_none() => Some(Again::of(home)?),
        _ => None,
    };
    let node = node_file(args, again.as_ref())?;
    let wanted = settings::Settings::of(args, &node)?;
    let mut asked = Asked::from_args(args, again.as_ref(), &node)?;
    if let Some(file) = &asked.file {
        guest::check_flags(args, file.is_external())?;
    }
    let weights = match (&args.from, &mut asked.file) {
        (Some(folder), Some(file)) => Some(load(folder)?.begin(file)?),
        _ => None,
    };
    if args.print_config {
        terminal::put(&settings::shown(args, &node, &asked)?);
        return Ok(ExitCode::SUCCESS);
    }
    telemetry::init_logs(&node.log, QUIET_LOGS, || terminal::Log).map_err(telemetry_failure)?;
    let threads = node.network_threads();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?;
    let finish = runtime.block_on(async {
        let (guest, begun) = guest::begin(args, &node, &mut asked).await?.unzip();
        let origin = asked.resolve(&node).await?;
        start::run(args, node, origin, (wanted, begun.or(weights), guest)).await
    });
    // Blocking threads that still read a file, or wait for a trainer, must not hold up the exit.
    runtime.shutdown_timeout(Duration::from_secs(2));
    match finish? {
        Finish::BudgetSpent | Finish::Left => Ok(ExitCode::SUCCESS),
        // If two processes run under one identity, the later one gives way (`docs/protocol/5-membership.md` §5.6).
        Finish::Fenced => Err(Failure::message(
            Code::IdentityInUse,
            "identity in use: another process with this key was started before this one and is alive; stop one of \
             the two, or give this node a --home of its own, in which it makes a new key",
        )),
        Finish::RunMismatch { keys, .. } => Err(Failure::message(
            Code::ConfigMismatch,
            format!(
                "the flock runs something else; these keys differ: {}. Use the flock's run file, or a ticket",
                keys.join("; ")
            ),
        )),
    }
}

/// The node file, or the settings of the start that is repeated, with the flags over it.
fn node_file(args: &TrainArgs, again: Option<&Again>) -> Result<NodeFile, Failure> {
    let mut node = match (&args.config, again) {
        (None, again) => again.map(|again| again.node.clone()).unwrap_or_default(),
        (Some(path), None) => NodeFile::load(path)?,
        (Some(path), Some(again)) => NodeFile::load(path)?.completed_from(&again.node),
    };
    let replace = |target: &mut Vec<String>, flags: &[String]| {
        if !flags.is_empty() {
            *target = flags.to_vec();
        }
    };
    replace(&mut node.listen, &args.listen);
    replace(&mut node.advertise, &args.advertise);
    replace(&mut node.bootstrap, &args.bootstrap);
    if let Some(home) = &args.home {
        node.home = Some(home.clone());
    }
    if let Some(cache) = &args.cache {
        node.cache = Some(cache.clone());
    }
    if let Some(device) = &args.device {
        node.device = device.clone();
    }
    if let Some(threads) = args.threads {
        node.threads = threads;
    }
    if let Some(metrics) = &args.metrics {
        node.metrics = metrics.clone();
    }
    if let Some(log) = &args.log {
        node.log = log.clone();
    }
    node.mdns &= !args.no_mdns;
    Ok(node)
}

/// The folder of the node that a command means: `--home`, or the default one for the run file's name.
pub fn home_of(run: Option<&Path>, home: Option<&Path>) -> Result<PathBuf, Failure> {
    match (home, run) {
        (Some(home), _) => Ok(home.to_path_buf()),
        (None, Some(run)) => Ok(NodeFile::default().home_for(&RunFile::load(run)?.name)),
        (None, None) => Err(Failure::message(Code::Usage, "say which node: give --run RUN.toml or --home DIR")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    fn arguments(text: &str) -> TrainArgs {
        match Cli::try_parse_from(text.split(' ')).expect("it parses").command {
            Command::Train(args) => *args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn another_node_file_for_a_known_node_leaves_its_peers_and_its_cache() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("node.toml");
        let kept = NodeFile { bootstrap: vec!["kept".into()], cache: Some("kept".into()), ..NodeFile::default() };
        let again = Again { ticket: None, node: kept, run: None };
        let args = arguments(&format!("starling train --home h --config {}", path.display()));
        let settings = |text: &str| {
            std::fs::write(&path, text).expect("written");
            let node = node_file(&args, Some(&again)).expect("it is sound");
            (node.bootstrap, node.cache, node.device)
        };
        let other = settings("device = \"cpu\"");
        assert_eq!(other, (vec!["kept".to_owned()], Some("kept".into()), "cpu".to_owned()));
        let (bootstrap, cache, _) = settings("bootstrap = [\"new\"]\ncache = \"new\"");
        assert_eq!((bootstrap, cache), (vec!["new".to_owned()], Some("new".into())));
        let flag = TrainArgs { bootstrap: vec!["flag".into()], ..args };
        assert_eq!(node_file(&flag, Some(&again)).expect("it is sound").bootstrap, ["flag"]);
    }
}
