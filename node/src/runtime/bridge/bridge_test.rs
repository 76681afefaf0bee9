//! A trainer in a thread of its own, which speaks as `docs/bridge.md` says, or does not.

use super::super::trainer::{Coming, Learned, Place, Ready, StepAt, Task, TaskError};
use super::refusal::Reason;
use super::*;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use serde_json::{Value, json};
use starling_protocol::Digest;
use starling_protocol::run::{ExternalSpec, TaskSchema, TaskTensor, TensorKind, TensorType};
use std::fs::File;
use std::io::{IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// No answer takes longer, on any machine.
const LONG: Duration = Duration::from_secs(20);

fn schema() -> TaskSchema {
    let tensor = |name: &str, kind, shape: &[u32]| TaskTensor {
        name: name.into(),
        kind,
        dtype: TensorType::F32,
        shape: shape.to_vec(),
    };
    TaskSchema { tensors: vec![tensor("w", TensorKind::Learned, &[2, 2]), tensor("mean", TensorKind::Mean, &[2])] }
}

fn task() -> ExternalSpec {
    let schema = schema();
    ExternalSpec {
        schema: schema.digest(),
        frozen: Digest::default(),
        parameters: 6,
        learned: 4,
        samples: 100,
        weight: 3,
    }
}

fn tensors() -> Value {
    json!({"tensors": [
        {"name": "w", "shape": [2, 2], "kind": "learned", "dtype": "f32"},
        {"name": "mean", "shape": [2], "kind": "mean", "dtype": "f32"},
    ]})
}

fn hello() -> Value {
    json!({"hello": 1, "program": "fake 1", "tensors": 2, "samples": 100, "evaluates": true, "saves": true})
}

/// A node of a run with this task: rounds of three steps of two samples.
struct Node {
    door: Arc<Door>,
    external: External,
    folder: tempfile::TempDir,
}

fn node(wanted: Wanted) -> Node {
    let folder = tempfile::tempdir().expect("a folder");
    let terms = Terms {
        wanted,
        run: "fakes".into(),
        node: "ab".into(),
        unit: 2,
        steps: 3,
        folder: folder.path().join("trainer"),
    };
    let door = Arc::new(Door::open(folder.path(), terms).expect("a folder of its own"));
    let external = External::new(door.clone(), task(), (2, LONG), Arc::new(Note::default()));
    Node { door, external, folder }
}

fn fellow() -> Node {
    node(Wanted::Fellow { task: task(), schema: schema() })
}

/// A trainer's end.
struct Fake {
    stream: UnixStream,
    memory: File,
    welcome: Value,
}

fn say(mut stream: &UnixStream, said: &Value) {
    let json = said.to_string();
    let frame = [&(json.len() as u32).to_le_bytes()[..], json.as_bytes()].concat();
    // The node may have ended the connection.
    let _ = stream.write_all(&frame);
}

fn hear(mut stream: &UnixStream) -> Option<Value> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).ok()?;
    rest_of(stream, length)
}

fn rest_of(mut stream: &UnixStream, length: [u8; 4]) -> Option<Value> {
    let mut json = vec![0; u32::from_le_bytes(length) as usize];
    stream.read_exact(&mut json).ok()?;
    serde_json::from_slice(&json).ok()
}

fn connected(path: &Path) -> UnixStream {
    let stream = UnixStream::connect(path).expect("the door is open");
    stream.set_read_timeout(Some(LONG)).expect("a timeout");
    stream
}

/// Comes with these frames; the refusal if there is one.
fn come(path: &Path, frames: &[Value]) -> Result<Fake, Value> {
    let stream = connected(path);
    frames.iter().for_each(|frame| say(&stream, frame));
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut length = [0; 4];
    let (first, others) = length.split_at_mut(1);
    recvmsg(&stream, &mut [IoSliceMut::new(first)], &mut control, RecvFlags::empty()).expect("an answer");
    let file = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    (&stream).read_exact(others).expect("an answer");
    let said = rest_of(&stream, length).expect("JSON");
    match file {
        Some(file) => Ok(Fake { stream, memory: File::from(file), welcome: said }),
        None => Err(said),
    }
}

fn joins(path: &Path) -> Fake {
    come(path, &[hello(), tensors()]).unwrap_or_else(|refused| panic!("it is welcome: {refused}"))
}

impl Fake {
    fn parameters(&self) -> [f32; 6] {
        let mut bytes = [0; 24];
        self.memory.read_exact_at(&mut bytes, 0).expect("the memory is there");
        std::array::from_fn(|n| f32::from_le_bytes(std::array::from_fn(|k| bytes[4 * n + k])))
    }

    fn put(&self, parameters: [f32; 6]) {
        let bytes = parameters.map(f32::to_le_bytes).concat();
        self.memory.write_all_at(&bytes, 0).expect("the memory is there");
    }

    fn numbers(&self, ask: &Value) -> Vec<u64> {
        let area = ask["area"].as_u64().expect("an area") as usize;
        let at = self.welcome["memory"]["areas"][area].as_u64().expect("an offset");
        let mut bytes = vec![0; 8 * ask["samples"].as_u64().expect("a count") as usize];
        self.memory.read_exact_at(&mut bytes, at).expect("the area is there");
        bytes.as_chunks::<8>().0.iter().map(|number| u64::from_le_bytes(*number)).collect()
    }

    /// Answers asks until the connection ends. Every step takes 1 from every parameter. `twist` may change an answer.
    fn train(self, twist: impl Fn(&Value, Value) -> Value) -> Vec<Value> {
        let (mut asked, mut parameters) = (Vec::new(), [0.0; 6]);
        while let Some(ask) = hear(&self.stream) {
            let mut answer = json!({"answer": ask["id"]});
            match ask["ask"].as_str() {
                Some("load") => parameters = self.parameters(),
                Some("step") => {
                    parameters = parameters.map(|x| x - 1.0);
                    answer = json!({"answer": ask["id"], "loss": 0.5, "samples": 2, "weight": 6});
                }
                Some("read") => self.put(parameters),
                Some("evaluate") => answer = json!({"answer": ask["id"], "loss": 2.0, "weight": 10}),
                Some("save") => {
                    let folder = Path::new(ask["folder"].as_str().expect("a folder"));
                    std::fs::write(folder.join("state"), "private").expect("the folder is there");
                }
                _ => {}
            }
            let mut kept = ask.clone();
            if ask["ask"] == "lease" {
                kept["numbers"] = json!(self.numbers(&ask));
            }
            say(&self.stream, &twist(&ask, answer));
            asked.push(kept);
        }
        asked
    }
}

/// A trainer that comes to a node at once.
fn trainer(node: &Node, twist: impl Fn(&Value, Value) -> Value + Send + 'static) -> JoinHandle<Vec<Value>> {
    let path = node.door.path().to_path_buf();
    std::thread::spawn(move || joins(&path).train(twist))
}

fn place(round: u64) -> Place {
    Place { round, base: Digest([7; 32]), tokens: 40, progress: 0.25, flying: 3 }
}

impl Node {
    fn is_ready(&mut self) -> Ready {
        let until = Instant::now() + LONG;
        self.external.ready(&|| Instant::now() < until)
    }

    fn load(&mut self, value: f32) -> Result<(), TaskError> {
        self.external.load(&[value; 6])?;
        self.external.taken()
    }

    /// A round from parameters of 10, up to its last step or the first error.
    fn round(&mut self, round: u64) -> Result<(Vec<Learned>, [f32; 6]), TaskError> {
        self.external.stand(&place(round));
        self.load(10.0)?;
        let mut numbers = 50..56_u64;
        self.external.lease(Coming { round, is_likely: false, steps: 3, samples: 6, numbers: &mut numbers })?;
        let steps = (0..3).map(|step| self.external.step(&[50 + 2 * u64::from(step), 51], StepAt { step, lr: 0.5 }));
        let learned = steps.collect::<Result<Vec<_>, _>>()?;
        let mut read = [0.0; 6];
        self.external.given()?;
        self.external.read(&mut read)?;
        Ok((learned, read))
    }
}

#[test]
fn a_round_is_asked_of_the_trainer() {
    let mut node = fellow();
    let fake = trainer(&node, |_, answer| answer);
    assert_eq!(node.is_ready(), Ready::Anew);
    assert_eq!((node.is_ready(), node.external.samples()), (Ready::AsBefore, Some(100)));
    let (learned, read) = node.round(4).expect("it trains");
    assert_eq!(learned, [Learned { loss: 0.5, weight: 6 }; 3]);
    assert_eq!(read, [7.0; 6]);
    assert_eq!(node.external.evaluate(5).expect("it evaluates"), Some((20.0, 10)));
    node.external.end(true);
    let asked = fake.join().expect("it ends with the node's last ask");
    let names: Vec<&str> = asked.iter().filter_map(|ask| ask["ask"].as_str()).collect();
    assert_eq!(names, ["load", "lease", "step", "step", "step", "read", "evaluate", "end"]);
    let ids: Vec<u64> = asked.iter().filter_map(|ask| ask["id"].as_u64()).collect();
    assert_eq!(ids, (1..=8).collect::<Vec<u64>>());
    assert_eq!((&asked[0]["round"], &asked[0]["keep"], &asked[0]["flying"]), (&json!(4), &json!(false), &json!(3)));
    assert_eq!(asked[0]["base"], "07".repeat(32));
    assert_eq!(asked[1]["numbers"], json!([50, 51, 52, 53, 54, 55]));
    let tokens: Vec<u64> = asked[2..5].iter().filter_map(|ask| ask["tokens"].as_u64()).collect();
    assert_eq!(tokens, [40, 46, 52], "this round's steps count");
    assert_eq!(asked[7]["why"], "budget");
}

#[test]
fn a_load_in_the_middle_of_a_round_keeps_the_lease() {
    let mut node = fellow();
    let fake = trainer(&node, |_, answer| answer);
    assert_eq!(node.is_ready(), Ready::Anew);
    node.round(1).expect("it trains");
    node.load(1.0).expect("it loads");
    let mut numbers = 50..56_u64;
    let likely = Coming { round: 2, is_likely: true, steps: 3, samples: 6, numbers: &mut numbers };
    node.external.lease(likely).expect("it hears of it");
    node.load(1.0).expect("it loads");
    node.round(2).expect("it trains");
    node.external.end(false);
    let asked = fake.join().expect("it ends with the node's last ask");
    let loads = asked.iter().filter(|ask| ask["ask"] == "load");
    assert_eq!(loads.filter_map(|ask| ask["keep"].as_bool()).collect::<Vec<_>>(), [false, true, true, false]);
    let leases: Vec<&Value> = asked.iter().filter(|ask| ask["ask"] == "lease").collect();
    let likely: Vec<bool> = leases.iter().filter_map(|ask| ask["likely"].as_bool()).collect();
    assert_eq!(likely, [false, true, false]);
    assert_ne!(leases[0]["area"], leases[1]["area"], "an area is not written while it may be read");
    assert_eq!((&leases[1]["area"], &leases[1]["numbers"]), (&leases[2]["area"], &leases[2]["numbers"]));
    assert_eq!(asked.last().expect("an ask")["why"], "left");
}

/// The reason for which a round ends, if the trainer changes its answers so.
fn ends_with(reason: Reason, twist: impl Fn(&Value, Value) -> Value + Send + 'static) {
    let mut node = fellow();
    let fake = trainer(&node, twist);
    assert_eq!(node.is_ready(), Ready::Anew);
    let said = match node.round(1) {
        Err(TaskError::Gone(why)) => why,
        other => panic!("{reason:?}: {other:?}"),
    };
    assert!(said.contains(reason.name()), "{said}");
    fake.join().expect("the node ends the connection");
    // The next one is welcome.
    let fake = trainer(&node, |_, answer| answer);
    assert_eq!(node.is_ready(), Ready::Anew);
    node.round(1).expect("it trains");
    node.external.end(false);
    fake.join().expect("it ends with the node's last ask");
}

fn on(ask: &'static str, answer: Value) -> impl Fn(&Value, Value) -> Value + Send + 'static {
    move |asked, usual| {
        if asked["ask"] != ask {
            return usual;
        }
        let mut twisted = answer.clone();
        if twisted["answer"].is_null() {
            twisted["answer"] = asked["id"].clone();
        }
        twisted
    }
}

#[test]
fn wrong_answers_end_the_connection_by_name_and_not_the_node() {
    ends_with(Reason::Drawn, on("step", json!({"loss": 1.0, "samples": 3, "weight": 3})));
    ends_with(Reason::Drawn, on("step", json!({"loss": 1.0, "weight": 3})));
    ends_with(Reason::Weight, on("step", json!({"loss": 1.0, "samples": 2, "weight": 7})));
    ends_with(Reason::Weight, on("step", json!({"loss": 1.0, "samples": 2, "weight": 0})));
    ends_with(Reason::Weight, on("step", json!({"loss": 1.0, "samples": 2})));
    ends_with(Reason::OutOfTurn, on("load", json!({"answer": 999})));
    ends_with(Reason::OutOfTurn, on("lease", json!({"say": "what?", "answer": 999})));
    ends_with(Reason::NotJson, on("load", json!({"answer": "one"})));
    ends_with(Reason::Failed, on("step", json!({"error": "out of memory"})));
}

#[test]
fn signs_of_life_and_log_lines_are_no_answers() {
    let mut node = fellow();
    let path = node.door.path().to_path_buf();
    let fake = std::thread::spawn(move || {
        let fake = joins(&path);
        let twin = fake.stream.try_clone().expect("a handle");
        fake.train(move |_, answer| {
            say(&twin, &json!({"say": "alive"}));
            say(&twin, &json!({"say": "log", "text": "\u{1b}[31mred"}));
            answer
        })
    });
    assert_eq!(node.is_ready(), Ready::Anew);
    node.round(1).expect("it trains");
    node.external.end(false);
    fake.join().expect("it ends with the node's last ask");
}

#[test]
fn losses_and_parameters_that_are_not_finite_are_left_out_and_refused() {
    let mut node = fellow();
    let fake = trainer(&node, on("step", json!({"loss": null, "samples": 2, "weight": 2})));
    assert_eq!(node.is_ready(), Ready::Anew);
    node.external.stand(&place(1));
    node.load(1.0).expect("it loads");
    let mut step = || node.external.step(&[1, 2], StepAt { step: 0, lr: 0.5 });
    for _ in 0..4 {
        assert!(matches!(step(), Err(TaskError::NotFinite { .. })));
    }
    assert!(matches!(step(), Err(TaskError::Gone(why)) if why.contains("not-finite")));
    fake.join().expect("the node ends the connection");

    let path = node.door.path().to_path_buf();
    let fake = std::thread::spawn(move || {
        let fake = joins(&path);
        while let Some(ask) = hear(&fake.stream) {
            fake.put([0.0, 1.0, 2.0, 3.0, f32::NAN, 5.0]);
            say(&fake.stream, &json!({"answer": ask["id"]}));
        }
    });
    assert_eq!(node.is_ready(), Ready::Anew);
    let mut read = [0.0; 6];
    node.external.given().expect("it answers");
    let said = node.external.read(&mut read).expect_err("a number that is none").to_string();
    assert!(said.contains("not-finite: mean: a parameter"), "{said}");
    fake.join().expect("the node ends the connection");
}

#[test]
fn trainers_that_do_not_fit_are_refused_with_what_is_wrong() {
    let node = fellow();
    let path = node.door.path().to_path_buf();
    let refused = |frames: &[Value]| match come(&path, frames) {
        Ok(_) => panic!("{frames:?} is welcome"),
        Err(said) => (said["refused"].clone(), said["why"].as_str().unwrap_or_default().to_owned()),
    };
    let with = |field: &str, value: Value| {
        let mut changed = hello();
        changed[field] = value;
        changed
    };
    let (reason, why) = refused(&[with("hello", json!(2)), tensors()]);
    assert!(reason == "version" && why.contains("version 2"), "{reason}: {why}");
    let (reason, why) = refused(&[with("samples", json!(99)), tensors()]);
    assert_eq!((reason, why.as_str()), (json!("samples"), "samples: 99 here, the run has 100"));
    let (reason, why) = refused(&[with("frozen", json!("5a".repeat(32))), tensors()]);
    assert!(reason == "frozen" && why.contains("the run has none"), "{why}");
    let mut other = tensors();
    other["tensors"][0]["shape"] = json!([2, 3]);
    let (reason, why) = refused(&[hello(), other.clone()]);
    assert!(reason == "schema" && why.starts_with("w: [2, 3]") && why.contains("the run has [2, 2]"), "{why}");
    other["tensors"][0]["shape"] = json!([2, 0]);
    assert_eq!(refused(&[hello(), other.clone()]).0, "schema");
    other["tensors"][0]["shape"] = json!([2, 1_u64 << 33]);
    assert_eq!(refused(&[hello(), other.clone()]).0, "schema");
    other["tensors"][0]["kind"] = json!("local");
    assert_eq!(refused(&[hello(), other]).0, "not-json");
    for count in [0, 16_385, u64::MAX] {
        assert_eq!(refused(&[with("tensors", json!(count))]).0, "schema", "{count}");
    }
    assert_eq!(refused(&[with("tensors", json!(1)), tensors()]).0, "out-of-turn");
    assert_eq!(refused(&[hello(), json!({"tensors": []})]).0, "out-of-turn");
    assert_eq!(refused(&[with("program", json!(7)), tensors()]).0, "not-json");
    assert_eq!(refused(&[json!([1, 2])]).0, "not-json");
    assert_eq!(refused(&[with("weight", json!(0)), tensors()]).0, "weight");
    assert!(come(&path, &[hello(), tensors()]).is_ok(), "the node is alive");
}

#[test]
fn a_second_trainer_is_refused_until_the_first_is_gone() {
    let mut node = fellow();
    let path = node.door.path().to_path_buf();
    let first = joins(&path);
    let Err(said) = come(&path, &[hello(), tensors()]) else { panic!("there is one") };
    assert_eq!((&said["refused"], &said["passing"]), (&json!("taken"), &json!(true)));
    // It dies before it was asked anything: the node finds out when the next one comes.
    drop(first);
    let second = joins(&path);
    assert_eq!(node.is_ready(), Ready::Anew);
    drop(second);
    assert!(matches!(node.load(0.0), Err(TaskError::Gone(_))), "it died between two rounds");
    let fake = trainer(&node, |_, answer| answer);
    assert_eq!(node.is_ready(), Ready::Anew);
    node.round(1).expect("it trains");
    node.external.end(false);
    fake.join().expect("it ends with the node's last ask");
}

/// Socket paths are short; the folder has a link to the socket then.
#[test]
fn a_deep_folder_has_a_door_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let home = folder.path().join("deep".repeat(30));
    std::fs::create_dir(&home).expect("a folder");
    let wanted = Wanted::Fellow { task: task(), schema: schema() };
    let (run, node, folder) = ("fakes".into(), "ab".into(), home.join("trainer"));
    let door = Door::open(&home, Terms { wanted, run, node, unit: 2, steps: 3, folder }).expect("a socket");
    let sign = home.join("trainer.sock");
    assert_eq!(std::fs::read_link(&sign).expect("a link"), door.path());
    joins(door.path());
    assert!(door.take(LONG).is_some());
    drop(door);
    assert!(std::fs::symlink_metadata(&sign).is_err(), "nothing is left");
}

#[test]
fn nobody_waits_for_a_trainer_that_nobody_wants() {
    let mut node = fellow();
    assert_eq!(node.external.ready(&|| false), Ready::Unwanted);
    assert!(matches!(node.external.load(&[0.0; 6]), Err(TaskError::Gone(_))));
    assert!(matches!(node.external.evaluate(1), Err(TaskError::Gone(_))));
}

#[test]
fn private_state_is_there_again_at_the_next_welcome() {
    let mut node = fellow();
    let fake = trainer(&node, |_, answer| answer);
    assert_eq!(node.is_ready(), Ready::Anew);
    (0..16).for_each(|_| node.external.rest().expect("it saves"));
    node.external.end(false);
    let asked = fake.join().expect("it ends with the node's last ask");
    assert_eq!(asked.iter().filter(|ask| ask["ask"] == "save").count(), 1);
    let again = joins(node.door.path());
    let saved = again.welcome["saved"].as_str().expect("a folder").to_owned();
    assert_eq!(std::fs::read_to_string(Path::new(&saved).join("state")).expect("it is there"), "private");
    assert!(Path::new(&saved).starts_with(node.folder.path()));
}

#[test]
fn a_run_begins_with_what_the_first_trainer_brings() {
    let node = node(Wanted::Founder { private: false });
    let path = node.door.path().to_path_buf();
    let fake = std::thread::spawn(move || {
        let mut empty = hello();
        empty["samples"] = json!(0);
        assert_eq!(come(&path, &[empty, tensors()]).err().expect("it has no samples")["refused"], "samples");
        let fake = joins(&path);
        assert_eq!(fake.welcome["founds"], true);
        let ask = hear(&fake.stream).expect("an ask");
        assert_eq!(ask["ask"], "read");
        fake.put([0.5, 1.5, 2.5, 3.5, 4.5, 5.5]);
        say(&fake.stream, &json!({"answer": ask["id"]}));
        fake.train(|_, answer| answer)
    });
    let until = Instant::now() + LONG;
    let wish = Wish { private: false, weight: Some(3) };
    let founded = found(&node.door, wish, &|| Instant::now() < until).expect("it founds");
    assert_eq!(founded.state.theta, [0.5, 1.5, 2.5, 3.5, 4.5, 5.5]);
    assert_eq!((founded.task.clone(), founded.schema.clone()), (task(), schema()));
    assert!(founded.root().is_ok());
    // The same trainer goes on with the rounds, and joiners have to fit it.
    let Node { mut external, door, folder: _folder } = node;
    assert_eq!(external.ready(&|| false), Ready::Anew);
    assert!(matches!(door.terms().wanted, Wanted::Fellow { .. }));
    external.end(true);
    fake.join().expect("it ends with the node's last ask");
    assert!(found(&door, wish, &|| false).is_err(), "nobody comes");
}

#[path = "abuse_test.rs"]
mod abuse;
