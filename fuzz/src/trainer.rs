//! A trainer as bytes (`docs/bridge.md`): one of its frames by itself, and everything that it says in a connection. The
//! node's files are compiled here without the node.

use crate::memory::within_limits;
use starling_protocol::Digest;
use starling_protocol::limits::SCHEMA_BYTES_MAX;
use starling_protocol::run::{ExternalSpec, TaskSchema, TaskTensor, TensorKind, TensorType};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

#[allow(dead_code)]
#[path = "../../node/src/runtime/bridge/frames.rs"]
mod frames;
#[allow(dead_code)]
#[path = "../../node/src/runtime/bridge/link.rs"]
mod link;
#[allow(dead_code)]
#[path = "../../node/src/runtime/bridge/memory.rs"]
mod memory;
#[allow(dead_code)]
#[path = "../../node/src/runtime/bridge/refusal.rs"]
mod refusal;
#[allow(dead_code)]
#[path = "../../node/src/runtime/bridge/said.rs"]
mod said;

use frames::{FRAME_BYTES_MAX, Frames, parsed};
use link::{Link, Terms, Wanted};
use refusal::{Broken, Refusal};
use said::{AnyHello, Ask, Hello, Said, Tensors, shown};

/// Bytes of a text that goes to a person or back to the trainer.
const TEXT_BYTES_MAX: usize = 4096;
/// Bytes that a trainer says in a connection: what a socket holds of them before anybody reads.
const SAID_BYTES_MAX: usize = 1 << 16;
/// Asks of one connection.
const ASKS_MAX: usize = 32;
/// Nothing waits for it: all that a trainer says is there before it is heard, with its end.
const PATIENCE: Duration = Duration::from_secs(600);

fn bounded(refusal: &Refusal) {
    assert!(refusal.why.len() <= TEXT_BYTES_MAX, "a reason of {} bytes", refusal.why.len());
}

/// The bytes as each frame that a trainer sends.
pub fn trainer_frame(data: &[u8]) {
    let json = data.get(..FRAME_BYTES_MAX).unwrap_or(data);
    within_limits(data.len(), || parsed::<AnyHello>(json).map_err(|refusal| bounded(&refusal)).is_ok());
    within_limits(data.len(), || {
        let one = TaskTensor { name: "w".into(), kind: TensorKind::Learned, dtype: TensorType::F32, shape: vec![4] };
        let hello = parsed::<Hello>(json).and_then(|hello| hello.check().and_then(|()| hello.with(vec![one])));
        match hello {
            Ok(trainer) => assert!(trainer.weight > 0 && trainer.program.len() <= TEXT_BYTES_MAX),
            Err(refusal) => bounded(&refusal),
        }
    });
    within_limits(data.len(), || match parsed::<Tensors>(json).and_then(schema) {
        Ok(schema) => {
            let bytes = schema.encode();
            assert!(bytes.len() <= SCHEMA_BYTES_MAX && TaskSchema::decode(&bytes) == Ok(schema));
        }
        Err(refusal) => bounded(&refusal),
    });
    within_limits(data.len(), || match parsed::<Said>(json) {
        Ok(said) => {
            for text in [said.error, said.text].iter().flatten() {
                let shown = shown(text);
                assert!(shown.len() <= TEXT_BYTES_MAX && !shown.contains(char::is_control));
            }
            assert!(said.loss.is_none_or(f64::is_finite));
        }
        Err(refusal) => bounded(&refusal),
    });
}

/// The schema of a trainer that says all of its tensors at once.
fn schema(said: Tensors) -> Result<TaskSchema, Refusal> {
    let tensors = said.tensors.into_iter().enumerate().map(|(place, tensor)| tensor.tensor(place));
    let schema = TaskSchema { tensors: tensors.collect::<Result<_, _>>()? };
    match schema.check() {
        Ok(()) => Ok(schema),
        Err(error) => Err(Refusal::new(refusal::Reason::Schema, error.to_string())),
    }
}

/// A byte for the terms, a byte for the number of asks, and all that a trainer says. The node keeps to its terms and to
/// the bounds, and tells the trainer why it ends the connection.
pub fn trainer(data: &[u8]) {
    let Some(([terms, asks], said)) = data.split_first_chunk() else { return };
    let said = said.get(..SAID_BYTES_MAX).unwrap_or(said);
    let wanted = wanted(*terms);
    let Ok((ours, mut theirs)) = UnixStream::pair() else { return };
    let Ok(ours) = Frames::new(ours) else { return };
    // A system that has room for less gives the node a frame that is cut.
    if theirs.set_nonblocking(true).is_err() || theirs.write_all(said).is_err() && cfg!(target_os = "linux") {
        return;
    }
    if theirs.shutdown(Shutdown::Write).is_err() {
        return;
    }
    // Memory for one frame of any length is taken before its bytes have come.
    let ended =
        within_limits(FRAME_BYTES_MAX + said.len(), || conversation(ours, &wanted, usize::from(*asks) % ASKS_MAX));
    if let Some(Broken::Refused(refusal)) = &ended {
        bounded(refusal);
    }
    let told = heard(&mut theirs);
    let last = told.last().map_or("", String::as_str);
    assert_eq!(last.starts_with("{\"refused\":"), matches!(ended, Some(Broken::Refused(_))), "{ended:?}: {last}");
}

fn wanted(terms: u8) -> Wanted {
    let tensor = TaskTensor { name: "w".into(), kind: TensorKind::Learned, dtype: TensorType::F32, shape: vec![4] };
    let schema = TaskSchema { tensors: vec![tensor] };
    match terms % 4 {
        0 => Wanted::Founder { private: false },
        1 => Wanted::Founder { private: true },
        private => {
            let samples = if private == 2 { 1000 } else { 0 };
            let digest = schema.digest();
            let frozen = Digest::default();
            let task = ExternalSpec { schema: digest, frozen, parameters: 4, learned: 4, samples, weight: 1 };
            Wanted::Fellow { task, schema }
        }
    }
}

/// Welcomes a trainer, and asks it one thing after another. Returns the end of the connection if it came before the last.
fn conversation(frames: Frames, wanted: &Wanted, asks: usize) -> Option<Broken> {
    let (run, node) = ("run".to_owned(), "node".to_owned());
    let terms = Terms { wanted: wanted.clone(), run, node, unit: 2, steps: 3, folder: PathBuf::from("nowhere") };
    let mut link = match Link::welcome(frames, &terms) {
        Ok(link) => link,
        Err(broken) => return Some(broken),
    };
    let trainer = &link.trainer;
    assert_eq!(trainer.schema.check(), Ok(()));
    match wanted {
        Wanted::Founder { private } => assert!(*private || trainer.samples > 0),
        Wanted::Fellow { task, schema } => {
            assert!(trainer.schema == *schema && trainer.frozen == task.frozen);
            assert!(task.samples == 0 || trainer.samples == task.samples);
        }
    }
    let few = trainer.schema.elements().min(64) as usize;
    let broken = vec![f32::NAN; few];
    let why = link.not_finite(&broken).expect("they are no numbers");
    assert!(why.starts_with(&link.trainer.schema.tensors[0].name) && link.not_finite(&vec![0.0; few]).is_none());
    for number in 0..asks {
        let step = number as u32;
        let ask = match number % 5 {
            0 => Ask::Read {},
            1 => Ask::Load { round: 1, base: "9f".into(), tokens: 0, progress: 0.0, flying: 1, keep: false },
            2 => Ask::Lease { round: 1, samples: 6, steps: 3, area: 0, likely: false },
            3 => Ask::Step { step, lr: 0.1, tokens: 0, progress: 0.0 },
            _ => Ask::Evaluate { round: 1 },
        };
        match link.ask(&ask, PATIENCE, &|| false) {
            Ok(said) => assert!(said.answer == Some(1 + number as u64) && said.error.is_none() && said.say.is_none()),
            Err(broken) => return Some(broken),
        }
    }
    None
}

/// The frames that a trainer was sent, each of which is an object.
fn heard(stream: &mut UnixStream) -> Vec<String> {
    let mut bytes = Vec::new();
    // Bytes that the node has not heard make an error of its end.
    let _ = stream.read_to_end(&mut bytes);
    let (mut rest, mut frames) = (bytes.as_slice(), Vec::new());
    while let Some((length, behind)) = rest.split_first_chunk::<4>() {
        let (frame, behind) = behind.split_at(u32::from_le_bytes(*length) as usize);
        let frame = std::str::from_utf8(frame).expect("it is text");
        assert!(frame.len() <= FRAME_BYTES_MAX && frame.starts_with('{') && frame.ends_with('}'));
        frames.push(frame.to_owned());
        rest = behind;
    }
    assert!(rest.is_empty(), "the node's last frame is cut");
    frames
}
