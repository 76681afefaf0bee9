//! A connection with one trainer: its welcome, and what it is asked (`docs/bridge.md`).

use super::frames::{Frames, late, parsed};
use super::memory::Memory;
use super::refusal::{Broken, Reason, Refusal};
use super::said::{AnyHello, Ask, Asked, Hello, Refused, Said, Tensors, Trainer, VERSION, Welcome, shown};
use starling_protocol::Digest;
use starling_protocol::run::{ExternalSpec, TaskSchema};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Time in which a trainer has said who it is.
const GREETS: Duration = Duration::from_secs(10);
/// The longest time from an ask to its answer, whatever signs of life come.
const ANSWERS_MAX: Duration = Duration::from_secs(3600);
/// Interval at which a wait for an answer looks whether anybody wants it.
const LOOK: Duration = Duration::from_millis(100);
/// Time after which a silence is told of; the next time after twice as long.
const SILENCE_TOLD: Duration = Duration::from_secs(30);

/// The conditions on which a trainer is welcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The run begins with it. In a run with private data samples are not counted.
    Founder { private: bool },
    /// It is one of this run's, whose tensors are known.
    Fellow { task: ExternalSpec, schema: TaskSchema },
}

/// The things that a trainer is told when it comes.
#[derive(Clone, Debug)]
pub struct Terms {
    pub wanted: Wanted,
    pub run: String,
    pub node: String,
    /// Samples of a step.
    pub unit: u64,
    /// Steps of a round.
    pub steps: u32,
    /// The folder of the trainer's private state, which has a part `saved` once some was saved.
    pub folder: PathBuf,
}

impl Terms {
    /// Samples of the longest lease.
    fn lease(&self) -> u64 {
        self.unit.saturating_mul(u64::from(self.steps))
    }

    /// The folder of what the last `save` has left.
    pub fn saved(&self) -> PathBuf {
        self.folder.join("saved")
    }

    /// The folder of what was saved before, while the last `save` takes its place.
    pub fn former(&self) -> PathBuf {
        self.folder.join("former")
    }
}

/// A trainer that was welcome.
#[derive(Debug)]
pub struct Link {
    frames: Frames,
    pub memory: Memory,
    pub trainer: Trainer,
    /// The number of the next ask.
    next: u64,
    /// The number of the connection.
    pub number: u64,
}

impl Link {
    /// Hears who a trainer is, and welcomes it.
    pub fn welcome(mut frames: Frames, terms: &Terms) -> Result<Self, Broken> {
        let greeted = greeted(&mut frames);
        let fitting = greeted.and_then(|trainer| fits(trainer, &terms.wanted).map_err(Broken::from));
        let trainer = fitting.map_err(|broken| told(&mut frames, broken))?;
        let elements = trainer.schema.elements();
        let memory = usize::try_from(elements).map_err(io::Error::other);
        let memory = memory.and_then(|elements| Memory::new(elements, terms.lease(), &terms.folder));
        let memory = memory.map_err(|e| told(&mut frames, no_memory(&e)))?;
        let (founds, private) = match &terms.wanted {
            Wanted::Founder { private } => (true, *private),
            Wanted::Fellow { task, .. } => (false, task.samples == 0),
        };
        let saved = Some(terms.saved()).filter(|folder| folder.is_dir());
        let saved = saved.map(|folder| folder.to_string_lossy().into_owned());
        let welcome = Welcome {
            welcome: VERSION,
            run: &terms.run,
            node: &terms.node,
            founds,
            private,
            unit: terms.unit,
            steps: terms.steps,
            elements,
            saved: saved.as_deref(),
            memory: memory.layout,
        };
        frames.send_with(&welcome, memory.file().as_fd())?;
        Ok(Self { frames, memory, trainer, next: 1, number: 0 })
    }

    /// Another handle of the connection.
    pub fn handle(&self) -> io::Result<UnixStream> {
        self.frames.handle()
    }

    /// The complaint about parameters of which one is infinite or not a number, with its tensor's name.
    pub fn not_finite(&self, parameters: &[f32]) -> Option<String> {
        let mut left = parameters.iter().position(|x| !x.is_finite())? as u64;
        let tensor = self.trainer.schema.tensors.iter().find(|tensor| match left.checked_sub(tensor.elements()) {
            Some(rest) => {
                left = rest;
                false
            }
            None => true,
        });
        let name = tensor.map_or("?", |tensor| tensor.name.as_str());
        Some(format!("{name}: a parameter is infinite or not a number"))
    }

    /// Asks, and waits for the answer as long as the trainer may take for it, and until `is_over` says that nobody
    /// wants it any more. After an error the connection is of no more use, and the trainer knows why.
    pub fn ask(&mut self, ask: &Ask<'_>, patience: Duration, is_over: &dyn Fn() -> bool) -> Result<Said, Broken> {
        match self.asked(ask, patience, is_over) {
            Err(broken) => Err(told(&mut self.frames, broken)),
            answered => answered,
        }
    }

    /// Ends the connection for a reason, which the trainer is told.
    pub fn refuse(&mut self, refusal: Refusal) -> Broken {
        told(&mut self.frames, refusal.into())
    }

    fn asked(&mut self, ask: &Ask<'_>, patience: Duration, is_over: &dyn Fn() -> bool) -> Result<Said, Broken> {
        let id = self.next;
        self.next += 1;
        self.frames.send(&Asked { id, ask })?;
        let (began, words) = (Instant::now(), ask.words());
        let (mut deadline, mut tell) = (began + patience, SILENCE_TOLD);
        loop {
            if !self.frames.has_come(deadline.min(Instant::now() + LOOK)) {
                if is_over() {
                    return Err(Broken::Ended("this node ends, and waits no longer".into()));
                }
                if began.elapsed() >= tell {
                    tracing::warn!("the trainer has not answered for {} s: {words}", tell.as_secs());
                    tell *= 2;
                }
                if Instant::now() < deadline {
                    continue;
                }
            }
            let said: Said = self.frames.receive(deadline, &words)?;
            let say = said.say.as_deref();
            if say.is_none() && said.answer == Some(id) {
                return answered(said);
            }
            match (said.answer, say) {
                (None, Some("alive")) => {
                    deadline = (Instant::now() + patience).min(began + ANSWERS_MAX.max(patience));
                }
                (None, Some("log")) => tracing::info!("trainer: {}", shown(said.text.as_deref().unwrap_or_default())),
                _ => {
                    let why = format!("it said something else than an answer to {words}");
                    return Err(Refusal::new(Reason::OutOfTurn, why).into());
                }
            }
            // One that talks without end does not answer, either.
            if Instant::now() >= deadline {
                return Err(late(&words).into());
            }
        }
    }
}

fn answered(said: Said) -> Result<Said, Broken> {
    match &said.error {
        Some(error) => Err(Refusal::new(Reason::Failed, shown(error)).into()),
        None => Ok(said),
    }
}

/// Tells the trainer why its connection ends, if it still listens.
fn told(frames: &mut Frames, broken: Broken) -> Broken {
    if let Broken::Refused(refusal) = &broken {
        metrics::counter!("starling_trainer_refused_total", "reason" => refusal.reason.name()).increment(1);
        // The trainer may be gone.
        let _ = frames.send(&Refused::from(refusal));
    }
    broken
}

/// The trainer is told that memory is at fault.
pub fn no_memory(error: &io::Error) -> Broken {
    let why = format!("the memory that it shares with the node: {}", starling_words::of(error));
    Refusal::new(Reason::Memory, why).into()
}

/// Sends a connection away that was not looked at.
pub fn send_away(stream: UnixStream, refusal: &Refusal) {
    if let Ok(mut frames) = Frames::new(stream) {
        told(&mut frames, refusal.clone().into());
    }
}

/// Hears hello and tensors.
fn greeted(frames: &mut Frames) -> Result<Trainer, Broken> {
    let deadline = Instant::now() + GREETS;
    let json = frames.receive_json(deadline, "hello")?;
    let AnyHello { hello: version } = parsed(&json)?;
    if version != VERSION {
        let why = format!("it speaks version {version}, this node speaks {VERSION}: use releases that fit together");
        return Err(Refusal::new(Reason::Version, why).into());
    }
    let hello: Hello = parsed(&json)?;
    hello.check()?;
    let wanted = usize::try_from(hello.tensors).unwrap_or(usize::MAX);
    let mut tensors = Vec::new();
    while tensors.len() < wanted {
        let more: Tensors = frames.receive(deadline, "hello: tensors")?;
        let count = more.tensors.len();
        if count == 0 || count > wanted - tensors.len() {
            let why = format!("a frame of {count} tensors where {} are left", wanted - tensors.len());
            return Err(Refusal::new(Reason::OutOfTurn, why).into());
        }
        for tensor in more.tensors {
            tensors.push(tensor.tensor(tensors.len())?);
        }
        if Instant::now() >= deadline {
            return Err(late("hello: tensors").into());
        }
    }
    Ok(hello.with(tensors)?)
}

/// Checks a trainer against what the run needs.
fn fits(trainer: Trainer, wanted: &Wanted) -> Result<Trainer, Refusal> {
    match wanted {
        Wanted::Founder { private } => {
            if trainer.samples == 0 && !private {
                let why = "samples: 0, and the run's data are not private: name the number of training samples";
                return Err(Refusal::new(Reason::Samples, why));
            }
        }
        Wanted::Fellow { task, schema } => {
            if let Some(difference) = schema.difference(&trainer.schema) {
                return Err(Refusal::new(Reason::Schema, difference));
            }
            if task.samples > 0 && trainer.samples != task.samples {
                let why = format!("samples: {} here, the run has {}", trainer.samples, task.samples);
                return Err(Refusal::new(Reason::Samples, why));
            }
            if trainer.frozen != task.frozen {
                let shown = |digest: Digest| match digest == Digest::default() {
                    true => "none".to_owned(),
                    false => digest.to_string(),
                };
                let (here, run) = (shown(trainer.frozen), shown(task.frozen));
                let why = format!("frozen: {here} here, the run has {run}: load the same pretrained model");
                return Err(Refusal::new(Reason::Frozen, why));
            }
        }
    }
    Ok(trainer)
}
