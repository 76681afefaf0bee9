//! The run file's tables about who decides and who is let in.

use crate::exit::{Code, Failure};
use serde::{Deserialize, Serialize};
use starling_protocol::NodeId;
use starling_protocol::run::{AdmissionMode, AdmissionSpec, Minority, PartitionSpec};

/// `[partition]`: what members do that are cut off from the quorum.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PartitionTable {
    pub minority: MinorityName,
    /// Seconds without a quorum before `fork` takes effect.
    pub grace_s: u32,
}

impl Default for PartitionTable {
    fn default() -> Self {
        Self { minority: MinorityName::Fork, grace_s: 60 }
    }
}

/// A policy as files name it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MinorityName {
    Fork,
    Wait,
    Halt,
}

/// `[admission]`: who may become a member.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AdmissionTable {
    pub mode: AdmissionName,
    /// Node ids that `list` admits.
    pub allow: Vec<String>,
}

impl Default for AdmissionTable {
    fn default() -> Self {
        Self { mode: AdmissionName::Open, allow: Vec::new() }
    }
}

/// A way to admit members as files name it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AdmissionName {
    Open,
    List,
    Ticket,
}

impl PartitionTable {
    /// As the protocol takes it.
    pub fn spec(&self) -> Result<PartitionSpec, Failure> {
        let minority = match self.minority {
            MinorityName::Fork => Minority::Fork,
            MinorityName::Wait => Minority::Wait,
            MinorityName::Halt => Minority::Halt,
        };
        let grace_ms = self.grace_s.checked_mul(1000).ok_or_else(|| {
            Failure::message(Code::Usage, format!("partition.grace_s = {}: give at most a day, 86400", self.grace_s))
        })?;
        Ok(PartitionSpec { minority, grace_ms })
    }
}

impl AdmissionTable {
    /// As the protocol takes it.
    pub fn spec(&self) -> Result<AdmissionSpec, Failure> {
        let mode = match self.mode {
            AdmissionName::Open => AdmissionMode::Open,
            AdmissionName::List => AdmissionMode::List,
            AdmissionName::Ticket => AdmissionMode::Ticket,
        };
        let allow: Result<Vec<_>, _> = self.allow.iter().map(|text| node_id("admission.allow", text)).collect();
        let mut allow = allow?;
        // The order of a person's list means nothing; a run's digest is over one order.
        allow.sort_unstable();
        allow.dedup();
        Ok(AdmissionSpec { mode, allow })
    }
}

/// A node id of a run file.
pub fn node_id(key: &str, text: &str) -> Result<NodeId, Failure> {
    NodeId::from_hex(text).ok_or_else(|| {
        Failure::message(Code::Usage, format!("{key} = \"{text}\" is not a node id: give 64 hex digits"))
    })
}
