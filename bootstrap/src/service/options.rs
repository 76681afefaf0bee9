//! Flags and configuration file of `starling-bootstrap`. A flag replaces the file's value.

use crate::config_file::{self, ConfigError};
use clap::Parser;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// A well-known peer: nodes of any run meet here. Prints its addresses and runs until it is stopped.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "starling-bootstrap",
    version,
    about,
    after_help = "Exit codes: 0 stopped by a signal, 1 refused, 2 wrong command, address or configuration file."
)]
pub struct Flags {
    /// Configuration file (TOML); see configs/bootstrap.toml
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Address to listen on; may be repeated
    #[arg(long, value_name = "ADDR")]
    pub listen: Vec<String>,
    /// Address at which others reach this peer, if it differs from those it listens on; may be repeated
    #[arg(long, value_name = "ADDR")]
    pub advertise: Vec<String>,
    /// Key file; made when it does not exist
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// Other well-known peers, or a file that lists them, one address a line; may be repeated
    #[arg(long, value_name = "ADDR|FILE")]
    pub bootstrap: Vec<String>,
    /// Do not look for peers on the local network
    #[arg(long)]
    pub no_mdns: bool,
    /// Relay for nodes that cannot be reached (the default)
    #[arg(long, overrides_with = "no_relay")]
    pub relay: bool,
    /// Do not relay
    #[arg(long, overrides_with = "relay")]
    pub no_relay: bool,
    /// Address for Prometheus metrics; port 0 picks one, `off` serves none
    #[arg(long, value_name = "IP:PORT")]
    pub metrics: Option<String>,
    /// What to log, to standard error: error, warn, info, debug, trace, or a filter such as `info,libp2p_kad=debug`
    #[arg(long, value_name = "FILTER")]
    pub log: Option<String>,
    /// One JSON object a line on standard output instead of text
    #[arg(long)]
    pub json: bool,
    /// Print the settings that result from file and flags, and exit
    #[arg(long)]
    pub print_config: bool,
}

/// The settings of a well-known peer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BootstrapConfig {
    pub listen: Vec<String>,
    pub advertise: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
    pub bootstrap: Vec<String>,
    pub mdns: bool,
    pub relay: bool,
    pub metrics: String,
    pub log: String,
    pub json: bool,
}

impl Default for BootstrapConfig {
    fn default() -> Self {
        Self {
            listen: vec!["/ip4/0.0.0.0/tcp/7400".into(), "/ip4/0.0.0.0/udp/7400/quic-v1".into()],
            advertise: Vec::new(),
            key: None,
            bootstrap: Vec::new(),
            mdns: true,
            relay: true,
            metrics: "127.0.0.1:0".into(),
            log: "info".into(),
            json: false,
        }
    }
}

/// The reason why the settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OptionsError {
    #[error(transparent)]
    File(#[from] ConfigError),
    #[error("the settings cannot be printed: {0}")]
    Print(#[from] toml::ser::Error),
}

impl BootstrapConfig {
    /// The settings of the file that the flags name, if any, with the flags on top.
    pub fn from_flags(flags: &Flags) -> Result<Self, OptionsError> {
        let mut config = match &flags.config {
            Some(path) => config_file::load(path)?,
            None => Self::default(),
        };
        for (target, given) in [
            (&mut config.listen, &flags.listen),
            (&mut config.advertise, &flags.advertise),
            (&mut config.bootstrap, &flags.bootstrap),
        ] {
            if !given.is_empty() {
                target.clone_from(given);
            }
        }
        config.key = flags.key.clone().or(config.key);
        config.mdns &= !flags.no_mdns;
        config.relay = (config.relay || flags.relay) && !flags.no_relay;
        config.json |= flags.json;
        for (target, given) in [(&mut config.metrics, &flags.metrics), (&mut config.log, &flags.log)] {
            if let Some(given) = given {
                target.clone_from(given);
            }
        }
        Ok(config)
    }

    /// The settings as a configuration file.
    pub fn to_toml(&self) -> Result<String, OptionsError> {
        let mut shown = self.clone();
        shown.key = shown.key.or_else(default_key);
        Ok(toml::to_string(&shown)?)
    }
}

/// `$XDG_DATA_HOME/starling/bootstrap/key`, or the same below `~/.local/share`.
pub fn default_key() -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let data = absolute("XDG_DATA_HOME").or_else(|| absolute("HOME").map(|home| home.join(".local/share")))?;
    Some(data.join(Path::new("starling/bootstrap/key")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(list: &[&str]) -> Flags {
        Flags::try_parse_from(["starling-bootstrap"].iter().chain(list)).unwrap()
    }

    #[test]
    fn flags_win_over_the_file_and_the_file_over_defaults() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("b.toml");
        std::fs::write(&path, "listen = [\"/ip4/127.0.0.1/tcp/1\"]\nrelay = false\nlog = \"warn\"\n").unwrap();
        let file = path.to_str().unwrap();
        let config = BootstrapConfig::from_flags(&flags(&["--config", file])).unwrap();
        assert_eq!((config.listen.len(), config.relay, config.mdns, config.log.as_str()), (1, false, true, "warn"));
        let config = BootstrapConfig::from_flags(&flags(&[
            "--config",
            file,
            "--relay",
            "--no-mdns",
            "--log",
            "debug",
            "--listen",
            "/ip4/0.0.0.0/tcp/2",
        ]));
        let config = config.unwrap();
        assert_eq!(config.listen, ["/ip4/0.0.0.0/tcp/2"]);
        assert_eq!((config.relay, config.mdns, config.log.as_str()), (true, false, "debug"));
    }

    #[test]
    fn a_printed_config_can_be_read_back() {
        let config = BootstrapConfig { key: Some("/k".into()), ..BootstrapConfig::default() };
        let text = config.to_toml().unwrap();
        assert_eq!(config_file::parse::<BootstrapConfig>(&text, Path::new("x")).unwrap(), config);
    }

    #[test]
    fn the_documented_file_holds_the_defaults_and_every_key() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/bootstrap.toml");
        let text = config_file::read(&path).unwrap();
        assert_eq!(config_file::parse::<BootstrapConfig>(&text, &path).unwrap(), BootstrapConfig::default());
        let keys = toml::to_string(&BootstrapConfig { key: Some("k".into()), ..BootstrapConfig::default() }).unwrap();
        for key in keys.lines().filter_map(|line| line.split(" = ").next()) {
            assert!(
                text.lines().any(|l| l.trim_start_matches("# ").starts_with(&format!("{key} ="))),
                "{key} is missing"
            );
        }
    }

    #[test]
    fn wrong_flags_are_refused() {
        assert!(Flags::try_parse_from(["starling-bootstrap", "--lisen", "x"]).is_err());
    }
}
