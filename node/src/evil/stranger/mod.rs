//! Somebody who is no member, and never asks to be one: identities made for the purpose, as many as are wanted, that
//! greet nodes and then say and serve what suits them. They have the node's own network, and nothing of its engine.

mod fetching;
mod forgery;
mod persona;
mod statement;
mod story;
mod world;

use crate::net::NetOptions;
use serde_json::json;
use starling_bootstrap::identity::Identity;
use starling_protocol::run::RunSpec;
use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::time::{interval, sleep, timeout};
use world::World;

/// Between the beginnings of two identities.
const APART: Duration = Duration::from_millis(20);
/// Between two lines about how it goes.
const TOLD: Duration = Duration::from_secs(1);

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
    /// `--evil-identities N`: at a time.
    pub identities: usize,
    /// `--evil-life-ms N`: how long each lives before a new one takes its place; 0: to the end.
    pub life_ms: u64,
    /// `--evil-at IP[,IP]`: whom they look for besides what they find as any node does; none: everybody.
    pub at: Vec<Ipv4Addr>,
}

impl Default for Plot {
    fn default() -> Self {
        Self { attacks: BTreeSet::new(), identities: 1, life_ms: 0, at: Vec::new() }
    }
}

/// Goes on until the process is killed.
pub async fn attack(plot: &Plot, spec: &RunSpec, net: &NetOptions) {
    let Some(world) = World::new(plot, spec, net) else {
        tracing::error!("there is no state of zeros of this model");
        return std::future::pending().await;
    };
    let world = Arc::new(world);
    for place in 0..plot.identities {
        tokio::spawn(fill(world.clone(), place));
    }
    let mut told = interval(TOLD);
    loop {
        told.tick().await;
        tell(&world);
    }
}

/// One identity after the other. The first place's stays: it tells the others where everybody is.
async fn fill(world: Arc<World>, place: usize) {
    sleep(APART * u32::try_from(place).unwrap_or(u32::MAX)).await;
    loop {
        let Ok(identity) = Identity::generate() else { return };
        world.tally.identities.fetch_add(1, Relaxed);
        let life = persona::live(world.clone(), place, &identity);
        if place == 0 || world.plot.life_ms == 0 {
            life.await;
            sleep(TOLD).await;
        } else {
            // Cut short: its network ends with it.
            drop(timeout(Duration::from_millis(world.plot.life_ms), life).await);
            sleep(APART).await;
        }
    }
}

fn tell(world: &World) {
    let tally = &world.tally;
    let counts = [&tally.identities, &tally.sessions, &tally.ended, &tally.served, &tally.streams];
    let [identities, sessions, ended, served, streams] = counts.map(|n| n.load(Relaxed));
    let [answered, refused] = [&tally.answered, &tally.refused].map(|n| n.load(Relaxed));
    println!(
        "{}",
        json!({"event": "strangers", "identities": identities, "sessions": sessions, "ended": ended, "served": served,
               "streams": streams, "answered": answered, "refused": refused, "known": world.known().len()})
    );
}
