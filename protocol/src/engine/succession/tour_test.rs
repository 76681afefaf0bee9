use super::*;
use crate::message::PeerRtt;

/// A READY that tells round trips of 1 ms to members of its own site, and of 80 ms to others. The sites are the odd and
/// the even numbers.
fn from_site(parent: &Record, member: u16) -> SignedReady {
    let mut contribution = ready(parent, member, &[]);
    let others = parent.members().enumerate().filter(|(_, id)| number(id) != member);
    let trip = |(place, id): (usize, NodeId)| {
        let rtt = if number(&id) % 2 == member % 2 { 10 } else { 800 };
        PeerRtt { peer: place as u16, rtt }
    };
    contribution.ready.rtts = others.map(trip).collect();
    contribution
}

fn sites(parent: &Record, members: u16) -> Record {
    after(parent, &(1..=members).map(|n| from_site(parent, n)).collect::<Vec<_>>())
}

fn crossings(ring: &[NodeId]) -> usize {
    let site = |at: usize| number(&ring[at % ring.len()]) % 2;
    (0..ring.len()).filter(|at| site(*at) != site(at + 1)).count()
}

#[test]
fn the_ring_crosses_between_two_sites_twice() {
    for members in [4, 6, 11, 14] {
        let parent = voters(members);
        assert!(parent.next.ring.is_empty(), "nobody told a round trip");
        assert_eq!(parent.ring_of(&digest(1), parent.members()), ring::order(&digest(1), parent.members()));
        let record = sites(&parent, members);
        let order = record.ring_of(&record.digest(), record.members());
        assert_eq!((record.next.ring.len(), crossings(&order)), (usize::from(members), 2), "{members} members");
        // Attempts of fewer keep the order; a skip does, a fork forgets it.
        let fewer: Vec<NodeId> = order.iter().copied().filter(|id| number(id) != 2).collect();
        assert_eq!(record.ring_of(&digest(1), fewer.iter().rev().copied()), fewer);
        assert_eq!(skip(&record, record.digest()).unwrap().next.ring, record.next.ring);
        let forked = fork(&record, record.digest(), &sample::spec(), &as_admitted(&record, &order)).unwrap();
        assert!(forked.next.ring.is_empty());
    }
}

#[test]
fn an_untold_time_counts_as_the_median_and_an_unlisted_member_comes_last() {
    let parent = voters(6);
    let mut contributions: Vec<_> = (1..=5).map(|n| from_site(&parent, n)).collect();
    // The sixth is known by what the others say; of two words the smaller counts.
    contributions[0].ready.rtts.iter_mut().for_each(|trip| trip.rtt = 900);
    let record = after(&parent, &contributions);
    let order = record.ring_of(&record.digest(), record.members());
    assert_eq!(record.next.ring.len(), 5, "the sixth is not expected");
    assert_eq!((number(&order[5]), crossings(&order[..5])), (6, 2));
    contributions.iter_mut().for_each(|c| c.ready.rtts.truncate(1));
    contributions[0].ready.rtts = vec![];
    let sparse = after(&parent, &contributions);
    assert_eq!(sparse.next.ring.len(), 5, "the rest counts as the median");
    contributions.iter_mut().for_each(|c| c.ready.rtts = vec![]);
    assert!(after(&parent, &contributions).next.ring.is_empty());
}

#[test]
fn owners_need_no_ring_and_slow_uplinks_stand_before_near_members() {
    let parent = voters(4);
    let mut spec = sample::spec();
    spec.sync.engine = crate::run::EngineKind::Owners;
    let contributions: Vec<_> = (1..=4).map(|n| from_site(&parent, n)).collect();
    let record = commit(&parent, parent.digest(), &spec, &contributions, digest(3), digest(4)).unwrap();
    assert!(record.next.ring.is_empty());
    // 2 of every 4 hops leave a site; the member whose uplink takes long is not one of those that do it.
    let mut parent = parent;
    parent.next.members.iter_mut().for_each(|member| member.upload_kbps = 1_000_000);
    parent.next.members[0].upload_kbps = 1_000;
    let mut contributions: Vec<_> = (1..=4).map(|n| from_site(&parent, n)).collect();
    contributions.iter_mut().for_each(|c| c.ready.measured.upload_kbps = 0);
    let order = {
        let record = after(&parent, &contributions);
        record.ring_of(&record.digest(), record.members())
    };
    let slow = order.iter().position(|id| number(id) == 1).unwrap();
    assert_eq!(number(&order[(slow + 1) % 4]), 3, "{order:?}");
}
