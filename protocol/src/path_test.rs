use super::*;
use crate::admission::may_found;
use crate::identity::Signer;
use crate::record::Member;
use crate::run::AdmissionMode;
use crate::{Signature, sample, wire};

#[path = "path_readers_test.rs"]
mod readers;

const INCARNATION: u64 = 7;
const LEASE: u64 = 4;

struct Key(NodeId);
struct Keys;

fn mac(id: &NodeId, bytes: &[u8]) -> Signature {
    let digest = Digest::of("starling path test v1", &[&id.0, bytes]);
    Signature([digest.0, digest.0].concat().try_into().expect("twice 32 bytes"))
}

impl Signer for Key {
    fn id(&self) -> NodeId {
        self.0
    }

    fn sign(&self, bytes: &[u8]) -> Signature {
        mac(&self.0, bytes)
    }
}

impl Verifier for Keys {
    fn verify(&self, id: &NodeId, bytes: &[u8], signature: &Signature) -> bool {
        mac(id, bytes) == *signature
    }
}

fn id(n: u64) -> NodeId {
    NodeId(Digest::of("starling path test id v1", &[&n.to_le_bytes()]).0)
}

fn key(n: u64) -> Key {
    Key(id(n))
}

fn seats(cursor: u64, from: u64, count: u64) -> Vec<Member> {
    sample::voters((from..from + count).map(id), INCARNATION, cursor, LEASE)
}

fn link(record: Record, certificate: Option<Certificate>) -> Link {
    record.validate_shape().expect("records of this test are well-formed");
    Link { digest: record.digest(), record, certificate }
}

/// A COMMIT by all voters after `parent`. After it the `count` keys from `from` on vote.
fn commit(parent: &Link, (from, count): (u64, usize)) -> Link {
    let signers: Vec<Key> = parent.record.voters().map(|voter| Key(voter.id)).collect();
    let next = sample::link_after(parent, &signers, &sample::keys(key, from, count));
    link(next.record, next.certificate)
}

struct Held {
    links: Vec<Link>,
    ancestry: Ancestry,
}

impl Held {
    fn of(links: Vec<Link>) -> Self {
        Self { ancestry: Ancestry::of(links.iter().map(|link| &link.record)), links }
    }

    /// A founder, then five voters, one of which goes every `every` records.
    fn flock(spec: &RunSpec, length: u64, every: u64) -> Self {
        let founded = sample::genesis(spec, Digest([1; 32]), Digest([6; 32]), seats(0, 0, 1));
        let links = sample::flock(founded, key, length, every);
        assert!(links.iter().all(|link| link.record.validate_shape().is_ok()), "each is well-formed");
        Self::of(links)
    }

    fn thinned(&self, keep: impl Fn(u64) -> bool) -> Self {
        let links = self.links.iter().filter(|link| keep(link.record.seq)).cloned().collect();
        Self { links, ancestry: self.ancestry.clone() }
    }
}

impl Chain for Held {
    fn at(&self, seq: u64) -> Option<Link> {
        self.links.binary_search_by_key(&seq, |link| link.record.seq).ok().map(|at| self.links[at].clone())
    }

    fn newest(&self, seq: u64) -> Option<u64> {
        let after = self.links.partition_point(|link| link.record.seq <= seq);
        after.checked_sub(1).map(|at| self.links[at].record.seq)
    }

    fn ancestry(&self) -> &Ancestry {
        &self.ancestry
    }
}

/// A chain that gives so many records for one path, and no more.
struct Tiring(Held, std::cell::Cell<usize>);

impl Chain for Tiring {
    fn at(&self, seq: u64) -> Option<Link> {
        self.1.set(self.1.get().checked_sub(1)?);
        self.0.at(seq)
    }

    fn newest(&self, seq: u64) -> Option<u64> {
        self.0.newest(seq)
    }

    fn ancestry(&self) -> &Ancestry {
        self.0.ancestry()
    }

    fn is_spent(&self) -> bool {
        self.1.get() == 0
    }
}

fn check(spec: &RunSpec, root: Root<'_>, links: &[Link]) -> Result<Ancestry, FalsePath> {
    verify(&Keys, spec, &spec.digest(), (root, &id(0)), links)
}

#[test]
fn a_long_chain_is_proven_by_few_links() {
    let spec = sample::spec();
    for every in [3, 40] {
        let flock = Held::flock(&spec, 600, every);
        let path = build(&flock, &[], 600).expect("there is a way");
        assert_eq!(check(&spec, Root::Founder, &path), Ok(flock.ancestry.clone()));
        let bytes: usize = path.iter().map(|link| wire::encode_record(&link.record).len()).sum();
        // One jump for each two of five voters that are replaced, of two links each, and some at the beginning.
        assert!(path.len() as u64 <= 2 * 600 / every + 20, "{} links, {bytes} bytes", path.len());
        for to in [0, 1, 2, 17, 44, 599] {
            let path = build(&flock, &[], to).expect("there is a way");
            assert_eq!(path.last().map(|link| link.digest), Some(flock.links[to as usize].digest));
            assert_eq!(check(&spec, Root::Founder, &path), Ok(flock.ancestry.until(to)), "to {to}");
        }
    }
}

/// A search that took too long was once thrown away, and begun anew for a nearer end, up to five times.
#[test]
fn a_path_ends_where_enough_was_read_and_is_gone_on_from_there() {
    let spec = sample::spec();
    let chain = Tiring(Held::flock(&spec, 600, 3), std::cell::Cell::default());
    let (mut proven, mut answers) = (Vec::new(), 0);
    while proven.last().is_none_or(|link: &Link| link.record.seq < 600) {
        chain.1.set(400);
        let known: Vec<(u64, Digest)> = proven.last().map(|link| (link.record.seq, link.digest)).into_iter().collect();
        let path = build(&chain, &known, 600).expect("some of the way");
        let before = chain.0.ancestry.until(known.first().map_or(0, |place| place.0));
        let root = if known.is_empty() { Root::Founder } else { Root::Held(&before) };
        let end = path.last().map_or(0, |link| link.record.seq);
        assert_eq!(check(&spec, root, &path), Ok(chain.0.ancestry.until(end)), "to {end}");
        assert!(path.len() > 1 && path.last().is_some_and(|link| link.certificate.is_some()));
        (proven, answers) = (path, answers + 1);
    }
    assert!((2..50).contains(&answers), "{answers}");
    chain.1.set(2);
    assert_eq!(build(&chain, &[], 600), None, "nothing was found");
}

#[test]
fn ten_thousand_records_are_proven_within_a_mebibyte() {
    let spec = sample::spec();
    let flock = Held::flock(&spec, 10_000, 500);
    let path = build(&flock, &[], 10_000).expect("there is a way");
    assert!(check(&spec, Root::Founder, &path).is_ok());
    let certificate = |link: &Link| link.certificate.as_ref().map_or(0, |proof| wire::encode_certificate(proof).len());
    let bytes: usize = path.iter().map(|link| wire::encode_record(&link.record).len() + certificate(link)).sum();
    assert!(bytes < crate::limits::PATH_BYTES_MAX, "{bytes}");
}

#[test]
fn a_reader_that_lacks_few_records_is_given_all_of_them() {
    let spec = sample::spec();
    let flock = Held::flock(&spec, 60, 9);
    let known = locator(&Held::of(flock.links[..=50].to_vec()));
    assert_eq!(known.first(), Some(&(50, flock.links[50].digest)));
    let path = build(&flock, &known, 60).expect("there is a way");
    assert_eq!(path, flock.links[50..=60].to_vec());
    let own = flock.ancestry.until(50);
    assert_eq!(check(&spec, Root::Held(&own), &path), Ok(flock.ancestry.clone()));
}

#[test]
fn a_locator_is_short_and_ends_with_the_oldest_record() {
    let spec = sample::spec();
    let flock = Held::flock(&spec, 900, 100);
    let places: Vec<u64> = locator(&flock).into_iter().map(|place| place.0).collect();
    assert_eq!(places[..5], [900, 899, 897, 893, 885]);
    assert_eq!(places.last(), Some(&0));
    assert!(places.len() <= LOCATOR_MAX);
    let late = flock.thinned(|seq| seq > 800 || seq == 0);
    assert_eq!(locator(&late).last().map(|place| place.0), Some(0));
}

/// A node that joined late holds the path that it was shown, and all records after it: others find their way along it.
#[test]
fn a_way_is_found_where_records_are_missing() {
    let spec = sample::spec();
    let flock = Held::flock(&spec, 400, 20);
    let shown = build(&flock, &[], 330).expect("there is a way");
    let on_path = |seq: u64| shown.iter().any(|link| link.record.seq == seq);
    let late = flock.thinned(|seq| seq >= 300 || on_path(seq));
    for to in [330, 399, 400] {
        let path = build(&late, &[], to).expect("there is a way");
        assert_eq!(check(&spec, Root::Founder, &path), Ok(flock.ancestry.until(to)));
    }
    // A way is found from that path alone, however often voters change.
    for (every, to) in (2..12).flat_map(|every| [(every, 64), (every, 77), (every, 120)]) {
        let flock = Held::flock(&spec, 120, every);
        let shown = build(&flock, &[], to).expect("there is a way");
        let ancestry = flock.ancestry.until(to);
        let late = Held { links: shown, ancestry };
        let path = build(&late, &[], to).expect("there is a way");
        assert_eq!(check(&spec, Root::Founder, &path), Ok(flock.ancestry.until(to)), "{every} {to}");
    }
    assert_eq!(build(&late, &[], 401), None);
    assert_eq!(build(&late.thinned(|seq| seq > 300), &[(7, Digest::default())], 300), None, "nothing there");
}

#[test]
fn a_jump_needs_a_quorum_of_the_voters_known_so_far() {
    let spec = sample::spec();
    let flock = Held::flock(&spec, 200, 10);
    // After record 80, two of the five voters after record 50 are left, and after 110 none.
    for (to, holds) in [(59, true), (65, true), (85, false), (150, false)] {
        let (stone, last) = (Link { certificate: None, ..flock.links[to - 1].clone() }, flock.links[to].clone());
        let path = [flock.links[50].clone(), stone, last];
        let own = flock.ancestry.until(50);
        let outcome = check(&spec, Root::Held(&own), &path);
        assert_eq!(outcome.is_ok(), holds, "to {to}: {outcome:?}");
    }
}

#[test]
fn forged_paths_prove_nothing() {
    let spec = sample::spec();
    let flock = Held::flock(&spec, 60, 100);
    let own = flock.ancestry.until(30);
    let held = Root::Held(&own);
    let mine = || flock.links[30].clone();
    assert_eq!(check(&spec, held, &[]), Err(FalsePath::Empty));
    assert_eq!(check(&spec, held, &vec![mine(); PATH_LINKS_MAX + 1]), Err(FalsePath::TooLong));
    let stone = |at: usize| Link { certificate: None, ..flock.links[at].clone() };
    let reason = |links: &[Link]| check(&spec, held, links).expect_err("it proves nothing").reason();
    assert_eq!(reason(&[mine(), stone(40)]), "path_broken", "no votes at its end");
    assert_eq!(reason(&[mine(), stone(40), stone(41), flock.links[42].clone()]), "path_broken");
    assert_eq!(reason(&[mine(), stone(20), flock.links[21].clone()]), "path_broken", "it leads back");
    assert_eq!(reason(&[mine(), flock.links[40].clone()]), "path_broken", "no child, and no stone");
    // A usurper's own voters after a record of the flock.
    let mut usurped = flock.links[30].record.clone();
    (usurped.seq, usurped.tokens) = (59, u64::MAX >> 1);
    usurped.next.members = seats(usurped.cursor - 40, 900, 3);
    let usurped = link(usurped, None);
    let last = commit(&usurped, (900, 3));
    assert_eq!(reason(&[mine(), usurped.clone(), last.clone()]), "path_broken", "none of them is known");
    // Votes of too few of the flock.
    let mut thin = flock.links[31].clone();
    thin.certificate.as_mut().expect("it was decided").votes.truncate(2);
    assert_eq!(reason(&[mine(), thin]), "path_certificate");
    let other = Held::flock(&wire::sample::spec_with_pairs(), 3, 100);
    assert_eq!(
        reason(&[mine(), Link { certificate: None, ..other.links[2].clone() }, other.links[3].clone()]),
        "path_broken"
    );
}

#[test]
fn a_genesis_has_the_state_that_the_run_names() {
    let mut spec = sample::spec();
    spec.beginning = Some(Digest([6; 32]));
    let flock = Held::flock(&spec, 3, 100);
    assert_eq!(check(&spec, Root::Founder, &flock.links), Ok(flock.ancestry.clone()));
    spec.beginning = Some(Digest([7; 32]));
    let other = Held::flock(&spec, 3, 100);
    let refused = check(&spec, Root::Founder, &other.links).expect_err("it has another state");
    assert!(refused == FalsePath::Beginning && refused.is_lie(), "{refused}");
    assert_eq!(refused.reason(), "path_beginning");
}

#[test]
fn a_genesis_is_its_founders() {
    let spec = sample::spec();
    let flock = Held::flock(&spec, 5, 100);
    let alone = &flock.links[..1];
    assert!(check(&spec, Root::Founder, alone).is_ok(), "by the founder itself");
    let hearsay = verify(&Keys, &spec, &spec.digest(), (Root::Founder, &id(3)), alone);
    assert_eq!(hearsay, Err(FalsePath::Hearsay(id(3))));
    assert!(verify(&Keys, &spec, &spec.digest(), (Root::Founder, &id(3)), &flock.links[..2]).is_ok());
    assert_eq!(check(&spec, Root::Founder, &flock.links[1..3]), Err(FalsePath::NoRoot));
    // In closed runs only an admitted node founds.
    let mut closed = spec.clone();
    closed.admission.mode = AdmissionMode::List;
    closed.admission.allow = vec![id(8)];
    assert!(may_found(&closed, &id(8)) && !may_found(&closed, &id(0)));
    let founded = Held::flock(&closed, 2, 100);
    assert_eq!(check(&closed, Root::Founder, &founded.links), Err(FalsePath::Founder(id(0))));
    closed.admission.mode = AdmissionMode::Ticket;
    (closed.admission.allow, closed.creator) = (Vec::new(), Some(id(0)));
    assert!(may_found(&closed, &id(0)) && !may_found(&closed, &id(8)));
}
