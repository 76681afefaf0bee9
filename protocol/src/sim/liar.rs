//! Members that lie about anything but their votes: a wrapper around a node that changes its messages and adds messages
//! that its program never sends. Each lie has to end in a counted, named refusal, and change nothing.

use super::network::kind;
use super::world::{Event, World};
use super::{MS, SECOND, trainer};
use crate::message::{Awaited, Awaits, Certificate, Head, Message, Phase, Pulse, Ready};
use crate::record::Role;
use crate::{Digest, update, wire};
use std::rc::Rc;

/// Norm of a contribution that is a lie. It is no factor: of two members neither is clipped, so over some rounds a
/// factor would lead beyond the range of a float.
const INFLATED_NORM: f32 = 3e5;

/// A liar pretends to fetch the state for so long, and then for as long it does not.
const PRETENCE: u64 = 20 * SECOND;

/// Bytes of an envelope before its body, and behind it.
const HEADER: usize = 38;
const SIGNATURE: usize = 64;

impl World {
    /// The messages that leave a liar in place of its program's message.
    pub(super) fn twist(&mut self, from: usize, to: usize, bytes: Rc<Vec<u8>>) -> Vec<Rc<Vec<u8>>> {
        if self.calm || self.nodes[from].liar.is_none() {
            return vec![bytes];
        }
        if let Some(pretence) = self.pretence(from, &bytes) {
            self.marks.hit("liar that pretends to fetch");
            return vec![pretence];
        }
        match kind(&bytes) {
            "ready" => self.twist_ready(from, to, bytes),
            "head" if self.random.chance(5) => self.false_head(from).map_or(vec![bytes], |lie| vec![lie]),
            "head" if self.random.chance(5) => {
                self.refusal_report(from, to, &bytes).map_or(vec![bytes], |lie| vec![lie])
            }
            "leave" | "join" if self.random.chance(20) => Vec::new(),
            _ => {
                if let Some(liar) = &mut self.nodes[from].liar {
                    liar.said = Some(Rc::clone(&bytes));
                }
                vec![bytes]
            }
        }
    }

    /// The READY is withheld, sent as it is, or different for every other node.
    fn twist_ready(&mut self, from: usize, to: usize, bytes: Rc<Vec<u8>>) -> Vec<Rc<Vec<u8>>> {
        let Some(Message::Ready(ready)) = self.open(&bytes).map(|opened| opened.message) else { return vec![bytes] };
        if let Some(liar) = &mut self.nodes[from].liar {
            liar.ready = Some(ready.clone());
        }
        let other = Message::Ready(Ready { loss_q16: ready.loss_q16 ^ 1, ..ready });
        match self.random.between(0, 9) {
            0 => Vec::new(),
            1 if to % 2 == 1 => self.sealed(from, &other).into_iter().collect(),
            2 => [Some(bytes), self.sealed(from, &other)].into_iter().flatten().collect(),
            _ => vec![bytes],
        }
    }

    /// Now and then a liar's contribution is about a million times as long as others', and its READY states that norm.
    pub(super) fn inflated(&mut self, node: usize, mut vector: Vec<f32>) -> Vec<f32> {
        let norm = trainer::norm(&vector);
        if !self.calm && self.nodes[node].liar.is_some() && norm > 0.0 && self.random.chance(20) {
            update::apply_weight(INFLATED_NORM / norm, &mut vector);
        }
        vector
    }

    /// In place of a Head, one that says that the liar fetches the state, a few bytes a second.
    fn pretence(&self, from: usize, bytes: &[u8]) -> Option<Rc<Vec<u8>>> {
        if kind(bytes) != "head" || !(self.now / PRETENCE + from as u64).is_multiple_of(2) {
            return None;
        }
        let Message::Head(head) = self.open(bytes)?.message else { return None };
        let (phase, progress) = (Phase::CatchingUp, self.now / SECOND);
        self.sealed(from, &Message::Head(Head { phase, progress, awaits: None, ..head }))
    }

    fn false_head(&mut self, from: usize) -> Option<Rc<Vec<u8>>> {
        let head = self.nodes[from].head()?;
        let (lineage, seq) = (head.record.lineage, head.record.seq + self.random.between(1, 5));
        let record = Digest::of("starling sim lie v1", &[&seq.to_le_bytes()]);
        let phase = Phase::Training;
        let head = Head {
            lineage,
            seq,
            record,
            tokens: head.record.tokens << 1,
            phase,
            progress: 0,
            awaits: None,
            pulse: Pulse::default(),
        };
        self.sealed(from, &Message::Head(head))
    }

    /// A Head with the liar's true head that claims that it has refused another member's data.
    fn refusal_report(&mut self, from: usize, to: usize, bytes: &[u8]) -> Option<Rc<Vec<u8>>> {
        let Message::Head(head) = self.open(bytes)?.message else { return None };
        let members = self.nodes[to].disk.head()?.record.members().collect::<Vec<_>>();
        let reported = self.random.pick(&members)?;
        self.sealed(
            from,
            &Message::Head(Head { awaits: Some(Awaits { what: Awaited::Refused, from: reported }), ..head }),
        )
    }

    /// A liar says that it has refused a member's bytes: as in a node, sums that may hold these count no more.
    pub(super) fn heed_report(&mut self, node: usize, from: usize, bytes: &[u8]) {
        if self.nodes[from].liar.is_none() || kind(bytes) != "head" {
            return;
        }
        let Some(Message::Head(head)) = self.open(bytes).map(|opened| opened.message) else { return };
        if let Some(Awaits { what: Awaited::Refused, from: accused }) = head.awaits {
            let from = self.keys.id(from);
            self.process(node, |process| process.sums.kept.hear(from, accused, (head.lineage, head.seq)));
        }
    }

    fn sealed(&self, from: usize, message: &Message) -> Option<Rc<Vec<u8>>> {
        wire::seal(self.keys.signer(from).as_ref(), &self.run, message).ok().map(Rc::new)
    }

    /// Sends a message that no program sends to some node.
    pub(super) fn lie(&mut self, from: usize) {
        if self.calm {
            return;
        }
        let again = self.random.between(500 * MS, 8_000 * MS);
        self.schedule(again, from, 0, Event::Lie);
        let near: Vec<usize> = self.network.neighbours(from).into_iter().collect();
        let Some(to) = self.random.pick(&near).filter(|_| self.nodes[from].alive()) else { return };
        if let Some(bytes) = self.fabricate(from, to) {
            let after = self.random.between(MS, 50 * MS);
            self.schedule(after, to, 0, Event::Junk { from, bytes });
        }
    }

    fn fabricate(&mut self, from: usize, to: usize) -> Option<Rc<Vec<u8>>> {
        let liar = self.nodes[from].liar.as_ref()?;
        let (said, ready) = (liar.said.clone()?, liar.ready.clone());
        let mut bytes = said.to_vec();
        match self.random.between(0, 8) {
            0 => {
                let at = self.random.draw() as usize % bytes.len();
                bytes[at] ^= 1 << self.random.between(0, 7);
            }
            1 => bytes.resize(bytes.len() + self.random.between(1, 20_000) as usize, 7),
            2 => bytes.truncate(self.random.draw() as usize % bytes.len()),
            3 => bytes[0] ^= 1,
            4 => {
                // The liar passes another's message on as its own.
                let near: Vec<usize> = self.network.neighbours(from).into_iter().collect();
                let other = self.random.pick(&near)?;
                bytes = self.network.old(other, from, &mut self.random)?.to_vec();
                // In a flock of several rows members pass such words on.
                let passable = matches!(kind(&bytes), "ready" | "start" | "head" | "leave");
                if passable && self.options.nodes >= 2 * self.options.scale.row {
                    return None;
                }
            }
            5 => {
                let elsewhere = Digest::of("starling sim other run v1", &[]);
                let message = Message::Ready(ready?);
                bytes = wire::seal(self.keys.signer(from).as_ref(), &elsewhere, &message).ok()?;
            }
            6 => bytes = self.not_a_number(from, ready?)?,
            7 => bytes = self.thin_certificate(from)?,
            _ => {
                // The READY is of the current round of its receiver, and beyond any lease.
                let link = self.nodes[to].disk.head()?;
                let (head, base) = (&link.record, link.record.base_or(link.digest));
                let (lineage, round) = (head.lineage, head.round + 1);
                let said = Ready { lineage, round, base, ..ready? };
                let merged_tokens = head.next.merge_tokens + 1 + self.random.between(0, 1 << 30);
                let lie = match self.random.between(0, 1) {
                    0 => Ready { samples: 1 << 40, ..said },
                    // It gives a merged difference more weight than it may have.
                    _ => Ready { merges: Some(Digest([7; 32])), merged_tokens, ..said },
                };
                return self.sealed(from, &Message::Ready(lie));
            }
        }
        Some(Rc::new(bytes))
    }

    /// A READY whose norm is not a number, well signed.
    fn not_a_number(&self, from: usize, ready: Ready) -> Option<Vec<u8>> {
        let norm = ready.measured.norm_bits.to_le_bytes();
        let bytes = self.sealed(from, &Message::Ready(ready))?;
        let body = bytes.get(HEADER..bytes.len().checked_sub(SIGNATURE)?)?;
        let at = body.windows(4).rposition(|window| window == norm)?;
        let mut body = body.to_vec();
        body.get_mut(at..at + 4)?.copy_from_slice(&f32::NAN.to_bits().to_le_bytes());
        let id = self.keys.id(from);
        let signed = [b"starling control v1".as_slice(), &self.run.0, &id.0, &body].concat();
        let signature = self.keys.signer(from).sign(&signed);
        Some([bytes.get(..HEADER)?, &body, &signature.0].concat())
    }

    /// A certificate with less than a quorum of votes: those for the record before, for another record.
    fn thin_certificate(&mut self, from: usize) -> Option<Vec<u8>> {
        let head = self.nodes[from].head()?;
        let voters = head.record.next.members.iter().filter(|member| member.role == Role::Voter).count();
        let certificate = Certificate {
            lineage: head.record.lineage,
            seq: head.record.seq + 1,
            record: crate::engine::succession::skip(&head.record, head.digest)?.digest(),
            votes: Vec::new(),
        };
        let bytes = self.sealed(from, &Message::Certificate(certificate)).filter(|_| voters > 1)?;
        Some(bytes.to_vec())
    }
}
