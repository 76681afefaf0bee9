//! The processes: bootstrap peers and nodes, each on its machine.

use super::diary::{Diary, Entry, What};
use super::limits;
use super::metrics;
use super::shim::Shim;
use crate::network::{Machine, Network};
use crate::scenario::{STRANGER, Scenario, Topology};
use crate::stranger::PEERS;
use anyhow::{Context, ensure};
use rustix::process::Signal;
use starling_tests::process::{Process, run, seconds_since_epoch};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The time in which a bootstrap peer must print its address, and a ticket must be written.
const START: Duration = Duration::from_secs(60);
/// The port of every node and bootstrap peer with an address of its own.
const PORT: u16 = 7400;
/// The port of a second process on the same machine.
const SECOND_PORT: u16 = 7500;

/// Flags of nodes, unless the scenario has others.
const USUAL: [(&str, &str); 3] = [("--device", "cpu"), ("--threads", "1"), ("--log", "info")];

/// One machine's processes.
#[derive(Default)]
pub struct Actor {
    pub process: Option<Process>,
    /// A second process with the same key.
    pub double: Option<Process>,
    /// Whether the lab has ended it, or asked it to end.
    pub asked: bool,
    pub starts: usize,
    /// Number of events of the running process that the lab has read.
    pub read: usize,
    /// The ticket of a node that joins with nothing else.
    pub ticket: Option<String>,
}

/// The end of a process that the lab had not asked to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unasked {
    /// It ended with status 0.
    Finished,
    Failed,
}

/// All processes, and the settings that they start with.
pub struct Cast {
    pub actors: Vec<Actor>,
    pub folder: PathBuf,
    bin_dir: PathBuf,
    run_file: PathBuf,
    topology: Topology,
    machines: Vec<Machine>,
    arguments: Vec<String>,
    bootstraps: Vec<String>,
    /// Whether the scenario reads the nodes' counters.
    counted: bool,
    /// The library for faults of disks and clocks, if a fault needs it.
    pub shim: Option<Shim>,
}

impl Cast {
    /// Prepares the run file and the folder; starts no process.
    ///
    /// # Errors
    /// If the run file cannot be written, or the library for faults of disks cannot be made.
    pub fn new(scenario: &Scenario, network: Option<&Network>, bin_dir: &Path, folder: &Path) -> anyhow::Result<Self> {
        let run_file = folder.join("run.toml");
        let text = super::run_file::text(scenario, folder)?;
        std::fs::write(&run_file, text).with_context(|| format!("cannot write {}", run_file.display()))?;
        for seat in scenario.topology.seats.iter().filter(|seat| super::keys::is_named(scenario, &seat.name)) {
            super::keys::hand_out(scenario, &seat.name, &super::disks::of(folder, &seat.name).join("home"))?;
        }
        let mut arguments = Vec::new();
        if let Some(ms) = scenario.null_trainer_ms {
            arguments.extend(["--null-trainer".into(), ms.to_string()]);
        }
        arguments.extend(scenario.arguments.iter().cloned());
        Ok(Self {
            actors: scenario.topology.seats.iter().map(|_| Actor::default()).collect(),
            folder: folder.into(),
            bin_dir: bin_dir.into(),
            run_file,
            topology: scenario.topology.clone(),
            machines: network.map_or(Vec::new(), |network| network.machines.clone()),
            arguments,
            bootstraps: Vec::new(),
            counted: !scenario.expect.counted.is_empty(),
            shim: if scenario.needs_shim() { Some(Shim::build(folder.join("shim"))?) } else { None },
        })
    }

    pub fn name(&self, machine: usize) -> &str {
        &self.topology.seats[machine].name
    }

    /// The folder of the node's disk, which no other node uses.
    pub fn disk(&self, name: &str) -> PathBuf {
        super::disks::of(&self.folder, name)
    }

    /// The node's own folder.
    pub fn home(&self, machine: usize) -> PathBuf {
        self.disk(self.name(machine)).join("home")
    }

    fn logs(&self) -> PathBuf {
        self.folder.join("logs")
    }

    /// Starts the bootstrap peers, and keeps their addresses for the nodes.
    ///
    /// # Errors
    /// If one does not start, or does not print its address.
    pub fn start_bootstraps(&mut self, diary: &mut Diary) -> anyhow::Result<()> {
        for machine in self.topology.nodes..self.topology.seats.len() {
            self.start_bootstrap(machine, diary)?;
            let process = self.actors[machine].process.as_mut().context("it was started")?;
            let own = self.machines.get(machine).map_or("127.0.0.1".into(), |m| m.address.to_string());
            let said = process.wait(START, "listening", |e| e["address"].as_str().is_some_and(|a| a.contains(&own)))?;
            self.bootstraps.push(said["address"].as_str().context("it says its address")?.to_owned());
        }
        Ok(())
    }

    fn start_bootstrap(&mut self, machine: usize, diary: &mut Diary) -> anyhow::Result<()> {
        let name = self.name(machine).to_owned();
        let mut command = Command::new(self.bin_dir.join("starling-bootstrap"));
        command.args(["--json", "--no-mdns", "--listen", &self.listen(machine, PORT, false)[0], "--key"]);
        command.arg(self.folder.join(format!("{name}.key")));
        self.start(machine, &name, command, diary)
    }

    /// Starts a node, or a bootstrap peer again.
    ///
    /// # Errors
    /// If the program cannot be started.
    pub fn start_node(&mut self, machine: usize, found: bool, diary: &mut Diary) -> anyhow::Result<()> {
        let seat = self.topology.seats[machine].clone();
        if seat.bootstrap {
            return self.start_bootstrap(machine, diary);
        }
        let mut command = self.node_command(machine, &self.home(machine), PORT);
        if found {
            command.arg("--init");
        }
        let disk = self.disk(&seat.name);
        if let Some(shim) = &mut self.shim {
            shim.hold(&mut command, &seat.name, &disk)?;
        }
        limits::hold(&seat.limits, &mut command);
        self.start(machine, &seat.name, command, diary)
    }

    /// Starts a second process with the same key, from a copy of the node's folder.
    ///
    /// # Errors
    /// If the program cannot be started.
    pub fn start_double(&mut self, machine: usize, home: &Path, diary: &mut Diary) -> anyhow::Result<()> {
        let name = format!("{}-double", self.name(machine));
        let mut command = self.node_command(machine, home, SECOND_PORT);
        if let Some(machine) = self.machines.get(machine) {
            machine.hold(&mut command);
        }
        self.actors[machine].double = Some(Process::spawn(&name, command, &self.logs())?);
        diary.note(What::Started, Some(&name), None, "started");
        Ok(())
    }

    /// Sends SIGKILL to the second process with the same key, if it still runs.
    pub fn end_double(&mut self, machine: usize, diary: &mut Diary) {
        self.bury(machine, diary);
        let Some(mut double) = self.actors[machine].double.take() else { return };
        double.kill();
        let (code, text) = (Some(128 + Signal::KILL.as_raw()), "as asked".to_owned());
        let node = Some(double.name.clone());
        diary.write(Entry { seen: seconds_since_epoch(), what: What::Ended, node, fault: None, text, code });
    }

    fn node_command(&self, machine: usize, home: &Path, port: u16) -> Command {
        let seat = &self.topology.seats[machine];
        let mut command = Command::new(self.bin_dir.join(seat.program()));
        if let Some(bug) = &seat.mutation {
            command.args(["--mutation", bug]);
        }
        if seat.program.as_deref() == Some(STRANGER) {
            command.args(&seat.arguments).env(PEERS, self.others());
            return command;
        }
        let metrics = if self.counted { "127.0.0.1:0" } else { "off" };
        command.args(["train", "--json", "--metrics", metrics, "--home"]).arg(home);
        if self.machines.is_empty() || seat.port.nat.is_some() {
            command.arg("--no-mdns");
        }
        for listen in self.listen(machine, port, true) {
            command.args(["--listen", &listen]);
        }
        match &self.actors[machine].ticket {
            Some(ticket) => {
                command.args(["--join", ticket, "--cache"]).arg(self.disk(&seat.name).join("cache"));
            }
            None => {
                command.arg("--run").arg(&self.run_file).arg("--cache").arg(self.folder.join("cache"));
                for bootstrap in &self.bootstraps {
                    command.args(["--bootstrap", bootstrap]);
                }
            }
        }
        let own = || self.arguments.iter().chain(&seat.arguments);
        command.args(own().map(|argument| self.placed(argument)));
        for (flag, value) in USUAL.iter().filter(|(flag, _)| !own().any(|own| own == flag)) {
            command.args([flag, value]);
        }
        command
    }

    /// Replaces `@NAME` in an argument by the addresses of the nodes of that name.
    fn placed(&self, argument: &str) -> String {
        let Some(name) = argument.strip_prefix('@') else { return argument.to_owned() };
        let called = self.topology.seats.iter().filter(|seat| seat.is_called(name));
        called.map(|seat| seat.port.address.to_string()).collect::<Vec<_>>().join(",")
    }

    /// The addresses of all machines that run `starling` or `starling-bootstrap`, for strangers.
    fn others(&self) -> String {
        let seats = self.topology.seats.iter().filter(|s| s.program.is_none());
        seats.map(|s| format!("{}:{PORT}", s.port.address)).collect::<Vec<_>>().join(",")
    }

    /// Writes the metrics of each node into a file beside its log; a node that does not answer has no file.
    pub fn keep_metrics(&self) {
        for (n, actor) in self.actors.iter().enumerate() {
            let Some(process) = &actor.process else { continue };
            let started = process.events().into_iter().rev().find(|e| e["event"] == "started");
            let Some(url) = started.and_then(|e| e["metrics"].as_str().map(String::from)) else { continue };
            let text = match self.machines.get(n) {
                Some(machine) => machine.on(move || metrics::fetch(&url)),
                None => Ok(metrics::fetch(&url)),
            };
            if let Ok(Ok(text)) = text {
                // If this fails, the check that reads the file reports that it is missing.
                let _ = std::fs::write(self.logs().join(format!("{}.metrics", self.name(n))), text);
            }
        }
    }

    fn listen(&self, machine: usize, port: u16, quic: bool) -> Vec<String> {
        let Some(machine) = self.machines.get(machine) else { return vec!["/ip4/127.0.0.1/tcp/0".into()] };
        let tcp = format!("/ip4/{}/tcp/{port}", machine.address);
        let udp = format!("/ip4/{}/udp/{port}/quic-v1", machine.address);
        if quic { vec![tcp, udp] } else { vec![tcp] }
    }

    fn start(&mut self, machine: usize, name: &str, mut command: Command, diary: &mut Diary) -> anyhow::Result<()> {
        if let Some(machine) = self.machines.get(machine) {
            machine.hold(&mut command);
        }
        // The previous process may have ended since the last look.
        self.bury(machine, diary);
        let process = Process::spawn(name, command, &self.logs())?;
        let actor = &mut self.actors[machine];
        (actor.process, actor.asked, actor.read) = (Some(process), false, 0);
        actor.starts += 1;
        diary.note(What::Started, Some(name), None, if actor.starts == 1 { "started" } else { "started again" });
        Ok(())
    }

    /// Whether the machine's process runs.
    pub fn runs(&mut self, machine: usize) -> bool {
        self.actors[machine].process.as_mut().is_some_and(|p| !p.has_exited())
    }

    /// Sends SIGKILL.
    pub fn kill(&mut self, machine: usize, diary: &mut Diary) {
        self.actors[machine].asked = true;
        if let Some(process) = &mut self.actors[machine].process {
            process.kill();
        }
        self.bury(machine, diary);
    }

    /// Sends a signal to the machine's processes.
    pub fn signal(&self, machine: usize, signal: Signal) {
        let actor = &self.actors[machine];
        for process in actor.process.iter().chain(&actor.double) {
            process.signal(signal);
        }
    }

    /// Asks the process to end.
    pub fn terminate(&mut self, machine: usize) {
        let actor = &mut self.actors[machine];
        actor.asked = true;
        if let Some(process) = &actor.process {
            process.terminate();
        }
    }

    /// Notes processes that have ended; returns those that the lab had not asked to, by name, and their ends.
    pub fn bury(&mut self, machine: usize, diary: &mut Diary) -> Vec<(String, Unasked)> {
        let mut unasked = Vec::new();
        let actor = &mut self.actors[machine];
        for process in [&mut actor.process, &mut actor.double] {
            let Some(ended) = process.as_mut().and_then(Process::status) else { continue };
            let code = ended.code().or(ended.signal().map(|s| 128 + s));
            let name = process.take().map(|p| p.name.clone());
            if let Some(name) = name.clone().filter(|_| !actor.asked) {
                unasked.push((name, if ended.success() { Unasked::Finished } else { Unasked::Failed }));
            }
            let text = if actor.asked { "as asked" } else { "by itself" };
            diary.write(Entry {
                seen: seconds_since_epoch(),
                what: What::Ended,
                node: name,
                fault: None,
                text: text.into(),
                code,
            });
        }
        unasked
    }

    /// A ticket from a running node.
    ///
    /// # Errors
    /// If no node runs, or none gives a ticket.
    pub fn invite(&mut self) -> anyhow::Result<String> {
        let giver = (0..self.topology.nodes).find(|n| self.runs(*n)).context("no node runs that could invite")?;
        let home = self.home(giver).to_string_lossy().into_owned();
        let finished = run(&self.bin_dir.join("starling"), &["invite", "--home", &home], START)?;
        ensure!(finished.code == Some(0), "`starling invite` failed: {}", finished.stderr.trim());
        Ok(finished.stdout.trim().to_owned())
    }

    /// Runs `starling audit` on a node that does not run; returns whether its history is in order, and the output.
    ///
    /// # Errors
    /// If the program does not end.
    pub fn audit(&self, machine: usize) -> anyhow::Result<(bool, String)> {
        let home = self.home(machine).to_string_lossy().into_owned();
        // A node that came with a ticket has a text cache of its own.
        let own = self.disk(self.name(machine)).join("cache");
        let cache = if own.exists() { own } else { self.folder.join("cache") }.to_string_lossy().into_owned();
        let arguments = ["audit", "--home", &home, "--cache", &cache];
        let finished = run(&self.bin_dir.join("starling"), &arguments, START)?;
        Ok((finished.code == Some(0), format!("{}{}", finished.stdout, finished.stderr)))
    }

    /// Number of machines, bootstrap peers included.
    pub fn machines(&self) -> usize {
        self.topology.seats.len()
    }
}
