//! A member that lies, for tests on real processes: `starling-byzantine` is the program with a few hooks, each at a
//! place where the node's words leave it. It can also run with one of the protocol's injected bugs, to show that the
//! lab notices them, or attack as a stranger that never joins ([`stranger`]). Without any of these it is honest, and
//! with `--small-rows` nine such nodes are a flock of two rows. The shipped program has none of this; a test looks for
//! [`MARK`] in it.

mod link;
mod plot;
mod stranger;

pub use link::link;
pub use stranger::attack;

use crate::net::fetch::{Answer, FetchRefusal, FetchRequest};
use plot::{ATTACKS, Plot};
use starling_protocol::identity::{Ed25519Signer, Ed25519Verifier};
use starling_protocol::message::{Message, Ready};
use starling_protocol::mutation::{self, Mutation};
use starling_protocol::{Digest, scale, update, wire};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::Read;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// This mark is in every program that has these hooks. The program prints it when it starts.
pub const MARK: &str = "starling byzantine build: do not trust this node";
/// Factor by which a lie lengthens a contribution.
const FACTOR: f32 = 1e6;

/// One way to lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Mode {
    /// Its contribution decodes to values that are not numbers.
    Nan,
    /// Its contribution is a million times as long, and its READY says so.
    Huge,
    /// Its contribution is a million times as long, and its READY states the honest norm.
    HugeHidden,
    /// Its contribution points the other way.
    SignFlip,
    /// Bulk streams are opened for another record.
    WrongRound,
    /// It sends random bytes in place of a frame header.
    Garbage,
    /// A frame states a length that no frame may have.
    Oversize,
    /// It sends one byte a second.
    Stall,
    /// It ends streams in the middle of a frame.
    Close,
    /// It signs two READYs for one round.
    EquivocateReady,
    /// Its sums, as an owner or in a ring, are a million times too large.
    WrongSum,
    /// Nodes that fetch state or updates from it get a flipped bit.
    BadChunk,
}

const MODES: &[(&str, Mode)] = &[
    ("nan", Mode::Nan),
    ("huge", Mode::Huge),
    ("huge-hidden", Mode::HugeHidden),
    ("sign-flip", Mode::SignFlip),
    ("wrong-round", Mode::WrongRound),
    ("garbage", Mode::Garbage),
    ("oversize", Mode::Oversize),
    ("stall", Mode::Stall),
    ("close", Mode::Close),
    ("equivocate-ready", Mode::EquivocateReady),
    ("wrong-sum", Mode::WrongSum),
    ("bad-chunk", Mode::BadChunk),
];

#[derive(Default)]
struct Byzantine {
    modes: BTreeSet<Mode>,
    /// Its attacks as a stranger that never joins; without an attack it is a member.
    plot: Plot,
    from_round: u64,
    /// The round that the node trains.
    round: AtomicU64,
    speaker: OnceLock<(Ed25519Signer, Digest)>,
}

static BYZANTINE: OnceLock<Byzantine> = OnceLock::new();

/// Takes `--byzantine MODE[,MODE]`, `--byzantine-from-round N`, `--mutation BUG`, `--small-rows` and the flags of
/// [`Plot`] out of a command line, arms the hooks, and returns the other arguments. Must be called before the process
/// has other threads: it sets what holds in all of them.
///
/// # Errors
/// A flag has no value, a wrong one, or an unknown name.
pub fn arm(arguments: impl Iterator<Item = OsString>) -> Result<Vec<OsString>, String> {
    let (mut others, mut byzantine) = (Vec::new(), Byzantine::default());
    let (mut injected, mut rows) = (None, None);
    let mut arguments = arguments;
    while let Some(argument) = arguments.next() {
        let mut value = || {
            let value = arguments.next().and_then(|value| value.into_string().ok());
            value.ok_or_else(|| format!("{} wants a value", argument.display()))
        };
        match argument.to_str() {
            Some("--byzantine") => {
                for name in value()?.split(',') {
                    byzantine.add(name)?;
                }
            }
            Some(flag @ "--byzantine-from-round") => byzantine.from_round = number(flag, &value()?)?,
            Some(flag @ "--byzantine-identities") => byzantine.plot.identities = number(flag, &value()?)?,
            Some(flag @ "--byzantine-life-ms") => byzantine.plot.life_ms = number(flag, &value()?)?,
            Some(flag @ "--byzantine-at") => {
                let places: Result<_, _> = value()?.split(',').map(|place| number(flag, place)).collect();
                byzantine.plot.at = places?;
            }
            Some("--mutation") => injected = Some(mutation_named(&value()?)?),
            Some("--small-rows") => rows = Some(scale::SMALL),
            _ => others.push(argument),
        }
    }
    let twice = injected.is_some_and(|bug| !mutation::everywhere(bug));
    if twice || rows.is_some_and(|rows| !scale::everywhere(rows)) {
        return Err("armed twice".to_owned());
    }
    eprintln!("{MARK} ({:?}, {:?}, {injected:?}, {rows:?})", byzantine.modes, byzantine.plot);
    BYZANTINE.set(byzantine).map_err(|_| "armed twice".to_owned())?;
    Ok(others)
}

fn number<T: FromStr<Err: std::fmt::Display>>(flag: &str, text: &str) -> Result<T, String> {
    text.parse().map_err(|why| format!("{flag} {text}: {why}"))
}

impl Byzantine {
    /// Adds a mode or an attack by its name.
    fn add(&mut self, name: &str) -> Result<(), String> {
        let mode = MODES.iter().find(|(known, _)| *known == name);
        let strange = ATTACKS.iter().find(|(known, _)| *known == name);
        self.modes.extend(mode.map(|(_, mode)| *mode));
        self.plot.attacks.extend(strange.map(|(_, strange)| *strange));
        if mode.is_some() || strange.is_some() {
            return Ok(());
        }
        let names = MODES.iter().map(|(name, _)| *name).chain(ATTACKS.iter().map(|(name, _)| *name));
        Err(format!("--byzantine {name}: there are {}", names.collect::<Vec<_>>().join(", ")))
    }
}

/// The mutation of that name.
fn mutation_named(name: &str) -> Result<Mutation, String> {
    let names = || Mutation::ALL.iter().map(|mutation| mutation.name()).collect::<Vec<_>>().join(", ");
    let known = Mutation::ALL.iter().find(|mutation| mutation.name() == name);
    known.copied().ok_or_else(|| format!("--mutation {name}: there are {}", names()))
}

/// Whether this lie is to be told now.
fn armed(mode: Mode) -> bool {
    let armed = |byzantine: &Byzantine| {
        byzantine.modes.contains(&mode) && byzantine.round.load(Ordering::Relaxed) >= byzantine.from_round
    };
    BYZANTINE.get().is_some_and(armed)
}

/// Notes the key and the run with which the node signs.
pub fn speak(signer: Ed25519Signer, run: Digest) {
    if let Some(byzantine) = BYZANTINE.get() {
        drop(byzantine.speaker.set((signer, run)));
    }
}

/// Notes the round that the node trains next.
pub fn at_round(round: u64) {
    if let Some(byzantine) = BYZANTINE.get() {
        byzantine.round.store(round, Ordering::Relaxed);
    }
}

/// Falsifies a contribution that was trained: the pseudo-gradient, its norm, and its digest.
pub fn contribution(delta: &mut Arc<Vec<f32>>, norm: &mut f32, payload: &mut Digest) {
    let factor = match () {
        () if armed(Mode::Huge) || armed(Mode::HugeHidden) => FACTOR,
        () if armed(Mode::SignFlip) => -1.0,
        () => return,
    };
    let mut other = delta.to_vec();
    update::apply_weight(factor, &mut other);
    *payload = update::contribution_digest(&other);
    *delta = Arc::new(other);
    if armed(Mode::Huge) {
        *norm *= factor;
    }
}

/// Whether outer steps are applied twice: the simulator's driver has this mutation, and so has the node's.
pub fn applies_twice() -> bool {
    mutation::chosen() == Some(Mutation::ApplyTwice)
}

/// Flips a bit of parameters that have just been loaded, if that is the mutation.
pub fn caught_up(theta: &mut [f32]) {
    if let Some(first) = theta.first_mut().filter(|_| mutation::chosen() == Some(Mutation::FlipCaughtUp)) {
        *first = f32::from_bits(first.to_bits() ^ 1);
    }
}

/// The messages that leave for a peer in place of one.
pub fn control(bytes: Vec<u8>) -> Vec<Vec<u8>> {
    let second = second_ready(&bytes).filter(|_| armed(Mode::EquivocateReady));
    [Some(bytes), second].into_iter().flatten().collect()
}

fn second_ready(bytes: &[u8]) -> Option<Vec<u8>> {
    let (signer, run) = BYZANTINE.get()?.speaker.get()?;
    let Message::Ready(ready) = wire::open(&Ed25519Verifier, run, bytes).ok()?.message else { return None };
    let other = Message::Ready(Ready { loss_q16: ready.loss_q16 ^ 1, ..ready });
    wire::seal(signer, run, &other).ok()
}

/// The answer that a peer gets to a request, falsified if armed.
pub fn served(request: &FetchRequest, answer: Result<Answer, FetchRefusal>) -> Result<Answer, FetchRefusal> {
    use FetchRequest::{StateChunk, Update, UpdateByDigest, UpdatePiece};
    let by_name = matches!(request, StateChunk(_) | Update { .. } | UpdateByDigest(_) | UpdatePiece { .. });
    let answer = answer?;
    if !by_name || !armed(Mode::BadChunk) {
        return Ok(answer);
    }
    let mut bytes = Vec::new();
    match answer {
        Answer::Bytes(held) => bytes.extend_from_slice(&held),
        Answer::File { file, len } => {
            file.take(len).read_to_end(&mut bytes).map_err(|_| FetchRefusal::Internal)?;
        }
    }
    if let Some(byte) = bytes.last_mut() {
        *byte ^= 1;
    }
    Ok(bytes.into())
}
