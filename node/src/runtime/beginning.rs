//! The inputs with which an engine is started, and the parts of its run.

use super::canonical::Canonical;
use super::evidence;
use super::foresight::Foresight;
use super::ledger::store_failure;
use super::merging::Merging;
use super::mixing::Exchanges;
use super::residuals::Residuals;
use super::streaming::Streaming;
use super::variant::{Variant, Variants};
use crate::exit::{Code, Failure};
use crate::gossip::PairRouter;
use starling_bootstrap::identity::Identity;
use starling_data::Dataset;
use starling_protocol::engine::{Engine, EngineConfig, Founding, PAST_MAX, Stored, Timing};
use starling_protocol::identity::Ed25519Verifier;
use starling_protocol::run::RunSpec;
use starling_protocol::{Digest, NodeId, state};
use starling_store::Store;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// The choices with which an engine begins, beside the content of the store.
pub struct Beginning {
    /// Found a lineage if the store holds none.
    pub found: bool,
    /// Go on alone from what the store holds.
    pub force_fork: bool,
    /// The encoded admission ticket; empty without one.
    pub ticket: Vec<u8>,
    /// Peers that the user named.
    pub guides: Vec<NodeId>,
    /// The only lineage to follow, by the operator's order.
    pub adopt: Option<Digest>,
}

/// The engine, as it begins on the content of the store.
pub fn engine(
    identity: &Identity,
    spec: &RunSpec,
    store: &Store,
    state: &Canonical,
    beginning: Beginning,
) -> Result<Engine, Failure> {
    let Beginning { found, force_fork, ticket, guides, adopt } = beginning;
    let vote_state = store.vote_state();
    let boot = boot(vote_state.as_ref().map(|vote_state| vote_state.incarnation));
    let stored = match store.head() {
        Some(head) => {
            let certificate = store.certificate(head.seq).map_err(store_failure)?;
            let before = (head.seq.saturating_sub(PAST_MAX as u64)..head.seq).rev();
            let past = before.map(|seq| store.certificate(seq).map_err(store_failure));
            let past = past.filter_map(Result::transpose).collect::<Result<_, _>>()?;
            let (candidates, evidence) = (store.candidates(), evidence::load(store));
            let ancestry = store.ancestry();
            Some(Stored { head, certificate, past, ancestry, vote_state, candidates, evidence })
        }
        None => None,
    };
    let founding = match (found && stored.is_none(), state.manifest()) {
        (true, Ok(manifest)) => Some(Founding { nonce: rand::random(), state_root: state::root(&manifest) }),
        (true, Err(e)) => return Err(Failure::new(Code::Refused, e)),
        (false, _) => None,
    };
    if force_fork && stored.is_none() {
        let why = "--force-lineage goes on from the state on this disk, and there is none: leave it out, or use --init";
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
        copied: store.is_copied(),
        ticket,
        guides,
        adopt,
        force_fork,
        timing: Timing::default(),
    }))
}

/// The parts of a run that its specification wants. The difference of a lineage may be kept and merged in any run.
pub fn variants(
    spec: &RunSpec,
    store: Arc<Store>,
    data: Arc<Dataset>,
    (elements, residuals): (usize, &Residuals),
    gossip: Option<PairRouter>,
) -> Variants {
    let mut parts: Vec<Box<dyn Variant>> = vec![Box::new(Merging::new(store, residuals.shared()))];
    if spec.sync.streams() {
        parts.push(Box::new(Streaming::new(spec, elements, data)));
    } else if spec.task.is_some() {
        parts.push(Box::new(Foresight::default()));
    }
    parts.extend(gossip.map(|router| Box::new(Exchanges::new(router)) as Box<dyn Variant>));
    Variants(parts)
}

/// Names the process, and new vote states: the time in microseconds, which rises from one start to the next. If the
/// clock stands before the vote state's creation, as without a battery, the name is the vote state's plus a random
/// number: two starts with one name would look like one process that contradicts itself.
fn boot(incarnation: Option<u64>) -> u64 {
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_micros() as u64);
    match incarnation {
        Some(incarnation) if clock <= incarnation => incarnation.saturating_add(1 + u64::from(rand::random::<u32>())),
        _ => clock,
    }
}

#[cfg(test)]
mod tests {
    use super::boot;

    #[test]
    fn starts_have_names_of_their_own_whatever_the_clock_says() {
        assert!(boot(None) > 1_600_000_000_000_000);
        assert!(boot(Some(7)) > 1_600_000_000_000_000);
        let ahead = u64::MAX >> 1;
        let (first, second) = (boot(Some(ahead)), boot(Some(ahead)));
        assert!(first > ahead && second > ahead && first != second);
    }
}
