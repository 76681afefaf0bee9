//! `starling doctor`: whether this machine can run a node, and how to mend what is in the way.

mod finding;
mod flock;
mod machine;

use crate::cli::DoctorArgs;
use crate::config::node_file::{NodeFile, runs_folder};
use crate::config::run_file::RunFile;
use crate::exit::{Code, Failure};
use crate::runtime::{Ports, Settings, check_run_file, keep_kernels};
use crate::watch::status::{Answer, Question, ask, running_homes};
use crate::watch::terminal;
use anyhow::Context;
use finding::Verdict::{self, Bad};
use finding::{Finding, Report};
use flock::Source;
use libp2p::Multiaddr;
use starling_bootstrap::addresses::PeerAddress;
use starling_protocol::run::RunSpec;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// Threads of the network, while peers are tried.
const THREADS: usize = 2;

/// Looks at everything, prints the findings, and ends with 1 if one is bad.
pub fn run(args: &DoctorArgs) -> Result<ExitCode, Failure> {
    let report = Report::new(findings(args)?);
    if args.json {
        terminal::put(&(serde_json::to_string_pretty(&report).context("cannot print the findings")? + "\n"));
    } else {
        terminal::put(&report.text());
    }
    Ok(if report.verdict == Bad { ExitCode::from(Code::Refused as u8) } else { ExitCode::SUCCESS })
}

fn findings(args: &DoctorArgs) -> Result<Vec<Finding>, Failure> {
    let node = node_file(args)?;
    let Settings { listen, bootstrap, device, .. } = Settings::of_node(&node)?;
    let (run, of_run) = args.run.as_deref().map(run_file).unzip();
    let (named, spec) = run.flatten().unzip();
    let home = match &named {
        Some(name) => node.home_for(name),
        None => node.home.clone().unwrap_or_else(runs_folder),
    };
    // The node's first start finds what is compiled here. A look at this machine makes no folder.
    if (named.is_some() || node.home.is_some()) && home.is_dir() {
        keep_kernels(&home);
    }
    let opening = machine::Opening::start(device, node.threads);
    // Without a name every node below the default folder is this machine's.
    let is_default = named.is_none() && node.home.is_none();
    let is_running =
        matches!(ask(&home, Question::Status), Ok(Answer::Status(_))) || is_default && !running_homes(&home).is_empty();
    let mut found: Vec<Finding> = of_run.into_iter().collect();
    let before = found.len();
    found.push(machine::disk(spec.as_ref(), &node, &home));
    found.push(machine::clock(&home));
    found.push(machine::descriptors());
    let listen = Ports::of(&home, listen).listen();
    let ports = machine::ports(&listen, is_running);
    let are_free = !is_running && ports.iter().all(|port| port.verdict == Verdict::Good);
    found.extend(ports);
    found.extend(machine::metrics(&node.metrics, is_running));
    let (of_device, trains) = opening.end();
    found.push(of_device);
    found.insert(before, machine::memory(spec.as_ref(), node.threads, trains, is_running));
    found.extend(of_others(args, bootstrap, listen, are_free)?);
    Ok(found)
}

/// The node file with the flags over it.
fn node_file(args: &DoctorArgs) -> Result<NodeFile, Failure> {
    let mut node = args.config.as_deref().map(NodeFile::load).transpose()?.unwrap_or_default();
    if !args.listen.is_empty() {
        node.listen = args.listen.clone();
    }
    if !args.bootstrap.is_empty() {
        node.bootstrap = args.bootstrap.clone();
    }
    if let Some(home) = &args.home {
        node.home = Some(home.clone());
    }
    if let Some(device) = &args.device {
        node.device = device.clone();
    }
    Ok(node)
}

/// The run's name and specification, if its file can be used, and the finding about it.
fn run_file(path: &Path) -> (Option<(String, RunSpec)>, Finding) {
    let read = || -> Result<(Option<RunSpec>, RunFile), Failure> {
        let file = RunFile::load(path)?;
        if file.awaits_founder() {
            file.before_founding()?;
            return Ok((None, file));
        }
        Ok((Some(check_run_file(&file)?.0), file))
    };
    match read() {
        Ok((Some(spec), RunFile { name, .. })) => {
            let what = format!("{name}: {} parameters", spec.parameters());
            (Some((name, spec)), Finding::good("run", what))
        }
        Ok((None, RunFile { name, .. })) => {
            (None, Finding::good("run", format!("{name}: the founder's trainer brings the model")))
        }
        Err(failure) => (None, Finding::told("run", Bad, &failure.error.to_string())),
    }
}

/// The way to others and back, as far as somebody is named to ask.
fn of_others(
    args: &DoctorArgs,
    bootstrap: Vec<PeerAddress>,
    listen: Vec<Multiaddr>,
    are_free: bool,
) -> Result<Vec<Finding>, Failure> {
    let mut named: Vec<(Source, PeerAddress)> =
        bootstrap.into_iter().map(|address| (Source::Bootstrap, address)).collect();
    let mut found = Vec::new();
    if let Some(text) = &args.join {
        let (ticket, addresses) = flock::ticket(text);
        found.push(ticket);
        named.extend(addresses.into_iter().map(|address| (Source::Ticket, address)));
    }
    if named.is_empty() {
        found.push(flock::untried("nobody is named who could try", "give --bootstrap or --join"));
        return Ok(found);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(THREADS).enable_all().build()?;
    runtime.block_on(async {
        let (peers, here) = flock::peers(&named).await;
        found.extend(peers);
        if !are_free {
            found.push(flock::untried("this node's ports are in use", "look again while no node runs here"));
        } else if here.is_empty() {
            found.push(flock::untried("no peer answers", "mend that first"));
        } else {
            found.extend(flock::outside(listen, &here).await);
        }
    });
    // Name servers may still be waited for.
    runtime.shutdown_timeout(Duration::from_millis(100));
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    /// The findings for these flags, on the CPU and with a home of their own.
    fn found(home: &Path, flags: &[&str]) -> Vec<Finding> {
        tried(home, flags).unwrap_or_else(|failure| panic!("{}", failure.error))
    }

    fn tried(home: &Path, flags: &[&str]) -> Result<Vec<Finding>, Failure> {
        let home = home.to_string_lossy();
        let line = ["starling", "doctor", "--device", "cpu", "--home", &home];
        let cli = Cli::parse_from(line.iter().chain(flags).copied());
        let Command::Doctor(args) = cli.command else { panic!("another command") };
        findings(&args)
    }

    #[test]
    fn settings_are_those_of_a_start() {
        let home = tempfile::tempdir().expect("a folder");
        let file = home.path().join("node.toml");
        for wrong in ["metrics = \"here\"", "log = \"==\"", "advertise = [\"here\"]", "threads = 100000"] {
            std::fs::write(&file, wrong).expect("written");
            let failure = tried(home.path(), &["--config", &file.to_string_lossy()]).expect_err(wrong);
            assert_eq!(failure.code, Code::Usage, "{wrong}");
        }
    }

    #[test]
    fn the_ports_are_those_that_the_node_keeps() {
        let home = tempfile::tempdir().expect("a folder");
        let bound = || std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port_of = |listener: &std::net::TcpListener| listener.local_addr().expect("its address").port();
        // Another process has the port for metrics, which is no port of the network.
        let (foreign, first, second) = (bound(), bound(), bound());
        let [taken, port, closed] = [&foreign, &first, &second].map(port_of);
        drop((first, second));
        let kept = format!("\"/ip4/127.0.0.1/tcp/0\" = {port}\n");
        std::fs::write(home.path().join("ports.toml"), kept).expect("written");
        let file = home.path().join("node.toml");
        std::fs::write(&file, format!("metrics = \"127.0.0.1:{taken}\"\n")).expect("written");
        let file = file.to_string_lossy();
        let nobody = format!("/ip4/127.0.0.1/tcp/{closed}/p2p/{}", libp2p::PeerId::random());
        let flags = ["--config", &file, "--listen", "/ip4/127.0.0.1/tcp/0", "--bootstrap", &nobody];
        let all = found(home.path(), &flags);
        let said = |words: &str| all.iter().any(|finding| finding.finding.contains(words));
        assert!(said(&format!("/tcp/{port} is free")) && said("no peer answers"), "{all:?}");
        assert_eq!(verdict_on("port", &all), Some(Bad));
    }

    fn verdict_on(check: &str, findings: &[Finding]) -> Option<Verdict> {
        findings.iter().filter(|finding| finding.check == check).map(|finding| finding.verdict).max()
    }

    #[test]
    fn every_point_is_looked_at_and_nobody_is_asked_without_an_address() {
        let home = tempfile::tempdir().expect("a folder");
        let all = found(home.path(), &[]);
        for check in ["device", "memory", "disk", "clock", "descriptors", "port", "outside"] {
            assert!(verdict_on(check, &all).is_some(), "{check} is missing in {all:?}");
        }
        assert_eq!(verdict_on("device", &all), Some(Verdict::Good));
        assert_eq!(verdict_on("outside", &all), Some(Verdict::Doubtful));
        assert_eq!((verdict_on("peer", &all), verdict_on("run", &all), verdict_on("ticket", &all)), (None, None, None));
    }

    #[test]
    fn a_run_file_and_a_ticket_that_cannot_be_used_are_bad() {
        let home = tempfile::tempdir().expect("a folder");
        let (good, bad) = (home.path().join("good.toml"), home.path().join("bad.toml"));
        std::fs::write(&good, "name = \"a\"\n[model]\npreset = \"0.1m\"\n").expect("written");
        std::fs::write(&bad, "name = \"a\"\n[model]\npreset = \"7b\"\n").expect("written");
        let with = |path: &Path| found(home.path(), &["--run", &path.to_string_lossy(), "--join", "starling1x"]);
        assert_eq!(verdict_on("run", &with(&good)), Some(Verdict::Good));
        let worse = with(&bad);
        assert_eq!((verdict_on("run", &worse), verdict_on("ticket", &worse)), (Some(Bad), Some(Bad)));
        let run = worse.iter().find(|finding| finding.check == "run").expect("it is there");
        assert!(run.finding.contains("7b") && run.mend.is_some(), "{run:?}");
    }
}
