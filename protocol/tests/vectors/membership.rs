//! Probation: the work that earns a vote, and the number of newcomers that decide (`docs/protocol/5-membership.md`
//! §5.5).

use crate::fields;
use crate::json::{Json, object};
use crate::made::{self, id, joins};
use crate::records::History;
use starling_protocol::record::{Member, Record, Role};
use starling_protocol::run::RunSpec;

/// Rounds of probation of the run below.
const PROBATION: u32 = 4;

/// A record of round 30 with these members: for each its id, whether it votes, its round of entry, and its
/// contributions.
fn parent(spec: &RunSpec, members: &[(u8, bool, u64, u16)]) -> Record {
    let mut record = made::record();
    let seat = record.next.members[0].clone();
    let member = |(place, (fill, votes, since, served)): (usize, &(u8, bool, u64, u16))| {
        let mut lease = seat.lease;
        lease.start = 240 * place as u64;
        let role = if *votes { Role::Voter } else { Role::Learner };
        Member { id: id(*fill), role, lease, since: *since, served: *served, ..seat.clone() }
    };
    record.next.members = members.iter().enumerate().map(member).collect();
    record.next.ring.clear();
    (record.run, record.seq, record.round) = (spec.digest(), 31, 30);
    (record.contributors, record.free) = (Vec::new(), Vec::new());
    record.kind = starling_protocol::record::RecordKind::Skip;
    (record.base, record.update) = (made::digest(3), made::digest(0));
    record.cursor = 240 * members.len() as u64;
    record.validate_shape().expect("a record of good shape");
    record
}

pub fn subject() -> Json {
    let mut spec = made::spec();
    spec.admission.probation = PROBATION;
    let mut cases = Vec::new();
    let mut play = |name: &'static str, members: &[(u8, bool, u64, u16)], plays: &[&dyn Fn(&mut History)]| {
        let parent = parent(&spec, members);
        cases.push(object! {"case": name, "digest": parent.digest(), "record": fields::record(&parent)});
        for play in plays {
            let mut history = History::from(spec.clone(), name, parent.clone());
            play(&mut history);
            cases.append(&mut history.cases);
        }
    };
    let all = |history: &History, fills: &[u8]| fills.iter().map(|fill| history.ready(*fill)).collect::<Vec<_>>();

    // A member is no newcomer after 16 rounds. 0x05 came long ago; so did 0x06, which has served only once; 0x07 and
    // 0x08 are new.
    let grown = [
        (0x01, true, 0, 30),
        (0x02, true, 2, 28),
        (0x05, false, 9, 9),
        (0x06, false, 9, 0),
        (0x07, false, 25, 5),
        (0x08, false, 25, 5),
    ];
    play(
        "two voters and four learners",
        &grown,
        &[&|history| {
            let readys = all(history, &[0x01, 0x02, 0x05, 0x06, 0x07, 0x08]);
            history.commit("learners after their probation vote, newcomers below a third", &readys);
        }],
    );

    // With 0x03 gone, two newcomers of six are too many: the newest steps back.
    let crowd = [
        (0x01, true, 0, 30),
        (0x02, true, 2, 28),
        (0x03, true, 2, 28),
        (0x04, true, 2, 28),
        (0x05, true, 3, 27),
        (0x07, true, 25, 5),
        (0x08, true, 26, 4),
    ];
    let leaves = |history: &mut History| {
        let mut readys = all(history, &[0x01, 0x02, 0x03, 0x04, 0x05, 0x07, 0x08]);
        readys[2].ready.leave = true;
        history.commit("the newest of too many newcomers learns again", &readys);
    };
    let fork = |history: &mut History| {
        history.fork("newcomers in a fork", &[(0x01, 7), (0x02, 7), (0x07, 7), (0x08, 7)]);
    };
    play("five voters and two newcomers that vote", &crowd, &[&leaves, &fork]);

    // The last voter leaves: the members that the flock has known for longest decide.
    let last = [(0x01, true, 0, 30), (0x05, false, 26, 4), (0x06, false, 27, 3), (0x07, false, 26, 4)];
    play(
        "one voter and three newcomers",
        &last,
        &[&|history| {
            let mut readys = all(history, &[0x01, 0x05, 0x06, 0x07]);
            readys[0].ready.leave = true;
            history.commit("elders vote when no voter is left", &readys);
        }],
    );
    // Each voter names two newcomers. A record lets in as many as half of its parent's voters, but at least two.
    let pair = [(0x01, true, 0, 30), (0x02, true, 2, 28)];
    play(
        "two voters alone",
        &pair,
        &[&|history| {
            let mut readys = all(history, &[0x01, 0x02]);
            readys[0].ready.statements = (0x05..0x0a).map(|id| joins(id, 8)).collect();
            readys[1].ready.statements = (0x0a..0x0f).map(|id| joins(id, 9)).collect();
            history.commit("eight of ten newcomers are let in", &readys);
        }],
    );
    let about = "In a run with probation. Each record is built from the one that its `parent` names and from what the \
                 case gives. Records without `section` are given.";
    object! {
        "about": about,
        "section": "docs/protocol/5-membership.md §5.5", "run": fields::run(&spec), "cases": cases,
    }
}
