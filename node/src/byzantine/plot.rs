//! The attacks of strangers ([`super::stranger`]), as the command line gives them.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

/// One way to attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Attack {
    /// Shows an invented lineage with more tokens than any other, and serves a state of zeros.
    Usurp,
    /// The same with a lineage that it has founded, and that has every vote it needs: its own.
    UsurpGenesis,
    /// Shows a record far ahead in the flock's own lineage, and serves a state of zeros.
    UsurpAhead,
    /// Shows records a little ahead in the flock's own lineage, and serves nothing.
    FalseHeads,
    /// Lengthens a lease in the FORK record that the flock's lineage began with, and shows it with the FORK's proof.
    Split,
    /// Tells each node that it meets that it has seen it sign nothing.
    Witness,
    /// Spreads evidence against keys that it made for this, before and after its Hello.
    Evidence,
    /// Holds as many fetch streams open as a node lets it.
    HoldFetch,
    /// Asks for updates and does not read them.
    SlowRead,
    /// Sends every request that is costly to answer, as fast as answers come.
    FloodFetch,
    /// Serves records and state that were true when it asked for them; every second identity claims that old head, the
    /// others claim the newest one.
    OldHead,
    /// Advertises false addresses: some where no node is, some where other nodes are.
    FalseAddresses,
    /// Says that it fetches the state, moves a few bytes a second, and never arrives.
    PretendToFetch,
    /// Is there, and does nothing else.
    Crowd,
}

/// Their names on the command line.
pub const ATTACKS: &[(&str, Attack)] = &[
    ("usurp", Attack::Usurp),
    ("usurp-genesis", Attack::UsurpGenesis),
    ("usurp-ahead", Attack::UsurpAhead),
    ("false-heads", Attack::FalseHeads),
    ("split", Attack::Split),
    ("witness", Attack::Witness),
    ("evidence", Attack::Evidence),
    ("hold-fetch", Attack::HoldFetch),
    ("slow-read", Attack::SlowRead),
    ("flood-fetch", Attack::FloodFetch),
    ("old-head", Attack::OldHead),
    ("false-addresses", Attack::FalseAddresses),
    ("pretend-to-fetch", Attack::PretendToFetch),
    ("crowd", Attack::Crowd),
];

/// The attacks of one process, and how it carries them out.
#[derive(Clone, Debug)]
pub struct Plot {
    pub attacks: BTreeSet<Attack>,
    /// `--byzantine-identities N`: identities at a time.
    pub identities: usize,
    /// `--byzantine-life-ms N`: the life of an identity before a new one takes its place; 0: no end.
    pub life_ms: u64,
    /// `--byzantine-at IP[,IP]`: hosts that they attack, besides the nodes that they find as any node does; none: every
    /// node.
    pub at: Vec<Ipv4Addr>,
}

impl Default for Plot {
    fn default() -> Self {
        Self { attacks: BTreeSet::new(), identities: 1, life_ms: 0, at: Vec::new() }
    }
}
