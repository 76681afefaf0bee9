//! The user's settings: checked before anything is read or written, and shown by `--print-config`.

use super::amended;
use super::origin::Asked;
use super::text;
use crate::cli::TrainArgs;
use crate::config::in_force;
use crate::config::node_file::NodeFile;
use crate::config::run_file::{DataTable, RunFile};
use crate::exit::{Code, Failure};
use anyhow::Context;
use libp2p::Multiaddr;
use starling_bootstrap::addresses::{self, AddressError, BootstrapList, PeerAddress};
use starling_bootstrap::telemetry;
use starling_data::Tokenizer;
use starling_kernels::DeviceChoice;
use starling_protocol::Digest;
use starling_protocol::run::RunSpec;
use std::path::Path;

/// The settings of flags and node file that are more than texts and numbers.
pub struct Settings {
    pub listen: Vec<Multiaddr>,
    pub advertise: Vec<Multiaddr>,
    pub bootstrap: Vec<PeerAddress>,
    pub adopt: Option<Digest>,
    pub device: DeviceChoice,
}

impl Settings {
    /// Checks everything that can be checked without reading the text or opening the device.
    pub fn of(args: &TrainArgs, node: &NodeFile) -> Result<Self, Failure> {
        let adopt = args.adopt_lineage.as_deref().map(lineage).transpose()?;
        Ok(Self { adopt, ..Self::of_node(node)? })
    }

    /// The same without flags that the node file lacks.
    pub fn of_node(node: &NodeFile) -> Result<Self, Failure> {
        node.check()?;
        let usage = |e: anyhow::Error| Failure::new(Code::Usage, e);
        let bootstrap = BootstrapList::load_all(&node.bootstrap).map_err(|e| usage(e.into()))?.into_peers();
        telemetry::check_metrics(&node.metrics).map_err(|e| usage(e.into()))?;
        telemetry::check_filter(&node.log).map_err(|e| usage(e.into()))?;
        if let Some(home) = &node.home {
            folder("--home", home)?;
        }
        if let Some(cache) = &node.cache {
            folder("--cache", cache)?;
        }
        let device = node.device.parse::<DeviceChoice>();
        let device = device.map_err(|e| Failure::message(Code::Usage, format!("--device: {e}")))?;
        Ok(Self {
            listen: parsed(&node.listen, "--listen", addresses::parse_listen)?,
            advertise: parsed(&node.advertise, "--advertise", addresses::parse)?,
            bootstrap,
            adopt: None,
            device,
        })
    }
}

/// Refuses a path that cannot be a folder.
fn folder(flag: &str, path: &Path) -> Result<(), Failure> {
    let wrong = path.ancestors().find(|part| part.exists()).filter(|part| !part.is_dir());
    let Some(wrong) = wrong else { return Ok(()) };
    let why = if wrong == path {
        format!("{flag} {}: this is a file; name a folder", path.display())
    } else {
        format!("{flag} {}: {} is a file, so that it can hold no folder; name another", path.display(), wrong.display())
    };
    Err(Failure::message(Code::Usage, why))
}

fn parsed(
    texts: &[String],
    flag: &str,
    parse: fn(&str) -> Result<Multiaddr, AddressError>,
) -> Result<Vec<Multiaddr>, Failure> {
    let wrong = |e: AddressError| Failure::message(Code::Usage, format!("{flag}: {e}"));
    texts.iter().map(|text| parse(text).map_err(wrong)).collect()
}

fn lineage(text: &str) -> Result<Digest, Failure> {
    let why = || {
        format!(
            "--adopt-lineage {text}: not the name of a lineage, which has 64 hex digits (`starling status --json` on \
             one of its nodes shows them)"
        )
    };
    Digest::from_hex(text).ok_or_else(|| Failure::message(Code::Usage, why()))
}

/// All settings with which a start would go on, as a node file and a run file; those that nobody named included. What
/// amendments have changed stands below.
pub fn shown(args: &TrainArgs, node: &NodeFile, asked: &Asked) -> Result<String, Failure> {
    if let Some(file) = asked.file.as_ref().filter(|file| file.awaits_founder()) {
        let node = toml::to_string(node).context("cannot print the node file")?;
        let run = toml::to_string(&**file).context("cannot print the run file")?;
        return Ok(format!("# node file\n{node}\n# run file: the founder's trainer completes [task]\n{run}"));
    }
    let known = match (&asked.file, &asked.spec) {
        (Some(file), _) => {
            // Settings that a start refuses are not in force.
            let (spec, pinned) = text::check(file)?;
            Some((spec, data_of(file, &args.data, pinned)))
        }
        (None, Some(spec)) if spec.task.is_some() => Some((RunSpec::clone(spec), data_of_task(spec))),
        (None, Some(spec)) => Some((RunSpec::clone(spec), data_of_specification(spec))),
        (None, None) => None,
    };
    let mut node = node.clone();
    node.cache = Some(node.cache_folder());
    node.network_threads = node.network_threads();
    node.threads = node.training_threads();
    let Some((spec, data)) = known else {
        let run = asked.ticket.as_ref().map(|ticket| ticket.run.to_string()).unwrap_or_default();
        let node = toml::to_string(&node).context("cannot print the node file")?;
        return Ok(format!("# node file\n{node}\n# run {run}: the peers of the ticket have its settings\n"));
    };
    let home = node.home_for(&spec.name);
    let amended = amended::comment(&home, asked.spec.as_deref().unwrap_or(&spec));
    node.home = Some(home);
    node.validate_every = Some(node.validate_every(spec.sync.mode));
    let mut run = in_force::run_file(&spec, data);
    if let Some(file) = &asked.file {
        run.model.preset.clone_from(&file.model.preset);
    }
    let node = toml::to_string(&node).context("cannot print the node file")?;
    let run = toml::to_string(&run).context("cannot print the run file")?;
    Ok(format!("# node file\n{node}\n# run file: a model of {} parameters\n{run}{amended}", spec.parameters()))
}

fn data_of(file: &RunFile, overrides: &[String], pinned: Option<Digest>) -> DataTable {
    let mut data = file.data.clone();
    data.sources = file.corpus(overrides).sources;
    data.manifest = pinned.map(|manifest| manifest.to_string());
    data
}

/// A specification with an external task names its files by their manifest, if it has some.
fn data_of_task(spec: &RunSpec) -> DataTable {
    let named = spec.data.manifest != Digest::default();
    DataTable { manifest: named.then(|| spec.data.manifest.to_string()), ..DataTable::default() }
}

/// A specification names the text by its digest, and bytes or another tokenizer by theirs.
fn data_of_specification(spec: &RunSpec) -> DataTable {
    let bytes = Tokenizer::bytes().digest() == spec.data.tokenizer;
    let tokenizer = if bytes { "bytes".to_owned() } else { format!("{} (its digest)", spec.data.tokenizer) };
    DataTable { tokenizer, manifest: Some(spec.data.manifest.to_string()), ..DataTable::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    fn arguments(text: &str) -> TrainArgs {
        let cli = Cli::try_parse_from(text.split(' ')).expect("it parses");
        match cli.command {
            Command::Train(args) => *args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn all_settings_in_force_are_shown() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("run.toml");
        std::fs::write(&path, "name = \"shown\"\n[data]\nsources = [\"text.txt\"]\n").expect("written");
        let args = arguments(&format!("starling train --home h --run {}", path.display()));
        let node = NodeFile { home: args.home.clone(), ..NodeFile::default() };
        let text = shown(&args, &node, &Asked::from_args(&args, None, &node).expect("a run")).expect("it is sound");
        for setting in [
            "home = \"h\"",
            "cache = \"",
            "network_threads = ",
            "validate_every = 5",
            "d_model = 128",
            "codec = \"auto\"",
            "engine = \"auto\"",
            "optimizer = \"muon\"",
            "lr = 0.008",
            "momentum = 0.0",
            "lr = [[1, 1.0]]",
            "steps = 30",
            "probation = 8",
            "text.txt",
        ] {
            assert!(text.contains(setting), "`{setting}` is missing in:\n{text}");
        }
    }

    #[test]
    fn a_file_is_no_folder() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let said = |path: &Path| folder("--home", path).expect_err("no folder").error.to_string();
        assert!(said(file.path()).ends_with("this is a file; name a folder"), "{}", said(file.path()));
        assert!(said(&file.path().join("below")).contains("is a file, so that it can hold no folder"));
        assert!(folder("--home", Path::new("no-such-folder/below")).is_ok());
    }
}
