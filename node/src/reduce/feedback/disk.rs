//! Residuals on the disk: two files, at least one of which is true after a committed record.
//!
//! Each file names the COMMIT after which it is true. During the vote on that COMMIT the other file keeps the residuals
//! for the case that it fails; a decision needs no further write. So a node that is killed at any moment finds the
//! residuals of its head, if the write was done by then, or knows that it has none; it then begins with zeros, which
//! repeats nothing. The files are not synced: their seal shows what a power cut damaged.

pub(in crate::reduce) mod file;

use super::residuals::{Desk, Residuals, Source, locked};
use crate::reduce::passed::Mark;
use file::{Label, Unfit};
use starling_protocol::engine::io::AttemptKey;
use starling_protocol::update;
use starling_store::{Store, StoreError};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(in crate::reduce) use super::residuals::Held;

/// The files of one fragment.
pub(in crate::reduce) struct Disk {
    store: Arc<Store>,
    label: Label,
    names: [String; 2],
    /// The COMMIT after which each file is true. Nothing else is locked while this is.
    files: Mutex<[Option<Mark>; 2]>,
    /// Held while a file is written.
    writing: Mutex<()>,
    /// A thread waits to write the settled residuals: one is enough.
    waiting: AtomicBool,
}

impl Disk {
    /// Opens the files of `label`, and returns whether there are any. A damaged or foreign file is removed, so that the
    /// next start is clean.
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
        // The store has removed a damaged file, and an unreadable one may be readable later.
        if !matches!(error, Unfit::Store(_))
            && let Err(error) = self.store.remove_private(name)
        {
            tracing::warn!("{name} cannot be removed: {error}");
        }
        None
    }

    /// Marks are plain data, so a holder that panicked leaves a usable lock.
    fn files(&self) -> MutexGuard<'_, [Option<Mark>; 2]> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn is_empty(&self) -> bool {
        *self.files() == [None; 2]
    }

    /// Whether a file is true after this COMMIT.
    pub fn has(&self, mark: &Mark) -> bool {
        self.files().contains(&Some(*mark))
    }

    /// Loads the file of this mark; none, with a warning, if it is damaged or gone.
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

    /// Writes the residuals as they will be if this attempt is committed. Writes nothing if the record is decided
    /// before, or while another file is being written.
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
        // The file that is true now stays until the new one is complete.
        let place = usize::from(settled.is_some() && files[0] == settled);
        let Some(sums) = sums else { return Ok(()) };
        let mut file = self.store.write_private(&self.names[place], self.label.bytes(&sums))?;
        self.label.begin(&mut file, &mark, &sums)?;
        let mut desk = Desk::default();
        let elements = self.label.elements;
        for chunk in 0..update::chunks(elements) {
            // A settlement in the meantime makes this write pointless; the settling thread does not wait for the disk.
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

/// Warns that residuals are lost, and counts it.
pub(in crate::reduce) fn lost(reason: &'static str, why: &str) {
    tracing::warn!("the residuals of this node's earlier updates are lost, and not offered again: {why}");
    metrics::counter!("starling_residuals_lost_total", "reason" => reason).increment(1);
}

#[cfg(test)]
#[path = "disk_test.rs"]
mod tests;
