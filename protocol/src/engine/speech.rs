//! What a voter says in a vote: each word is on the disk before it is sent, is sent once to every voter, and again only
//! to whom it may have been lost.

use super::Engine;
use super::config::{Candidate, Register};
use crate::NodeId;
use crate::ballot::{Ballot, Said};
use crate::message::{Estimate, Message, Phase, Question, Stamp, Value, Vote};
use crate::plant::{Plant, planted};

impl Engine {
    /// Writes and says what is pending in a vote; whether it did.
    pub(super) fn say(&mut self, instance: u32) -> bool {
        let Some((question, head)) = self.question(instance).zip(self.head.as_ref()) else { return false };
        let (lineage, parent) = (head.record.lineage, question.parent);
        let record = instance == Question::RECORD;
        let Some(round) = &mut self.round else { return false };
        let vote = if record { &mut round.record_vote } else { &mut round.set_vote };
        let Some((said, _)) = vote.ballot.as_ref().and_then(|ballot| ballot.pending()) else { return false };
        let said = said.clone();
        let (ballot, phase) = said.place();
        let stamp = Stamp { seq: question.seq, instance, ballot, phase };
        if !self.may_sign(&stamp) {
            return false;
        }
        let candidate = self.unwritten(&said.value);
        let (incarnation, value) = (self.voice.incarnation, said.value.clone());
        let (mut estimate, mut vote) = (None, None);
        let before = self.round.as_ref().map(|round| if record { &round.record_vote } else { &round.set_vote });
        let before = before.and_then(|vote| vote.ballot.as_ref());
        for Said { ballot, value, voted } in before.iter().flat_map(|ballot| ballot.own()).chain([&said]) {
            match voted {
                None => estimate = Some((*ballot, value.clone())),
                Some(voted) => vote = Some((*ballot, value.clone(), *voted)),
            }
        }
        let register = Register { incarnation, lineage, parent, stamp, estimate, vote };
        let token = self.persist(register, candidate);
        let (message, vote) = match said.voted {
            None => (Message::Estimate(Estimate { question, incarnation, ballot, value }), None),
            Some(voted) => {
                let vote = Vote { question, incarnation, ballot, value, voted };
                (Message::Vote(vote.clone()), Some(vote))
            }
        };
        let Some(bytes) = self.seal(&message) else { return false };
        let (me, now) = (self.me, self.now);
        if let Some(round) = &mut self.round {
            let instance = if record { &mut round.record_vote } else { &mut round.set_vote };
            instance.ballot(me).say();
            instance.said_at = now;
            if let Some(vote) = vote {
                instance.votes.insert(me, (vote, bytes.clone()));
            }
        }
        let voters = self.reachable_voters();
        self.send_bytes(&voters, &bytes, Some(token));
        true
    }

    /// The candidate behind a value that is said for the first time: it goes to the disk together with the register.
    fn unwritten(&mut self, value: &Value) -> Option<Candidate> {
        let holding = self
            .round
            .as_mut()?
            .holding
            .get_mut(&value.digest)
            .filter(|held| !held.written && !planted!(Plant::ForgetCandidate))?;
        holding.written = true;
        Some(holding.candidate.clone())
    }

    /// Says to a peer what it may have missed. What is not on the disk yet was not said either: its write sends it.
    pub(super) fn repeat_votes(&mut self, peer: NodeId) {
        for instance in self.instances() {
            self.repeat_vote(instance, &[peer], |_, _| true);
        }
    }

    /// Says again what was said a while ago, to those voters who have not shown that they need it no more. What goes
    /// over a connection arrives as long as it holds, so that nobody is told twice when all is well.
    pub(super) fn repeat_late_votes(&mut self) {
        for instance in self.instances() {
            let Some(round) = self.round.as_mut() else { return };
            let vote = if instance == Question::RECORD { &mut round.record_vote } else { &mut round.set_vote };
            let quiet = self.now.since(vote.said_at.max(vote.repeated_at));
            if vote.ballot.is_none() || quiet < self.timing.repeat {
                continue;
            }
            vote.repeated_at = self.now;
            let heard = vote.ballot.clone();
            let voters = self.reachable_voters();
            let waiting: Vec<NodeId> = voters.into_iter().filter(|id| self.waits_for_votes(id, instance)).collect();
            let later = |id: &NodeId, said: &Said<Value>| {
                heard.as_ref().and_then(|ballot| ballot.place_of(id)).is_some_and(|place| place > said.place())
            };
            self.repeat_vote(instance, &waiting, |id, said| !later(id, said));
        }
    }

    fn instances(&self) -> [u32; 2] {
        [self.round.as_ref().map_or(0, |round| round.attempt), Question::RECORD]
    }

    /// Whether a voter stands where it may need to hear this vote: not while it trains, nor in an attempt that the vote
    /// on its set has led to, or whose result it would vote on.
    fn waits_for_votes(&self, id: &NodeId, instance: u32) -> bool {
        let Some(round) = &self.round else { return false };
        let Some(head) = self.peers.get(id).and_then(|peer| peer.head.as_ref()) else { return true };
        let over = instance != Question::RECORD && round.running.is_none();
        head.record == round.parent && head.phase != Phase::Training && (head.phase != Phase::Reducing || over)
    }

    fn repeat_vote(&mut self, instance: u32, targets: &[NodeId], needs: impl Fn(&NodeId, &Said<Value>) -> bool) {
        if !self.may_speak() || !self.voice.is_written() {
            return;
        }
        let incarnation = self.voice.incarnation;
        let Some((question, round)) = self.question(instance).zip(self.round.as_ref()) else { return };
        let vote = if instance == Question::RECORD { &round.record_vote } else { &round.set_vote };
        let own: Vec<Said<Value>> = vote.ballot.iter().flat_map(Ballot::own).cloned().collect();
        for said in own {
            let targets: Vec<NodeId> = targets.iter().filter(|id| needs(id, &said)).copied().collect();
            let (question, Said { ballot, value, voted }) = (question.clone(), said);
            let message = match voted {
                None => Message::Estimate(Estimate { question, incarnation, ballot, value }),
                Some(voted) => Message::Vote(Vote { question, incarnation, ballot, value, voted }),
            };
            self.send_to(&targets, &message);
        }
    }
}
