//! Forged records.

use super::super::plot::Attack;
use super::story::{Story, head};
use super::world::{SIGN, World};
use crate::net::fetch::Link;
use starling_protocol::engine::succession;
use starling_protocol::identity::Signer;
use starling_protocol::message::{Certificate, Head, Message, Phase, Question, Value, Vote};
use starling_protocol::record::{Record, RecordKind};
use starling_protocol::{Digest, NodeId, wire};
use std::sync::Arc;

/// Number of an invented record, or its distance from the newest head; and the length of a founded lineage.
const LONG: u64 = 1000;
const SHORT: u64 = 8;
/// Distance of a false head from the newest one: so far that nodes do not decide the record themselves any more.
const AHEAD: u64 = 3;

/// The first record of a lineage that `founder` has founded.
fn genesis(world: &World, founder: NodeId) -> Option<Record> {
    succession::genesis(world.run, &world.spec, (founder, SIGN), SIGN, world.blank.root)
}

fn random() -> Digest {
    Digest(rand::random())
}

/// A certificate without a vote.
fn thin(record: &Record) -> Certificate {
    Certificate { lineage: record.lineage, seq: record.seq, record: record.digest(), votes: Vec::new() }
}

/// A record that changes nothing, with a parent that nobody has.
fn orphan(genesis: &Record, lineage: Digest, seq: u64) -> Record {
    Record { lineage, seq, parent: random(), kind: RecordKind::Skip, base: random(), ..genesis.clone() }
}

/// A record of this place that is on no chain, encoded.
pub fn invented(world: &World, lineage: &Digest, seq: u64) -> Link {
    let Some(genesis) = genesis(world, NodeId([7; 32])) else { return (Vec::new(), Vec::new()) };
    let record = orphan(&genesis, *lineage, seq.max(1));
    (wire::encode_record(&record), wire::encode_certificate(&thin(&record)))
}

/// The story of an identity at its start, and again whenever the flock has moved; None if it has nothing new.
pub fn story(world: &World, place: usize, me: &dyn Signer, now: Option<&Arc<Story>>) -> Option<Story> {
    let is = |attack| world.plot.attacks.contains(&attack);
    let newest = world.newest();
    let of_another = |story: &Arc<Story>| newest.as_ref().is_some_and(|head| head.lineage != story.head.lineage);
    match () {
        () if is(Attack::Usurp) => now.is_none().then(|| usurp(world, me.id()))?,
        () if is(Attack::UsurpGenesis) => now.is_none().then(|| found(world, me))?,
        () if is(Attack::UsurpAhead) => now.is_none_or(of_another).then(|| ahead(world, me.id(), &newest?))?,
        () if is(Attack::FalseHeads) => Some(nothing_behind(&newest?)),
        () if is(Attack::Split) => now.is_none_or(of_another).then(|| split(world.truth()?.as_ref(), &newest?))?,
        () if is(Attack::PretendToFetch) => now.is_none().then(without_a_state),
        () if is(Attack::OldHead) => {
            let truth = world.truth()?;
            // Identities with even places claim the newest head; the others claim that nothing has happened since.
            let head = if place.is_multiple_of(2) { newest? } else { truth.head.clone() };
            let news = now.is_none_or(|told| told.head.seq < head.seq);
            news.then(|| Story { head, ..Story::clone(&truth) })
        }
        () => None,
    }
}

/// An invented lineage with more tokens than there are, and a certificate without votes.
fn usurp(world: &World, me: NodeId) -> Option<Story> {
    let genesis = genesis(world, me)?;
    let record = Record { tokens: u64::MAX, ..orphan(&genesis, genesis.lineage, LONG) };
    let mut story = world.blank.of(&record, u64::MAX, record.seq);
    story.add(&record, Some(&thin(&record)));
    Some(story)
}

/// A founded lineage in which all is as it must be, but for the tokens that its heads claim.
fn found(world: &World, me: &dyn Signer) -> Option<Story> {
    let mut record = genesis(world, me.id())?;
    let mut links = vec![(record.clone(), None)];
    while record.seq < SHORT {
        let parent = record.digest();
        record = succession::skip(&record, parent)?;
        let question = Question { seq: record.seq, parent, instance: Question::RECORD };
        let value = Value::skip(record.digest());
        let vote = Message::Vote(Vote { question, incarnation: SIGN, ballot: 1, value, voted: true });
        let votes = vec![wire::seal(me, &world.run, &vote).ok()?];
        links.push((record.clone(), Some(Certificate { votes, ..thin(&record) })));
    }
    let mut story = world.blank.of(&record, u64::MAX, 0);
    links.iter().for_each(|(record, certificate)| story.add(record, certificate.as_ref()));
    Some(story)
}

/// A record far ahead in the flock's lineage, of which this identity is the only member.
fn ahead(world: &World, me: NodeId, newest: &Head) -> Option<Story> {
    let record = orphan(&genesis(world, me)?, newest.lineage, newest.seq + LONG);
    let tokens = u64::MAX;
    let record = Record { tokens, ..record };
    let mut story = world.blank.of(&record, tokens, record.seq);
    story.add(&record, Some(&thin(&record)));
    Some(Story { invents: true, ..story })
}

/// A newcomer that fetches its first state. The progress in its heads is the number of the identity's beats.
fn without_a_state() -> Story {
    let none = Digest::default();
    Story::of(Head { phase: Phase::CatchingUp, ..head(none, 0, none, 0) })
}

fn nothing_behind(newest: &Head) -> Story {
    Story::of(head(newest.lineage, newest.seq + AHEAD, random(), newest.tokens))
}

/// The flock's own chain up to the FORK that its lineage begins with, that FORK with a longer lease, and nonsense after
/// it.
fn split(truth: &Story, newest: &Head) -> Option<Story> {
    let read =
        |(record, votes): &Link| Some((wire::decode_record(record).ok()?, wire::decode_certificate(votes).ok()?));
    let of_lineage = |record: &Record| record.kind == RecordKind::Fork && record.lineage == newest.lineage;
    let (fork, proof) = truth.links.values().filter_map(read).find(|(record, _)| of_lineage(record))?;
    let mut other = fork.clone();
    let (seats, end) = (other.next.members.len(), other.cursor.checked_add(1)?);
    other.next.members.get_mut(seats.checked_sub(1)?)?.lease.count += 1;
    other.cursor = end;
    let proof = Certificate { record: other.digest(), ..proof };
    let links = truth.links.range(..fork.seq).map(|(seq, link)| (*seq, link.clone())).collect();
    let story = Story::of(head(newest.lineage, newest.seq + LONG, random(), u64::MAX));
    let mut story = Story { links, invents: true, shown: vec![proof.clone()], ..story };
    story.add(&other, Some(&proof));
    Some(story)
}
