//! Plays one system: its members train until the target, then the lab kills one member and watches the others.

use super::system::{PORT, Place, Said, System};
use crate::network::{Link, LinkChange, Network, Port};
use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Serialize;
use starling_tests::process::{Process, seconds_since_epoch};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Interval at which the lab reads the members' events.
const TICK: Duration = Duration::from_millis(20);
/// The time in which members must begin.
const START: Duration = Duration::from_secs(180);
/// Seconds for which the lab watches members that go on after a kill, so that the picture shows them.
const AFTER_RECOVERY: f64 = 10.0;
/// Packets that would wait longer for a machine's line are lost.
const QUEUE: Duration = Duration::from_millis(100);

/// The result of one system.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Outcome {
    pub system: String,
    pub title: String,
    pub version: String,
    pub parameters: u64,
    /// Seconds from the first member's first step, and nats per byte, by the first member.
    pub curve: Vec<(f64, f64)>,
    pub target_s: Option<f64>,
    /// Seconds from the first step to the kill.
    pub seconds: f64,
    /// Steps of the first member, to the kill.
    pub steps: u64,
    pub averagings: u64,
    /// Seconds of a step without averaging, while all members do such steps; for Starling the mean of its inner steps.
    pub plain_step_s: Option<f64>,
    /// Seconds that the first member trained, to the kill.
    pub training_s: Option<f64>,
    /// Bytes through each machine's device, to the kill.
    pub sent: Vec<u64>,
    pub received: Vec<u64>,
    pub killed_s: f64,
    /// Seconds from the kill to the next average without the killed member; null without one.
    pub next_s: Option<f64>,
    /// Members of that average.
    pub next_members: Option<u64>,
    /// Survivors that ended after the kill.
    pub ended: usize,
    /// Kinds of trouble, and how often each came; before the kill, and after it.
    pub troubles: BTreeMap<String, u64>,
    pub troubles_after: BTreeMap<String, u64>,
    /// The largest difference of a parameter from the mean in the first averagings of all members.
    pub from_mean: Option<super::agreement::Agreement>,
}

/// The processes of a system on their machines. They end before the network does.
struct Game<'a> {
    system: System,
    place: &'a Place<'a>,
    members: Vec<Process>,
    _bootstrap: Option<Process>,
    read: Vec<usize>,
    network: Network,
    outcome: Outcome,
    /// The time at which the first member began, by the clock of events.
    began: Option<f64>,
    tokens: u64,
    trained_s: f64,
    killed: Option<f64>,
}

/// Plays one system.
///
/// # Errors
/// If the network or a process cannot be made, or the members do not begin.
pub fn play(system: System, place: &Place<'_>, bin_dir: &Path, programs: &Path) -> anyhow::Result<Outcome> {
    std::fs::create_dir_all(place.folder.join("logs"))
        .with_context(|| format!("cannot make {}", place.folder.display()))?;
    let outcome = Outcome { system: system.name().into(), title: system.title().into(), ..Outcome::default() };
    let mut game = Game {
        system,
        place,
        members: Vec::new(),
        _bootstrap: None,
        read: vec![0; place.settings.nodes],
        network: network(place)?,
        outcome,
        began: None,
        tokens: 0,
        trained_s: 0.0,
        killed: None,
    };
    match system {
        System::Starling => game.start_starling(bin_dir)?,
        _ => game.start_rival(programs)?,
    }
    game.story()?;
    Ok(game.outcome)
}

/// Addresses of the members, and of a bootstrap peer.
pub fn hosts(nodes: usize) -> Vec<Ipv4Addr> {
    (0..=nodes).map(|n| Ipv4Addr::new(45, n as u8 + 1, 0, 1)).collect()
}

fn network(place: &Place<'_>) -> anyhow::Result<Network> {
    let rate = (place.settings.mbit * 1e6) as u64;
    let port = |(site, address): (usize, &Ipv4Addr)| {
        let rate = if site == place.settings.nodes { 0 } else { rate };
        Port { address: *address, site, up: rate, down: rate, queue: QUEUE, nat: None }
    };
    let ports: Vec<Port> = place.hosts.iter().enumerate().map(port).collect();
    let link = LinkChange { delay_ms: Some(place.settings.delay_ms), ..LinkChange::default() }.on(Link::default());
    Network::start(&ports, vec![link; ports.len() * ports.len()], place.settings.seed)
}

impl Game<'_> {
    fn start(&self, name: &str, machine: usize, mut command: Command) -> anyhow::Result<Process> {
        self.network.machines[machine].hold(&mut command);
        Process::spawn(name, command, &self.place.folder.join("logs"))
    }

    fn start_rival(&mut self, programs: &Path) -> anyhow::Result<()> {
        let mut first = None;
        for index in 0..self.place.settings.nodes {
            let command = self.system.command(self.place, programs, index, first.as_deref());
            let mut process = self.start(&format!("n-{}", index + 1), index, command)?;
            if index == 0 && self.system == System::Hivemind {
                let said = process.wait(START, "listening", |_| true)?;
                first = said["address"].as_str().map(String::from);
            }
            self.members.push(process);
        }
        Ok(())
    }

    fn start_starling(&mut self, bin_dir: &Path) -> anyhow::Result<()> {
        let (folder, settings, nodes) = (self.place.folder, self.place.settings, self.place.settings.nodes);
        let put = |name: &str, text: String| {
            std::fs::write(folder.join(name), text).with_context(|| format!("cannot write {name}"))
        };
        match &settings.text {
            Some(text) => link(text, &folder.join("text.txt"))?,
            None => put("text.txt", crate::stage::mixed_text())?,
        }
        put("run.toml", run_file(self.place))?;
        let every = settings.starling.validate_every;
        put("node.toml", format!("validate_every = {every}\nvalidate_sequences = {}\n", settings.validate_sequences))?;
        let mut command = Command::new(bin_dir.join("starling-bootstrap"));
        let own = self.place.hosts[nodes].to_string();
        command.args(["--json", "--no-mdns", "--listen", &format!("/ip4/{own}/tcp/{PORT}"), "--key"]);
        command.arg(folder.join("bootstrap.key"));
        let mut bootstrap = self.start("bootstrap", nodes, command)?;
        let said = bootstrap.wait(START, "listening", |e| e["address"].as_str().is_some_and(|a| a.contains(&own)))?;
        self._bootstrap = Some(bootstrap);
        let address = said["address"].as_str().context("it says its address")?.to_owned();
        for index in 0..nodes {
            let (host, name) = (self.place.hosts[index], format!("n-{}", index + 1));
            let mut command = Command::new(bin_dir.join("starling"));
            command.args(["train", "--json", "--metrics", "off", "--no-mdns", "--device", "cpu", "--log", "info"]);
            command.args(["--threads", &settings.threads.to_string(), "--bootstrap", &address]);
            command.args(["--listen", &format!("/ip4/{host}/tcp/{PORT}")]);
            command.args(["--listen", &format!("/ip4/{host}/udp/{PORT}/quic-v1")]);
            command.arg("--run").arg(folder.join("run.toml")).arg("--config").arg(folder.join("node.toml"));
            command.arg("--home").arg(folder.join("nodes").join(&name)).arg("--cache").arg(folder.join("cache"));
            if index == 0 {
                command.arg("--init");
            }
            let mut process = self.start(&name, index, command)?;
            if index == 0 {
                process.wait(START, "founded", |_| true)?;
            }
            self.members.push(process);
        }
        Ok(())
    }

    fn story(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + START;
        while self.began.is_none() {
            self.look();
            if let Some(gone) = (0..self.members.len()).find(|n| self.members[*n].has_exited()) {
                bail!("a member ended before its first step\n{}", self.members[gone].last_words());
            }
            ensure!(Instant::now() < deadline, "no member begins\n{}", self.members[0].last_words());
            std::thread::park_timeout(TICK);
        }
        let before = self.bytes();
        while self.outcome.target_s.is_none() && self.elapsed() < self.place.settings.limit_s {
            self.look();
            if let Some(gone) = (0..self.members.len()).find(|n| self.members[*n].has_exited()) {
                bail!("a member ended by itself\n{}", self.members[gone].last_words());
            }
            std::thread::park_timeout(TICK);
        }
        self.sum_up(&before);
        self.kill_one();
        while !self.is_over() {
            self.look();
            std::thread::park_timeout(TICK);
        }
        let survivors = self.members.len() - 1;
        self.outcome.ended = self.members[..survivors].iter_mut().filter_map(|m| m.has_exited().then_some(())).count();
        self.end();
        Ok(())
    }

    fn elapsed(&self) -> f64 {
        self.began.map_or(0.0, |began| seconds_since_epoch() - began)
    }

    fn bytes(&self) -> Vec<(u64, u64)> {
        let load = |n: &std::sync::atomic::AtomicU64| n.load(Ordering::Relaxed);
        let counts = self.network.counts.iter().take(self.place.settings.nodes);
        counts.map(|c| (load(&c.sent_bytes), load(&c.received_bytes))).collect()
    }

    /// Sums up the time to the kill.
    fn sum_up(&mut self, before: &[(u64, u64)]) {
        let seconds = self.elapsed();
        let now = self.bytes();
        let outcome = &mut self.outcome;
        outcome.seconds = seconds;
        outcome.sent = now.iter().zip(before).map(|(now, before)| now.0 - before.0).collect();
        outcome.received = now.iter().zip(before).map(|(now, before)| now.1 - before.1).collect();
        if self.system == System::Starling {
            let a_step = (self.place.settings.inner.batch * self.place.settings.model.seq_len) as u64;
            outcome.steps = self.tokens / a_step.max(1);
            outcome.training_s = Some(self.trained_s);
            outcome.plain_step_s = (outcome.steps > 0).then(|| self.trained_s / outcome.steps as f64);
        } else {
            outcome.training_s = outcome.plain_step_s.map(|s| s * outcome.steps as f64);
        }
    }

    fn kill_one(&mut self) {
        self.outcome.killed_s = self.elapsed();
        self.killed = Some(seconds_since_epoch());
        if let Some(last) = self.members.last_mut() {
            kill(self.system, last);
        }
    }

    /// Whether there is nothing more to watch after the kill.
    fn is_over(&mut self) -> bool {
        let since = self.elapsed() - self.outcome.killed_s;
        let survivors = self.members.len() - 1;
        let nobody = self.members[..survivors].iter_mut().all(Process::has_exited);
        let enough = self.outcome.next_s.is_some_and(|next| since >= next + AFTER_RECOVERY);
        nobody || enough || since >= self.place.settings.after_kill_s
    }

    fn end(&mut self) {
        let system = self.system;
        self.look();
        self.members.iter_mut().for_each(|member| kill(system, member));
    }

    /// Reads the members' new events.
    fn look(&mut self) {
        for index in 0..self.members.len() {
            let fresh = self.members[index].events_since(self.read[index]);
            self.read[index] += fresh.len();
            for event in &fresh {
                if let Some(parameters) = event["parameters"].as_u64() {
                    self.outcome.parameters = parameters;
                }
                if let (System::Starling, Some(version)) = (self.system, event["version"].as_str()) {
                    version.clone_into(&mut self.outcome.version);
                }
                let Some(seen) = event["seen"].as_f64() else { continue };
                if let Some(said) = self.system.said(event) {
                    self.heard(index, seen, said);
                }
            }
        }
    }

    fn heard(&mut self, index: usize, seen: f64, said: Said) {
        let (first, at) = (index == 0, self.began.map_or(0.0, |began| seen - began));
        match said {
            Said::Began { plain_seconds, version } => {
                self.began.get_or_insert(seen);
                if first {
                    self.outcome.plain_step_s = self.outcome.plain_step_s.or(plain_seconds);
                    version.into_iter().for_each(|version| self.outcome.version = version);
                }
            }
            Said::Validated(loss) if first => {
                self.outcome.curve.push((at, loss));
                if self.killed.is_none() && loss <= self.place.settings.target {
                    self.outcome.target_s.get_or_insert(at);
                }
            }
            Said::Trained { tokens, seconds } if first && self.killed.is_none() => {
                self.tokens += tokens;
                self.trained_s += seconds;
            }
            Said::Averaged { members, steps } => self.averaged(first, seen, members, steps),
            Said::Trouble(why) => {
                let troubles = match self.killed {
                    None => &mut self.outcome.troubles,
                    Some(_) => &mut self.outcome.troubles_after,
                };
                *troubles.entry(why).or_default() += 1;
            }
            Said::Validated(_) | Said::Trained { .. } => {}
        }
    }

    fn averaged(&mut self, first: bool, seen: f64, members: u64, steps: Option<u64>) {
        if first && self.killed.is_none() {
            self.outcome.averagings += 1;
            self.outcome.steps = steps.unwrap_or(self.outcome.steps);
        }
        let without_one = (2..self.members.len() as u64).contains(&members);
        if let (Some(killed), None) = (self.killed.filter(|killed| seen > *killed), self.outcome.next_s)
            && without_one
        {
            (self.outcome.next_s, self.outcome.next_members) = (Some(seen - killed), Some(members));
        }
    }
}

/// Sends SIGKILL, also to the daemons that the member has started.
fn kill(system: System, member: &mut Process) {
    if system == System::Hivemind
        && !member.has_exited()
        && let Some(group) = Pid::from_raw(member.id() as i32)
    {
        // hivemind's program leads a group of its own; there is no group if the program did not get that far.
        let _ = kill_process_group(group, Signal::KILL);
    }
    member.kill();
}

/// Gives a user's text the name by which the run file has it.
fn link(text: &Path, name: &Path) -> anyhow::Result<()> {
    let text = text.canonicalize().with_context(|| format!("cannot read {}, the text of --text", text.display()))?;
    std::os::unix::fs::symlink(&text, name).with_context(|| format!("cannot write {}", name.display()))
}

/// The run file of Starling's nodes.
fn run_file(place: &Place<'_>) -> String {
    let (model, inner, own) = (&place.settings.model, &place.settings.inner, &place.settings.starling);
    format!(
        "name = \"compare\"\nseed = {}\n[model]\npreset = \"0.1m\"\nd_model = {}\nlayers = {}\nheads = {}\nkv_heads = {}\nffn = {}\n\
         seq_len = {}\n[data]\nsources = [\"text.txt\"]\nholdout = 0.05\n[inner]\noptimizer = \"adamw\"\nsteps = {}\nbatch = {}\n\
         lr = {:?}\nwarmup_steps = {}\nbeta1 = {:?}\nbeta2 = {:?}\neps = {:?}\nweight_decay = {:?}\nclip = {:?}\n[outer]\nlr = {:?}\n\
         momentum = {:?}\n[admission]\nprobation = 0\n[sync]\ncodec = {:?}\nengine = {:?}\n",
        place.settings.seed,
        model.d_model,
        model.layers,
        model.heads,
        model.kv_heads,
        model.ffn,
        model.seq_len,
        own.steps,
        inner.batch,
        inner.lr,
        inner.warmup_steps,
        inner.beta1,
        inner.beta2,
        inner.eps,
        inner.weight_decay,
        inner.clip,
        own.outer_lr,
        own.outer_momentum,
        own.codec,
        own.engine,
    )
}
