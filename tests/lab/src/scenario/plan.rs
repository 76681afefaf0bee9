//! The kinds of faults of nodes, disks, clocks and links.

use crate::network::LinkChange;
use std::time::Duration;

/// The effect of a fault.
#[derive(Clone, Debug, PartialEq)]
pub enum Plan {
    /// SIGKILL; undone by a restart.
    Kill { silent: bool },
    /// SIGTERM; undone by a restart.
    Stop,
    /// Starts nodes that are not running.
    Start { ticket: bool },
    /// SIGSTOP, then SIGCONT.
    Freeze,
    /// SIGSTOP and SIGCONT in turn.
    Slow { share: f64 },
    /// SIGKILL; the folder is emptied, and the node starts again.
    Wipe,
    /// SIGKILL; the folder is set back to the beginning of the run, and the node starts again.
    Rewind,
    /// SIGKILL; one bit of a file is flipped, and the node starts again.
    Damage { file: String },
    /// A second process with the same key.
    Clone,
    /// The node's disk is filled except for this many KiB.
    Fill { free_kib: u64 },
    /// The node's folder is removed while the node runs.
    DeleteFolder,
    /// Writes and syncs below the node's folder take longer.
    SlowDisk { delay: Duration },
    /// Calls on files below the node's folder are refused.
    Refuse(Refusal),
    /// The wall clock is wrong by this many nanoseconds.
    Clock { by_ns: i64 },
    /// Links change.
    Links { pairs: Vec<(usize, usize)>, change: LinkChange },
    /// Links are cut and healed in turn.
    Flap { pairs: Vec<(usize, usize)>, every: Duration },
    /// Links are cut one by one and healed in another order.
    Swizzle { pairs: Vec<(usize, usize)>, every: Duration },
    /// TCP connections are reset.
    Reset { pairs: Vec<(usize, usize)> },
    /// Access lines change.
    Access { up: f64, down: f64 },
    /// NAT boxes forget their mappings.
    Rebind,
    /// Nodes are killed and started at random.
    Churn { every: Duration, least: usize, most: usize },
    /// Nodes are stopped and started one after the other.
    RollingRestart { every: Duration },
}

/// The calls that a disk refuses, and their error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// fsync and its like fail with EIO.
    Syncs,
    /// Writes fail with EIO.
    Writes,
    /// Syncs and writes fail with EIO.
    Both,
    /// The file system becomes read-only: EROFS for all calls that would change it.
    ReadOnly,
}

/// Each kind with the keys that it reads beside `kind`, `at_s`, `at_round` and `lasting_s`.
pub(super) const KINDS: &[(&str, &[&str])] = &[
    ("kill", &["nodes", "pick", "silent"]),
    ("stop", &["nodes", "pick"]),
    ("start", &["nodes", "pick", "ticket"]),
    ("freeze", &["nodes", "pick"]),
    ("slow", &["nodes", "pick", "share"]),
    ("wipe", &["nodes", "pick"]),
    ("rewind", &["nodes", "pick"]),
    ("damage", &["nodes", "pick", "file"]),
    ("clone", &["nodes", "pick"]),
    ("fill", &["nodes", "pick", "free_kib"]),
    ("delete-folder", &["nodes", "pick"]),
    ("slow-disk", &["nodes", "pick", "millis"]),
    ("disk-error", &["nodes", "pick", "calls"]),
    ("read-only", &["nodes", "pick"]),
    ("clock", &["nodes", "pick", "jump_s"]),
    ("cut", &["between", "from", "to"]),
    (
        "link",
        &[
            "between",
            "from",
            "to",
            "delay_ms",
            "jitter_ms",
            "loss",
            "reorder",
            "duplicate",
            "corrupt",
            "mbit",
            "queue_ms",
            "mtu",
        ],
    ),
    ("flap", &["between", "from", "to", "every_s"]),
    ("swizzle", &["between", "every_s"]),
    ("reset", &["between", "from", "to"]),
    ("access", &["nodes", "pick", "up_mbit", "down_mbit"]),
    ("rebind", &["nodes", "pick"]),
    ("churn", &["nodes", "every_s", "least", "most"]),
    ("rolling-restart", &["nodes", "every_s"]),
];

impl Plan {
    pub(super) fn needs_an_end(&self) -> bool {
        matches!(
            self,
            Self::Slow { .. } | Self::Flap { .. } | Self::Swizzle { .. } | Self::Reset { .. } | Self::Churn { .. }
        )
    }

    /// Whether there is something to undo.
    pub(super) fn can_end(&self) -> bool {
        !matches!(
            self,
            Self::Wipe | Self::Rewind | Self::Damage { .. } | Self::DeleteFolder | Self::Start { .. } | Self::Rebind
        )
    }

    /// The property of a node that the plan sets, so that two plans at one time would undo each other; `None` if there
    /// is none.
    pub(super) fn sets(&self) -> Option<&'static str> {
        match self {
            Self::Freeze | Self::Slow { .. } => Some("whether the process runs"),
            Self::SlowDisk { .. } => Some("how slow the disk is"),
            Self::Refuse(_) => Some("what the disk refuses"),
            Self::Clock { .. } => Some("the clock"),
            Self::Access { .. } => Some("the access line"),
            _ => None,
        }
    }

    /// Whether the end of this plan would end the other too, if both hold one node.
    pub fn undoes(&self, other: &Self) -> bool {
        let alike = std::mem::discriminant(self) == std::mem::discriminant(other);
        alike || self.sets().is_some_and(|what| other.sets() == Some(what))
    }

    /// Whether it needs the emulated network.
    pub fn is_of_the_network(&self) -> bool {
        match self {
            Self::Kill { silent } => *silent,
            Self::Links { .. } | Self::Flap { .. } | Self::Swizzle { .. } | Self::Reset { .. } => true,
            // A disk of limited size needs the same rights.
            Self::Access { .. } | Self::Rebind | Self::Fill { .. } => true,
            _ => false,
        }
    }

    /// Whether nodes must run with the lab's library for this fault.
    pub fn needs_shim(&self) -> bool {
        matches!(self, Self::SlowDisk { .. } | Self::Refuse(_) | Self::Clock { .. })
    }
}
