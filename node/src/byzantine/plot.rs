//! What strangers do ([`super::stranger`]), as the command line says.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

/// One way to attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Attack {
    /// Shows a lineage that it made up, of more tokens than any, and serves a state of zeros.
    Usurp,
    /// The same, but the lineage is one that it has founded, with every vote that there is to be: its own.
    UsurpGenesis,
    /// Shows a record far ahead in the flock's own lineage, and serves a state of zeros.
    UsurpAhead,
    /// Shows records a little ahead in the flock's own lineage, and serves nothing.
    FalseHeads,
    /// Lengthens a lease in the FORK record that the flock's lineage began with, and shows it with the FORK's proof.
    Split,
    /// Tells whoever it meets what it has seen it sign: nothing.
    Witness,
    /// Spreads evidence against keys made for it, before and after its Hello.
    Evidence,
    /// Has as many fetch streams open as it is let.
    HoldFetch,
    /// Asks for updates and does not read them.
    SlowRead,
    /// Asks for all that costs something, as fast as it is answered.
    FloodFetch,
    /// Serves what was true when it came; every second identity says that it is still so, the others say what the newest
    /// head is.
    OldHead,
    /// Tells addresses at which it is not: where nobody is, and where others are.
    FalseAddresses,
    /// Nothing but being there.
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
    ("crowd", Attack::Crowd),
];

/// What a process of strangers does.
#[derive(Clone, Debug)]
pub struct Plot {
    pub attacks: BTreeSet<Attack>,
    /// `--byzantine-identities N`: at a time.
    pub identities: usize,
    /// `--byzantine-life-ms N`: how long each lives before a new one takes its place; 0: to the end.
    pub life_ms: u64,
    /// `--byzantine-at IP[,IP]`: whom they look for besides what they find as any node does; none: everybody.
    pub at: Vec<Ipv4Addr>,
}

impl Default for Plot {
    fn default() -> Self {
        Self { attacks: BTreeSet::new(), identities: 1, life_ms: 0, at: Vec::new() }
    }
}
