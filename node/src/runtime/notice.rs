//! The engine's notices to a user, as events and counters.

use crate::watch::event::Event;
use crate::watch::screen::{Screen, bytes};
use starling_protocol::engine::Hold;
use starling_protocol::engine::io::{Notice, Refusal};
use starling_protocol::message::Certificate;
use starling_protocol::{NodeId, wire};

/// Counts a notice, and shows it.
pub fn tell(screen: &mut Screen, notice: Notice) {
    count(&notice);
    if let Some(event) = event(notice) {
        screen.show(&event);
    }
}

/// Adds a notice to the metrics.
fn count(notice: &Notice) {
    match notice {
        Notice::PhaseChanged { phase, .. } => metrics::gauge!("starling_phase").set(f64::from(*phase as u8)),
        Notice::AttemptFailed { .. } => metrics::counter!("starling_attempts_failed_total").increment(1),
        Notice::Skipped { .. } => metrics::counter!("starling_skipped_total").increment(1),
        Notice::QuorumLost { .. } => {
            metrics::counter!("starling_quorum_lost_total").increment(1);
            metrics::gauge!("starling_quorum").set(0.0);
        }
        Notice::Rejoined => metrics::gauge!("starling_quorum").set(1.0),
        Notice::Forked { .. } => {
            metrics::counter!("starling_forks_total").increment(1);
            metrics::gauge!("starling_quorum").set(1.0);
        }
        Notice::Waited { micros, .. } => {
            metrics::counter!("starling_waited_for_newcomers_ms_total").increment(micros / 1000);
        }
        Notice::Merged { .. } => metrics::counter!("starling_merged_total").increment(1),
        Notice::SplitBrain { .. } => metrics::counter!("starling_split_brain_total").increment(1),
        Notice::NewIncarnation { .. } => metrics::counter!("starling_incarnations_total").increment(1),
        Notice::OwnFault { .. } => metrics::counter!("starling_own_faults_total").increment(1),
        Notice::Refused { refusal, .. } => count_refusal(refusal),
        _ => {}
    }
}

/// The event that shows a notice; `None` if it is shown elsewhere or is chatter.
fn event(notice: Notice) -> Option<Event> {
    Some(match notice {
        Notice::Founded { lineage } => Event::Founded { lineage: lineage.to_string() },
        Notice::Seeking { peers } => Event::Waiting { on: Vec::new(), why: seeking_text(peers) },
        Notice::PhaseChanged { phase, round } => Event::Phase { phase: format!("{phase:?}").to_lowercase(), round },
        Notice::AttemptStarted { round, attempt, members } => {
            Event::AttemptStarted { round, attempt, members: ids(members) }
        }
        Notice::AttemptFailed { round, attempt, suspect, reason } => {
            Event::AttemptFailed { round, attempt, suspect: suspect.map(|s| s.to_string()), reason }
        }
        Notice::Waited { newcomers, micros } => {
            Event::WaitedForNewcomers { newcomers: ids(newcomers), seconds: micros as f64 / 1e6 }
        }
        Notice::Merged { lineage, round } => Event::Merged { lineage: lineage.to_string(), round },
        Notice::Amended { number, name, changes, round } => {
            let changes = changes.entries().into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
            Event::Amended { number, id: name.to_string(), changes, round }
        }
        Notice::MemberJoined { member, round } => Event::MemberJoined { member: member.to_string(), round },
        Notice::MemberLeft { member, round, reason } => {
            Event::MemberLeft { member: member.to_string(), round, reason: reason.into() }
        }
        Notice::Skipped { record, lineage, seq } => {
            Event::Skipped { record: record.to_string(), lineage: lineage.to_string(), seq }
        }
        Notice::QuorumLost { policy, missing, grace } => {
            Event::QuorumLost { policy: policy.to_string(), missing: ids(missing), grace_s: grace as f64 / 1e6 }
        }
        Notice::Rejoined => Event::Rejoined,
        Notice::Forked { lineage, members } => Event::Forked { lineage: lineage.to_string(), members: ids(members) },
        Notice::LineageMet { lineage, yields } => Event::LineageMet { lineage: lineage.to_string(), yields },
        Notice::SplitBrain { ours, theirs } => Event::SplitBrain { ours: hex(&ours), theirs: hex(&theirs) },
        Notice::NewIncarnation { incarnation, why } => Event::NewIncarnation { incarnation, why: why.into() },
        Notice::OwnFault { detail } => Event::OwnFault { detail: format!("{detail}; it fetches the flock's state") },
        Notice::CatchUpFailed { reason } => Event::CatchUpFailed { reason },
        Notice::RolledBack { from_seq, to_seq } => Event::RolledBack { from_seq, to_seq },
        Notice::Refused { refusal: Refusal::Stale, .. } => return None,
        Notice::Refused { peer, refusal } => Event::Refused { peer: peer.to_string(), reason: refusal_text(&refusal) },
        // A commit is shown with its timings when it is on disk, a wait when it lasts.
        _ => return None,
    })
}

pub fn ids(ids: Vec<NodeId>) -> Vec<String> {
    ids.iter().map(NodeId::to_string).collect()
}

/// The evidence itself, so that it can be kept and checked elsewhere.
fn hex(certificate: &Certificate) -> String {
    data_encoding::HEXLOWER.encode(&wire::encode_certificate(certificate))
}

pub fn count_refusal(refusal: &Refusal) {
    metrics::counter!("starling_refused_total", "reason" => refusal_label(refusal)).increment(1);
}

pub fn refusal_label(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::Malformed { .. } => "malformed",
        Refusal::BadSignature => "bad_signature",
        Refusal::Version { .. } => "version",
        Refusal::RunMismatch { .. } => "run_mismatch",
        Refusal::IdentityInUse => "identity_in_use",
        Refusal::Equivocation { .. } => "equivocation",
        Refusal::FalseEvidence { .. } => "false_evidence",
        Refusal::FalseClaim { .. } => "false_claim",
        Refusal::NotAdmitted { .. } => "not_admitted",
        Refusal::Stale => "stale",
        Refusal::Full => "full",
        _ => "other",
    }
}

/// Why a peer or its bytes were refused, as a person reads it.
pub fn refusal_text(refusal: &Refusal) -> String {
    match refusal {
        Refusal::Malformed { what } => format!("it sent a message that does not decode ({what})"),
        Refusal::BadSignature => "a signature of its does not hold".into(),
        Refusal::Version { theirs, ours } => {
            format!("it speaks protocol version {theirs}, this node {ours}: run the same release on both")
        }
        Refusal::RunMismatch { keys } => format!("its run differs in {}", keys.join("; ")),
        Refusal::IdentityInUse => "its identity is in use by another process".into(),
        Refusal::Equivocation { what } => format!("it signed two contradicting statements ({what})"),
        Refusal::FalseEvidence { why } => format!("it passed on evidence that proves nothing ({why})"),
        Refusal::FalseClaim { why } => format!("the path that it showed to its head proves nothing ({why})"),
        Refusal::NotAdmitted { why } => format!("it is not admitted: {}", not_admitted_text(why)),
        Refusal::Stale => "it sent something of another round".into(),
        Refusal::Full => "the flock is full".into(),
        other => format!("{other:?}"),
    }
}

/// The labels of [`starling_protocol::admission::NotAdmitted`] in words.
fn not_admitted_text(why: &str) -> &str {
    match why {
        "not_listed" => "admission.allow does not list it",
        "no_ticket" => "it showed no ticket",
        "malformed_ticket" => "its ticket cannot be read",
        "bad_signature" => "its ticket is not signed by the run's creator",
        "other_holder" => "its ticket is made out to another node",
        "expired" => "its ticket has expired",
        "used_up" => "its ticket has admitted as many nodes as it may",
        "revoked_identity" => "the run's creator has revoked it",
        "revoked_ticket" => "the run's creator has revoked its ticket",
        "contradicted_itself" => "it has signed two statements that contradict each other, so that it needs a new key",
        other => other,
    }
}

/// A round that waits for newcomers, for a person to read.
pub fn hold_text(hold: &Hold) -> String {
    let patience = hold.patience.div_ceil(1_000_000);
    if hold.bytes == 0 {
        let nodes = match hold.on.len() {
            1 => "a new member that trains".to_owned(),
            count => format!("{count} new members that train"),
        };
        return format!("the round waits for {nodes}; it waits {patience} s more at most");
    }
    let nodes = match hold.on.len() {
        1 => "a node that fetches".to_owned(),
        count => format!("{count} nodes that fetch"),
    };
    let left = match hold.left {
        Some(micros) => format!(", about {} s left", micros.div_ceil(1_000_000)),
        None => String::new(),
    };
    format!(
        "the round waits for {nodes} the state: {} to go{left}; it waits {patience} s more at most",
        bytes(hold.bytes)
    )
}

/// The text for a node that waits because it has met no flock.
pub fn seeking_text(peers: usize) -> String {
    let peers = starling_words::count(peers, "peer");
    format!("no flock of this run met yet ({peers} of it connected); this node did not found one")
}
