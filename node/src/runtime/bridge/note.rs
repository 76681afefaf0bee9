//! The trainer's state in words for a person: whether one is here, and what it was asked last.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The trainer's present state, for other threads to read.
#[derive(Debug)]
pub struct Note(Mutex<Noted>);

#[derive(Debug)]
struct Noted {
    /// Name and version of the program; none without a trainer.
    program: Option<String>,
    /// The ask that waits for its answer.
    asked: Option<(String, Instant)>,
    /// Why the last trainer went.
    gone: Option<String>,
}

impl Default for Note {
    fn default() -> Self {
        Self(Mutex::new(Noted { program: None, asked: None, gone: None }))
    }
}

impl Note {
    /// No statement leaves the fields half-changed, so a poisoned lock is still good.
    fn noted(&self) -> MutexGuard<'_, Noted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A trainer is here.
    pub fn here(&self, program: &str) {
        *self.noted() = Noted { program: Some(program.to_owned()), asked: None, gone: None };
    }

    /// The trainer is gone.
    pub fn gone(&self, why: &str) {
        *self.noted() = Noted { program: None, asked: None, gone: Some(why.to_owned()) };
    }

    /// The trainer was asked something.
    pub fn asked(&self, what: String) {
        self.noted().asked = Some((what, Instant::now()));
    }

    /// It has answered.
    pub fn answered(&self) {
        self.noted().asked = None;
    }

    /// All of it in a line.
    pub fn words(&self) -> String {
        let noted = self.noted();
        match (&noted.program, &noted.asked, &noted.gone) {
            (Some(program), Some((what, since)), _) => {
                format!("{program}, asked for {what} {} s ago", since.elapsed().as_secs())
            }
            (Some(program), None, _) => format!("{program}, waits for the next round"),
            (None, _, Some(why)) => format!("none ({why})"),
            (None, _, None) => "none yet".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_shown_as_what_was_asked_last() {
        let note = Note::default();
        assert_eq!(note.words(), "none yet");
        note.here("mine 1");
        assert_eq!(note.words(), "mine 1, waits for the next round");
        note.asked("step 3".into());
        assert_eq!(note.words(), "mine 1, asked for step 3 0 s ago");
        note.answered();
        assert_eq!(note.words(), "mine 1, waits for the next round");
        note.gone("the trainer is gone: it closed the connection");
        assert_eq!(note.words(), "none (the trainer is gone: it closed the connection)");
    }
}
