//! Admission in a simulated run: lists, tickets of every kind, and their creator's revocations.

use super::keys::Keys;
use super::options::Options;
use super::random::Random;
use crate::admission::Ticket;
use crate::record::Record;
use crate::run::{AdmissionMode, RunSpec};
use crate::{Digest, wire};
use std::collections::BTreeSet;

/// The node whose key is that of the run's creator: the founder.
pub const CREATOR: usize = 0;

/// A node's proof for admission.
#[derive(Clone, Debug)]
pub struct Pass {
    pub ticket: Ticket,
    pub grant: Digest,
    /// Signed by a node other than the run's creator.
    forged: bool,
}

/// The rules of one run, and the tickets of its nodes. Without a rule all nodes are admitted.
#[derive(Clone, Debug, Default)]
pub struct Gate {
    mode: Option<AdmissionMode>,
    passes: Vec<Option<Pass>>,
    listed: Vec<bool>,
    /// The subjects that the creator has revoked.
    pub revoked: BTreeSet<Digest>,
    /// The names of the amendments that operators have handed in.
    pub amendments: BTreeSet<Digest>,
}

impl Gate {
    /// Writes the rules into the run's specification and draws the tickets that they need. Founders are always
    /// admitted: their lineages may meet another.
    pub fn draw(seed: u64, options: &Options, keys: &Keys, spec: &mut RunSpec) -> Self {
        if options.creator {
            spec.creator = Some(keys.id(CREATOR));
        }
        if options.admission == AdmissionMode::Open {
            return Self::default();
        }
        let mut random = Random::new(seed, "gate");
        let founds = |node: usize| node < options.founders;
        let mode = options.admission;
        spec.admission.mode = mode;
        if mode == AdmissionMode::List {
            let listed: Vec<bool> = (0..options.nodes).map(|node| founds(node) || random.chance(75)).collect();
            let ids = listed.iter().enumerate().filter(|(_, listed)| **listed).map(|(node, _)| keys.id(node));
            spec.admission.allow = ids.collect();
            spec.admission.allow.sort_unstable();
            return Self { mode: Some(mode), passes: vec![None; options.nodes], listed, ..Self::default() };
        }
        let creator = keys.signer(CREATOR);
        spec.creator = Some(creator.id());
        let run = spec.digest();
        let (shared, few) = (random.draw(), random.between(1, 3) as u32);
        let pass = |node: usize| {
            let own = Some(keys.id(node));
            let nonce = random.draw();
            let ordinary = (creator.as_ref(), nonce, own, 0, 0);
            let kind = if founds(node) { 0 } else { random.between(0, 9) };
            let forger = keys.signer(node);
            let (signer, nonce, holder, expires, uses) = match kind {
                0..=2 => ordinary,
                3..=5 => (creator.as_ref(), shared, None, 0, few),
                6 => (creator.as_ref(), nonce, own, 0, 2),
                7 => (creator.as_ref(), nonce, None, random.between(2, 15), 0),
                8 => (forger.as_ref(), nonce, own, 0, 0),
                _ => return None,
            };
            let ticket = Ticket::sign(signer, &run, nonce, holder, expires, uses);
            Some(Pass { grant: ticket.grant(&run), ticket, forged: kind == 8 })
        };
        Self { mode: Some(mode), passes: (0..options.nodes).map(pass).collect(), ..Self::default() }
    }

    /// The ticket that the node was started with.
    pub fn ticket(&self, node: usize) -> Vec<u8> {
        self.pass(node).map(|pass| wire::encode_ticket(&pass.ticket)).unwrap_or_default()
    }

    pub fn pass(&self, node: usize) -> Option<&Pass> {
        self.passes.get(node)?.as_ref()
    }

    pub fn is_open(&self) -> bool {
        self.mode.is_none()
    }

    /// Whether the record after this one may let in a node that is no member, by the terms that it holds, apart from
    /// uses.
    pub fn lets_in(&self, node: usize, record: &Record) -> bool {
        match self.mode {
            None | Some(AdmissionMode::Open) => true,
            Some(AdmissionMode::List) => self.listed.get(node) == Some(&true),
            Some(AdmissionMode::Ticket) => self.pass(node).is_some_and(|pass| {
                let current = pass.ticket.expires == 0 || record.round < pass.ticket.expires;
                !pass.forged && current && !record.revoked.contains(&pass.grant)
            }),
        }
    }

    /// Whether the node's ticket has uses left after this record.
    pub fn has_uses(&self, node: usize, record: &Record) -> bool {
        self.pass(node).is_none_or(|pass| {
            let used = record.grants.iter().find(|entry| entry.grant == pass.grant).map_or(0, |entry| entry.uses);
            pass.ticket.uses == 0 || used < pass.ticket.uses
        })
    }
}
