//! The context that all parts of the engine may read and none of them changes: this node's identity, the run, the time,
//! the head record, and what is known of the peers.

use super::amendments::Amendments;
use super::chain::{ChainHead, Place};
use super::clock::Moment;
use super::config::Timing;
use super::identity::Identity;
use super::peer::Peers;
use super::terms::Terms;
use super::watch::Watch;
use crate::amendment::Changes;
use crate::evidence;
use crate::identity::{NodeId, Signer, Verifier};
use crate::message::{Evidence, Head, Phase};
use crate::mutation::{Mutation, mutated};
use crate::record::Record;
use crate::run::RunSpec;
use crate::{Digest, wire};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// The number of records up to the head that a joiner may have as head, and whose certificates are kept at hand.
const HISTORY_MAX: usize = 8;

pub(super) struct Ctx {
    pub me: NodeId,
    pub signer: Box<dyn Signer>,
    pub verifier: Box<dyn Verifier>,
    pub spec: RunSpec,
    /// The specification with all amendments that are in force after the head, and these amendments.
    pub rules: RunSpec,
    pub changes: Changes,
    /// Amendments that no record holds yet.
    pub amendments: Amendments,
    pub terms: Terms,
    pub spec_bytes: Vec<u8>,
    pub run: Digest,
    pub timing: Timing,
    pub ticket: Vec<u8>,
    pub now: Moment,
    /// The deadlines for which the node wakes.
    pub watch: Watch,
    /// The time of the first input.
    pub began: Option<Moment>,
    pub identity: Identity,
    pub head: Option<Arc<ChainHead>>,
    /// The head and records before it, newest last.
    pub history: VecDeque<ChainHead>,
    pub peers: Peers,
    /// The places of members that any Head on this node's head has named as down.
    pub named_down: BTreeSet<usize>,
    /// How often a node has shown a ticket that admits it.
    pub invitations: u64,
    /// This node's own state is in doubt.
    pub distrusted: bool,
    /// Two certified records contradict each other: the node does and says nothing any more but its Heads.
    pub frozen: bool,
    /// The time since when the operator wants this node to go. It stays until the record under way is done.
    pub leaving: Option<Moment>,
    /// Microseconds from the decision on the newest record until that record was on disk.
    pub commit_took: u64,
}

impl Ctx {
    pub fn new(
        (signer, verifier): (Box<dyn Signer>, Box<dyn Verifier>),
        (run, spec): (Digest, RunSpec),
        boot: u64,
        ticket: Vec<u8>,
        timing: Timing,
    ) -> Self {
        Self {
            me: signer.id(),
            terms: Terms::of(&spec.sync),
            spec_bytes: wire::encode_spec(&spec),
            signer,
            verifier,
            rules: spec.clone(),
            changes: Changes::default(),
            amendments: Amendments::default(),
            spec,
            run,
            timing,
            ticket,
            now: Moment::default(),
            watch: Watch::default(),
            began: None,
            identity: Identity::new(boot),
            head: None,
            history: VecDeque::new(),
            peers: Peers::new(),
            named_down: BTreeSet::new(),
            invitations: 0,
            distrusted: false,
            frozen: false,
            leaving: None,
            commit_took: 0,
        }
    }

    /// Makes this record the head.
    pub fn stand_on(&mut self, chain_head: ChainHead) {
        let follows = self.history.back().is_none_or(|past| past.digest == chain_head.record.parent);
        if !follows {
            self.history.clear();
        }
        if self.history.len() >= HISTORY_MAX && !mutated!(Mutation::HoardHistory) {
            self.history.pop_front();
        }
        // Older records need only what tells them apart, and who decided them.
        if let Some(past) = self.history.iter_mut().nth_back(1) {
            past.record.contributors = Vec::new();
            past.record.next.members = Vec::new();
        }
        self.history.push_back(chain_head.clone());
        self.head = Some(Arc::new(chain_head));
        self.named_down.clear();
        let peers: Vec<NodeId> = self.peers.keys().copied().collect();
        peers.iter().for_each(|id| self.note_down(id));
        self.follow_settings();
    }

    pub fn place(&self) -> Option<Place> {
        let head = self.head.as_ref()?;
        let Record { lineage, seq, tokens, .. } = head.record;
        Some(Place { lineage, seq, record: head.digest, tokens })
    }

    /// Heads of the peers that can be heard and whose claims this node heeds, by ascending id.
    pub fn places(&self) -> impl Iterator<Item = (NodeId, Place)> + '_ {
        let open = self.peers.iter().filter(|(_, peer)| peer.present() && self.heeds_claims(peer));
        let heard = open.filter(|(_, peer)| self.spoke_lately(peer));
        let thawed = |head: &&Head| head.phase != Phase::Frozen;
        heard.filter_map(move |(id, peer)| Some((*id, Place::of(peer.said.head.as_ref().filter(thawed)?)?)))
    }

    /// Digest of the head record; zero without a head.
    pub fn head_digest(&self) -> Digest {
        self.head.as_ref().map_or(Digest::default(), |head| head.digest)
    }

    /// Whether two envelopes contradict each other.
    pub fn contradict(&self, first: &[u8], second: &[u8]) -> bool {
        let evidence = Evidence { first: first.to_vec(), second: second.to_vec() };
        first != second && evidence::examine(self.verifier.as_ref(), &self.run, &evidence).is_ok()
    }
}

#[cfg(test)]
impl Ctx {
    /// A voter among three of a record; the two others, 16 and 32, are here.
    pub fn sample() -> Self {
        use super::peer::Peer;
        use crate::identity::Ed25519Verifier;
        use crate::record::Member;
        use crate::wire::sample::{self, member, node};
        let keys: (Box<dyn Signer>, Box<dyn Verifier>) = (Box::new(sample::signer()), Box::new(Ed25519Verifier));
        let mut ctx = Self::new(keys, (sample::digest(1), sample::spec()), 7, Vec::new(), Timing::default());
        let mut record = sample::record();
        record.next.members = vec![member(16, 0), member(32, 240), Member { id: ctx.me, ..member(0, 480) }];
        record.next.members.sort_by_key(|member| member.id);
        ctx.now = Moment::default().plus(60_000_000);
        ctx.stand_on(ChainHead::new(record, None));
        let now = ctx.now;
        ctx.peers.extend([16, 32].map(|fill| (node(fill), Peer::here(now))));
        ctx
    }

    /// The round of this node after its head.
    pub fn sample_round(&self) -> super::round::Round {
        super::round::Round::new(self.head.clone().expect("a head"), self.now, false)
    }
}
