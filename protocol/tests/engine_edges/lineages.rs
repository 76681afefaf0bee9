//! The right to call a node away: claims are proven first, and lineages are compared by how they parted.

use crate::bench::{BOOT, Bench, ME, digest, id, refusals, spec};
use starling_protocol::ancestry::{Ancestry, Reach};
use starling_protocol::engine::io::{Claim, Input, Notice, Output, Proven, Refusal};
use starling_protocol::engine::{Engine, EngineConfig, Timing};
use starling_protocol::message::{Head, Message, Phase, Pulse};
use starling_protocol::record::Role;
use starling_protocol::run::AdmissionMode;
use starling_protocol::{Digest, NodeId, wire};

pub const STRANGER: u8 = 9;

pub fn way(reaches: &[(Digest, u64)]) -> Ancestry {
    reaches.iter().map(|(lineage, last)| Reach { lineage: *lineage, last: *last, voters: 0 }).collect()
}

/// The way from the first record of lineage 0x11 into a fork, along which so many of its voters went.
pub fn forked(fill: u8, last: u64, voters: usize) -> Ancestry {
    let fork = Reach { lineage: digest(fill), last, voters };
    [Reach { lineage: digest(0x11), last: 0, voters: 0 }, fork].into_iter().collect()
}

pub fn head(lineage: Digest, seq: u64, tokens: u64) -> Head {
    let record = Digest::of("starling edges record v1", &[&lineage.0, &seq.to_le_bytes(), &tokens.to_le_bytes()]);
    Head { lineage, seq, record, tokens, phase: Phase::Training, progress: 0, awaits: None, pulse: Pulse::default() }
}

pub fn asked(outputs: &[Output]) -> usize {
    outputs.iter().filter(|output| matches!(output, Output::Prove { .. })).count()
}

pub fn goes(outputs: &[Output]) -> bool {
    outputs.iter().any(|output| matches!(output, Output::CatchUp { .. }))
}

/// Whether the node leaves its current work.
fn is_disturbed(outputs: &[Output]) -> bool {
    let leaves = |output: &Output| {
        matches!(output, Output::CatchUp { .. } | Output::StopTraining { .. } | Output::Abandon { .. })
    };
    outputs.iter().any(leaves)
}

/// A flock in the middle of a reduction, with a stranger connected.
fn busy() -> Bench {
    let mut bench = Bench::flock(3);
    bench.all_ready();
    bench.greet(STRANGER, BOOT);
    bench
}

/// A head of an unknown lineage, with more tokens than exist, leads a member nowhere: the peer is asked for a proof
/// beside the round, and its session ends when the proof fails.
#[test]
fn an_invented_lineage_moves_nobody() {
    let mut bench = busy();
    let before = bench.still();
    let claim = head(digest(0x77), 5, u64::MAX);
    let outputs = bench.say(STRANGER, &Message::Head(claim.clone()));
    assert_eq!(asked(&outputs), 1);
    assert!(!is_disturbed(&outputs), "{outputs:?}");
    let outputs = bench.answer(STRANGER, &claim, Claim::False { why: "path_certificate" });
    assert_eq!(refusals(&outputs), [&Refusal::FalseClaim { why: "path_certificate" }]);
    assert!(!is_disturbed(&outputs), "{outputs:?}");
    assert_eq!((bench.still().head, bench.still().attempt), (before.head, before.attempt));
}

/// The same for a head far ahead in this node's own lineage.
#[test]
fn a_false_head_of_the_own_lineage_moves_nobody() {
    let mut bench = busy();
    let lineage = bench.record().lineage;
    let outputs = bench.say(STRANGER, &Message::Head(head(lineage, 900, 1 << 60)));
    assert!(asked(&outputs) == 1 && !is_disturbed(&outputs), "{outputs:?}");
    // The node stays while no answer comes, and when the claim cannot be shown.
    assert!(!is_disturbed(&bench.wait(3_000_000)));
    let why = "no answer".to_owned();
    let outputs = bench.answer(STRANGER, &head(lineage, 900, 1 << 60), Claim::Open { why });
    assert!(!is_disturbed(&outputs) && refusals(&outputs).is_empty(), "{outputs:?}");
    // The claim is ignored for a while.
    assert_eq!(asked(&bench.say(STRANGER, &Message::Head(head(lineage, 901, 1 << 60)))), 0);
}

/// A claim that was not shown is looked at again when its pause is over, and not with the next heartbeat.
#[test]
pub fn a_claim_is_looked_at_again_when_its_pause_is_over() {
    let mut bench = busy();
    let claim = head(bench.record().lineage, 5, 1_000);
    bench.wait(2_600_000);
    let outputs = bench.say(2, &Message::Head(claim.clone()));
    assert_eq!(asked(&outputs), 1);
    // This is half a second after a heartbeat.
    bench.answer(2, &claim, Claim::Open { why: "no answer".to_owned() });
    let over = bench.now + 1_000_000;
    loop {
        // A tick comes a millisecond later.
        bench.now = bench.now.max(bench.engine.wake_at().expect("it runs").0 - 1_000);
        if asked(&bench.feed(Input::Tick)) > 0 {
            break;
        }
    }
    assert_eq!(bench.now, over, "neither sooner nor later");
}

/// A member has shown a head ahead, and is gone. Another peer that claims the same head, and has shown nothing, calls
/// nobody away from its round. Found by the simulator (seed 1741).
#[test]
fn a_bare_word_is_no_source_of_what_others_have_shown() {
    let mut bench = busy();
    let lineage = bench.record().lineage;
    let shown = head(lineage, 5, 1_000);
    let outputs = bench.say(2, &Message::Head(shown.clone()));
    assert_eq!(asked(&outputs), 1);
    bench.feed(Input::PeerDown { peer: id(2) });
    let proven =
        Proven { record: shown.record, tokens: shown.tokens, ancestry: way(&[(lineage, 5)]), voters: Vec::new() };
    assert!(!goes(&bench.answer(2, &shown, Claim::Proven(proven))));
    let mut outputs = bench.say(STRANGER, &Message::Head(head(lineage, 900, 1 << 60)));
    outputs.extend(bench.wait(2_000_000));
    assert!(asked(&outputs) == 1 && !goes(&outputs), "{outputs:?}");
    // A member's claim is a source.
    let mut outputs = bench.say(3, &Message::Head(shown));
    outputs.extend(bench.wait(2_000_000));
    assert!(goes(&outputs), "{outputs:?}");
}

/// A node that is just one record behind gives its own vote time to end. A stranger that names the next record early
/// does not shorten that time.
#[test]
fn a_strangers_word_does_not_shorten_the_wait_for_the_own_vote() {
    let mut bench = busy();
    let lineage = bench.record().lineage;
    let next = head(lineage, 1, 12);
    bench.say(STRANGER, &Message::Head(next.clone()));
    assert_eq!(asked(&bench.wait(2_500_000)), 1, "it may be all that is left");
    bench.answer(STRANGER, &next, Claim::Open { why: "it shows nothing".to_owned() });
    let outputs = bench.claim(2, &next, &way(&[(lineage, 1)]));
    assert!(!goes(&outputs) && !goes(&bench.wait(1_000_000)), "its votes are on their way");
    assert!(goes(&bench.wait(1_500_000)), "not for ever");
}

/// A chain that another node founded gives no way, and is given none, however it is proven.
#[test]
fn lineages_without_a_common_ancestor_stay_apart() {
    let mut bench = busy();
    let (own, foreign) = (bench.record().lineage, digest(0x77));
    let claim = head(foreign, 5, u64::MAX);
    bench.say(STRANGER, &Message::Head(claim.clone()));
    let outputs = bench.answer(STRANGER, &claim, Claim::Foreign);
    let met = |o: &&Output| matches!(o, Output::Notice(Notice::LineageMet { yields: false, .. }));
    assert_eq!(outputs.iter().filter(met).count(), 1);
    assert_eq!(asked(&bench.say(STRANGER, &Message::Head(head(foreign, 6, u64::MAX)))), 0, "nor is it looked at again");
    bench.greet(8, BOOT);
    bench.say(8, &Message::Head(head(digest(0x78), 5, u64::MAX)));
    let outputs = bench.claim(8, &head(digest(0x78), 5, u64::MAX), &way(&[(digest(0x78), 5)]));
    assert!(!is_disturbed(&outputs) && !goes(&bench.wait(10_000_000)));
    assert_eq!(bench.record().lineage, own);
}

/// Of many peers that claim the same, a few are looked at together, and of strangers one.
#[test]
fn few_claims_are_looked_at_at_a_time() {
    let mut bench = busy();
    let mut all = Vec::new();
    for peer in 10..40 {
        bench.greet(peer, BOOT);
        all.extend(bench.say(peer, &Message::Head(head(digest(peer), 5, u64::MAX))));
    }
    all.extend(bench.wait(2_000_000));
    assert_eq!(asked(&all), 1, "of strangers, as this node stands on a record");
    let lineage = bench.record().lineage;
    let outputs = bench.say(2, &Message::Head(head(lineage, 7, 500)));
    assert_eq!(asked(&outputs), 1, "a member does not wait for them");
    let mut seeker = Bench::seeker();
    let mut all = Vec::new();
    for peer in 10..40 {
        seeker.greet(peer, BOOT);
        all.extend(seeker.say(peer, &Message::Head(head(digest(peer), 5, u64::MAX))));
    }
    assert_eq!(asked(&all), 4, "there is room for those that the user has named");
}

/// Two strangers that name the flock's lineage, or the very record, and are slow to show it, do not delay claims of
/// voters, or of peers that the user has named; nor do two learners.
#[test]
pub fn slow_strangers_keep_no_claim_of_others_from_being_looked_at() {
    let (lineage, claim) = (digest(0x11), head(digest(0x11), 7, 500));
    let mut newcomer = newcomer(&[2], None, AdmissionMode::Open);
    for (stranger, seq) in [(8, 7), (9, 900)] {
        newcomer.greet(stranger, BOOT);
        assert_eq!(asked(&newcomer.say(stranger, &Message::Head(head(lineage, seq, 500)))), 1);
    }
    newcomer.greet(2, BOOT);
    assert_eq!(asked(&newcomer.say(2, &Message::Head(claim.clone()))), 1);
    let roles = [(ME, Role::Voter), (2, Role::Voter), (3, Role::Voter), (4, Role::Learner), (5, Role::Learner)];
    let mut bench = Bench::flock_of(spec(), &roles);
    bench.greet(STRANGER, BOOT);
    for (peer, seq) in [(STRANGER, 7), (4, 7), (5, 900)] {
        assert_eq!(asked(&bench.say(peer, &Message::Head(head(lineage, seq, 500)))), 1, "{peer}");
    }
    assert_eq!(asked(&bench.say(2, &Message::Head(claim.clone()))), 1);
    assert_eq!(asked(&bench.say(3, &Message::Head(claim))), 0, "as long as one of its class is asked");
}

/// A fork that left this lineage has lost the right to it, whatever it has trained. A lineage that this node's own
/// lineage has left has the better right, however little it has.
#[test]
fn the_side_that_kept_the_quorum_wins() {
    let mut bench = Bench::flock(3);
    bench.commit();
    bench.commit();
    let lineage = bench.record().lineage;
    bench.greet(STRANGER, BOOT);
    let fork = head(digest(0x66), 400, u64::MAX >> 1);
    let outputs = bench.claim(STRANGER, &fork, &way(&[(lineage, 1), (digest(0x66), 400)]));
    assert!(!is_disturbed(&outputs) && !goes(&bench.wait(3_000_000)), "{outputs:?}");
    // The claim is looked at once: newer heads of that lineage say nothing new.
    assert_eq!(asked(&bench.say(STRANGER, &Message::Head(head(digest(0x66), 401, u64::MAX)))), 0);

    let mut forked = stands_in_a_fork();
    let outputs = forked.claim(STRANGER, &head(digest(0x11), 3, 100), &way(&[(digest(0x11), 3)]));
    assert!(goes(&outputs), "{outputs:?}");
}

/// A node that has left lineage 0x11 after its first record, for 0x22, where its head is record 9 of 1,000 tokens.
fn stands_in_a_fork() -> Bench {
    stands_in_a_fork_of(0)
}

/// The same, and so many voters of that record went along.
fn stands_in_a_fork_of(voters: usize) -> Bench {
    stands_at(forked(0x22, 9, voters), &crate::bench::voters(3))
}

/// A node that has come this way to a record of 1,000 tokens with these members.
pub fn stands_at(way: Ancestry, members: &[(u8, Role)]) -> Bench {
    let mut bench = Bench::seeker();
    bench.greet(STRANGER, BOOT);
    let (lineage, seq) = (way.lineage().expect("a way"), way.seq().expect("a way"));
    assert!(goes(&bench.claim(STRANGER, &head(lineage, seq, 1_000), &way)));
    let mut record = crate::fixture::genesis(&spec(), members);
    (record.lineage, record.seq, record.tokens) = (lineage, seq, 1_000);
    (record.kind, record.parent, record.base) =
        (starling_protocol::record::RecordKind::Skip, digest(0x31), digest(0x32));
    bench.feed(Input::CaughtUp { record: record.clone(), certificate: None, ancestry: way });
    assert_eq!(bench.engine.view().lineage, lineage);
    bench
}

/// Tokens decide between two forks of one record, and there only.
#[test]
fn between_forks_of_one_record_tokens_decide() {
    for (tokens, follows) in [(1_001, true), (999, false)] {
        let mut bench = stands_in_a_fork();
        let other = head(digest(0x23), 2, tokens);
        let outputs = bench.claim(STRANGER, &other, &way(&[(digest(0x11), 0), (digest(0x23), 2)]));
        assert_eq!(goes(&outputs) || goes(&bench.wait(2_000_000)), follows, "{tokens} tokens");
    }
    // A fork of an earlier record has left sooner.
    let mut bench = Bench::flock(3);
    bench.commit();
    assert!(!goes(&bench.claim(2, &head(digest(0x23), 2, u64::MAX), &way(&[(digest(0x11), 0), (digest(0x23), 2)]))));
}

/// Anybody with a key can make a fork alone, and claim any tokens for it. So the number of voters that went along
/// counts before tokens.
#[test]
fn between_forks_of_one_record_the_voters_decide() {
    // The voters along the own fork and along the other, and the other's tokens; the own fork has 1,000.
    for (own, other, tokens, follows) in
        [(2, 0, u64::MAX >> 1, false), (2, 1, 1_001, false), (2, 2, 1_001, true), (2, 2, 999, false), (1, 2, 10, true)]
    {
        let mut bench = stands_in_a_fork_of(own);
        let there = head(digest(0x23), 2, tokens);
        let outputs = bench.claim(STRANGER, &there, &forked(0x23, 2, other));
        let goes = goes(&outputs) || goes(&bench.wait(2_000_000));
        assert_eq!(goes, follows, "{other} voters of {own}, {tokens} tokens");
        if !follows && other < own {
            assert_eq!(
                asked(&bench.say(STRANGER, &Message::Head(head(digest(0x23), 3, u64::MAX)))),
                0,
                "nor looked at"
            );
        }
    }
}

/// A fork of this very head calls no node away from a quorum; a node without a quorum follows it.
#[test]
fn a_fork_of_the_head_is_followed_by_those_without_a_quorum() {
    let mut bench = Bench::flock(3);
    bench.greet(STRANGER, BOOT);
    let (lineage, seq) = (bench.record().lineage, bench.record().seq);
    let fork = head(digest(0x66), seq + 3, 1 << 40);
    let fork_way = way(&[(lineage, seq), (digest(0x66), seq + 3)]);
    assert!(!goes(&bench.claim(STRANGER, &fork, &fork_way)));
    assert!(!goes(&bench.wait(3_000_000)));
    bench.feed(Input::PeerDown { peer: id(2) });
    bench.feed(Input::PeerDown { peer: id(3) });
    let mut outputs = Vec::new();
    bench.greet(2, BOOT);
    for _ in 0..8 {
        outputs.extend(bench.wait(1_000_000));
        outputs.extend(bench.say(2, &Message::Head(fork.clone())));
        outputs.extend(bench.claim(STRANGER, &fork, &fork_way));
    }
    assert!(goes(&outputs), "{outputs:?}");
}

/// Learners have made a fork of this head without any of its voters: a voter without a quorum does not go there. A
/// voter counts as gone with the fork only by its own claim, since a fork's records may name anybody.
#[test]
pub fn a_fork_without_a_voter_carries_no_voter_away() {
    for (me, with, follows) in [(Role::Voter, None, false), (Role::Voter, Some(3), true), (Role::Learner, None, true)] {
        let roles = [(ME, me), (2, Role::Voter), (3, Role::Voter), (4, Role::Learner)];
        let mut bench = Bench::flock_of(spec(), &roles);
        let (lineage, seq) = (bench.record().lineage, bench.record().seq);
        let fork = head(digest(0x66), seq + 3, 1 << 40);
        bench.feed(Input::PeerDown { peer: id(2) });
        let mut outputs = Vec::new();
        for _ in 0..8 {
            outputs.extend(bench.wait(1_000_000));
            if with.is_none() {
                bench.feed(Input::PeerDown { peer: id(3) });
            }
            outputs.extend(bench.claim(with.unwrap_or(4), &fork, &way(&[(lineage, seq), (digest(0x66), seq + 3)])));
        }
        assert_eq!(goes(&outputs), follows, "{me:?} {with:?}");
    }
}

/// A Head with other tokens than its record's is refuted by the record.
#[test]
fn a_head_that_differs_from_its_record_is_a_lie() {
    let mut bench = Bench::flock(3);
    bench.greet(STRANGER, BOOT);
    let lineage = bench.record().lineage;
    let claim = head(lineage, 4, 1 << 50);
    bench.say(STRANGER, &Message::Head(claim.clone()));
    let proven = Proven { record: claim.record, tokens: 500, ancestry: way(&[(lineage, 4)]), voters: Vec::new() };
    let outputs = bench.answer(STRANGER, &claim, Claim::Proven(proven));
    assert_eq!(refusals(&outputs), [&Refusal::FalseClaim { why: "head_differs" }]);
}

pub fn newcomer(guides: &[u8], adopt: Option<Digest>, mode: AdmissionMode) -> Bench {
    holder(&[], guides, adopt, mode)
}

/// A newcomer with a ticket.
fn holder(ticket: &[u8], guides: &[u8], adopt: Option<Digest>, mode: AdmissionMode) -> Bench {
    let mut run = spec();
    run.admission.mode = mode;
    let mut bench = Bench::start(run.clone(), false, None, BOOT);
    bench.engine = Engine::new(EngineConfig {
        signer: Box::new(crate::bench::Key(id(crate::bench::ME))),
        verifier: Box::new(crate::bench::Keys),
        run: run.digest(),
        spec: run,
        boot: BOOT,
        found: None,
        stored: None,
        ticket: ticket.to_vec(),
        guides: guides.iter().map(|n| id(*n)).collect(),
        adopt,
        copied: false,
        force_fork: false,
        timing: Timing::default(),
    });
    bench.feed(Input::Tick);
    bench
}

/// In an open run any node may found: a newcomer goes to the head of its ticket's peers, even if others speak first.
#[test]
fn a_newcomer_follows_the_lineage_of_its_ticket() {
    let mut bench = newcomer(&[2], None, AdmissionMode::Open);
    bench.greet(STRANGER, BOOT);
    let false_one = head(digest(0x77), 90, u64::MAX);
    assert!(!goes(&bench.claim(STRANGER, &false_one, &way(&[(digest(0x77), 90)]))), "the ticket's peer may still come");
    bench.greet(2, BOOT);
    let mut outputs = bench.claim(2, &head(digest(0x11), 4, 50), &way(&[(digest(0x11), 4)]));
    outputs.extend(bench.wait(1_000_000));
    let target = outputs.iter().find_map(|output| match output {
        Output::CatchUp { lineage, .. } => Some(*lineage),
        _ => None,
    });
    assert_eq!(target, Some(digest(0x11)));
    // If none of them comes, the first lineage that the newcomer meets has to do.
    let mut alone = newcomer(&[2], None, AdmissionMode::Open);
    alone.greet(STRANGER, BOOT);
    assert!(!goes(&alone.claim(STRANGER, &false_one, &way(&[(digest(0x77), 90)]))));
    assert!(goes(&alone.wait(5_000_000)));
    // The newcomer does not wait for a bootstrap peer, which is no node.
    let mut introduced = newcomer(&[2], None, AdmissionMode::Open);
    introduced.greet(STRANGER, BOOT);
    let mut outputs = introduced.claim(STRANGER, &false_one, &way(&[(digest(0x77), 90)]));
    assert!(!goes(&outputs));
    outputs.extend(introduced.feed(Input::Bystander { peer: id(2) }));
    outputs.extend(introduced.wait(300_000));
    assert!(goes(&outputs));
}

/// Only the operator's word leads from one founder's chain to another's.
#[test]
fn an_operator_adopts_a_lineage() {
    let mut bench = newcomer(&[], Some(digest(0x55)), AdmissionMode::List);
    for (peer, fill, follows) in [(STRANGER, 0x77, false), (2, 0x55, true)] {
        bench.greet(peer, BOOT);
        let there = head(digest(fill), 4, 50);
        assert_eq!(goes(&bench.claim(peer, &there, &way(&[(digest(fill), 4)]))), follows, "{fill:x}");
    }
}

/// Any node that sees a ticket can use it: it is shown to voters of the proven head, and to nobody else.
#[test]
fn a_newcomer_shows_its_ticket_to_voters_of_the_proven_head_only() {
    let mut bench = holder(b"ticket", &[], None, AdmissionMode::Ticket);
    let (lineage, ancestry) = (digest(0x21), way(&[(digest(0x21), 4)]));
    let (claim, run) = (head(lineage, 4, 500), bench.spec.digest());
    let shown = |outputs: &[Output]| -> Vec<NodeId> {
        let mut to = Vec::new();
        for output in outputs {
            let Output::Send { to: target, bytes, .. } = output else { continue };
            let opened = wire::open(&crate::bench::Keys, &run, bytes).expect("well-formed");
            if let Message::Join(join) = opened.message {
                assert_eq!(
                    (join.state_root, join.record, &join.ticket[..]),
                    (Digest::default(), claim.record, &b"ticket"[..])
                );
                to.push(*target);
            }
        }
        to
    };
    // Before anything is proven nobody sees the ticket.
    let mut before = bench.greet(STRANGER, BOOT);
    before.extend(bench.greet(2, BOOT));
    before.extend(bench.say(STRANGER, &Message::Head(claim.clone())));
    before.extend(bench.wait(3_000_000));
    assert_eq!(shown(&before), []);
    let proven = Proven { record: claim.record, tokens: 500, ancestry, voters: vec![id(2), id(3)] };
    let mut outputs = bench.answer(STRANGER, &claim, Claim::Proven(proven));
    assert!(goes(&outputs), "{outputs:?}");
    outputs.extend(bench.wait(300_000));
    assert_eq!(shown(&outputs), [id(2)], "the only voter that is here");
}
