//! `NODE.toml`: settings of this machine. Every key can be given on the command line instead.

use crate::config::checkpoint_table::CheckpointTable;
use crate::exit::{Code, Failure};
use serde::{Deserialize, Serialize};
use starling_bootstrap::config_file;
use starling_bootstrap::untrusted::{self, NAME_CHARS_MAX};
use starling_protocol::run::SyncMode;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// More training threads than this would only wait for each other.
const THREADS_MAX: usize = 1024;
/// The same for threads of the network.
const NETWORK_THREADS_MAX: usize = 256;
/// Bytes of a GiB.
const GIB: f64 = (1u64 << 30) as f64;
/// GiB of the largest folder that a node file may allow: more than any disk.
const MAX_GIB_MAX: f64 = 1e6;

/// The whole file; all keys are optional.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NodeFile {
    /// Name of this node, which others see beside its id. Left out, this machine alone shows its own name there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Identity, records, snapshots and checkpoints of this node. Default: one folder a run in the user's data folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub home: Option<PathBuf>,
    /// Tokenized shards, shared by all nodes of this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache: Option<PathBuf>,
    /// Addresses to listen on.
    pub listen: Vec<String>,
    /// Addresses at which others can reach this node, where it cannot see them itself.
    pub advertise: Vec<String>,
    /// Well-known peers, or files that list them.
    pub bootstrap: Vec<String>,
    /// `auto`, `cpu`, `wgpu[:n]` or `cuda[:n]`.
    pub device: String,
    /// Threads for training on the CPU; 0 = all cores.
    pub threads: usize,
    /// Threads for the network, encryption and averaging; 0 = a quarter of the cores, from 2 to 16.
    pub network_threads: usize,
    /// Look for peers on the local network.
    pub mdns: bool,
    /// Relay for peers that cannot be reached directly.
    pub relay: bool,
    /// Address at which Prometheus metrics are served; empty = none. Port 0 takes a free one and logs it.
    pub metrics: String,
    /// Log filter, as `tracing` reads it.
    pub log: String,
    /// Rounds between two validations. Left out: 5, or 100 where every step is averaged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validate_every: Option<u64>,
    /// Sequences of held-out text a validation reads.
    pub validate_sequences: usize,
    /// Commits between two snapshots.
    pub snapshot_every: u64,
    pub inner: InnerTable,
    pub store: StoreTable,
    pub checkpoint: CheckpointTable,
    pub trainer: TrainerTable,
}

/// `[trainer]`: the trainer that this node's user brings, in runs with an external task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainerTable {
    /// Seconds that it may take for a step, a validation, or to save its state.
    pub patience_s: u32,
}

impl Default for TrainerTable {
    fn default() -> Self {
        Self { patience_s: 600 }
    }
}

impl TrainerTable {
    /// At least a second: with none no trainer would be in time.
    pub fn patience(&self) -> Duration {
        Duration::from_secs(self.patience_s.max(1).into())
    }
}

/// `[inner]`: this node's own training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct InnerTable {
    /// Leave the flock and end when the training loss diverges.
    pub halt_on_divergence: bool,
}

impl Default for InnerTable {
    fn default() -> Self {
        Self { halt_on_divergence: true }
    }
}

/// `[store]`: the node's folder.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StoreTable {
    /// GiB that the folder may take; 0 = as much as the disk has.
    pub max_gib: f64,
}

impl StoreTable {
    /// Bytes that the folder may take; 0 = no bound.
    pub fn max_bytes(&self) -> u64 {
        if self.max_gib > 0.0 { ((self.max_gib * GIB) as u64).max(1) } else { 0 }
    }

    /// The setting that allows so many bytes, in tenths of a GiB.
    pub fn gib_for(bytes: u64) -> f64 {
        (bytes as f64 / GIB * 10.0).ceil() / 10.0
    }
}

impl Default for NodeFile {
    fn default() -> Self {
        Self {
            name: None,
            home: None,
            cache: None,
            listen: vec!["/ip4/0.0.0.0/tcp/0".into(), "/ip4/0.0.0.0/udp/0/quic-v1".into()],
            advertise: Vec::new(),
            bootstrap: Vec::new(),
            device: "auto".into(),
            threads: 0,
            network_threads: 0,
            mdns: true,
            relay: false,
            metrics: "127.0.0.1:0".into(),
            log: "info".into(),
            validate_every: None,
            validate_sequences: 64,
            snapshot_every: 16,
            inner: InnerTable::default(),
            store: StoreTable::default(),
            checkpoint: CheckpointTable::default(),
            trainer: TrainerTable::default(),
        }
    }
}

impl NodeFile {
    /// Reads a node file.
    pub fn load(path: &Path) -> Result<Self, Failure> {
        let file: Self = config_file::load(path).map_err(|e| Failure::new(Code::Usage, e))?;
        if file.network_threads > NETWORK_THREADS_MAX {
            let why = format!(
                "{}: network_threads is {}, at most {NETWORK_THREADS_MAX} make sense; 0 chooses by the machine's cores",
                path.display(),
                file.network_threads
            );
            return Err(Failure::message(Code::Usage, why));
        }
        let max_gib = file.store.max_gib;
        if !(0.0..=MAX_GIB_MAX).contains(&max_gib) {
            let why = format!(
                "{}: store.max_gib is {max_gib}: give the GiB that this node's folder may take, such as 20 or 0.5; 0 sets \
                 no bound",
                path.display()
            );
            return Err(Failure::message(Code::Usage, why));
        }
        if let Some(name) = file.name.as_ref().filter(|name| untrusted::name(name).as_ref() != Some(*name)) {
            let why = format!(
                "{}: name is {name:?}: give 1 to {NAME_CHARS_MAX} letters and digits of ASCII, with spaces, `-`, `_` or `.` \
                 between them, such as \"gpu-box\"",
                path.display()
            );
            return Err(Failure::message(Code::Usage, why));
        }
        if let Err(why) = file.checkpoint.every() {
            return Err(Failure::message(Code::Usage, format!("{}: {why}", path.display())));
        }
        Ok(file)
    }

    /// The same settings, with the well-known peers and the cache of `before` where these name none: a node that lost its
    /// peers would found a flock of its own.
    pub fn completed_from(mut self, before: &Self) -> Self {
        if self.bootstrap.is_empty() {
            self.bootstrap.clone_from(&before.bootstrap);
        }
        self.cache = self.cache.or_else(|| before.cache.clone());
        self
    }

    /// The name that this machine shows beside the node's id: the one that the user gave, or the machine's own. Others
    /// are told only the former.
    pub fn shown_name(&self) -> Option<String> {
        self.name.clone().or_else(|| untrusted::name(&sysinfo::System::host_name()?))
    }

    /// Refuses values that no machine can have, given in a file or by flags.
    pub fn check(&self) -> Result<(), Failure> {
        if self.threads > THREADS_MAX {
            let why = format!(
                "threads is {} (--threads, or the node file): at most {THREADS_MAX} make sense; 0 takes all cores",
                self.threads
            );
            return Err(Failure::message(Code::Usage, why));
        }
        Ok(())
    }

    /// Threads for training on the CPU.
    pub fn training_threads(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        if self.threads > 0 { self.threads } else { cores() }
    }

    /// Threads that the network and averaging share.
    pub fn network_threads(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        if self.network_threads > 0 { self.network_threads } else { (cores() / 4).clamp(2, 16) }
    }

    /// The folder of this node for the run of that name.
    pub fn home_for(&self, run: &str) -> PathBuf {
        self.home.clone().unwrap_or_else(|| runs_folder().join(run))
    }

    /// Rounds between two validations of a run in this mode.
    pub fn validate_every(&self, mode: SyncMode) -> u64 {
        self.validate_every.unwrap_or(match mode {
            SyncMode::Rounds => 5,
            SyncMode::EveryStep => 100,
        })
    }

    /// The folder of tokenized shards.
    pub fn cache_folder(&self) -> PathBuf {
        self.cache.clone().unwrap_or_else(|| cache_folder().join("starling").join("data"))
    }
}

/// The folder that holds the nodes' folders by default, one a run.
pub fn runs_folder() -> PathBuf {
    data_folder().join("starling")
}

/// `$XDG_DATA_HOME`, or its default below the home folder.
fn data_folder() -> PathBuf {
    folder_from("XDG_DATA_HOME", ".local/share")
}

/// `$XDG_CACHE_HOME`, or its default below the home folder.
fn cache_folder() -> PathBuf {
    folder_from("XDG_CACHE_HOME", ".cache")
}

fn folder_from(variable: &str, below_home: &str) -> PathBuf {
    match std::env::var_os(variable).filter(|v| !v.is_empty()) {
        Some(folder) => PathBuf::from(folder),
        None => std::env::var_os("HOME").map(PathBuf::from).unwrap_or_else(|| ".".into()).join(below_home),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::checkpoint_table::Every;

    fn load(text: &str) -> Result<NodeFile, String> {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("node.toml");
        std::fs::write(&path, text).expect("written");
        NodeFile::load(&path).map_err(|failure| {
            assert_eq!(failure.code, Code::Usage);
            failure.error.to_string().replace(&format!("{}: ", path.display()), "")
        })
    }

    #[test]
    fn a_name_is_short_and_of_harmless_letters() {
        assert_eq!(load("name = \"gpu box-2\"").expect("it is sound").shown_name(), Some("gpu box-2".into()));
        assert_eq!(load("").expect("it is sound").name, None);
        let long = "x".repeat(NAME_CHARS_MAX + 1);
        for wrong in ["", " a", "a\\u001b[31m", "k\u{fc}che", &long] {
            let said = load(&format!("name = \"{wrong}\"")).expect_err("no name");
            assert!(said.starts_with("name is ") && said.contains("gpu-box"), "{said}");
        }
    }

    #[test]
    fn the_bound_of_the_folder_is_in_gib_and_there_is_none_by_default() {
        let bytes = |text: &str| load(text).expect("it is sound").store.max_bytes();
        assert_eq!((bytes(""), bytes("[store]\nmax_gib = 0")), (0, 0));
        assert_eq!(bytes("[store]\nmax_gib = 20"), 20 << 30);
        assert_eq!(bytes("[store]\nmax_gib = 0.5"), 1 << 29);
        assert_eq!(bytes("store.max_gib = 1e-12"), 1, "a bound, and not none");
        for wrong in ["-1", "nan", "inf", "2e6"] {
            let said = load(&format!("[store]\nmax_gib = {wrong}")).expect_err("no bound");
            assert!(said.starts_with("store.max_gib is ") && said.contains("0 sets no bound"), "{said}");
        }
        assert_eq!((StoreTable::gib_for(1), StoreTable::gib_for(3 << 29)), (0.1, 1.5));
        assert!(load("").is_ok_and(|file| file.inner.halt_on_divergence), "it is the default");
        assert!(load("[inner]\nhalt_on_divergence = false").is_ok_and(|file| !file.inner.halt_on_divergence));
        let shown = toml::to_string(&NodeFile::default()).expect("it can be shown");
        assert!(shown.contains("[store]\nmax_gib = 0.0"), "{shown}");
    }

    #[test]
    fn checkpoints_are_set_in_a_table_of_their_own() {
        let file = load("[checkpoint]\nevery = \"2 h\"\nkeep = 5").expect("it is sound");
        let two_hours = Every::Time(std::time::Duration::from_secs(7200));
        assert_eq!((file.checkpoint.every(), file.checkpoint.keep), (Ok(two_hours), 5));
        let said = load("[checkpoint]\nevery = \"often\"").expect_err("no time");
        assert!(said.starts_with("checkpoint.every is \"often\""), "{said}");
        let said = load("[checkpoint]\nevery = [1]").expect_err("neither");
        assert!(said.contains("checkpoint.every") && said.contains("30 min") && said.contains("line 2"), "{said}");
    }
}
