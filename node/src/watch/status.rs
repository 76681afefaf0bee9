//! The status socket: a running node answers questions from this machine's user, one JSON object each way.

use super::choice::ChoiceStatus;
use crate::exit::{Code, Failure};
use anyhow::Context;
use serde::{Deserialize, Serialize};
use starling_protocol::amendment::Changes;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixListener;
use tokio::sync::{mpsc, oneshot};

/// Name of the socket in the node's folder.
const SOCKET: &str = "status.sock";
/// Longest question, in bytes.
const QUESTION_BYTES_MAX: u64 = 1024;
/// Longest answer, in bytes.
const ANSWER_BYTES_MAX: u64 = 1 << 20;
/// Questions that may wait for the driver at once.
const QUESTIONS_MAX: usize = 8;

/// A question to the node.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum Question {
    Status,
    Invite(Terms),
    Revoke(Subject),
    /// Amend the run.
    Change(Change),
    /// Agree to an amendment that waits, by the beginning of its name.
    Agree {
        id: String,
    },
    /// Write a checkpoint of the present state, unless the newest is of it.
    Checkpoint,
}

/// An amendment to make.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Change {
    pub changes: Changes,
    /// The first round that it may be in force in; 0 = the next.
    pub from: u64,
}

/// The subject of a revocation.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Subject {
    Node {
        id: String,
    },
    /// A ticket by its name in records.
    Ticket {
        grant: String,
    },
}

/// The terms of a ticket.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Terms {
    /// The last round in which it admits somebody; 0 = no end.
    pub expires: u64,
    /// How many nodes it admits; 0 = any number.
    pub uses: u32,
    /// The only node that it admits.
    pub holder: Option<String>,
}

/// The answer to a question.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    Status(Box<Status>),
    Invite {
        ticket: String,
    },
    Revoked {
        subject: String,
    },
    /// An amendment was handed in. Unless it is agreed by all, a quorum's operators have to agree.
    Amendment {
        id: String,
        number: u32,
        agreed_by_all: bool,
        /// The one to which this node's operator agreed before, and does not any more.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        instead_of: Option<String>,
    },
    Checkpoint {
        path: String,
        seq: u64,
        round: u64,
        is_new: bool,
    },
    /// Why the node does not do it, and the exit code with which the command ends if it is not that of a refusal.
    Error {
        message: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        code: Option<u8>,
    },
}

impl Answer {
    pub fn refused(message: impl Into<String>) -> Self {
        Self::Error { message: message.into(), code: None }
    }

    pub fn failed(code: Code, message: impl Into<String>) -> Self {
        Self::Error { message: message.into(), code: Some(code as u8) }
    }
}

/// The end of a command that got an [`Answer::Error`].
pub fn failure(message: String, code: Option<u8>) -> Failure {
    Failure::message(code.and_then(Code::numbered).unwrap_or(Code::Refused), message)
}

/// A node's own view of itself and of the others.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    pub version: String,
    pub node: String,
    /// This node's name, or its machine's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub run: String,
    pub lineage: Option<String>,
    pub device: String,
    pub phase: String,
    /// The voters, and whether enough of them are here; none before a flock has been met.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quorum: Option<QuorumStatus>,
    /// What the node waits for, in plain words, if it waits.
    pub waiting: Option<String>,
    pub round: u64,
    pub seq: u64,
    pub tokens: u64,
    pub state_root: Option<String>,
    pub uptime_s: u64,
    pub bytes_sent: u64,
    pub bytes_received: u64,
    pub loss: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation_nats_per_token: Option<f64>,
    pub validation_nats_per_byte: Option<f64>,
    pub addresses: Vec<String>,
    pub members: Vec<Member>,
    /// Nodes that are known to have contradicted themselves.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evidence: Vec<EvidenceStatus>,
    /// Other lineages whose work is in the state: this one has merged them, or forked from them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub merged: Vec<MergedStatus>,
    /// The difference of a lineage that gave way, which this node keeps until a record has merged it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offers: Option<OfferStatus>,
    /// Why the next round has as many inner steps as it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub choice: Option<ChoiceStatus>,
    /// Exchanges with partners since the start, in a run that has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gossip: Option<GossipStatus>,
    /// Why this node does not vote yet, in an open run with probation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probation: Option<ProbationStatus>,
    /// The trainer that this node's user brings, in words, in a run whose task is external.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trainer: Option<String>,
    /// The amendments of the run that are in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub amended: Option<AmendedStatus>,
    /// Amendments that no record holds yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub proposals: Vec<ProposalStatus>,
    /// Peers that this node dials in vain.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreached: Vec<UnreachedStatus>,
}

/// The changes of the run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AmendedStatus {
    /// Amendments so far, and the newest one's id.
    pub number: u32,
    pub id: String,
    /// All values that differ from the run file's.
    pub changes: BTreeMap<String, String>,
}

/// An amendment that waits.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProposalStatus {
    pub id: String,
    pub number: u32,
    /// The first round that it may be in force in; 0 = the next.
    pub from_round: u64,
    pub changes: BTreeMap<String, String>,
    /// Whether this node's operator agrees.
    pub agreed: bool,
    /// Whether the run's creator has signed it.
    pub by_creator: bool,
}

/// A peer that has not been reached since it was last here.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UnreachedStatus {
    pub peer: String,
    /// Why the last dial failed.
    pub reason: String,
    /// Addresses that were tried.
    pub addresses: usize,
    pub dials: u64,
}

/// The conditions under which a learner becomes a voter.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProbationStatus {
    /// The first round whose record may make it a voter.
    pub from_round: u64,
    /// Contributions that must be committed before.
    pub contributions: u64,
    /// From this round on the node is no newcomer: whether it votes then no longer depends on how many others vote.
    pub newcomer_until: u64,
}

/// The outcomes of exchanges with partners.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GossipStatus {
    pub met: u64,
    /// How often this node went on alone, by reason.
    pub alone: BTreeMap<String, u64>,
}

/// A lineage whose work is in the state.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MergedStatus {
    pub lineage: String,
    /// The round that merged it, if this process saw it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round: Option<u64>,
    /// The tokens that it counted for, if this process held the contribution.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
}

/// A difference that this node offers when it is its turn.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OfferStatus {
    pub lineage: String,
    /// Tokens trained there since the two lineages had the same parameters.
    pub tokens: u64,
    /// The tokens that it would count for in the next round, beside those of that round; 0 before the first COMMIT.
    pub counts_for: u64,
}

/// A node that has signed two statements that contradict each other.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EvidenceStatus {
    pub against: String,
    /// The kind of both statements: `ready`, `estimate` or `vote`.
    pub what: String,
    /// Whether the head record has revoked the node.
    pub revoked: bool,
}

/// The voters on the next record.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct QuorumStatus {
    pub voters: usize,
    /// The number of voters in reach.
    pub here: usize,
    pub in_reach: bool,
    /// The voter with which exactly half of the voters are a quorum.
    pub distinguished: Option<String>,
    /// Seconds since a quorum was last in reach, while none is.
    pub quorum_lost_s: Option<f64>,
    /// Seconds until this node goes on as a lineage of its own, if it is to do so and no quorum comes back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forks_in_s: Option<f64>,
    /// The run's policy after a quorum loss: `fork`, `wait` or `halt`, and the seconds before it takes effect.
    pub policy: String,
    pub grace_s: f64,
    /// Two certified records contradict each other: the node has stopped until a person decides.
    pub frozen: bool,
}

/// One member or peer as the node sees it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Member {
    pub node: String,
    /// The name that it gives itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub me: bool,
    pub member: bool,
    /// `voter` or `learner`; none for a node that is no member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    pub connected: bool,
    pub phase: Option<String>,
    pub seq: Option<u64>,
    /// Seconds since it was last heard.
    pub heard_s: Option<f64>,
    /// Why the round does not count on it, if so.
    pub out: Option<String>,
}

/// A question and where its answer goes.
pub type Asked = (Question, oneshot::Sender<Answer>);

/// The listening end, which removes its socket file when it is dropped.
pub struct StatusServer {
    path: PathBuf,
}

impl StatusServer {
    /// Listens in the node's folder, which only its user may enter.
    ///
    /// The caller holds the folder's lock, so a socket that is already there is a dead node's.
    pub fn start(home: &Path) -> anyhow::Result<(Self, mpsc::Receiver<Asked>)> {
        let path = socket_path(home);
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path)
            .with_context(|| format!("cannot listen on the status socket {}", path.display()))?;
        let (tx, rx) = mpsc::channel(QUESTIONS_MAX);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(stream, tx.clone()));
            }
        });
        Ok((Self { path }, rx))
    }
}

impl Drop for StatusServer {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The path of the socket. Socket paths are limited to about 100 bytes, so a deep folder gets one in the temporary
/// folder.
fn socket_path(home: &Path) -> PathBuf {
    let path = home.join(SOCKET);
    if path.as_os_str().len() < 100 {
        return path;
    }
    let digest = blake3::hash(home.as_os_str().as_encoded_bytes()).to_hex();
    std::env::temp_dir().join(format!("starling-{}.sock", &digest[..16]))
}

async fn answer(stream: tokio::net::UnixStream, tx: mpsc::Sender<Asked>) {
    let (read, mut write) = stream.into_split();
    let mut line = String::new();
    let mut reader = tokio::io::BufReader::new(read.take(QUESTION_BYTES_MAX));
    let read = tokio::time::timeout(Duration::from_secs(5), reader.read_line(&mut line)).await;
    if !matches!(read, Ok(Ok(_))) {
        return;
    }
    let answer = match serde_json::from_str(&line) {
        Ok(question) => {
            let (reply, answered) = oneshot::channel();
            match tx.try_send((question, reply)) {
                Ok(()) => answered.await.unwrap_or_else(|_| Answer::refused("the node is shutting down")),
                Err(_) => Answer::refused("the node is busy or shutting down"),
            }
        }
        Err(e) => Answer::refused(format!("not a question: {e}")),
    };
    if let Ok(mut text) = serde_json::to_string(&answer) {
        text.push('\n');
        let _ = write.write_all(text.as_bytes()).await;
    }
}

/// Asks the node in `home`.
///
/// # Errors
/// No node runs there, or it does not answer within 10 seconds.
pub fn ask(home: &Path, question: Question) -> anyhow::Result<Answer> {
    ask_within(home, question, Duration::from_secs(10))
}

/// Whether a node answers in `home`.
pub fn is_running(home: &Path) -> bool {
    UnixStream::connect(socket_path(home)).is_ok()
}

/// Asks the node in `home` something that takes time.
///
/// # Errors
/// No node runs there, or it does not answer in this time.
pub fn ask_within(home: &Path, question: Question, patience: Duration) -> anyhow::Result<Answer> {
    let path = socket_path(home);
    let mut stream = match UnixStream::connect(&path) {
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => anyhow::bail!(
            "no node is running in {} (start one with `starling train`, or name its folder with --home)",
            home.display()
        ),
        other => other.with_context(|| format!("cannot speak with the node in {}", home.display()))?,
    };
    stream.set_read_timeout(Some(patience))?;
    writeln!(stream, "{}", serde_json::to_string(&question)?)?;
    let mut line = String::new();
    let read = BufReader::new(stream.take(ANSWER_BYTES_MAX)).read_line(&mut line);
    // The system has one number for an answer that is late and for a thread that cannot start.
    let late = |e: std::io::Error| if e.kind() == ErrorKind::WouldBlock { ErrorKind::TimedOut.into() } else { e };
    read.map_err(late).context("the node did not answer in time")?;
    serde_json::from_str(&line).context("the node's answer does not parse: it may be of another version")
}

/// Folders of nodes that answer on this machine, below the default data folder.
pub fn running_homes(data: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(data) else { return Vec::new() };
    let mut homes: Vec<_> = entries.filter_map(|e| e.ok().map(|e| e.path())).filter(|home| is_running(home)).collect();
    homes.sort();
    homes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_may_name_the_exit_code() {
        let ends = |answer: &Answer| {
            let text = serde_json::to_string(answer).expect("it can be sent");
            match serde_json::from_str(&text).expect("it parses") {
                Answer::Error { message, code } => failure(message, code),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(ends(&Answer::failed(Code::Usage, "lr=0")).code, Code::Usage);
        assert_eq!(ends(&Answer::refused("not now")).code, Code::Refused);
        let older = r#"{"answer":"error","message":"no"}"#;
        assert!(matches!(serde_json::from_str(older), Ok(Answer::Error { code: None, .. })));
        assert_eq!(failure("of a newer release".into(), Some(200)).code, Code::Refused);
    }
}
