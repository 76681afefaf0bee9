//! This machine: device, memory, disk, clock, descriptors, and the ports that a node listens on.

use super::finding::Finding;
use super::finding::Verdict::{Bad, Doubtful};
use crate::config::node_file::NodeFile;
use crate::runtime::{Machine, MemoryNeed, Trains, disk_room, is_of_another, open_smallest};
use crate::watch::screen::bytes as human_bytes;
use libp2p::Multiaddr;
use rustix::fs::{Access, access};
use rustix::process::{Resource, getrlimit};
use starling_bootstrap::crowd::{ARRIVING_MAX, CONNECTIONS_MAX};
use starling_bootstrap::swarm::can_listen;
use starling_kernels::{DeviceChoice, DeviceInfo};
use starling_protocol::run::RunSpec;
use starling_store::folder_and_free;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, SystemTime};

/// The time in which a device has to open. The first time its kernels are compiled, in 10 s on an H100 and a fast
/// processor.
const DEVICE_BOUND: Duration = Duration::from_secs(90);
/// Less memory or disk is too little for the smallest model, or close to it.
const MEMORY_LEAST: u64 = 512 << 20;
const DISK_LEAST: [u64; 2] = [64 << 20, 1 << 30];
/// Descriptors of a node's database, text and logs, and those with which it works at all.
const FILES_OWN: u64 = 96;
const FILES_LEAST: u64 = 64;
/// Clocks of file servers differ by that much.
const CLOCK_SLACK: Duration = Duration::from_secs(120);
/// Entries of the node's folder that are looked at for the newest.
const ENTRIES_MAX: usize = 10_000;

/// A device that is being opened while other points are looked at.
pub struct Opening(DeviceChoice, Receiver<Result<Opened, String>>);

/// A device that was opened.
struct Opened {
    device: DeviceInfo,
    told: Vec<String>,
}

impl Opening {
    /// Opens what the choice means, with the smallest model.
    pub fn start(choice: DeviceChoice, threads: usize) -> Self {
        let (tell, told) = sync_channel(1);
        std::thread::spawn(move || {
            let trainer = open_smallest(&choice, threads).map_err(|e| e.to_string());
            let opened = trainer.map(|t| Opened { device: t.device().clone(), told: t.told().to_vec() });
            // Nobody listens any more once the bound has passed.
            let _ = tell.send(opened);
        });
        Self(choice, told)
    }

    /// Waits for the device. Returns the finding, and where the device trains.
    pub fn end(self) -> (Finding, Trains) {
        let Self(choice, told) = self;
        let finding = match told.recv_timeout(DEVICE_BOUND) {
            Ok(Ok(opened)) => return (opened.finding(), Trains::on(&opened.device)),
            // These messages say what to do in their last sentence.
            Ok(Err(why)) => match why.rsplit_once(". ").or_else(|| why.split_once("; ")) {
                Some((what, mend)) => Finding::new("device", Bad, what, mend),
                None => Finding::told("device", Bad, &why),
            },
            Err(RecvTimeoutError::Timeout) => {
                let what = format!(
                    "{choice} has not opened within {} s; the first time its kernels are compiled",
                    DEVICE_BOUND.as_secs()
                );
                let mend = "run this again with the node's --home, which keeps what is compiled; else wait for other \
                            programs on it, or give --device cpu";
                Finding::new("device", Doubtful, what, mend)
            }
            Err(RecvTimeoutError::Disconnected) => {
                let what = format!("the driver of {choice} fails");
                Finding::new("device", Bad, what, "update it, or give --device cpu")
            }
        };
        (finding, Trains::by_name(&choice))
    }
}

impl Opened {
    /// A device in the place of a better one is doubtful.
    fn finding(&self) -> Finding {
        let Self { device, told } = self;
        let words = [format!("{device}; {}", device.why)].into_iter().chain(told.iter().cloned());
        let what = words.collect::<Vec<_>>().join("; ");
        if told.iter().any(|said| is_of_another(said, device)) {
            let mend = "mend what the better device lacks, or give --device with the name of this one";
            return Finding::new("device", Doubtful, what, mend);
        }
        Finding::good("device", what)
    }
}

/// Memory for a node of the run, if one is known. A running node has taken its own.
pub fn memory(spec: Option<&RunSpec>, threads: usize, trains: Trains, is_running: bool) -> Finding {
    let Some(machine) = Machine::here() else {
        return Finding::new("memory", Doubtful, "the system does not tell how much there is", "look it up");
    };
    let there = format!("{} available of {}", human_bytes(machine.available), human_bytes(machine.total));
    let Some(spec) = spec else {
        if machine.available < MEMORY_LEAST && !is_running {
            let mend = "stop other programs; `--run RUN.toml` says whether it is enough for that run";
            return Finding::new("memory", Doubtful, there, mend);
        }
        return Finding::good("memory", there);
    };
    let need = MemoryNeed::of_run(spec, threads, trains);
    let available = if is_running { machine.total } else { machine.available };
    match need.judge(Machine { available, ..machine }) {
        Ok(None) => Finding::good("memory", format!("a node takes {}; {there}", human_bytes(need.total()))),
        Ok(Some(warning)) => Finding::told("memory", Doubtful, &warning),
        Err(failure) => Finding::told("memory", Bad, &failure.error.to_string()),
    }
}

/// Disk for the node's folder.
pub fn disk(spec: Option<&RunSpec>, node: &NodeFile, home: &Path) -> Finding {
    let existing = home.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("."));
    if access(existing, Access::WRITE_OK).is_err() {
        let what = format!("this user cannot write in {}", existing.display());
        return Finding::new("disk", Bad, what, "name a folder of your own with --home");
    }
    let free = match folder_and_free(home) {
        Ok((_, free)) => free,
        Err(error) => return Finding::new("disk", Bad, error.to_string(), "name a folder on another disk with --home"),
    };
    let there = format!("{} free for {}", human_bytes(free), home.display());
    let Some(spec) = spec else {
        let [bad, doubtful] = DISK_LEAST.map(|least| free < least);
        let verdict = if bad { Bad } else { Doubtful };
        return match bad || doubtful {
            true => Finding::new("disk", verdict, there, "free some space, or name a larger disk with --home"),
            false => Finding::good("disk", there),
        };
    };
    match disk_room(spec, node, home, true) {
        Ok((most, None)) => Finding::good("disk", format!("a node takes up to {}; {there}", human_bytes(most))),
        Ok((_, Some(warning))) => Finding::told("disk", Doubtful, &warning),
        Err(failure) => Finding::told("disk", Bad, &failure.error.to_string()),
    }
}

/// The wall clock, as far as files tell: none can be from the future.
pub fn clock(home: &Path) -> Finding {
    let program = std::env::current_exe().ok().and_then(|path| Some((changed(&path)?, path)));
    let newest = program.into_iter().chain(newest(home)).max();
    clock_after(SystemTime::now(), newest)
}

fn clock_after(now: SystemTime, newest: Option<(SystemTime, PathBuf)>) -> Finding {
    let Some((changed, path)) = newest.filter(|(changed, _)| *changed > now + CLOCK_SLACK) else {
        return Finding::good("clock", "not before this program or the node's files");
    };
    let behind = changed.duration_since(now).unwrap_or_default().as_secs();
    let what = format!("the clock is {behind} s before the last change of {}", path.display());
    Finding::new("clock", Bad, what, "set the clock: `timedatectl set-ntp true` keeps it right")
}

fn changed(path: &Path) -> Option<SystemTime> {
    path.metadata().and_then(|metadata| metadata.modified()).ok()
}

/// The newest file of the node's folder, and when it was changed.
fn newest(home: &Path) -> Option<(SystemTime, PathBuf)> {
    let (mut open, mut newest, mut entries) = (vec![home.to_path_buf()], None, 0);
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            entries += 1;
            if entries > ENTRIES_MAX {
                return newest;
            }
            match entry.metadata() {
                Ok(found) if found.is_dir() => open.push(entry.path()),
                Ok(found) => newest = newest.max(found.modified().ok().map(|changed| (changed, entry.path()))),
                Err(_) => {}
            }
        }
    }
    newest
}

/// The limit on open files.
pub fn descriptors() -> Finding {
    of_limit(getrlimit(Resource::Nofile).current)
}

fn of_limit(limit: Option<u64>) -> Finding {
    let Some(limit) = limit else { return Finding::good("descriptors", "no limit") };
    // Each connection is one, and so is each that arrives.
    let enough = FILES_OWN + (CONNECTIONS_MAX + ARRIVING_MAX) as u64;
    let what = format!("{limit} files at most; a node with all its connections has {enough}");
    let mend = format!("`ulimit -n {}` before the start", enough.next_power_of_two());
    match limit {
        _ if limit < FILES_LEAST => Finding::new("descriptors", Bad, what, mend),
        _ if limit < enough => Finding::new("descriptors", Doubtful, what, mend),
        _ => Finding::good("descriptors", what),
    }
}

/// A port that the node of this machine has.
fn held(what: impl std::fmt::Display) -> Finding {
    Finding::good("port", format!("{what}: the node that is running has it"))
}

/// The addresses that the node would listen on.
pub fn ports(listen: &[Multiaddr], is_running: bool) -> Vec<Finding> {
    let of_address = |address: &Multiaddr| match can_listen(address) {
        Ok(true) => Finding::good("port", format!("{address} is free")),
        Ok(false) => Finding::good("port", format!("{address} is a place on a relay")),
        Err(_) if is_running => held(address),
        Err(error) => Finding::told("port", Bad, &error.to_string()),
    };
    listen.iter().map(of_address).collect()
}

/// The port for metrics, if the node could not have it or has it.
pub fn metrics(metrics: &str, is_running: bool) -> Option<Finding> {
    // Port 0 is never in use; other values are names for none, or a start refuses them.
    let at = metrics.parse::<SocketAddr>().ok().filter(|at| at.port() != 0)?;
    let error = TcpListener::bind(at).err()?;
    if is_running {
        return Some(held(at));
    }
    let what = format!("metrics at {at}: {}", starling_words::of(&error));
    Some(Finding::new("port", Bad, what, "choose another --metrics, or `off`"))
}

#[cfg(test)]
#[path = "machine_test.rs"]
mod tests;
