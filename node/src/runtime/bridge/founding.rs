//! A run that begins with what a trainer brings: its tensors, the number of its samples, and its first parameters.

use super::door::Door;
use super::link::{Link, Terms, Wanted, no_memory};
use super::refusal::{Broken, Reason, Refusal};
use super::said::Ask;
use crate::exit::{Code, Failure};
use starling_protocol::run::{ExternalSpec, SyncMode, TaskSchema};
use starling_protocol::state::{self, State};
use std::time::Duration;

/// Interval at which the wait for the founder's trainer is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// Time for the first parameters.
const FIRST: Duration = Duration::from_secs(120);

/// The run file's say about a task.
#[derive(Clone, Copy, Debug)]
pub struct Wish {
    /// Each node has data of its own.
    pub private: bool,
    /// The largest weight of a sample, if not the founder's.
    pub weight: Option<u32>,
}

/// The gifts of the founder's trainer.
#[derive(Debug)]
pub struct Founded {
    pub task: ExternalSpec,
    pub schema: TaskSchema,
    pub state: State,
}

/// Waits for the founder's trainer, and takes what it brings. The trainer stays, for the rounds.
///
/// # Errors
/// `goes_on` says no more, or the parameters are too many for this machine.
pub fn found(door: &Door, wish: Wish, goes_on: &dyn Fn() -> bool) -> Result<Founded, Failure> {
    loop {
        let Some(mut link) = door.take(LOOK) else {
            if !goes_on() {
                return Err(Failure::message(Code::Refused, "no trainer came: the run has nothing to begin with"));
            }
            continue;
        };
        match given(&mut link, goes_on) {
            Ok(theta) => {
                let trainer = &link.trainer;
                let task = ExternalSpec {
                    schema: trainer.schema.digest(),
                    frozen: trainer.frozen,
                    parameters: trainer.schema.elements(),
                    learned: trainer.schema.learned(),
                    samples: if wish.private { 0 } else { trainer.samples },
                    weight: wish.weight.unwrap_or(trainer.weight),
                };
                let schema = trainer.schema.clone();
                let wanted = Wanted::Fellow { task: task.clone(), schema: schema.clone() };
                door.set_terms(Terms { wanted, ..door.terms() });
                door.put(link);
                return Ok(Founded { task, schema, state: State::initial(theta, SyncMode::Rounds) });
            }
            Err(broken) => {
                tracing::warn!("{broken}");
                door.end(link);
            }
        }
    }
}

/// The trainer's first parameters.
fn given(link: &mut Link, goes_on: &dyn Fn() -> bool) -> Result<Vec<f32>, Broken> {
    link.ask(&Ask::Read {}, FIRST, &|| !goes_on())?;
    let elements = usize::try_from(link.trainer.schema.elements()).unwrap_or(usize::MAX);
    let mut theta: Vec<f32> = Vec::new();
    if theta.try_reserve_exact(elements).is_err() {
        let why = format!("this machine has no memory for {elements} parameters");
        return Err(link.refuse(Refusal::new(Reason::Memory, why)));
    }
    theta.resize(elements, 0.0);
    if let Err(e) = link.memory.read(&mut theta) {
        return Err(match no_memory(&e) {
            Broken::Refused(refusal) => link.refuse(refusal),
            ended @ Broken::Ended(_) => ended,
        });
    }
    match link.not_finite(&theta) {
        None => Ok(theta),
        Some(why) => Err(link.refuse(Refusal::new(Reason::NotFinite, why))),
    }
}

impl Founded {
    /// The root of the state with which the run begins.
    pub fn root(&self) -> Result<starling_protocol::Digest, Failure> {
        let manifest = self.state.manifest(self.task.schema).map_err(|e| Failure::new(Code::Refused, e))?;
        Ok(state::root(&manifest))
    }
}
