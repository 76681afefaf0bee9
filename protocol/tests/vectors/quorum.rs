//! Sets of contributions, quorums, and the distinguished voter (`docs/protocol/4-agreement.md` §4.1).

use crate::json::{Json, hex, object};
use crate::made::{self, digest, id};
use starling_protocol::message::{member_bits, member_indices};
use starling_protocol::quorum::Quorum;
use starling_protocol::record::{Member, Record, Role, set_digest};

const SETS: &str = "docs/protocol/1-wire.md §1.1.1";
const BITS: &str = "docs/protocol/1-wire.md §1.2.3";
const QUORUM: &str = "docs/protocol/4-agreement.md §4.1";

/// A record with these voters, each with the number of COMMITs that have left it out and the round that let it in, and
/// with one learner, which came first.
fn voters(voters: &[(u8, u64)]) -> Record {
    let mut record = made::record();
    let seat = record.next.members[0].clone();
    let member = |(place, (absent, since)): (usize, &(u8, u64))| {
        let id = id(0x10 * (place as u8 + 1));
        let mut member = Member { id, absent: *absent, since: *since, ..seat.clone() };
        member.lease.start = 240 * place as u64;
        member
    };
    record.next.members = voters.iter().enumerate().map(member).collect();
    let mut learner = member((voters.len(), &(0, 0)));
    learner.role = Role::Learner;
    record.next.members.push(learner);
    record
}

/// The quorums among all sets of voters, as bits: bit i is the voter at place i.
fn quorums(name: &str, seats: &[(u8, u64)]) -> Json {
    let quorum = Quorum::after(&voters(seats));
    let sets = 0u32..1 << seats.len();
    let place = |id: &starling_protocol::NodeId| quorum.voters().iter().position(|(voter, _)| voter == id);
    let met = |set: &u32| quorum.met_by(|id| place(id).is_some_and(|place| set >> place & 1 == 1));
    let quorums: Vec<u32> = sets.filter(met).collect();
    object! {
        "case": name, "section": QUORUM,
        "voters": quorum.voters().iter().zip(seats)
            .map(|((id, _), (absent, since))| object! {"id": *id, "absent": *absent, "since": *since})
            .collect::<Vec<_>>(),
        "distinguished": quorum.distinguished(), "quorums": quorums,
    }
}

pub fn subject() -> Json {
    let set = |members: &[(u8, u8)]| {
        let set = set_digest(members.iter().map(|(member, envelope)| (id(*member), digest(*envelope))));
        let contributor = |(member, envelope): &(u8, u8)| object! {"id": id(*member), "envelope": digest(*envelope)};
        object! {"section": SETS, "contributors": members.iter().map(contributor).collect::<Vec<_>>(), "set": set}
    };
    let bits = |indices: &[usize]| {
        let bytes = member_bits(indices.iter().copied());
        assert!(member_indices(&bytes).eq(indices.iter().copied()));
        object! {"section": BITS, "members": indices.to_vec(), "bytes": hex(&bytes)}
    };
    let about = "`quorums` lists all sets of voters that are a quorum, each as a number whose bit i, of value 2^i, is the \
                 voter at place i.";
    object! {
        "about": about,
        "sets": vec![set(&[(0x10, 0x90)]), set(&[(0x10, 0x90), (0x20, 0xa0), (0x30, 0xb0)]), set(&[(0x10, 0x91)])],
        "members": vec![bits(&[0]), bits(&[0, 2]), bits(&[7, 8]), bits(&[3, 1023])],
        "quorums": vec![
            quorums("one", &[(0, 2)]),
            quorums("two: the distinguished one alone", &[(0, 2), (0, 0)]),
            quorums("two that came at once", &[(0, 2), (0, 2)]),
            quorums("two, of which the one that came first was left out", &[(0, 2), (1, 0)]),
            quorums("three", &[(0, 2), (0, 1), (0, 0)]),
            quorums("four", &[(0, 3), (0, 1), (0, 1), (0, 2)]),
            quorums("four, two of which were left out", &[(1, 0), (0, 2), (0, 1), (1, 0)]),
            quorums("four, of which all were left out", &[(1, 3), (1, 2), (1, 1), (1, 0)]),
            quorums("five", &[(0, 1), (0, 2), (0, 0), (0, 3), (0, 3)]),
        ],
    }
}
