//! Rules that hold for every answer of an engine, whatever its input.

use crate::bench::Keys;
use starling_protocol::engine::io::{Output, PersistToken};
use starling_protocol::engine::{Engine, PEERS_MAX};
use starling_protocol::limits::{AMENDMENT_BYTES_MAX, CONTROL_BYTES_MAX, EVIDENCE_MAX, READY_BYTES_MAX, VOTERS_MAX};
use starling_protocol::message::{Message, Question, Stamp, Value};
use starling_protocol::{Digest, wire};
use std::collections::{BTreeMap, BTreeSet};

/// Outputs of one input: a few, and the repetitions to each peer.
const OUTPUTS_MIN: usize = 48;
const OUTPUTS_PER_PEER: usize = 8;
/// Records behind the head, results of one round.
const HISTORY_MAX: usize = 8;
const RESULTS_MAX: usize = 16;
/// Incarnations and places whose statements are remembered; a test of any length makes fewer.
const STATEMENTS_MAX: usize = 1 << 16;

/// The statement at one place.
type Said = (Question, Value, Option<bool>);

pub struct Watch {
    run: Digest,
    written: BTreeSet<PersistToken>,
    /// The newest statement that each incarnation was about to sign.
    newest: BTreeMap<u64, Stamp>,
    /// The write that allows each statement.
    allowed: BTreeMap<(u64, Stamp), PersistToken>,
    said: BTreeMap<(u64, Stamp), Said>,
}

impl Watch {
    pub fn new(run: Digest) -> Self {
        let (written, newest) = (BTreeSet::new(), BTreeMap::new());
        Self { run, written, newest, allowed: BTreeMap::new(), said: BTreeMap::new() }
    }

    /// The watch of the node's next process: earlier signatures bind it, and writes are counted anew.
    pub fn restarted(self) -> Self {
        Self { written: BTreeSet::new(), allowed: BTreeMap::new(), ..self }
    }

    pub fn check(&mut self, engine: &Engine, answered: Option<PersistToken>, outputs: &[Output]) {
        self.written.extend(answered);
        let held = engine.held();
        let most = OUTPUTS_MIN + OUTPUTS_PER_PEER * held.peers;
        assert!(outputs.len() <= most, "{} outputs of one input", outputs.len());
        let few = held.history <= HISTORY_MAX && held.results <= RESULTS_MAX && held.fetches <= RESULTS_MAX;
        let few = few && held.evidence <= EVIDENCE_MAX;
        assert!(few && held.peers <= PEERS_MAX && held.votes <= 2 * VOTERS_MAX, "{held:?}");
        for output in outputs {
            match output {
                Output::Persist { token, vote_state, .. } => {
                    let (incarnation, stamp) = (vote_state.incarnation, vote_state.stamp);
                    let before = self.newest.insert(incarnation, stamp);
                    // A vote state that goes along into another lineage says nothing new.
                    let silent = vote_state.estimate.is_none() && vote_state.vote.is_none();
                    let rises = |before: Stamp| before < stamp || (before == stamp && silent);
                    assert!(before.is_none_or(rises), "{before:?} is followed by {stamp:?}");
                    self.allowed.insert((incarnation, stamp), *token);
                }
                Output::Send { bytes, after, .. } => self.check_sent(bytes, *after),
                _ => {}
            }
        }
    }

    fn check_sent(&mut self, bytes: &[u8], after: Option<PersistToken>) {
        assert!(bytes.len() <= CONTROL_BYTES_MAX);
        let message = wire::open(&Keys, &self.run, bytes).expect("an engine's words are well-formed").message;
        let (question, incarnation, ballot, value, voted) = match message {
            Message::Estimate(m) => (m.question, m.incarnation, m.ballot, m.value, None),
            Message::Vote(m) => (m.question, m.incarnation, m.ballot, m.value, Some(m.voted)),
            Message::Ready(ready) => {
                let amendment = ready.amends.as_ref().map_or(0, |_| AMENDMENT_BYTES_MAX);
                let most = 384 + 80 * ready.statements.len() + 4 * ready.rtts.len() + amendment;
                let most = READY_BYTES_MAX.min(most);
                return assert!(bytes.len() <= most, "a READY of {} bytes", bytes.len());
            }
            _ => return,
        };
        let phase = if voted.is_some() { 2 } else { 1 };
        let stamp = Stamp { seq: question.seq, instance: question.instance, ballot, phase };
        let place = (incarnation, stamp);
        // Writes of a former process are not known here.
        if let Some(token) = self.allowed.get(&place) {
            let durable = after == Some(*token) || self.written.contains(token);
            assert!(durable, "{stamp:?} is sent before it is written");
        }
        assert!(self.said.len() < STATEMENTS_MAX);
        let said = (question, value, voted);
        let before = self.said.entry(place).or_insert_with(|| said.clone());
        assert_eq!(*before, said, "two statements at one place");
    }
}
