//! The store: its opening, the run that it belongs to, and the common course of all changes.

use crate::arriving::Shelf;
use crate::birth;
use crate::blobs::Blobs;
use crate::folder::Folder;
use crate::holding::Adoption;
use crate::mirror::Mirror;
use crate::rocks::{Batch, Db, Table};
use crate::sealed::{Kind, read_sealed, write_sealed};
use crate::space::{self, Ballast, DiskSpace};
use crate::tip::{Link, Tip, seq_key};
use crate::{Damage, Part, StoreError};
use starling_protocol::limits::{PARAMETERS_MAX, RUN_SPEC_BYTES_MAX, STATE_CHUNK_BYTES};
use starling_protocol::state::{MANIFEST_BYTES_MAX, Manifest};
use starling_protocol::{Digest, state, update, wire};
use std::collections::HashSet;
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

const RUN_SPEC_KIND: Kind = *b"SLSPEC-1";
pub(crate) const BEGINNING_KIND: Kind = *b"SLBEGN-1";
/// Free bytes that the database needs to recover.
const OPEN_BYTES: u64 = 4 << 20;
/// Free bytes that a change of the chain needs: a failed write to the database's log ends the process.
const CHANGE_BYTES: u64 = 1 << 20;
/// Bytes of the largest update: two a parameter (bf16).
const UPDATE_BYTES_MAX: u64 = 2 * PARAMETERS_MAX;

/// The settings of a store.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Size of the file that is deleted when the disk is full, so that the node can end cleanly. 0 = none.
    pub ballast_bytes: u64,
    /// Bytes that snapshots and adoptions leave free for records and candidates, which matter more.
    pub reserve_bytes: u64,
    /// Bytes that the folder may take: older snapshots and their updates go before it takes more. 0 = no bound.
    pub max_bytes: u64,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self { ballast_bytes: 16 << 20, reserve_bytes: 32 << 20, max_bytes: 0 }
    }
}

/// An opened store, and the damage found in it.
pub struct Opened {
    pub store: Store,
    /// `None`: everything that was acknowledged before is there. With [`Damage::chain_lost`] the chain's functions
    /// return [`StoreError::Damaged`] until [`Store::reset_chain`] or [`Store::finish_adopt`].
    pub damage: Option<Damage>,
}

/// The run that a store belongs to.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Digest of the specification.
    pub digest: Digest,
    /// The encoded `RunSpec`.
    pub spec: Vec<u8>,
}

impl Run {
    /// The run to which the folder at `root` is bound; `None` without one, or with a damaged specification. Changes
    /// nothing, and needs no lock.
    pub fn of_folder(root: &Path) -> Option<Self> {
        read_run(&Folder::at(root)).ok().flatten()
    }
}

/// The data of one node on disk. Every function may be called from any thread; all of them block on the disk.
pub struct Store {
    pub(crate) folder: Folder,
    pub(crate) options: StoreOptions,
    pub(crate) updates: Blobs,
    pub(crate) chunks: Blobs,
    /// The state being adopted: only its chunks may be put, and pruning keeps them.
    pub(crate) adopting: RwLock<Option<Adoption>>,
    /// The state with which the run begins, if it is kept here.
    pub(crate) beginning: RwLock<Option<Arc<Manifest>>>,
    /// The last update that was written ahead of its candidate.
    pub(crate) staged: Mutex<Option<Digest>>,
    /// The updates that this node fetches, and what is known of the pieces of others.
    pub(crate) shelf: Mutex<Shelf>,
    /// Held while chunks are written or pruned. Taken before `order`.
    pub(crate) bulk: Mutex<()>,
    /// Held while the chain changes.
    order: Mutex<()>,
    tip: RwLock<Tip>,
    db: RwLock<Result<Arc<Db>, Damage>>,
    run: RwLock<Option<Run>>,
    failed: OnceLock<String>,
    /// The incarnation of the vote state found here, if the folder is a copy.
    pub(crate) copied: Option<u64>,
    /// This process has made the folder's note.
    pub(crate) bound: AtomicBool,
    /// The folder takes more than it may, and the log says so.
    pub(crate) over: AtomicBool,
    /// Updates from this record on are kept although the oldest snapshot is after them.
    pub(crate) floor: AtomicU64,
    ballast: Ballast,
    _lock: File,
}

impl Store {
    /// Opens the data folder at `root`, and creates it if it does not exist.
    ///
    /// # Errors
    /// [`StoreError::InUse`] when another process has it open, [`StoreError::Full`] when the disk has no room to work.
    /// Damage is no error here but part of [`Opened`]: the node decides what to do about it.
    pub fn open(root: &Path, options: StoreOptions) -> Result<Opened, StoreError> {
        let folder = Folder::create(root)?;
        let lock = folder.lock()?;
        space::require(root, OPEN_BYTES, 0)?;
        folder.clear_tmp()?;
        let copied = birth::is_copied(&folder)?;
        let beginning = read_beginning(&folder)?;
        let (run, run_damage) = match read_run(&folder) {
            Ok(run) => (run, None),
            Err(StoreError::Damaged(damage)) => (None, Some(damage)),
            Err(e) => return Err(e),
        };
        let (db, tip, chain_damage) = match open_chain(&folder, run.as_ref()) {
            Ok((db, tip)) => (Ok(Arc::new(db)), tip, None),
            Err(StoreError::Damaged(damage)) => (Err(damage.clone()), Tip::default(), Some(damage)),
            Err(e) => return Err(e),
        };
        let copied = tip.vote_state.as_ref().filter(|_| copied).map(|vote_state| vote_state.incarnation);
        let ballast = Ballast::new(folder.ballast(), options.ballast_bytes);
        ballast.prepare(options.reserve_bytes);
        let updates = Blobs::new(folder.updates(), folder.tmp(), false, UPDATE_BYTES_MAX, update::byte_hasher);
        let chunks = Blobs::new(folder.chunks(), folder.tmp(), true, STATE_CHUNK_BYTES as u64, state::byte_hasher);
        let store = Self {
            updates,
            chunks,
            adopting: RwLock::new(None),
            beginning: RwLock::new(beginning),
            staged: Mutex::new(None),
            shelf: Mutex::default(),
            bulk: Mutex::new(()),
            order: Mutex::new(()),
            tip: RwLock::new(tip),
            db: RwLock::new(db),
            run: RwLock::new(run),
            failed: OnceLock::new(),
            copied,
            bound: AtomicBool::new(false),
            over: AtomicBool::new(false),
            floor: AtomicU64::new(u64::MAX),
            ballast,
            options,
            folder,
            _lock: lock,
        };
        for damage in [&run_damage, &chain_damage].into_iter().flatten() {
            tracing::error!(%damage, "the data folder is damaged");
        }
        Ok(Opened { store, damage: chain_damage.or(run_damage) })
    }

    /// The folder of this store.
    pub fn path(&self) -> &Path {
        self.folder.root()
    }

    /// The run of this store; `None` for a new store, and when its copy of the specification is damaged.
    pub fn run(&self) -> Option<Run> {
        read(&self.run).clone()
    }

    /// Binds the store to a run, for good. Binding it to the same run again only replaces a damaged specification.
    ///
    /// # Errors
    /// [`StoreError::OtherRun`] when the store or its chain belongs to another run, [`StoreError::Malformed`] when
    /// these are not the bytes of a specification.
    pub fn bind_run(&self, spec: &[u8]) -> Result<(), StoreError> {
        let malformed = |e: wire::WireError| StoreError::Malformed { what: "run specification", why: e.to_string() };
        let asked = wire::decode_spec(spec).map_err(malformed)?.digest();
        let mut run = self.run.write().unwrap_or_else(PoisonError::into_inner);
        let here = run.as_ref().map(|run| run.digest).or(self.tip().head.as_ref().map(|head| head.record.run));
        if let Some(here) = here.filter(|here| *here != asked) {
            return Err(StoreError::OtherRun { path: self.path().to_path_buf(), here, asked });
        }
        if run.is_none() {
            let path = self.folder.run_spec();
            self.with_ballast(|| write_sealed(&self.folder.tmp(), &path, &RUN_SPEC_KIND, &[spec]))?;
            *run = Some(Run { digest: asked, spec: spec.to_vec() });
        }
        Ok(())
    }

    /// Forgets the whole chain: records, certificates, updates, candidates and snapshots. The run, the vote state, the
    /// private state and everything beside the store stay, since the node's signed statements stay valid. After damage
    /// the old database is set aside in `damaged/`, where a person may look at it; a vote state in it is not trusted.
    pub fn reset_chain(&self) -> Result<(), StoreError> {
        let _bulk = lock(&self.bulk);
        self.note(self.reopen_if_damaged())?;
        let mut write = self.begin()?;
        write.clear();
        write.apply()?;
        self.prune(write);
        Ok(())
    }

    /// After damage: sets the old chain aside and begins an empty one.
    pub(crate) fn reopen_if_damaged(&self) -> Result<(), StoreError> {
        let _order = lock(&self.order);
        let mut db = self.db.write().unwrap_or_else(PoisonError::into_inner);
        if db.is_err() {
            self.folder.set_aside()?;
            *db = Ok(Arc::new(Db::open(&self.folder.db(), true)?));
        }
        Ok(())
    }

    /// The free space on the disk.
    pub fn disk_space(&self) -> Result<DiskSpace, StoreError> {
        let root = self.folder.root();
        let free = space::free_bytes(root).map_err(|e| StoreError::io("measure the free space of", root, 0, e))?;
        Ok(DiskSpace { free, low: free < self.options.reserve_bytes })
    }

    pub(crate) fn tip(&self) -> Tip {
        read(&self.tip).clone()
    }

    pub(crate) fn db(&self) -> Result<Arc<Db>, StoreError> {
        read(&self.db).clone().map_err(StoreError::Damaged)
    }

    /// Refuses a record of another run than the bound one.
    pub(crate) fn check_run(&self, asked: Digest) -> Result<(), StoreError> {
        match &*read(&self.run) {
            None => Err(StoreError::NoRun { path: self.path().to_path_buf() }),
            Some(run) if run.digest == asked => Ok(()),
            Some(run) => Err(StoreError::OtherRun { path: self.path().to_path_buf(), here: run.digest, asked }),
        }
    }

    /// Begins a change of the chain; other changes wait until it is dropped.
    pub(crate) fn begin(&self) -> Result<Change<'_>, StoreError> {
        let order = lock(&self.order);
        if let Some(why) = self.failed.get() {
            return Err(StoreError::Failed { why: why.clone() });
        }
        let db = self.db()?;
        self.with_ballast(|| space::require(self.folder.root(), CHANGE_BYTES, 0))?;
        Ok(Change { store: self, db, tip: self.tip(), batch: Batch::default(), _order: order })
    }

    /// Does `work`; on a full disk, repeats it once in the space of the ballast.
    pub(crate) fn with_ballast<T>(&self, work: impl Fn() -> Result<T, StoreError>) -> Result<T, StoreError> {
        match self.note(work()) {
            Err(StoreError::Full { .. }) if self.ballast.release() => self.note(work()),
            other => other,
        }
    }

    /// Stops all writes if the failure demands it, and passes the result on. After a failed sync nobody knows what is
    /// on disk, and no retry can tell, so nothing more is written until the process starts again.
    pub(crate) fn note<T>(&self, result: Result<T, StoreError>) -> Result<T, StoreError> {
        if let Err(e @ StoreError::Io { action: "sync", .. }) = &result {
            self.fail(e);
        }
        result
    }

    fn fail(&self, error: &StoreError) {
        tracing::error!(%error, "a write failed; this store takes no more until the node starts again");
        // Only the first failure explains the later ones.
        let _ = self.failed.set(error.to_string());
    }

    /// Removes updates and chunks that nothing refers to, after this change. A failure is only a warning, since a later
    /// call frees the space. The caller holds `bulk`. Other changes of the chain wait until the updates have lost their names, and not
    /// for their removal.
    pub(crate) fn prune(&self, change: Change<'_>) {
        self.prune_updates(change);
        self.prune_chunks();
    }

    /// Removes the chunks of no snapshot and no adoption that the run's beginning has not, either. The caller holds
    /// `bulk`, without which none of them gets new ones.
    pub(crate) fn prune_chunks(&self) {
        if self.failed.get().is_some() {
            // Nobody knows which snapshots the next start will find.
            return;
        }
        let mut keep: HashSet<Digest> = self.tip().snapshots.values().flat_map(|m| m.chunks.iter().copied()).collect();
        keep.extend(read(&self.adopting).iter().flat_map(Adoption::digests));
        keep.extend(read(&self.beginning).iter().flat_map(|manifest| manifest.chunks.iter().copied()));
        if let Err(error) = self.chunks.retain(&keep) {
            tracing::warn!(%error, "could not remove old chunks of the state");
        }
    }

    /// Keeps the updates after the oldest snapshot or from the floor on, those of candidates, and the staged one.
    pub(crate) fn prune_updates(&self, change: Change<'_>) {
        let after = change.tip.snapshots.keys().next().map_or(0, |oldest| oldest.saturating_add(1));
        let from = after.min(self.floor.load(Ordering::Relaxed));
        let updates = self.live_updates(&change.tip, from).and_then(|keep| self.updates.take_out(&keep));
        drop(change);
        match updates {
            Ok(updates) => self.updates.discard(&updates),
            Err(error) => tracing::warn!(%error, "could not remove old updates"),
        }
    }

    /// The updates of records from this number on, those of candidates, and the staged one.
    pub(crate) fn live_updates(&self, tip: &Tip, from: u64) -> Result<HashSet<Digest>, StoreError> {
        let mut keep: HashSet<Digest> = tip.candidates.iter().map(|held| held.candidate.record.update).collect();
        keep.extend(*lock(&self.staged));
        for (_, bytes) in self.db()?.scan(Table::Records, &seq_key(from), usize::MAX)? {
            let malformed = |e: wire::WireError| StoreError::damaged(Part::Chain, &self.folder.db(), e.to_string());
            keep.insert(wire::decode_record(&bytes).map_err(malformed)?.update);
        }
        Ok(keep)
    }
}

/// A change of the chain under way: one batch, and the tip after it.
pub(crate) struct Change<'a> {
    store: &'a Store,
    db: Arc<Db>,
    pub tip: Tip,
    pub batch: Batch,
    _order: MutexGuard<'a, ()>,
}

impl Change<'_> {
    /// Forgets the whole chain but the vote state; data put afterwards stays.
    pub fn clear(&mut self) {
        let tables = [Table::Records, Table::Certificates, Table::Candidates, Table::Snapshots];
        tables.into_iter().for_each(|table| self.batch.clear(table));
        self.tip = Tip { version: self.tip.version, vote_state: self.tip.vote_state.clone(), ..Tip::default() };
    }

    /// Forgets the records after this one, which is on the chain, and everything that depends on them.
    pub fn cut_after(&mut self, link: Arc<Link>) {
        let tables = [Table::Candidates, Table::Snapshots];
        tables.into_iter().for_each(|table| self.batch.clear(table));
        if let Some(next) = link.record.seq.checked_add(1) {
            self.batch.clear_from(Table::Records, &seq_key(next));
            self.batch.clear_from(Table::Certificates, &seq_key(next));
        }
        self.tip.cut_after(link);
    }

    /// Writes the batch, then the mirror, both synced; only then is the change visible to readers.
    pub fn apply(&mut self) -> Result<(), StoreError> {
        let mut batch = std::mem::take(&mut self.batch);
        self.tip.seal(&mut batch);
        let written = self.db.write(batch).and_then(|()| Mirror::of(&self.tip).write(&self.store.folder));
        if let Err(e) = &written {
            // Any failure: the two sides may now differ by one, and must not come to differ by two.
            self.store.fail(e);
            self.store.ballast.release();
        }
        written?;
        *self.store.tip.write().unwrap_or_else(PoisonError::into_inner) = self.tip.clone();
        Ok(())
    }
}

fn read_run(folder: &Folder) -> Result<Option<Run>, StoreError> {
    let path = folder.run_spec();
    let Some(spec) = read_sealed(&path, &RUN_SPEC_KIND, RUN_SPEC_BYTES_MAX as u64, Part::RunSpec)? else {
        return Ok(None);
    };
    let decoded = wire::decode_spec(&spec).map_err(|e| StoreError::damaged(Part::RunSpec, &path, e.to_string()))?;
    Ok(Some(Run { digest: decoded.digest(), spec }))
}

/// The manifest of the state with which the run begins, if the folder keeps one. A damaged one is reported and left
/// out: the weights are fetched when they are needed.
fn read_beginning(folder: &Folder) -> Result<Option<Arc<Manifest>>, StoreError> {
    match listed_beginning(folder) {
        Err(StoreError::Damaged(damage)) => {
            tracing::warn!(%damage, "the weights that the run began with are not known here any more");
            Ok(None)
        }
        other => Ok(other?.map(Arc::new)),
    }
}

fn listed_beginning(folder: &Folder) -> Result<Option<Manifest>, StoreError> {
    let path = folder.beginning();
    let bytes = read_sealed(&path, &BEGINNING_KIND, MANIFEST_BYTES_MAX as u64, Part::State)?;
    let decoded = bytes.map(|bytes| Manifest::decode(&bytes)).transpose();
    decoded.map_err(|e| StoreError::damaged(Part::State, &path, e.to_string()))
}

/// Opens the database and compares it with its mirror.
fn open_chain(folder: &Folder, run: Option<&Run>) -> Result<(Db, Tip), StoreError> {
    let mirror = Mirror::read(folder)?;
    let path = folder.db();
    let db = Db::open(&path, mirror.is_none())?;
    let tip = Tip::load(&db, &path)?;
    if !Mirror::compare(mirror, &tip, folder)? {
        Mirror::of(&tip).write(folder)?;
    }
    if let (Some(run), Some(head)) = (run, &tip.head)
        && head.record.run != run.digest
    {
        return Err(StoreError::damaged(Part::Chain, &path, "its records are of another run than run.spec"));
    }
    Ok((db, tip))
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn read<T>(rwlock: &RwLock<T>) -> std::sync::RwLockReadGuard<'_, T> {
    rwlock.read().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_the_beginning_that_does_not_decode_is_damage_and_is_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::at(dir.path());
        assert!(listed_beginning(&folder).unwrap().is_none(), "a run without one");
        write_sealed(dir.path(), &folder.beginning(), &BEGINNING_KIND, &[&b"no list of chunks"[..]]).unwrap();
        let damaged = listed_beginning(&folder).unwrap_err();
        assert!(matches!(&damaged, StoreError::Damaged(damage) if damage.path == folder.beginning()), "{damaged}");
        assert!(read_beginning(&folder).unwrap().is_none());
    }
}
