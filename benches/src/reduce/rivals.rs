//! Other systems' averaging, one Python process a member.

use super::place::Places;
use super::process::Process;
use anyhow::{Result, ensure};
use serde::Deserialize;

/// A system to compare with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rival {
    /// All-reduce of PyTorch's gloo: f32, not encrypted.
    Gloo,
    /// hivemind's averager: f16, encrypted, its matchmaking included.
    Hivemind,
}

impl Rival {
    pub const ALL: [Self; 2] = [Self::Gloo, Self::Hivemind];

    pub fn name(self) -> &'static str {
        match self {
            Self::Gloo => "gloo",
            Self::Hivemind => "hivemind",
        }
    }

    pub fn codec(self) -> &'static str {
        match self {
            Self::Gloo => "f32",
            Self::Hivemind => "f16",
        }
    }

    /// Bytes of a value on the wire.
    pub fn value_bytes(self) -> usize {
        match self {
            Self::Gloo => 4,
            Self::Hivemind => 2,
        }
    }

    fn program(self) -> &'static str {
        match self {
            Self::Gloo => include_str!("../../rivals/gloo.py"),
            Self::Hivemind => include_str!("../../rivals/averager.py"),
        }
    }
}

#[derive(Deserialize)]
struct Ready {
    #[serde(rename = "ready")]
    version: String,
    address: Option<String>,
}

#[derive(Deserialize)]
struct Turn {
    seconds: f64,
    error: f64,
}

/// The rival's processes.
pub struct Flock {
    members: Vec<Process>,
    pub version: String,
}

impl Flock {
    /// Starts all members.
    ///
    /// # Errors
    /// If this Python does not have the rival, or it does not work here.
    pub fn start(rival: Rival, python: &str, places: &Places, elements: usize) -> Result<Self> {
        let nodes = places.len();
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port().to_string();
        let start = |index: usize| {
            let own = [index.to_string(), nodes.to_string(), elements.to_string()];
            let place = match rival {
                Rival::Gloo => vec![places.host(0), port.clone(), places.interface(index)],
                Rival::Hivemind => vec![places.host(index)],
            };
            let python = [python.to_owned(), "-c".into(), rival.program().into()];
            let command: Vec<String> = python.into_iter().chain(own).chain(place).collect();
            Process::start(&places.on(index, &command), false)
        };
        let mut members = vec![start(0)?];
        let mut version = String::new();
        let mut address = None;
        if rival == Rival::Hivemind {
            let ready: Ready = members[0].hear()?;
            (version, address) = (ready.version, ready.address);
        }
        for index in 1..nodes {
            members.push(start(index)?);
        }
        let waiting = if rival == Rival::Hivemind { &mut members[1..] } else { &mut members[..] };
        for member in waiting.iter_mut() {
            if let Some(address) = &address {
                member.tell(&serde_json::json!({ "address": address }).to_string())?;
            }
        }
        for member in waiting {
            version = member.hear::<Ready>()?.version;
        }
        Ok(Self { members, version })
    }

    /// One averaging: seconds of the slowest member.
    ///
    /// # Errors
    /// If a member has ended, or does not hold the mean.
    pub fn turn(&mut self) -> Result<f64> {
        for member in &mut self.members {
            member.tell("go")?;
        }
        let mut slowest = 0f64;
        for member in &mut self.members {
            let turn: Turn = member.hear()?;
            ensure!(turn.error < 0.01, "a member is {} away from the mean", turn.error);
            slowest = slowest.max(turn.seconds);
        }
        Ok(slowest)
    }
}
