//! The task of a run whose users bring model and loop: whatever rounds ask of it is asked of a trainer
//! (`docs/bridge.md`). Without one it waits, or says that it is gone.

use super::super::trainer::{Coming, Learned, Place, Ready, StepAt, Task, TaskError};
use super::door::Door;
use super::link::{Link, no_memory};
use super::note::Note;
use super::refusal::{Broken, Reason, Refusal};
use super::said::{Ask, Said};
use starling_protocol::Digest;
use starling_protocol::run::ExternalSpec;
use starling_store::Store;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Time for answers that need no training.
const PROMPT: Duration = Duration::from_secs(120);
/// Time for which a node that ends still waits for what it has asked, then the times for the trainer's last save and
/// for the answer to the last ask: the process waits 7 s for its threads.
const LEAVES: Duration = Duration::from_secs(6);
const LAST_SAVE: Duration = Duration::from_secs(5);
const FAREWELL: Duration = Duration::from_secs(1);
/// Interval at which a wait for a trainer looks whether anybody wants it.
const LOOK: Duration = Duration::from_millis(100);
/// Rounds between two saves of the trainer's private state.
const SAVE_EVERY: u32 = 16;
/// Losses of a round that may be left out because they are not finite.
const LEFT_OUT_MAX: u32 = 4;
/// A loss beyond this counts as infinite, so that sums of losses stay finite.
const LOSS_MAX: f64 = f32::MAX as f64;

/// The node's side of the bridge.
pub struct External {
    door: Arc<Door>,
    link: Option<Link>,
    task: ExternalSpec,
    /// Samples of a step.
    unit: u64,
    /// Time for a step, a validation and a save.
    patience: Duration,
    place: Place,
    /// The lease at hand goes on.
    leased: bool,
    /// The area of the lease at hand.
    area: usize,
    /// Weight of the steps since the parameters were loaded.
    weight: u64,
    /// Losses of the round that were not finite.
    left_out: u32,
    /// Rounds since the last save.
    unsaved: u32,
    /// That no trainer is there has been said.
    told: bool,
    /// The time since which the node ends.
    leaving: Arc<OnceLock<Instant>>,
    /// The trainer's state, as people are told.
    note: Arc<Note>,
}

impl External {
    pub fn new(door: Arc<Door>, task: ExternalSpec, (unit, patience): (u64, Duration), note: Arc<Note>) -> Self {
        Self {
            door,
            link: None,
            task,
            unit,
            patience,
            place: Place { round: 0, base: Digest::default(), tokens: 0, progress: 0.0, flying: 0 },
            leased: false,
            area: 0,
            weight: 0,
            left_out: 0,
            unsaved: 0,
            told: false,
            leaving: Arc::default(),
            note,
        }
    }

    fn link(&mut self) -> Result<&mut Link, TaskError> {
        self.link.as_mut().ok_or_else(|| TaskError::Gone("there is no trainer".into()))
    }

    fn ask(&mut self, ask: &Ask<'_>, patience: Duration) -> Result<Said, TaskError> {
        self.link()?;
        self.note.asked(ask.words());
        let leaving = self.leaving.clone();
        let is_over = move || leaving.get().is_some_and(|at| at.elapsed() >= LEAVES);
        let answer = self.link()?.ask(ask, patience, &is_over);
        self.note.answered();
        answer.map_err(|broken| self.lost(&broken))
    }

    /// Ends the connection, which has broken.
    fn lost(&mut self, broken: &Broken) -> TaskError {
        if let Some(link) = self.link.take() {
            self.note.gone(&broken.to_string());
            self.door.end(link);
        }
        self.leased = false;
        TaskError::Gone(broken.to_string())
    }

    /// Ends the connection for a reason.
    fn refuse(&mut self, reason: Reason, why: String) -> TaskError {
        let refusal = Refusal::new(reason, why);
        let broken = match &mut self.link {
            Some(link) => link.refuse(refusal),
            None => Broken::Refused(refusal),
        };
        self.lost(&broken)
    }

    /// Does something with the shared memory.
    fn memory<T>(&mut self, work: impl FnOnce(&mut Link) -> io::Result<T>) -> Result<T, TaskError> {
        let done = work(self.link()?);
        done.map_err(|e| match no_memory(&e) {
            Broken::Refused(refusal) => self.refuse(refusal.reason, refusal.why),
            broken @ Broken::Ended(_) => self.lost(&broken),
        })
    }

    /// The private state that the trainer writes takes the place of the one before.
    fn save_within(&mut self, patience: Duration) -> Result<(), TaskError> {
        self.unsaved = 0;
        if !self.link()?.trainer.saves {
            return Ok(());
        }
        let terms = self.door.terms();
        let (folder, former, new) = (terms.saved(), terms.former(), terms.folder.join("new"));
        if let Err(e) = emptied(&new) {
            tracing::warn!("the trainer's private state is not saved: {}", starling_words::of(&e));
            return Ok(());
        }
        let path = new.to_string_lossy().into_owned();
        self.ask(&Ask::Save { folder: &path }, patience)?;
        if let Err(e) = replaced(&new, &folder, &former) {
            tracing::warn!("the trainer's private state is not kept: {}", starling_words::of(&e));
        }
        Ok(())
    }
}

impl Task for External {
    fn samples(&self) -> Option<u64> {
        Some(self.task.samples).filter(|samples| *samples > 0)
    }

    fn watch(&mut self, leaving: Arc<OnceLock<Instant>>) {
        self.leaving = leaving;
    }

    fn ready(&mut self, goes_on: &dyn Fn() -> bool) -> Ready {
        if self.link.is_some() {
            return Ready::AsBefore;
        }
        loop {
            if let Some(link) = self.door.take(LOOK) {
                self.note.here(&link.trainer.program);
                (self.link, self.leased, self.told) = (Some(link), false, false);
                return Ready::Anew;
            }
            if !goes_on() {
                return Ready::Unwanted;
            }
            if !std::mem::replace(&mut self.told, true) {
                tracing::warn!(
                    "no trainer is here: this node votes, serves and stores, and trains once one comes to {}",
                    self.door.path().display()
                );
            }
        }
    }

    fn stand(&mut self, place: &Place) {
        (self.place, self.leased, self.left_out) = (*place, false, 0);
    }

    fn load(&mut self, parameters: &[f32]) -> Result<(), TaskError> {
        self.memory(|link| link.memory.write(parameters))
    }

    fn taken(&mut self) -> Result<(), TaskError> {
        let Place { round, base, tokens, progress, flying } = self.place;
        let flying = flying.max(1);
        let keep = self.leased;
        if !keep {
            self.weight = 0;
        }
        self.ask(&Ask::Load { round, base: base.to_string(), tokens, progress, flying, keep }, PROMPT)?;
        Ok(())
    }

    fn given(&mut self) -> Result<(), TaskError> {
        self.ask(&Ask::Read {}, PROMPT)?;
        Ok(())
    }

    fn read(&mut self, out: &mut [f32]) -> Result<(), TaskError> {
        self.memory(|link| link.memory.read(out))?;
        // The copy is looked at: the trainer may still change its own.
        match self.link()?.not_finite(out) {
            None => Ok(()),
            Some(why) => Err(self.refuse(Reason::NotFinite, why)),
        }
    }

    /// The trainer's optimizer is its own.
    fn amend(&mut self, _weight_decay: f64, _clip: f64) {}

    fn lease(&mut self, coming: Coming<'_>) -> Result<(), TaskError> {
        let Coming { round, is_likely: likely, steps, samples, numbers } = coming;
        if likely && self.link.is_none() {
            return Ok(());
        }
        let area = 1 - self.area.min(1);
        // Samples of private data have no numbers.
        if self.task.samples > 0 {
            self.memory(|link| link.memory.write_numbers(area, numbers))?;
        }
        self.ask(&Ask::Lease { round, samples, steps, area, likely }, PROMPT)?;
        if !likely {
            (self.area, self.leased) = (area, true);
        }
        Ok(())
    }

    fn step(&mut self, samples: &[u64], at: StepAt) -> Result<Learned, TaskError> {
        let StepAt { step, lr } = at;
        let tokens = self.place.tokens.saturating_add(self.weight);
        let ask = Ask::Step { step, lr, tokens, progress: self.place.progress };
        let Said { loss, samples: used, weight, .. } = self.ask(&ask, self.patience)?;
        if used != Some(samples.len() as u64) || samples.len() as u64 != self.unit {
            let used = used.map_or_else(|| "no".to_owned(), |used| used.to_string());
            let why = format!("step {step} used {used} samples, a step has {}", self.unit);
            return Err(self.refuse(Reason::Drawn, why));
        }
        let most = self.unit.saturating_mul(u64::from(self.task.weight));
        let Some(weight) = weight.filter(|weight| (1..=most).contains(weight)) else {
            let told = weight.map_or_else(|| "nothing".to_owned(), |weight| weight.to_string());
            let why = format!("step {step} counts {told}, {} samples count 1 to {most}", self.unit);
            return Err(self.refuse(Reason::Weight, why));
        };
        let Some(loss) = loss.filter(|loss| loss.abs() <= LOSS_MAX) else {
            self.left_out += 1;
            if self.left_out > LEFT_OUT_MAX {
                let (count, round) = (self.left_out, self.place.round);
                let why = format!("{count} losses of round {round} are infinite or not a number");
                return Err(self.refuse(Reason::NotFinite, why));
            }
            let message = format!("step {step} was left out: the trainer's loss is infinite or not a number");
            return Err(TaskError::NotFinite { message, loss: f64::NAN });
        };
        self.weight = self.weight.saturating_add(weight);
        Ok(Learned { loss, weight })
    }

    fn gradient(&mut self, _samples: &[u64], _out: &mut [f32]) -> Result<Learned, TaskError> {
        Err(TaskError::Failed("a trainer gives no gradients: sync = \"every-step\" needs the built-in model".into()))
    }

    fn evaluate(&mut self, samples: usize) -> Result<Option<(f64, u64)>, TaskError> {
        // The trainer knows how much it holds out; none is the node file's wish for no validation.
        if samples == 0 || !self.link()?.trainer.evaluates {
            return Ok(None);
        }
        let round = self.place.round;
        let Said { loss, weight, .. } = self.ask(&Ask::Evaluate { round }, self.patience)?;
        let weight = weight.unwrap_or(1).max(1);
        Ok(loss.filter(|loss| loss.abs() <= LOSS_MAX).map(|loss| (loss * weight as f64, weight)))
    }

    /// A trainer finds its private state by its welcome.
    fn restore(&mut self, _store: &Store) {}

    fn save(&mut self, _store: &Store) {
        if self.link.is_some()
            && let Err(e) = self.save_within(LAST_SAVE)
        {
            tracing::warn!("{e}");
        }
    }

    fn rest(&mut self) -> Result<(), TaskError> {
        self.unsaved += 1;
        if self.unsaved < SAVE_EVERY || self.link.is_none() {
            return Ok(());
        }
        self.save_within(self.patience)
    }

    fn end(&mut self, over: bool) {
        let (why, text) = match over {
            true => ("budget", "the run is over"),
            false => ("left", "the node stops"),
        };
        let waiting = self.link.take().or_else(|| self.door.take(Duration::ZERO));
        if let Some(mut link) = waiting {
            let _ = link.ask(&Ask::End { why, text }, FAREWELL, &|| false);
            self.door.end(link);
        }
    }

    fn fail(&mut self, why: &str) -> bool {
        let _ = self.refuse(Reason::NotFinite, why.to_owned());
        true
    }
}

/// Makes an empty folder.
fn emptied(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    fs::create_dir_all(folder)
}

/// Puts a folder into the place of another one, which is the former one meanwhile.
fn replaced(new: &Path, folder: &Path, former: &Path) -> io::Result<()> {
    if folder.exists() {
        let _ = fs::remove_dir_all(former);
        fs::rename(folder, former)?;
    }
    fs::rename(new, folder)?;
    let _ = fs::remove_dir_all(former);
    Ok(())
}
