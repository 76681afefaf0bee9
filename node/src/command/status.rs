//! `starling status`: the members of the flock, this node's work, and what it waits for.

use crate::cli::StatusArgs;
use crate::config::node_file;
use crate::exit::{Code, Failure};
use crate::runtime::home_of;
use crate::watch::names::{labelled, short};
use crate::watch::pair::{Pair, Standing};
use crate::watch::screen::bytes;
use crate::watch::status::{
    AmendedStatus, Answer, GossipStatus, Member, MergedStatus, OfferStatus, ProbationStatus, ProposalStatus, Question,
    QuorumStatus, Status, UnreachedStatus, ask, running_homes,
};
use crate::watch::terminal;
use crate::watch::words::{STARTED_AGAIN, tame};
use anyhow::Context;
use starling_words::count;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

/// Peers that are dialed in vain, of which the text tells.
const UNREACHED_SHOWN: usize = 8;

/// Asks the node and prints its answer.
pub fn run(args: &StatusArgs) -> Result<ExitCode, Failure> {
    let home = match (&args.node.run, &args.node.home) {
        (None, None) => the_only_home()?,
        (run, home) => home_of(run.as_deref(), home.as_deref())?,
    };
    let status = match ask(&home, Question::Status).map_err(|e| Failure::new(Code::Refused, e))? {
        Answer::Status(status) => status,
        Answer::Error { message, .. } => return Err(Failure::message(Code::Refused, message)),
        Answer::Invite { .. } | Answer::Revoked { .. } | Answer::Checkpoint { .. } | Answer::Amendment { .. } => {
            return Err(Failure::message(Code::Refused, "the node answered another question: update it"));
        }
    };
    if args.json {
        terminal::put(&(serde_json::to_string_pretty(&status).context("cannot print the status")? + "\n"));
    } else {
        terminal::put(&harmless(&text(&status, args.verbose)));
    }
    Ok(ExitCode::SUCCESS)
}

/// The lines without characters that a terminal would obey. Peers' texts are tamed where they arrive, and an answer may
/// come from another release.
fn harmless(text: &str) -> String {
    text.lines().map(|line| tame(line) + "\n").collect()
}

/// The folder of the only node that runs in the default folder.
pub(super) fn the_only_home() -> Result<PathBuf, Failure> {
    let mut homes = running_homes(&node_file::runs_folder());
    match homes.len() {
        1 => Ok(homes.remove(0)),
        0 => Err(Failure::message(
            Code::Refused,
            "no node is running in the default folder: give --home DIR or --run RUN.toml",
        )),
        _ => {
            let list: Vec<_> = homes.iter().map(|h| format!("  --home {}", h.display())).collect();
            Err(Failure::message(Code::Usage, format!("several nodes are running; say which:\n{}", list.join("\n"))))
        }
    }
}

/// The lines for a person; `verbose` adds the loss in nats per byte.
fn text(status: &Status, verbose: bool) -> String {
    let or_none = |value: Option<f64>| value.map_or("-".into(), |v| format!("{v:.4}"));
    let mut out = format!(
        "node {} of run {} (starling {}), up {} s, training on {}\n",
        labelled(&status.node, status.name.as_deref()),
        status.run,
        status.version,
        status.uptime_s,
        status.device
    );
    out += &match &status.lineage {
        Some(lineage) => format!(
            "lineage {} · {} rounds committed (record {}) · {} tokens · state {}\n",
            short(lineage),
            status.round,
            status.seq,
            status.tokens,
            status.state_root.as_deref().map(short).unwrap_or_default()
        ),
        None => "no flock met yet\n".to_string(),
    };
    out += &status.quorum.as_ref().map(|quorum| quorum_text(quorum, &status.node)).unwrap_or_default();
    out += &status.quorum.as_ref().and_then(|quorum| pair_text(quorum, &status.members)).unwrap_or_default();
    out += &status.probation.as_ref().map(probation_text).unwrap_or_default();
    out += &amended_text(status.amended.as_ref(), &status.proposals);
    let per_byte = format!(" ({} nats per byte)", or_none(status.validation_nats_per_byte));
    let per_byte = if verbose && status.trainer.is_none() { per_byte } else { String::new() };
    // Nobody knows the unit of another task's losses.
    let unit = if status.trainer.is_none() { " nats per token" } else { "" };
    out += &format!(
        "loss {}{unit} · validation {}{unit}{per_byte} · {} sent, {} received\n",
        or_none(status.loss),
        or_none(status.validation_nats_per_token),
        bytes(status.bytes_sent),
        bytes(status.bytes_received)
    );
    out += &merging_text(&status.merged, status.offers.as_ref());
    out += &status.gossip.as_ref().map(gossip_text).unwrap_or_default();
    out += &status.trainer.as_ref().map(|trainer| format!("trainer: {trainer}\n")).unwrap_or_default();
    out += &match &status.waiting {
        Some(why) => format!("now: {}; waiting: {why}\n", status.phase),
        None => format!("now: {}\n", status.phase),
    };
    out += &members_text(&status.members);
    out += &unreached_text(&status.unreached);
    for evidence in &status.evidence {
        let then = if evidence.revoked { "it is removed for good" } else { "it is to be removed" };
        out += &format!(
            "EVIDENCE against {}: two different statements of one place ({}); {then}\n",
            short(&evidence.against),
            evidence.what
        );
    }
    out
}

/// Lines on amendments: those in force, and those that wait.
fn amended_text(amended: Option<&AmendedStatus>, proposals: &[ProposalStatus]) -> String {
    let listed = |changes: &BTreeMap<String, String>| {
        let pairs: Vec<String> = changes.iter().map(|(key, value)| format!("{key} = {value}")).collect();
        pairs.join(", ")
    };
    let mut out = amended.map_or(String::new(), |amended| {
        format!("amended {}: {} ({})\n", times(amended.number), listed(&amended.changes), short(&amended.id))
    });
    for proposal in proposals {
        let waits = match (proposal.by_creator, proposal.agreed) {
            (true, _) => "waits for a record".to_owned(),
            (false, true) => "agreed here, and waits for a quorum".to_owned(),
            (false, false) => format!("agree with `starling agree {}`", short(&proposal.id)),
        };
        let from = match proposal.from_round {
            0 => String::new(),
            round => format!(" from round {round} on"),
        };
        out += &format!("amendment {}{from}: {}; {waits}\n", short(&proposal.id), listed(&proposal.changes));
    }
    out
}

fn times(number: u32) -> String {
    if number == 1 { "once".into() } else { format!("{number} times") }
}

/// The table of members and guests.
fn members_text(members: &[Member]) -> String {
    let label = |member: &Member| labelled(&member.node, member.name.as_deref());
    let width = members.iter().map(|member| label(member).len()).max().unwrap_or_default().max(8);
    let mut out = format!("\n  {:width$}  role     link   phase        record  heard\n", "node");
    for member in members {
        let link = if member.me {
            "me"
        } else if member.connected {
            "up"
        } else {
            "down"
        };
        out += &format!(
            "  {:width$}  {:7}  {:5}  {:11}  {:>6}  {}\n",
            label(member),
            member.role.as_deref().unwrap_or(if member.member { "member" } else { "guest" }),
            link,
            member.phase.as_deref().unwrap_or("-"),
            member.seq.map_or("-".into(), |s| s.to_string()),
            heard(member),
        );
    }
    out
}

/// The peers that are dialed in vain, those that were dialed most first.
fn unreached_text(peers: &[UnreachedStatus]) -> String {
    let row = |peer: &UnreachedStatus| {
        let (addresses, dials) = (count(peer.addresses, "address"), count(peer.dials, "attempt"));
        format!("cannot reach {}: {} ({dials} at {addresses})\n", short(&peer.peer), peer.reason)
    };
    let more = peers.len().saturating_sub(UNREACHED_SHOWN);
    let rest = if more > 0 { format!("and {} more (--json lists them)\n", count(more, "peer")) } else { String::new() };
    peers.iter().take(UNREACHED_SHOWN).map(row).collect::<String>() + &rest
}

/// The lineages whose work is in the state, and the difference that waits to be merged.
fn merging_text(merged: &[MergedStatus], offers: Option<&OfferStatus>) -> String {
    let mut out = String::new();
    for MergedStatus { lineage, round, tokens } in merged {
        let when =
            round.map_or("before this node was started, or by a fork".into(), |round| format!("in round {round}"));
        let weight = tokens.map(|tokens| format!(", where it counted for {tokens} tokens")).unwrap_or_default();
        out += &format!("merged lineage {}: {when}{weight}\n", short(lineage));
    }
    if let Some(OfferStatus { lineage, tokens, counts_for }) = offers {
        out += &format!(
            "on offer: the difference of lineage {} over {tokens} tokens; it would count for {counts_for}\n",
            short(lineage)
        );
    }
    out
}

/// How often this node has met a partner between two records.
fn gossip_text(pairs: &GossipStatus) -> String {
    let alone: u64 = pairs.alone.values().sum();
    let reasons: Vec<_> = pairs.alone.iter().map(|(reason, times)| format!("{reason} {times}")).collect();
    let reasons = if reasons.is_empty() { String::new() } else { format!(" ({})", reasons.join(", ")) };
    format!("gossip: met {} times, alone {alone}{reasons}\n", pairs.met)
}

/// Why this node does not vote yet.
fn probation_text(probation: &ProbationStatus) -> String {
    let ProbationStatus { from_round, contributions, newcomer_until } = probation;
    let must = if *contributions > 0 {
        format!(", once {contributions} more of its contributions are in")
    } else {
        String::new()
    };
    format!(
        "on probation: this node learns, and votes from round {from_round} on at the earliest{must}; until round {newcomer_until} \
         only while newcomers hold less than a third of the votes (admission.probation)\n"
    )
}

/// Whether anything can be decided, and what happens next if not; `me` is this node.
fn quorum_text(quorum: &QuorumStatus, me: &str) -> String {
    let verdict = if quorum.in_reach { "quorum" } else { "no quorum" };
    let mut out = format!("{} of {} voters here, {verdict}", quorum.here, quorum.voters);
    if let Some(seconds) = quorum.quorum_lost_s {
        let next = match (quorum.policy.as_str(), quorum.forks_in_s) {
            ("fork", Some(left)) => format!("goes on as a lineage of its own in {left:.0} s"),
            ("fork", None) => format!("goes on as a lineage of its own after {:.0} s", quorum.grace_s),
            ("wait", _) => "waits for the others".to_string(),
            _ => "has stopped until the others are back".to_string(),
        };
        out += &format!("; lost for {seconds:.0} s, {next} (partition.minority = \"{}\")", quorum.policy);
        // It would be a quorum, if it had not been started again.
        if 2 * quorum.here == quorum.voters && quorum.distinguished.as_deref() == Some(me) {
            out += &format!("; {STARTED_AGAIN}");
        }
    }
    if quorum.frozen {
        out += "; STOPPED: two certified records contradict each other, see the log";
    }
    out + "\n"
}

/// The fate of a flock of two when one of them is lost, if both are here and this node is one of them.
fn pair_text(quorum: &QuorumStatus, members: &[Member]) -> Option<String> {
    let (voters, count) = (quorum.voters, members.iter().filter(|member| member.member).count());
    let votes = |member: &Member| member.role.as_deref() == Some("voter");
    let me = members.iter().find(|member| member.me && member.member)?;
    let standing = Standing::of((voters, count), votes(me), quorum.distinguished.as_ref() == Some(&me.node))?;
    // The other one of two voters is meant, however many learn.
    let is_it = |m: &&Member| !m.me && m.member && m.connected && (voters == 1 || votes(m));
    let other = members.iter().find(is_it).filter(|_| quorum.here == voters)?;
    let pair = Pair {
        other: &labelled(&other.node, other.name.as_deref()),
        standing,
        policy: &quorum.policy,
        grace_s: quorum.grace_s,
    };
    Some(pair.sentence() + "\n")
}

fn heard(member: &Member) -> String {
    let heard = member.heard_s.filter(|_| !member.me).map(|s| format!("{s:.1} s ago"));
    [heard, member.out.clone()].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_beside_the_ids() {
        let member = |node: &str, name: Option<&str>| Member {
            node: node.into(),
            name: name.map(Into::into),
            me: name.is_none(),
            member: true,
            role: Some("voter".into()),
            connected: true,
            phase: Some("training".into()),
            seq: Some(7),
            heard_s: Some(0.5),
            out: None,
        };
        assert_eq!(
            members_text(&[member("1a2b3c4d5e6f", Some("gpu-box")), member("5e6f7a8b5e6f", None)]),
            "\n  node                role     link   phase        record  heard\n  \
             1a2b3c4d (gpu-box)  voter    up     training          7  0.5 s ago\n  \
             5e6f7a8b            voter    me     training          7  \n"
        );
        assert_eq!(members_text(&[]), "\n  node      role     link   phase        record  heard\n");
    }

    #[test]
    fn a_node_without_a_quorum_says_what_it_waits_for_and_when_it_goes_on() {
        let lost = |policy: &str, distinguished: &str| QuorumStatus {
            voters: 2,
            here: 1,
            in_reach: false,
            distinguished: Some(distinguished.into()),
            quorum_lost_s: Some(12.0),
            forks_in_s: (policy == "fork").then_some(48.0),
            policy: policy.into(),
            grace_s: 60.0,
            frozen: false,
        };
        assert_eq!(
            quorum_text(&lost("fork", "other"), "me"),
            "1 of 2 voters here, no quorum; lost for 12 s, goes on as a lineage of its own in 48 s \
             (partition.minority = \"fork\")\n"
        );
        assert!(quorum_text(&lost("wait", "other"), "me").contains("waits for the others"));
        let restarted = quorum_text(&lost("wait", "me"), "me");
        assert!(restarted.ends_with("decides nothing alone before another voter has answered\n"), "{restarted}");
    }

    #[test]
    fn a_flock_of_two_says_what_happens_when_one_is_lost_while_one_of_them_learns_too() {
        let member = |node: &str, me: bool, role: &str| Member {
            node: node.into(),
            name: None,
            me,
            member: true,
            role: Some(role.into()),
            connected: true,
            phase: None,
            seq: None,
            heard_s: None,
            out: None,
        };
        let quorum = |voters: usize| QuorumStatus {
            voters,
            here: voters,
            in_reach: true,
            distinguished: Some("5e6f7a8b5e6f".into()),
            quorum_lost_s: None,
            forks_in_s: None,
            policy: "fork".into(),
            grace_s: 60.0,
            frozen: false,
        };
        let said = |mine: &str, its: &str, voters: usize| {
            let members = [member("5e6f7a8b5e6f", true, mine), member("1a2b3c4d5e6f", false, its)];
            pair_text(&quorum(voters), &members).unwrap_or_default()
        };
        assert!(said("voter", "voter", 2).contains("the senior one: if 1a2b3c4d is lost, this node goes on at once"));
        assert!(said("voter", "learner", 1).contains("decides alone: if 1a2b3c4d is lost, this node goes on at once"));
        let learns = said("learner", "voter", 1);
        assert!(learns.contains("if 1a2b3c4d is lost, this node goes on by itself after 60 s"), "{learns}");
        let away = Member { connected: false, ..member("1a2b3c4d5e6f", false, "learner") };
        assert_eq!(pair_text(&quorum(1), &[member("5e6f7a8b5e6f", true, "voter"), away]), None);
        assert_eq!(pair_text(&quorum(3), &[member("5e6f7a8b5e6f", true, "voter")]), None);
    }

    #[test]
    fn no_text_of_a_peer_moves_the_cursor() {
        let agent = "starling/0.1.0 \x1b[31mred\x1b]0;title\x07\u{9b}2J\u{202e}box";
        let name = starling_bootstrap::untrusted::name_of_agent(agent).expect("letters are left");
        assert_eq!(labelled("1a2b3c4d5e6f", Some(&name)), "1a2b3c4d (redbox)");
        let raw = labelled("1a2b3c4d", Some(agent));
        let shown = harmless(&format!("\n{raw}\nnow: training; waiting: \x1b[2Jb\u{9b}c\u{202e}d\n"));
        assert!(shown.lines().count() == 3 && shown.ends_with("waiting: ?[2Jb?c?d\n"), "{shown:?}");
        assert!(!shown.contains(|c: char| c.is_control() && c != '\n'), "{shown:?}");
    }

    #[test]
    fn peers_that_do_not_answer_are_counted() {
        let (id, why) = ("0123456789", "no answer");
        let peer = |dials| UnreachedStatus { peer: id.into(), reason: why.into(), addresses: 1, dials };
        assert_eq!(unreached_text(&[]), "");
        assert_eq!(unreached_text(&[peer(1)]), "cannot reach 01234567: no answer (1 attempt at 1 address)\n");
        let many: Vec<_> = (0..10).map(peer).collect();
        assert!(unreached_text(&many).ends_with("and 2 peers more (--json lists them)\n"), "{}", unreached_text(&many));
    }

    #[test]
    fn exchanges_are_counted_by_how_they_ended() {
        let alone = [("late".to_owned(), 2), ("odd".to_owned(), 1)].into();
        assert_eq!(gossip_text(&GossipStatus { met: 7, alone }), "gossip: met 7 times, alone 3 (late 2, odd 1)\n");
        assert_eq!(gossip_text(&GossipStatus { met: 7, alone: [].into() }), "gossip: met 7 times, alone 0\n");
    }

    #[test]
    fn a_node_on_probation_is_told_when_it_votes_and_until_when_it_is_new() {
        let said =
            |contributions| probation_text(&ProbationStatus { from_round: 12, contributions, newcomer_until: 36 });
        assert_eq!(
            said(2),
            "on probation: this node learns, and votes from round 12 on at the earliest, once 2 more of its contributions \
             are in; until round 36 only while newcomers hold less than a third of the votes (admission.probation)\n"
        );
        assert!(said(0).contains("at the earliest; until round 36"), "{}", said(0));
    }

    #[test]
    fn merged_lineages_and_the_one_on_offer_are_told_in_words() {
        let merged = |round, tokens| MergedStatus { lineage: "0123456789abcdef".into(), round, tokens };
        let offer = OfferStatus { lineage: "fedcba9876543210".into(), tokens: 4_096, counts_for: 2_048 };
        assert_eq!(merging_text(&[], None), "");
        assert_eq!(
            merging_text(&[merged(Some(12), Some(640)), merged(Some(13), None), merged(None, None)], Some(&offer)),
            "merged lineage 01234567: in round 12, where it counted for 640 tokens\n\
             merged lineage 01234567: in round 13\n\
             merged lineage 01234567: before this node was started, or by a fork\n\
             on offer: the difference of lineage fedcba98 over 4096 tokens; it would count for 2048\n"
        );
    }
}
