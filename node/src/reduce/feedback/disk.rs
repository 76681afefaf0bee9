//! Residuals on the disk: two files, of which at least one is true after a record that was committed.
//!
//! Each says after which COMMIT it is true. While that is still being voted on, the other file keeps what is true if it is
//! not decided; when it is, nothing has to be written again. So a node that is killed at any moment finds what belongs to
//! its head, if the write was done by then, or knows that it has not; then it begins with zeros, which repeats nothing.
//! The files are not synced: what a power cut leaves of them shows in their seal.

pub(in crate::reduce) mod file;

use super::residuals::{Desk, Residuals, Source, locked};
use crate::reduce::passed::Mark;
use file::{Label, Unfit};
use starling_protocol::engine::io::AttemptKey;
use starling_protocol::update;
use starling_store::{Store, StoreError};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(in crate::reduce) use file::Held;

/// The files of one fragment.
pub(in crate::reduce) struct Disk {
    store: Arc<Store>,
    label: Label,
    names: [String; 2],
    /// After which COMMIT each file is true. Nothing else is locked while this is.
    files: Mutex<[Option<Mark>; 2]>,
    /// Held while a file is written.
    writing: Mutex<()>,
    /// Somebody waits to write what is settled: one is enough.
    waiting: AtomicBool,
}

impl Disk {
    /// The files of `label`, and whether there are any. One that is damaged, or of something else, is removed: the next
    /// start is clean.
    pub fn open(store: Arc<Store>, label: Label) -> (Self, bool) {
        let (files, writing, waiting) = (Mutex::default(), Mutex::default(), AtomicBool::default());
        let disk = Self { store, names: label.names(), label, files, writing, waiting };
        let (mut marks, mut found) = ([None; 2], false);
        for (name, mark) in disk.names.iter().zip(&mut marks) {
            let read = disk.store.read_private(name).map_err(Unfit::from);
            let read = read.and_then(|file| file.map(|file| label.mark(file)).transpose());
            found |= !matches!(read, Ok(None));
            *mark = disk.unless_unfit(name, read).flatten();
        }
        *disk.files() = marks;
        (disk, found)
    }

    fn unless_unfit<T>(&self, name: &str, read: Result<T, Unfit>) -> Option<T> {
        let error = match read {
            Ok(read) => return Some(read),
            Err(error) => error,
        };
        lost(error.reason(), &format!("{name}: {error}"));
        // The store has removed what is damaged, and what cannot be read may be readable later.
        if !matches!(error, Unfit::Store(_))
            && let Err(error) = self.store.remove_private(name)
        {
            tracing::warn!("{name} cannot be removed: {error}");
        }
        None
    }

    /// Marks are plain data: whatever a panicking holder left is still only marks.
    fn files(&self) -> MutexGuard<'_, [Option<Mark>; 2]> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn is_empty(&self) -> bool {
        *self.files() == [None; 2]
    }

    /// Whether a file is there that is true after this COMMIT.
    pub fn has(&self, mark: &Mark) -> bool {
        self.files().contains(&Some(*mark))
    }

    /// What the file of this mark holds; nothing, and that is told, if it is damaged or gone.
    pub fn load(&self, mark: &Mark) -> Option<Held> {
        let place = self.files().iter().position(|file| *file == Some(*mark));
        let read = place.map(|place| (&self.names[place], self.store.read_private(&self.names[place])));
        let held = match read {
            Some((name, Ok(Some(file)))) => {
                self.unless_unfit(name, self.label.read(file)).filter(|held| held.mark == *mark)
            }
            Some((name, Err(error))) => self.unless_unfit(name, Err(error.into())),
            Some((_, Ok(None))) | None => {
                lost("unknown", "the file that held it is gone");
                None
            }
        };
        if held.is_none()
            && let Some(place) = place
        {
            self.files()[place].take_if(|file| file == mark);
        }
        held
    }

    /// Writes what is true after an attempt, should it be committed. Nothing if that is decided before it is written, or
    /// if another file still is.
    ///
    /// # Errors
    /// The disk failed, or is full.
    pub(super) fn stage(&self, residuals: &Mutex<Residuals>, key: &AttemptKey) -> Result<(), StoreError> {
        let Ok(_writing) = self.writing.try_lock() else { return Ok(()) };
        self.write(residuals, (*key).into(), Source::Staged(*key))
    }

    /// Writes the residuals as they are, unless a file has them.
    ///
    /// # Errors
    /// The disk failed, or is full.
    pub(super) fn keep(&self, residuals: &Mutex<Residuals>) -> Result<(), StoreError> {
        if self.waiting.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting.store(false, Ordering::Release);
        let mark = locked(residuals).mark;
        mark.map_or(Ok(()), |mark| self.write(residuals, mark, Source::Settled(mark)))
    }

    /// Removes both files.
    ///
    /// # Errors
    /// One of them cannot be removed.
    pub fn clear(&self) -> Result<(), StoreError> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        *self.files() = [None; 2];
        self.names.iter().try_for_each(|name| self.store.remove_private(name))
    }

    fn write(&self, residuals: &Mutex<Residuals>, mark: Mark, source: Source) -> Result<(), StoreError> {
        let files = *self.files();
        if files.contains(&Some(mark)) {
            return Ok(());
        }
        let (settled, sums) = {
            let residuals = locked(residuals);
            (residuals.mark, residuals.chunks_of(source))
        };
        // What is true now stays until what is written is.
        let place = usize::from(settled.is_some() && files[0] == settled);
        let Some(sums) = sums else { return Ok(()) };
        let mut file = self.store.write_private(&self.names[place], self.label.bytes(&sums))?;
        self.label.begin(&mut file, &mark, &sums)?;
        let mut desk = Desk::default();
        let elements = self.label.elements;
        for chunk in 0..update::chunks(elements) {
            // Whoever settles meanwhile makes this pointless, and does not wait for the disk.
            if !locked(residuals).own_of(source, elements, chunk, &mut desk) {
                return Ok(());
            }
            file.write_f32s(&desk.left)?;
        }
        for chunk in sums {
            let Some(left) = locked(residuals).sum_of(source, chunk) else { return Ok(()) };
            file.write(&(chunk as u64).to_le_bytes())?;
            file.write_f32s(&left)?;
        }
        self.files()[place] = None;
        file.commit_unsynced()?;
        self.files()[place] = Some(mark);
        Ok(())
    }
}

/// Tells that what updates left out is lost, and counts it.
pub(in crate::reduce) fn lost(reason: &'static str, why: &str) {
    tracing::warn!("what earlier updates of this node left out is lost, and not said again: {why}");
    metrics::counter!("starling_residuals_lost_total", "reason" => reason).increment(1);
}

#[cfg(test)]
#[path = "disk_test.rs"]
mod tests;
