//! The run file's tables about partitions, admission and newcomers.

use crate::exit::{Code, Failure};
use serde::{Deserialize, Serialize};
use starling_protocol::NodeId;
use starling_protocol::run::{AdmissionMode, AdmissionSpec, JoinSpec, Minority, PartitionSpec};

/// Rounds of probation in an open run whose file names no number.
const PROBATION_DEFAULT: u32 = 8;

/// The longest grace, in seconds: a day.
pub const GRACE_S_MAX: u32 = 86_400;

/// `[partition]`: the policy of members that lost the quorum.
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
    /// Left out: [`PROBATION_DEFAULT`] with `open`, where nobody has chosen the members, and 0 otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probation: Option<u32>,
}

impl Default for AdmissionTable {
    fn default() -> Self {
        Self { mode: AdmissionName::Open, allow: Vec::new(), probation: None }
    }
}

/// A way to admit members as files name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AdmissionName {
    Open,
    List,
    Ticket,
}

/// `[join]`: how long rounds wait for newcomers that fetch the state.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct JoinTable {
    /// Seconds at once; 0 = never.
    pub patience_s: u32,
    /// Per cent of the time in the long run.
    pub share: u32,
}

impl Default for JoinTable {
    fn default() -> Self {
        Self { patience_s: 120, share: 25 }
    }
}

impl JoinTable {
    /// As the protocol takes it.
    pub fn spec(&self) -> Result<JoinSpec, Failure> {
        let patience_ms = self.patience_s.checked_mul(1000).ok_or_else(|| {
            Failure::message(Code::Usage, format!("join.patience_s = {}: give at most an hour, 3600", self.patience_s))
        })?;
        Ok(JoinSpec { patience_ms, share: self.share })
    }
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
            let why = format!("partition.grace_s = {}: give at most a day, {GRACE_S_MAX}", self.grace_s);
            Failure::message(Code::Usage, why)
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
        Ok(AdmissionSpec { mode, allow, probation: self.probation() })
    }

    /// Rounds of probation, by default if the file does not say.
    pub fn probation(&self) -> u32 {
        let default = if self.mode == AdmissionName::Open { PROBATION_DEFAULT } else { 0 };
        self.probation.unwrap_or(default)
    }
}

/// A node id of a run file.
pub fn node_id(key: &str, text: &str) -> Result<NodeId, Failure> {
    NodeId::from_hex(text).ok_or_else(|| {
        Failure::message(Code::Usage, format!("{key} = \"{text}\" is not a node id: give 64 hex digits"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_runs_have_probation_unless_the_file_says_otherwise() {
        let probation =
            |text: &str| toml::from_str::<AdmissionTable>(text).expect("a table").spec().map(|s| s.probation);
        let said = |text: &str| probation(text).expect("it is sound");
        assert_eq!(said(""), 8);
        assert_eq!(said("mode = \"open\"\nprobation = 0"), 0);
        assert_eq!(said("probation = 3"), 3);
        assert_eq!(said("mode = \"ticket\""), 0);
        // The specification refuses this, with its reason.
        assert_eq!(said("mode = \"list\"\nprobation = 3"), 3);
    }
}
