//! `NODE.toml`: settings of this machine. Every key can be given on the command line instead.

use crate::exit::{Code, Failure};
use anyhow::Context;
use serde::{Deserialize, Serialize};
use starling_protocol::run::SyncMode;
use std::path::{Path, PathBuf};

/// More network threads than this would only wait for each other.
const NETWORK_THREADS_MAX: usize = 256;

/// The whole file; all keys are optional.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NodeFile {
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
}

impl Default for NodeFile {
    fn default() -> Self {
        Self {
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
        }
    }
}

impl NodeFile {
    /// Reads a node file.
    pub fn load(path: &Path) -> Result<Self, Failure> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the node file {}", path.display()))
            .map_err(|e| Failure::new(Code::Usage, e))?;
        let file: Self =
            starling_bootstrap::config_file::parse(&text, path).map_err(|e| Failure::new(Code::Usage, e))?;
        if file.network_threads > NETWORK_THREADS_MAX {
            let why = format!(
                "{}: network_threads is {}, at most {NETWORK_THREADS_MAX} make sense; 0 chooses by the machine's cores",
                path.display(),
                file.network_threads
            );
            return Err(Failure::message(Code::Usage, why));
        }
        Ok(file)
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
