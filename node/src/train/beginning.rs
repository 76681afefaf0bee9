//! What an engine is started with.

use super::canonical::Canonical;
use super::ledger::store_failure;
use crate::exit::{Code, Failure};
use starling_bootstrap::identity::Identity;
use starling_protocol::engine::{Engine, EngineConfig, Founding, Stored, Timing};
use starling_protocol::identity::Ed25519Verifier;
use starling_protocol::run::RunSpec;
use starling_protocol::state;
use starling_store::Store;
use std::time::{SystemTime, UNIX_EPOCH};

/// How an engine begins, beside what the store says.
pub struct Beginning {
    /// Found a lineage if the store holds none.
    pub found: bool,
    /// Go on alone from what the store holds.
    pub force_fork: bool,
    /// The encoded admission ticket; empty without one.
    pub ticket: Vec<u8>,
}

/// The engine, as it begins on what the store holds.
pub fn engine(
    identity: &Identity,
    spec: &RunSpec,
    store: &Store,
    state: &Canonical,
    beginning: Beginning,
) -> Result<Engine, Failure> {
    let Beginning { found, force_fork, ticket } = beginning;
    let register = store.register();
    // Rises from one start to the next even if the clock went back: it names the process, and new vote registers.
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_micros() as u64);
    let boot = clock.max(register.as_ref().map_or(0, |register| register.incarnation.saturating_add(1)));
    let stored = match store.head() {
        Some(head) => {
            let certificate = store.certificate(head.seq).map_err(store_failure)?;
            Some(Stored { head, certificate, register, candidates: store.candidates() })
        }
        None => None,
    };
    let founding = match (found && stored.is_none(), state.manifest()) {
        (true, Ok(manifest)) => Some(Founding { nonce: rand::random(), state_root: state::root(&manifest) }),
        (true, Err(e)) => return Err(Failure::new(Code::Refused, e)),
        (false, _) => None,
    };
    if force_fork && stored.is_none() {
        let why =
            "--force-lineage goes on from the state on this disk, and there is none: leave it out, or use --found";
        return Err(Failure::message(Code::Usage, why));
    }
    Ok(Engine::new(EngineConfig {
        signer: Box::new(identity.signer()),
        verifier: Box::new(Ed25519Verifier),
        spec: spec.clone(),
        run: spec.digest(),
        boot,
        found: founding,
        stored,
        ticket,
        force_fork,
        timing: Timing::default(),
    }))
}
