//! A bootstrap peer and some nodes on loopback.

use crate::process::{Process, run};
use crate::skips::skipped;
use anyhow::Context;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The time in which a process must report that it listens.
const START_LIMIT: Duration = Duration::from_secs(60);

/// The folders and common settings of a flock.
pub struct Flock {
    /// Folder of the binaries.
    pub bin_dir: PathBuf,
    /// The folder for everything of this flock.
    pub folder: PathBuf,
    pub run_file: PathBuf,
    pub bootstrap: Process,
    /// The bootstrap peer's address.
    pub address: String,
}

/// A node's options beside the flock's own settings.
#[derive(Clone, Debug, Default)]
pub struct NodeOptions {
    /// Extra arguments of `starling train`.
    pub arguments: Vec<String>,
    /// `--init`.
    pub found: bool,
    /// `--join TICKET` instead of run file and bootstrap list, and a text cache of its own.
    pub ticket: Option<String>,
    /// The folder alone, with which the node was started before; the other options do not count.
    pub again: bool,
    /// Another bootstrap peer, instead of the flock's.
    pub bootstrap: Option<String>,
    /// Another program, instead of `starling`.
    pub program: Option<PathBuf>,
    /// Another run file, instead of the flock's.
    pub run_file: Option<PathBuf>,
}

/// The run file without probation, if it does not set the admission.
pub fn among_friends(run_toml: &str) -> String {
    let table = if run_toml.contains("[admission]") { "" } else { "\n[admission]\nprobation = 0\n" };
    format!("{run_toml}{table}")
}

impl Flock {
    /// The message with which a node refuses to found this run, as wrong usage.
    pub fn refusal(&self, run_toml: &str) -> anyhow::Result<String> {
        let path = self.folder.join("wrong.toml");
        std::fs::write(&path, run_toml).with_context(|| format!("cannot write {}", path.display()))?;
        let (path, home) = (path.to_string_lossy(), self.home("wrong").to_string_lossy().into_owned());
        let arguments = ["train", "--run", &path, "--home", &home, "--init"];
        let ended = run(&self.bin_dir.join("starling"), &arguments, START_LIMIT)?;
        anyhow::ensure!(ended.code == Some(2), "it ended with {:?}: {}", ended.code, ended.stderr);
        Ok(ended.stderr)
    }

    /// Starts the bootstrap peer. Writes `run_toml` as the run file of all nodes; nodes vote at once, without
    /// probation, unless it sets the admission.
    pub fn start(bin_dir: &Path, folder: &Path, run_toml: &str) -> anyhow::Result<Self> {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let run_file = folder.join("run.toml");
        std::fs::write(&run_file, among_friends(run_toml))
            .with_context(|| format!("cannot write {}", run_file.display()))?;
        let key = folder.join("bootstrap.key");
        let arguments = ["--listen", "/ip4/127.0.0.1/tcp/0", "--no-mdns", "--json", "--key"];
        let arguments = arguments.iter().map(|s| s.to_string()).chain([key.to_string_lossy().into_owned()]);
        let arguments: Vec<_> = arguments.collect();
        let program = bin_dir.join("starling-bootstrap");
        let mut bootstrap = Process::start("bootstrap", &program, &arguments, &folder.join("logs"))?;
        let event = bootstrap.wait(START_LIMIT, "listening", |_| true)?;
        let address = event["address"].as_str().context("the bootstrap peer says its address")?.to_string();
        Ok(Self { bin_dir: bin_dir.into(), folder: folder.into(), run_file, bootstrap, address })
    }

    /// The folder of a node.
    pub fn home(&self, name: &str) -> PathBuf {
        self.folder.join("nodes").join(name)
    }

    /// Starts (or restarts) a node.
    pub fn node(&self, name: &str, options: &NodeOptions) -> anyhow::Result<Process> {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        if options.again {
            let arguments = ["train", "--json", "--home", &text(&self.home(name))].map(String::from);
            return Process::start(name, &self.bin_dir.join("starling"), &arguments, &self.folder.join("logs"));
        }
        let mut arguments: Vec<String> =
            ["train", "--json", "--no-mdns", "--metrics", "off", "--listen", "/ip4/127.0.0.1/tcp/0"]
                .map(String::from)
                .to_vec();
        arguments.extend(["--home".into(), text(&self.home(name))]);
        match &options.ticket {
            Some(ticket) => {
                arguments.extend(["--join".into(), ticket.clone()]);
                arguments.extend(["--cache".into(), text(&self.folder.join("cache").join(name))]);
            }
            None => {
                arguments.extend([
                    "--run".into(),
                    text(options.run_file.as_ref().unwrap_or(&self.run_file)),
                    "--bootstrap".into(),
                    options.bootstrap.clone().unwrap_or_else(|| self.address.clone()),
                ]);
                arguments.extend(["--cache".into(), text(&self.shared_cache())]);
                if options.found {
                    arguments.push("--init".into());
                }
            }
        }
        arguments.extend(options.arguments.iter().cloned());
        let program = options.program.clone().unwrap_or_else(|| self.bin_dir.join("starling"));
        Process::start(name, &program, &arguments, &self.folder.join("logs"))
    }

    /// Starts small nodes `node-0` and on; the first has founded.
    ///
    /// # Errors
    /// If a program does not start, or the first node does not found within `limit`.
    pub fn small_nodes(&self, count: usize, limit: Duration) -> anyhow::Result<Vec<Process>> {
        let mut nodes = Vec::new();
        for n in 0..count {
            let mut node = self.node(&format!("node-{n}"), &NodeOptions::small(n == 0))?;
            if n == 0 {
                node.wait(limit, "founded", |_| true)?;
            }
            nodes.push(node);
        }
        Ok(nodes)
    }

    /// The cache of tokenized text that nodes with a run file share.
    pub fn shared_cache(&self) -> PathBuf {
        self.folder.join("cache").join("shared")
    }

    /// A ticket from a running node.
    pub fn invite(&self, name: &str) -> anyhow::Result<String> {
        let home = self.home(name).to_string_lossy().into_owned();
        let program = self.bin_dir.join("starling");
        let finished = crate::process::run(&program, &["invite", "--home", &home], Duration::from_secs(20))?;
        anyhow::ensure!(finished.code == Some(0), "starling invite failed: {}", finished.stderr);
        Ok(finished.stdout.trim().to_string())
    }
}

impl NodeOptions {
    /// The options of a node on one thread of the CPU.
    pub fn small(found: bool) -> Self {
        let arguments = ["--device", "cpu", "--threads", "1", "--log", "info"].map(String::from).to_vec();
        Self { found, arguments, ..Self::default() }
    }
}

/// The folder of the workspace's built binaries: beside the running test or program.
pub fn built_binaries() -> anyhow::Result<PathBuf> {
    let me = std::env::current_exe()?;
    let folder = me.parent().context("a program is in a folder")?;
    // Test programs are one folder further down.
    let folder = if folder.ends_with("deps") { folder.parent().unwrap_or(folder) } else { folder };
    Ok(folder.to_path_buf())
}

/// `starling-byzantine`, the program with hooks for tests; `None`, and said, if it is not built.
///
/// # Errors
/// If the folder of the running program is not known.
pub fn byzantine_program() -> anyhow::Result<Option<PathBuf>> {
    let program = built_binaries()?.join("starling-byzantine");
    if !program.exists() {
        skipped(format_args!("{} is not built (`make byzantine`)", program.display()));
        return Ok(None);
    }
    Ok(Some(program))
}
