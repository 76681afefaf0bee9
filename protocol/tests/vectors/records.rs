//! A short history: each record follows from the one before it (`docs/protocol/2-records.md` §2.5 to §2.7).

use crate::fields;
use crate::json::{Json, object};
use crate::made::{self, digest, id, joins, ready, revoked, suspect};
use starling_protocol::amendment::{Amendment, Changes};
use starling_protocol::engine::succession::{self, SignedReady};
use starling_protocol::identity::Ed25519Signer;
use starling_protocol::message::PeerRtt;
use starling_protocol::record::Record;
use starling_protocol::run::RunSpec;

const BUILDING: &str = "docs/protocol/2-records.md §2.5";
const SKIPPING: &str = "docs/protocol/2-records.md §2.6";
const FORKING: &str = "docs/protocol/2-records.md §2.7";
const FOUNDING: &str = "docs/protocol/7-merging.md §7.3.3";

/// The founder and the members that come later.
const A: u8 = 0xa1;
const B: u8 = 0xb2;
const C: u8 = 0xc3;
const D: u8 = 0xd4;
const E: u8 = 0xe5;

/// Records by name, and the cases that made them.
pub struct History {
    pub spec: RunSpec,
    pub name: &'static str,
    pub head: Record,
    pub cases: Vec<Json>,
}

impl History {
    /// A history from a record that is not built here.
    pub fn from(spec: RunSpec, name: &'static str, head: Record) -> Self {
        Self { spec, name, head, cases: Vec::new() }
    }

    /// Takes the record that the code made, and lists its inputs.
    fn note(&mut self, section: &str, name: &'static str, given: Json, record: Record) {
        record.validate_shape().expect("a record of good shape");
        record.validate_after(&self.head).expect("it follows its parent");
        let case = object! {"case": name, "section": section, "parent": self.name};
        let made = object! {"digest": record.digest(), "record": fields::record(&record)};
        self.cases.push(case.and(given).and(made));
        (self.head, self.name) = (record, name);
    }

    pub fn commit(&mut self, name: &'static str, readys: &[SignedReady]) {
        let place = self.cases.len() as u8;
        let (update, root) = (digest(0x10 + place), digest(0x40 + place));
        let parent = self.head.digest();
        let record = succession::commit(&self.head, parent, &self.spec, readys, update, root).expect("it can be built");
        let readys: Vec<Json> = readys.iter().map(fields::ready).collect();
        self.note(BUILDING, name, object! {"readys": readys, "update": update, "state_root": root}, record);
    }

    pub fn fork(&mut self, name: &'static str, going: &[(u8, u64)]) {
        let members: Vec<_> = going.iter().map(|(member, incarnation)| (id(*member), *incarnation)).collect();
        let fork = succession::fork(&self.head, self.head.digest(), &self.spec, &members).expect("it can be built");
        let member = |(id, incarnation): &(_, u64)| object! {"id": *id, "incarnation": *incarnation};
        let members: Vec<Json> = members.iter().map(member).collect();
        self.note(FORKING, name, object! {"members": members}, fork);
    }

    fn skip(&mut self, name: &'static str) {
        let skip = succession::skip(&self.head, self.head.digest()).expect("it can be built");
        self.note(SKIPPING, name, object! {}, skip);
    }

    /// READYs for whole leases of so many steps.
    pub fn ready(&self, member: u8) -> SignedReady {
        let steps = self.head.lease_of(&id(member)).expect("a member").count / self.spec.inner.samples(1);
        ready(&self.head, &self.spec, member, steps as u32)
    }
}

fn founded(spec: &RunSpec) -> (Record, Json) {
    let (founder, nonce, root) = ((id(A), 7), 5, digest(0x40));
    let record = succession::genesis(spec.digest(), spec, founder, nonce, root).expect("it can be built");
    record.validate_shape().expect("a record of good shape");
    let case = object! {
        "case": "the founder's", "section": FOUNDING, "founder": founder.0, "incarnation": founder.1, "nonce": nonce,
        "state_root": root, "digest": record.digest(), "record": fields::record(&record),
    };
    (record, case)
}

/// One line per step of the history; the comments say what each step is there for.
fn history() -> History {
    let spec = made::spec();
    let (genesis, case) = founded(&spec);
    let mut history = History::from(spec, "the founder's", genesis);
    history.cases.push(case);

    // One voter lets one node in, the first in ring order; the unused part of its lease comes back.
    let mut a = ready(&history.head, &history.spec, A, 20);
    a.ready.statements = vec![joins(B, 8), joins(C, 9)];
    history.commit("a join", &[a]);

    // The newcomer votes from now on, and its earlier statement about another node does not count; the slower member
    // gets fewer steps.
    let first = history.head.members().find(|member| *member != id(A)).map_or(B, |member| member.0[0]);
    let other = if first == B { C } else { B };
    let mut pair = [history.ready(A), history.ready(first)];
    pair[0].ready.statements = vec![joins(other, 9)];
    pair[1].ready.statements = vec![joins(E, 3), revoked(E)];
    (pair[0].ready.measured.step_us, pair[1].ready.measured.step_us) = (80_000, 130_000);
    pair[1].ready.measured.upload_kbps = 16_000;
    history.commit("a second join, and a vote for the first", &pair);

    // Three members with round-trip times: the order of a ring.
    let mut three = [history.ready(A), history.ready(B), history.ready(C)];
    let trips = [[(1, 900), (2, 120)], [(0, 880), (2, 300)], [(0, 130), (1, 310)]];
    for (ready, trips) in three.iter_mut().zip(trips) {
        ready.ready.rtts = trips.map(|(peer, rtt)| PeerRtt { peer, rtt }).to_vec();
        ready.ready.measured.upload_kbps = 20_000;
    }
    history.commit("round-trip times make a ring", &three);

    // One member stays away, and is removed with the second COMMIT; a SKIP in between counts for nothing.
    history.commit("a member is left out", &[history.ready(A), history.ready(B)]);
    history.skip("a skip");
    let mut pair = [history.ready(A), history.ready(B)];
    let mut with_ticket = joins(D, 11);
    with_ticket.grant = digest(0x61);
    pair[0].ready.statements = vec![with_ticket];
    history.commit("a removal by absence, and a join by a ticket", &pair);

    // A voter says that its restarted process speaks under a higher incarnation; another voter leaves.
    let mut three = [history.ready(A), history.ready(B), history.ready(D)];
    three[1].ready.statements = vec![joins(B, 12)];
    three[0].ready.statements = vec![joins(E, 13)];
    three[0].ready.leave = true;
    history.commit("a member leaves, and one restarts", &three);

    // The former learner votes alone: it revokes one node, suspects another, and brings a lineage's difference.
    let mut alone = history.ready(D);
    alone.ready.statements = vec![suspect(B), revoked(E)];
    (alone.ready.merges, alone.ready.merged_tokens) = (Some(digest(0x52)), 1_000);
    history.commit("a suspicion, a revocation, and a lineage merged", &[alone]);

    // The run's creator amends it: the settings after the record are others.
    let mut alone = history.ready(D);
    let changes = Changes { rounds: Some(4_000), lr: Some(1e-3), ..Changes::default() };
    let amendment = Amendment::next(&history.head.next.settings, 0, changes);
    alone.ready.amends = Some(Box::new(amendment.sign(&Ed25519Signer::from_secret(&[7; 32]), &history.head.run)));
    history.commit("an amendment", &[alone]);
    history
}

/// Forks of a record after which four are members.
fn forks(history: &History) -> Vec<Json> {
    let (spec, name) = (&history.spec, "three voters and a learner");
    let mut parent = made::record();
    parent.next.members = [(A, 0), (B, 240), (C, 480), (D, 720)]
        .map(|(member, start)| {
            let mut seat = parent.next.members[0].clone();
            (seat.id, seat.lease.start, seat.lease.count) = (id(member), start, 232);
            seat
        })
        .to_vec();
    parent.next.members[3].role = starling_protocol::record::Role::Learner;
    (parent.run, parent.contributors, parent.free) = (spec.digest(), Vec::new(), Vec::new());
    (parent.kind, parent.base, parent.update) = (starling_protocol::record::RecordKind::Skip, digest(3), digest(0));
    parent.next.ring.clear();
    parent.validate_shape().expect("a record of good shape");
    let given = object! {"case": name, "digest": parent.digest(), "record": fields::record(&parent)};
    let mut cases = vec![given];
    let going: [(&'static str, &[(u8, u64)]); 2] = [
        ("two go, one of them under another incarnation", &[(A, 7), (C, 9)]),
        ("a learner goes alone, and votes", &[(D, 7)]),
    ];
    for (fork, members) in going {
        let mut history = History::from(spec.clone(), name, parent.clone());
        history.fork(fork, members);
        cases.append(&mut history.cases);
    }
    cases
}

/// Contributions from which no record can be built.
fn refused() -> Vec<Json> {
    let spec = made::spec();
    let (genesis, _) = founded(&spec);
    let good = || ready(&genesis, &spec, A, 30);
    let with = |change: fn(&mut SignedReady)| {
        let mut ready = good();
        change(&mut ready);
        vec![ready]
    };
    let cases: [(&str, Vec<SignedReady>); 7] = [
        ("no contribution", Vec::new()),
        ("not the start of its lease", with(|c| c.ready.start += 1)),
        ("more positions than its lease", with(|c| c.ready.samples += 1)),
        ("more steps than the round has", with(|c| c.ready.steps += 1)),
        ("no tokens", with(|c| c.ready.tokens = 0)),
        ("a contributor that is no member", with(|c| c.member = id(B))),
        (
            "a difference, after a genesis, which bounds it by 0",
            with(|c| {
                (c.ready.merges, c.ready.merged_tokens) = (Some(digest(0x52)), 1);
            }),
        ),
    ];
    let refused = |(why, readys): (&str, Vec<SignedReady>)| {
        let built = succession::commit(&genesis, genesis.digest(), &spec, &readys, digest(1), digest(2));
        assert!(built.is_none(), "{why}: a record was built");
        object! {
            "case": why, "section": BUILDING, "parent": "the founder's",
            "readys": readys.iter().map(fields::ready).collect::<Vec<_>>(), "record": Json::Null,
        }
    };
    cases.map(refused).into()
}

pub fn subject() -> Json {
    let history = history();
    let about = "Each record of the history is built from the one that its `parent` names and from what the case gives; \
                 `digest` is that of its encoding. READYs are given without what a record does not depend on. Of \
                 `refused` no record is built.";
    object! {
        "about": about,
        "run": fields::run(&history.spec),
        "history": history.cases.clone(),
        "forks": forks(&history),
        "refused": refused(),
    }
}
