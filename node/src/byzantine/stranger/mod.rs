//! Strangers: identities that are no members and never ask to be, as many as the command line wants. They greet nodes,
//! and then say and serve what suits them. They have the node's own network, and nothing of its engine.

mod fetching;
mod forgery;
mod persona;
mod statement;
mod story;
mod told;
mod world;

use super::BYZANTINE;
use super::plot::Plot;
use crate::net::NetOptions;
use serde_json::json;
use starling_bootstrap::identity::Identity;
use starling_protocol::run::RunSpec;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::time::{interval, sleep, timeout};
use world::World;

/// Time between the starts of two identities.
const APART: Duration = Duration::from_millis(20);
/// Time between two lines of the tally.
const TOLD: Duration = Duration::from_secs(1);

/// Attacks as strangers, if the command line says so, and then never returns. Each identity has a network like the one
/// that the node would have.
pub async fn attack(spec: &RunSpec, net: &NetOptions) {
    if let Some(byzantine) = BYZANTINE.get().filter(|byzantine| !byzantine.plot.attacks.is_empty()) {
        go_on(&byzantine.plot, spec, net).await;
    }
}

/// Attacks until the process is killed.
async fn go_on(plot: &Plot, spec: &RunSpec, net: &NetOptions) {
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

/// Runs one identity after the other at this place. The identity of place 0 stays: it tells the others where the nodes
/// are.
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
            // The network of an identity ends with its life.
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
    let line = json!({"event": "strangers", "identities": identities, "sessions": sessions, "ended": ended,
                      "served": served, "streams": streams, "answered": answered, "refused": refused,
                      "known": world.known().len()});
    crate::watch::terminal::put(&format!("{line}\n"));
}
