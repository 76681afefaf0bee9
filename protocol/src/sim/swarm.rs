//! Newcomers that fetch the state, piece by piece, from nodes that have it and from each other (`docs/network.md`). A
//! node that serves several at a time serves each more slowly. The transfer goes on if its source dies, as long as
//! anybody else has the next piece.

use super::process::{Catching, Node};
use super::world::{Event, World};
use crate::engine::io::Input;

/// Pieces of a state.
const PIECES: u64 = 6;

impl World {
    /// Begins to fetch a state that takes `whole` microseconds from a node that serves nobody else.
    pub(super) fn begin_fetch(&mut self, node: usize, job: u64, whole: u64) {
        self.schedule_own((whole / PIECES).max(1), node, Event::Piece { job, each: whole / PIECES });
    }

    /// A piece is due: it comes from the node that had promised it, or from another that has it.
    pub(super) fn piece(&mut self, node: usize, job: u64, each: u64) {
        let catching = self.nodes[node].process.as_ref().and_then(|process| process.catching.as_ref());
        let Some(catching) = catching.filter(|catching| catching.job == job).cloned() else { return };
        if !self.has_piece(node, catching.source, &catching) {
            self.marks.hit("source lost in a transfer");
        }
        let Some((source, served)) = self.provider(node, &catching) else {
            return self.caught_up(node, (job, catching.source), catching.target, true);
        };
        let got = catching.got + 1;
        self.process(node, |process| {
            if let Some(catching) = &mut process.catching {
                (catching.source, catching.got) = (source, got);
            }
        });
        if got >= PIECES {
            // The last of it is what has been decided meanwhile, which only those have that are at the target.
            let stands = |other: &usize| self.stands(node, *other, &catching);
            let others = catching.sources.iter().copied();
            let whole = std::iter::once(source).chain(others).find(stands).unwrap_or(source);
            return self.caught_up(node, (job, whole), catching.target, true);
        }
        if !catching.sources.contains(&source) {
            self.marks.hit("newcomer served by a newcomer");
        }
        self.schedule_own((each * served).max(1), node, Event::Piece { job, each });
        let state = self.spec.parameters().saturating_mul(4 * u64::from(self.spec.sync.mode.vectors()));
        self.feed(node, Input::CatchUpProgress { bytes: state / PIECES * got });
    }

    /// The node that gives the next piece, and how many fetch from it: the same as before, unless another one that has
    /// the piece serves fewer.
    fn provider(&self, node: usize, catching: &Catching) -> Option<(usize, u64)> {
        let serves = |source: usize| {
            let served = |(other, machine): &(usize, &Node)| {
                let fetch = machine.process.as_ref().and_then(|process| process.catching.as_ref());
                *other != node && fetch.is_some_and(|fetch| fetch.afresh && fetch.source == source)
            };
            1 + self.nodes.iter().enumerate().filter(served).count() as u64
        };
        let able = (0..self.nodes.len()).filter(|other| self.has_piece(node, *other, catching));
        let offers = able.map(|source| (serves(source), source != catching.source, source));
        offers.min().map(|(served, _, source)| (source, served))
    }

    /// Whether a node can give another one the next piece: it was named as a source, or fetches the same and is ahead.
    fn has_piece(&self, node: usize, other: usize, catching: &Catching) -> bool {
        let fetch = self.nodes[other].process.as_ref().and_then(|process| process.catching.as_ref());
        let ahead = |fetch: &Catching| fetch.afresh && fetch.target == catching.target && fetch.got > catching.got;
        let there = self.nodes[other].alive() && self.network.connected(node, other);
        there && (catching.sources.contains(&other) || fetch.is_some_and(ahead))
    }

    /// Whether a node is within reach and stands on the state that is fetched, or beyond it.
    fn stands(&self, node: usize, other: usize, catching: &Catching) -> bool {
        let there = self.nodes[other].alive() && self.network.connected(node, other);
        there && self.nodes[other].disk.chain.iter().any(|link| link.digest == catching.target)
    }
}
