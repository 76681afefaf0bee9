//! Paths that are shown to readers at different heads.

use super::*;
use crate::ancestry::Relation;
use crate::engine::succession;
use crate::message::{Fork, Message, member_bits};

/// The FORK record of these members, by the numbers of their ids.
fn fork(spec: &RunSpec, parent: &Link, who: &[u64]) -> Link {
    let mut members: Vec<(NodeId, u64)> = who.iter().map(|n| (id(*n), INCARNATION)).collect();
    members.sort_unstable();
    let record = succession::fork(&parent.record, parent.digest, spec, &members).expect("members of the parent");
    let indices = members.iter().filter_map(|(id, _)| parent.record.member_index(id));
    let fork = Fork {
        lineage: parent.record.lineage,
        seq: record.seq,
        parent: parent.digest,
        incarnation: INCARNATION,
        record: record.digest(),
        members: member_bits(indices),
    };
    let sign = |(id, _): &(NodeId, u64)| wire::seal(&Key(*id), &spec.digest(), &Message::Fork(fork.clone()));
    let votes = members.iter().map(|member| sign(member).expect("it has a shape")).collect();
    let certificate = Certificate { lineage: record.lineage, seq: record.seq, record: record.digest(), votes };
    link(record, Some(certificate))
}

/// A chain with further records, each of which leaves the vote to these voters.
fn onward(mut links: Vec<Link>, to: u64, voters: (u64, usize)) -> Vec<Link> {
    while links.last().is_some_and(|last| last.record.seq < to) {
        let next = commit(links.last().expect("not empty"), voters);
        links.push(next);
    }
    links
}

/// The result of the path for the holder of a chain.
fn shown(spec: &RunSpec, own: &Held, path: &[Link]) -> Result<Relation, FalsePath> {
    let ancestry = check(spec, Root::Held(&own.ancestry), path)?;
    keeps_to(own, path)?;
    Ok(own.ancestry.relation(&ancestry))
}

/// The founder was the only voter of the first records, and is long gone: its key alone is a quorum of theirs for ever.
#[test]
fn an_old_key_leads_nobody_off_its_own_chain() {
    let spec = sample::spec();
    let own = Held::flock(&spec, 40, 6);
    assert!(own.links[40].record.member(&id(0)).is_none());
    let invented = onward(own.links[..=1].to_vec(), 60, (0, 1));
    assert_ne!(invented[2].digest, own.links[2].digest);
    let path = &invented[1..];
    let ancestry = check(&spec, Root::Held(&own.ancestry), path).expect("each link is certified");
    assert_eq!(own.ancestry.relation(&ancestry), Relation::Ahead, "it would call the holder away");
    assert_eq!(shown(&spec, &own, path), Err(FalsePath::Apart { seq: 2 }));
    // A stone at a place of the chain is a link, too.
    let stone = |at: usize| Link { certificate: None, ..invented[at].clone() };
    let path = [own.links[1].clone(), stone(40), invented[41].clone()];
    assert_eq!(shown(&spec, &own, &path), Err(FalsePath::Apart { seq: 40 }));
    // The holder does not have the record there any more, but has its head.
    let late = own.thinned(|seq| seq <= 1 || seq > 30);
    assert_eq!(shown(&spec, &late, &invented[1..]), Err(FalsePath::Apart { seq: 31 }));
    // A fork of an invented record is not the holder's.
    let left = fork(&spec, &invented[40], &[0]);
    let path = [own.links[1].clone(), stone(39), invented[40].clone(), left.clone()];
    assert_eq!(shown(&spec, &own, &path), Err(FalsePath::Apart { seq: 39 }));
    // The path does not lead a holder away either that left the lineage at that place, and would take it for a fork of
    // the same record.
    let mut links = own.links.clone();
    links.push(fork(&spec, &own.links[40], &[8, 9]));
    let forked = Held::of(links);
    assert_eq!(forked.ancestry.relation(&check(&spec, Root::Held(&own.ancestry), &path).unwrap()), Relation::Siblings);
    assert_eq!(shown(&spec, &forked, &path), Err(FalsePath::Apart { seq: 39 }));
}

#[test]
fn a_path_goes_on_from_the_readers_head() {
    let spec = sample::spec();
    let own = Held::flock(&spec, 40, 6);
    let invented = onward(own.links[..=1].to_vec(), 60, (0, 1));
    let stone = |of: &[Link], at: usize| Link { certificate: None, ..of[at].clone() };
    // A path over the head with the key of a former voter.
    let path = [own.links[1].clone(), stone(&invented, 50), invented[51].clone()];
    let ancestry = check(&spec, Root::Held(&own.ancestry), &path).expect("its signer was a quorum");
    assert_eq!(own.ancestry.relation(&ancestry), Relation::Ahead);
    assert_eq!(shown(&spec, &own, &path), Err(FalsePath::Apart { seq: 50 }));
    // The same past the record at which the reader has left the lineage.
    let mut links = own.links.clone();
    links.push(fork(&spec, &own.links[40], &[8, 9]));
    let forked = Held::of(onward(links, 45, (8, 2)));
    assert_eq!(forked.ancestry.relation(&ancestry), Relation::Kept);
    assert_eq!(shown(&spec, &forked, &path), Err(FalsePath::Apart { seq: 50 }));
    assert_eq!(shown(&spec, &forked, &invented[1..]), Err(FalsePath::Apart { seq: 2 }));
}

/// Readers that are behind, or in a fork, or lack records, find on as before.
#[test]
fn a_reader_behind_or_in_a_fork_is_shown_the_way() {
    let spec = sample::spec();
    let flock = Held::flock(&spec, 120, 15);
    let behind = Held::of(flock.links[..=40].to_vec());
    let mut links = behind.links.clone();
    links.push(fork(&spec, &links[40], &[2, 3]));
    let forked = Held::of(onward(links, 70, (2, 2)));
    assert!(locator(&forked).contains(&(40, flock.links[40].digest)), "where the others have gone on");
    for (reader, relation) in [(&behind, Relation::Ahead), (&forked, Relation::Kept)] {
        for keep in [0, 30, 39] {
            let reader = reader.thinned(|seq| seq == 0 || seq >= keep);
            for to in [41, 50, 60, 120] {
                let path = build(&flock, &locator(&reader), to).expect("there is a way");
                assert_eq!(path[0].record.seq, 40);
                assert_eq!(shown(&spec, &reader, &path), Ok(relation), "to {to}, from {keep} on");
            }
        }
        // A reader that lacks the flock's head goes past it, with votes of voters of that time.
        let mut late = flock.thinned(|seq| seq <= 36 || seq > 43);
        late.links[37].certificate = None;
        for to in [45, 60, 120] {
            let path = build(&late, &locator(reader), to).expect("there is a way");
            assert!(path[0].record.seq < 40);
            assert_eq!(shown(&spec, reader, &path), Ok(relation), "to {to}");
        }
    }
    // The reader's place does not matter either, as long as voters leave one by one.
    for (every, to) in (2..12).flat_map(|every| [(every, 64), (every, 77), (every, 120)]) {
        let flock = Held::flock(&spec, 120, every);
        let late = Held { links: build(&flock, &[], to).expect("there is a way"), ancestry: flock.ancestry.until(to) };
        for held in 0..to {
            let reader = Held::of(flock.links[..=held as usize].to_vec());
            let path = build(&late, &locator(&reader), to).expect("there is a way");
            assert_eq!(shown(&spec, &reader, &path), Ok(Relation::Ahead), "{held} to {to}, by {every}");
        }
    }
    // A path to a record that the reader holds tells it nothing, and a fork of its head is one.
    assert_eq!(shown(&spec, &flock, &flock.links[10..=30]), Ok(Relation::Behind));
    assert_eq!(shown(&spec, &behind, &forked.links[40..]), Ok(Relation::ForksOff));
}
