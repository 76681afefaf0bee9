//! The systems: the commands that start their members, and the meaning of their events.

use super::settings::Settings;
use anyhow::{Context, bail};
use serde_json::{Value, json};
use starling_tests::process::run;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The port of every member.
pub const PORT: u16 = 7400;
/// The time in which Python must answer whether it has a module.
const ASKED: Duration = Duration::from_secs(60);
/// The rivals' programs: name and text. All are written into one folder.
pub const PROGRAMS: [(&str, &str); 5] = [
    ("train_step.py", include_str!("../../../../benches/pytorch/train_step.py")),
    ("learner.py", include_str!("../../../../benches/rivals/learner.py")),
    ("daemons.py", include_str!("../../../../benches/rivals/daemons.py")),
    ("compare_ddp.py", include_str!("../../../../benches/rivals/compare_ddp.py")),
    ("compare_hivemind.py", include_str!("../../../../benches/rivals/compare_hivemind.py")),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    Starling,
    Ddp,
    Hivemind,
}

/// The meaning of a member's event.
#[derive(Clone, Debug, PartialEq)]
pub enum Said {
    /// The member is about to do its first step. Has the seconds of a step alone and the version, if the member knows
    /// them.
    Began { plain_seconds: Option<f64>, version: Option<String> },
    /// Members hold a new average of `members` contributions. Has the member's steps so far, if the event has them.
    Averaged { members: u64, steps: Option<u64> },
    /// Nats per byte on held-out text.
    Validated(f64),
    /// The member's own steps: tokens and seconds.
    Trained { tokens: u64, seconds: f64 },
    /// Something went wrong: the member took another's state, an averaging failed, or the member gives up.
    Trouble(String),
}

/// The machines of a system's members, and their inputs.
pub struct Place<'a> {
    pub settings: &'a Settings,
    /// The folder for everything of this system.
    pub folder: &'a Path,
    pub hosts: &'a [Ipv4Addr],
    pub python: &'a str,
    /// Training and held-out text, as bytes.
    pub text: &'a [PathBuf; 2],
}

impl System {
    /// The system with this name in files.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "ddp" => Some(Self::Ddp),
            "hivemind" => Some(Self::Hivemind),
            _ => None,
        }
    }

    /// The name in pictures and folders.
    pub fn name(self) -> &'static str {
        match self {
            Self::Starling => "starling",
            Self::Ddp => "ddp",
            Self::Hivemind => "hivemind",
        }
    }

    pub fn title(self) -> &'static str {
        match self {
            Self::Starling => "Starling",
            Self::Ddp => "PyTorch DDP, gloo",
            Self::Hivemind => "hivemind, local updates",
        }
    }

    /// Checks that this Python can run the system.
    ///
    /// # Errors
    /// If it cannot; the message is the reason.
    pub fn have(self, python: &str) -> anyhow::Result<()> {
        let modules = match self {
            Self::Starling => return Ok(()),
            Self::Ddp => "numpy, torch.distributed",
            Self::Hivemind => "numpy, torch, hivemind",
        };
        let asked = format!("import {modules}");
        let answer = run(Path::new(python), &["-W", "ignore", "-c", &asked], ASKED)?;
        if answer.code != Some(0) {
            let why = answer.stderr.lines().last().unwrap_or("it does not start").to_owned();
            bail!("{python} does not have it ({why})");
        }
        Ok(())
    }

    /// Writes the rivals' programs.
    ///
    /// # Errors
    /// If the folder cannot be written.
    pub fn write_programs(folder: &Path) -> anyhow::Result<()> {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        for (name, text) in PROGRAMS {
            std::fs::write(folder.join(name), text).with_context(|| format!("cannot write {name}"))?;
        }
        Ok(())
    }

    /// The command of a rival's member. `first` is the address of the first member, if the others need it.
    pub fn command(self, place: &Place<'_>, programs: &Path, index: usize, first: Option<&str>) -> Command {
        let settings = place.settings;
        let model = &settings.model;
        let mut given = json!({
            "index": index, "nodes": settings.nodes, "hosts": place.hosts, "port": PORT, "interface": "wan0",
            "first": first, "seed": settings.seed, "threads": settings.threads, "inner": settings.inner,
            "train": place.text[0], "held_out": place.text[1], "folder": place.folder,
            "validate_sequences": settings.validate_sequences,
            "model": {
                "vocab": 256, "d_model": model.d_model, "layers": model.layers, "heads": model.heads,
                "kv_heads": model.kv_heads, "ffn": model.ffn, "seq_len": model.seq_len, "tied": true,
                "rope_theta": 10_000.0, "norm_eps": 1e-5,
            },
        });
        let own = match self {
            Self::Starling => json!({}),
            Self::Ddp => json!(settings.ddp),
            Self::Hivemind => {
                let mut own = json!(settings.hivemind);
                own["samples"] = json!(settings.hivemind.steps * (settings.nodes * settings.inner.batch) as u64);
                own
            }
        };
        for (key, value) in own.as_object().into_iter().flatten() {
            given[key] = value.clone();
        }
        let mut command = Command::new(place.python);
        command.args(["-W", "ignore"]).arg(programs.join(format!("compare_{}.py", self.name())));
        command.arg(given.to_string()).env("HIVEMIND_LOGLEVEL", "INFO");
        command
    }

    /// The meaning of an event, if the comparison uses it.
    pub fn said(self, event: &Value) -> Option<Said> {
        let text = |key: &str| event[key].as_str().map(String::from);
        match (self, event["event"].as_str()?) {
            (Self::Starling, "phase") if event["phase"] == "training" => {
                Some(Said::Began { plain_seconds: None, version: None })
            }
            (Self::Starling, "committed") => {
                Some(Said::Averaged { members: event["contributors"].as_array()?.len() as u64, steps: None })
            }
            (Self::Starling, "trained") => {
                Some(Said::Trained { tokens: event["tokens"].as_u64()?, seconds: event["seconds"].as_f64()? })
            }
            (Self::Starling, "attempt_failed" | "quorum_lost" | "skipped" | "catch_up_failed") => {
                Some(Said::Trouble(format!("{}: {}", text("event")?, text("reason").unwrap_or_default())))
            }
            (_, "validated") => Some(Said::Validated(event["nats_per_byte"].as_f64()?)),
            (Self::Starling, _) => None,
            (_, "began") => {
                Some(Said::Began { plain_seconds: event["plain_seconds"].as_f64(), version: text("version") })
            }
            (_, "stepped" | "averaged") => {
                Some(Said::Averaged { members: event["members"].as_u64()?, steps: event["steps"].as_u64() })
            }
            (_, "failed" | "average_failed") => Some(Said::Trouble(text("why")?)),
            (_, "loaded") => Some(Said::Trouble("took another peer's state".into())),
            _ => None,
        }
    }
}
