//! The state with which a node starts: that of its disk, that with which a founder's run begins, or a stand-in until
//! one is fetched.

use super::canonical::Canonical;
use super::learned::{initial, schema_of};
use super::ledger::{self, store_failure};
use crate::exit::{Code, Failure};
use anyhow::Context;
use starling_protocol::Digest;
use starling_protocol::amendment::Settings;
use starling_protocol::record::{NextRound, Record, RecordKind};
use starling_protocol::run::RunSpec;
use starling_protocol::state::{self, State};
use starling_store::{Store, StoreError};
use std::sync::Arc;

/// The known facts about the beginning of a node's work.
pub struct Begins {
    /// The state with which the run begins, if the user has named a trained model.
    pub weights: Option<State>,
    /// The node founds a lineage if its disk holds none.
    pub founds: bool,
    /// There are peers to fetch a state from.
    pub peers: bool,
}

/// The state on disk, or the one with which the run begins, which only a founder will keep.
pub async fn first_state(spec: &RunSpec, store: &Arc<Store>, begins: Begins) -> Result<Canonical, Failure> {
    let (spec, store) = (spec.clone(), store.clone());
    let loading = move || -> Result<Canonical, Failure> {
        let schema = schema_of(&spec);
        let Begins { weights, founds, peers } = begins;
        let given = weights.is_some();
        let mut state = Canonical {
            record: no_record(&spec),
            digest: Digest::default(),
            base: Digest::default(),
            schema,
            state: beginning(&schema, &spec, &store, (weights, founds))?,
        };
        if store.head().is_some() {
            match ledger::stored(&store, &spec) {
                Err(StoreError::Damaged(damage)) if peers => {
                    tracing::warn!("{damage}; the chain is dropped and fetched anew");
                    store.reset_chain().map_err(store_failure)?;
                    // With an empty disk the node may have to found its lineage anew.
                    if !given {
                        state.state = beginning(&schema, &spec, &store, (None, founds))?;
                    }
                }
                loaded => state.take(loaded.map_err(store_failure)?),
            }
        }
        Ok(state)
    };
    tokio::task::spawn_blocking(loading).await.context("loading the state stopped")?
}

/// The state with which the run begins. A node that founds nothing and lacks the weights gets one of the same size.
fn beginning(
    schema: &Digest,
    spec: &RunSpec,
    store: &Store,
    (weights, founds): (Option<State>, bool),
) -> Result<State, Failure> {
    if let Some(state) = weights {
        // The difference of a lineage that gives way is measured from it (`difference`).
        if spec.sync.merges() {
            store.keep_beginning(schema, &state).map_err(store_failure)?;
        }
        return Ok(state);
    }
    let needed = spec.beginning.filter(|_| founds && store.head().is_none());
    let Some(root) = needed else { return Ok(State::initial(initial(spec), spec.sync.mode)) };
    let kept = store.beginning().filter(|manifest| state::root(manifest) == root);
    if kept.is_some()
        && let Some(theta) = store.load_beginning().map_err(store_failure)?
    {
        return Ok(State::initial(theta, spec.sync.mode));
    }
    let why = if spec.task.is_some() {
        "this run begins with what a trainer brought, and the node ended before it was kept: remove this folder and \
         start the run anew, or join a node of the run with --join or --bootstrap"
    } else {
        "this run begins from the weights of a trained model, and they are not in this folder: name the model with \
         --run RUN.toml --from CHECKPOINT, or join a node of the run with --join or --bootstrap"
    };
    Err(Failure::message(Code::Usage, why))
}

/// A record that stands for "nothing committed yet"; its digest is zero, which no record has.
fn no_record(spec: &RunSpec) -> Record {
    Record {
        run: spec.digest(),
        lineage: Digest::default(),
        seq: 0,
        parent: Digest::default(),
        kind: RecordKind::Genesis,
        base: Digest::default(),
        round: 0,
        contributors: Vec::new(),
        update: Digest::default(),
        state_root: Digest::default(),
        tokens: 0,
        steps: 0,
        cursor: 0,
        free: Vec::new(),
        merged: Vec::new(),
        grants: Vec::new(),
        revoked: Vec::new(),
        next: NextRound {
            inner_steps: spec.inner.steps,
            codec: spec.sync.codec,
            overheads: Default::default(),
            merge_tokens: 0,
            merge_norm_bits: 0,
            members: Vec::new(),
            ring: Vec::new(),
            settings: Settings::default(),
        },
        amended: None,
    }
}
