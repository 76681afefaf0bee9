//! The small database: opened carefully, read with suspicion, written in synced batches.
//!
//! RocksDB opens after losing acknowledged writes, and finds a damaged block only when it reads it. So every value
//! carries a checksum over table, key and payload, and every iteration ends with a check of its error. An open database
//! does not prove that all acknowledged batches are there; [`crate::mirror`] decides that.

use crate::{Part, StoreError};
use rocksdb::{
    BlockBasedOptions, Cache, ColumnFamilyDescriptor, DB, DBCompressionType, DBRecoveryMode, Direction, IteratorMode,
    LogLevel, Options, ReadOptions, WriteBatch, WriteOptions,
};
use starling_protocol::Digest;
use std::path::{Path, PathBuf};

/// One column family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Table {
    /// `seq` -> encoded record.
    Records,
    /// `seq` -> encoded certificate of that record.
    Certificates,
    /// `seq ‖ attempt ‖ digest of the record` -> encoded candidate.
    Candidates,
    /// `seq` -> encoded manifest of a snapshot.
    Snapshots,
    /// Name -> value: version, head, format, vote state.
    Meta,
}

impl Table {
    const ALL: [Self; 5] = [Self::Records, Self::Certificates, Self::Candidates, Self::Snapshots, Self::Meta];

    fn name(self) -> &'static str {
        match self {
            Self::Records => "records",
            Self::Certificates => "certificates",
            Self::Candidates => "candidates",
            Self::Snapshots => "snapshots",
            Self::Meta => "meta",
        }
    }
}

/// Writes that happen together or not at all.
#[derive(Default)]
pub(crate) struct Batch {
    operations: Vec<Operation>,
}

enum Operation {
    Put {
        table: Table,
        key: Vec<u8>,
        value: Vec<u8>,
    },
    Delete {
        table: Table,
        key: Vec<u8>,
    },
    /// Deletes everything in the table that was there before this operation.
    Clear {
        table: Table,
    },
    /// The same, from this key on.
    ClearFrom {
        table: Table,
        key: Vec<u8>,
    },
}

impl Batch {
    pub fn put(&mut self, table: Table, key: &[u8], value: Vec<u8>) {
        self.operations.push(Operation::Put { table, key: key.to_vec(), value });
    }
    pub fn delete(&mut self, table: Table, key: &[u8]) {
        self.operations.push(Operation::Delete { table, key: key.to_vec() });
    }
    pub fn clear(&mut self, table: Table) {
        self.operations.push(Operation::Clear { table });
    }
    pub fn clear_from(&mut self, table: Table, key: &[u8]) {
        self.operations.push(Operation::ClearFrom { table, key: key.to_vec() });
    }
}

/// A key and its value.
pub(crate) type Pair = (Vec<u8>, Vec<u8>);

/// An open database.
pub(crate) struct Db {
    db: DB,
    path: PathBuf,
}

/// Longer than any key here; the longest is a candidate's.
const KEY_BYTES_MAX: usize = 64;
/// After every key.
const END: [u8; KEY_BYTES_MAX] = [0xff; KEY_BYTES_MAX];
const SUM: usize = 32;
/// Buffers of one table; the whole database holds some ten kilobytes a round.
const WRITE_BUFFER: usize = 1 << 20;
const CACHE_BYTES: usize = 1 << 20;

impl Db {
    /// Opens the database, or makes one where `create` allows it.
    ///
    /// A power cut during an unacknowledged write leaves a log that ends in a torn record. The log is first opened with
    /// the demand that all of it is valid. If that fails, it is read up to the last whole record. The caller compares
    /// the version with the mirror's and so learns whether an acknowledged change is missing.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] when it cannot be opened either way; [`StoreError::Full`] when recovery needs space.
    pub fn open(path: &Path, create: bool) -> Result<Self, StoreError> {
        let db = match Self::open_with(path, create, DBRecoveryMode::AbsoluteConsistency) {
            Err(StoreError::Damaged(damage)) => {
                tracing::warn!(%damage, "the database's log does not hold to its end; reading its whole records");
                Self::open_with(path, create, DBRecoveryMode::PointInTime)?
            }
            other => other?,
        };
        Ok(Self { db, path: path.to_path_buf() })
    }

    fn open_with(path: &Path, create: bool, recovery: DBRecoveryMode) -> Result<DB, StoreError> {
        let mut options = table_options();
        options.create_if_missing(create);
        options.create_missing_column_families(create);
        options.set_wal_recovery_mode(recovery);
        options.set_track_and_verify_wals_in_manifest(true);
        options.set_paranoid_checks(true);
        options.set_max_open_files(32);
        options.set_max_file_opening_threads(1);
        options.set_max_background_jobs(2);
        options.set_max_total_wal_size(4 << 20);
        options.set_db_write_buffer_size(2 * WRITE_BUFFER);
        options.set_manifest_preallocation_size(64 << 10);
        // No timers, no statistics, hardly any log: many nodes share one machine.
        options.set_stats_dump_period_sec(0);
        options.set_stats_persist_period_sec(0);
        options.set_log_level(LogLevel::Error);
        options.set_keep_log_file_num(2);
        options.set_max_log_file_size(256 << 10);
        let tables = Table::ALL.map(|table| ColumnFamilyDescriptor::new(table.name(), table_options()));
        let default = ColumnFamilyDescriptor::new(rocksdb::DEFAULT_COLUMN_FAMILY_NAME, table_options());
        DB::open_cf_descriptors(&options, path, tables.into_iter().chain([default]))
            .map_err(|e| db_error("open", path, Some(Part::Chain), e))
    }

    /// The value at `key`, its checksum verified.
    pub fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let found = self.db.get_cf(self.family(table)?, key);
        let Some(mut value) = found.map_err(|e| self.error("read", e))? else { return Ok(None) };
        self.unseal(table, key, &mut value)?;
        Ok(Some(value))
    }

    /// All pairs of `table` from `from` on, ascending, at most `max`.
    pub fn scan(&self, table: Table, from: &[u8], max: usize) -> Result<Vec<Pair>, StoreError> {
        let mut pairs = Vec::new();
        self.each(table, from, |key, value| {
            if pairs.len() < max {
                pairs.push((key.to_vec(), value.to_vec()));
            }
            Ok(pairs.len() < max)
        })?;
        Ok(pairs)
    }

    /// The key of the last pair of `table` that is not after `key`; the value is not read.
    pub fn last_key(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let mut keys = self.db.raw_iterator_cf(self.family(table)?);
        keys.seek_for_prev(key);
        keys.status().map_err(|e| self.error("read", e))?;
        Ok(keys.key().map(<[u8]>::to_vec))
    }

    /// Visits the pairs of `table` from `from` on, ascending, until `visit` returns false.
    pub fn each(
        &self,
        table: Table,
        from: &[u8],
        mut visit: impl FnMut(&[u8], &[u8]) -> Result<bool, StoreError>,
    ) -> Result<(), StoreError> {
        let mut options = ReadOptions::default();
        options.set_verify_checksums(true);
        options.fill_cache(false);
        let mode = IteratorMode::From(from, Direction::Forward);
        // The iterator's last item is its error, if any. Without an error the end of the items is the end of the data.
        for pair in self.db.iterator_cf_opt(self.family(table)?, options, mode) {
            let (key, value) = pair.map_err(|e| self.error("read", e))?;
            let mut value = value.into_vec();
            self.unseal(table, &key, &mut value)?;
            if !visit(&key, &value)? {
                break;
            }
        }
        Ok(())
    }

    /// Applies `batch` and syncs it to the disk.
    pub fn write(&self, batch: Batch) -> Result<(), StoreError> {
        let mut writes = WriteBatch::default();
        for operation in batch.operations {
            match operation {
                Operation::Put { table, key, value } => {
                    let sum = checksum(table, &key, &value);
                    let mut sealed = Vec::with_capacity(SUM + value.len());
                    sealed.extend_from_slice(&sum.0);
                    sealed.extend_from_slice(&value);
                    writes.put_cf(self.family(table)?, key, sealed);
                }
                Operation::Delete { table, key } => writes.delete_cf(self.family(table)?, key),
                Operation::Clear { table } => {
                    writes.delete_range_cf(self.family(table)?, &[][..], &END[..]);
                }
                Operation::ClearFrom { table, key } => {
                    writes.delete_range_cf(self.family(table)?, &key[..], &END[..]);
                }
            }
        }
        let mut options = WriteOptions::default();
        options.set_sync(true);
        self.db.write_opt(writes, &options).map_err(|e| self.error("write", e))
    }

    fn unseal(&self, table: Table, key: &[u8], value: &mut Vec<u8>) -> Result<(), StoreError> {
        let holds = value.len() >= SUM && checksum(table, key, &value[SUM..]).0 == value[..SUM];
        if !holds {
            let detail = format!("a value in {} does not match its checksum", table.name());
            return Err(StoreError::damaged(Part::Chain, &self.path, detail));
        }
        value.drain(..SUM);
        Ok(())
    }

    fn family(&self, table: Table) -> Result<&rocksdb::ColumnFamily, StoreError> {
        let missing = || StoreError::damaged(Part::Chain, &self.path, format!("table {} is missing", table.name()));
        self.db.cf_handle(table.name()).ok_or_else(missing)
    }

    fn error(&self, action: &'static str, e: rocksdb::Error) -> StoreError {
        db_error(action, &self.path, (action == "read").then_some(Part::Chain), e)
    }
}

fn checksum(table: Table, key: &[u8], payload: &[u8]) -> Digest {
    Digest::of("starling store value v1", &[table.name().as_bytes(), key, payload])
}

fn table_options() -> Options {
    let mut blocks = BlockBasedOptions::default();
    blocks.set_block_cache(&Cache::new_lru_cache(CACHE_BYTES));
    let mut options = Options::default();
    options.set_block_based_table_factory(&blocks);
    options.set_write_buffer_size(WRITE_BUFFER);
    options.set_max_write_buffer_number(2);
    options.set_compression_type(DBCompressionType::Zstd);
    options
}

/// Sorts RocksDB's errors, which are text. A full disk has a kind of its own. While opening and reading (`part` is
/// given), an error that is not the operating system's refusal (a permission, a limit, a device that fails) counts as
/// damage of the data.
fn db_error(action: &'static str, path: &Path, part: Option<Part>, e: rocksdb::Error) -> StoreError {
    let text = e.as_ref();
    if text.contains("No space left on device") || text.contains("Disk quota exceeded") {
        return StoreError::full(path, 4 * WRITE_BUFFER as u64);
    }
    let system = [
        "Permission denied",
        "Too many open files",
        "Read-only file system",
        "Input/output error",
        "lock file",
        "allocate memory",
    ];
    match part {
        Some(part) if !system.iter().any(|refusal| text.contains(refusal)) => {
            StoreError::damaged(part, path, format!("the database says \"{text}\""))
        }
        _ => StoreError::Db { action, path: path.to_path_buf(), source: e },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(db: &Db, key: u64, value: &[u8]) {
        let mut batch = Batch::default();
        batch.put(Table::Records, &key.to_be_bytes(), value.to_vec());
        db.write(batch).unwrap();
    }

    #[test]
    fn values_come_back_in_order_after_a_reopening() {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(&dir.path().join("db"), true).unwrap();
        (0..20u64).rev().for_each(|i| put(&db, i, &i.to_le_bytes()));
        drop(db);
        let db = Db::open(&dir.path().join("db"), false).unwrap();
        let pairs = db.scan(Table::Records, &5u64.to_be_bytes(), 10).unwrap();
        let keys: Vec<_> = pairs.iter().map(|(k, _)| u64::from_be_bytes(k[..].try_into().unwrap())).collect();
        assert_eq!(keys, (5..15).collect::<Vec<_>>());
        assert_eq!(db.get(Table::Records, &7u64.to_be_bytes()).unwrap().unwrap(), 7u64.to_le_bytes());
        assert_eq!(db.get(Table::Meta, &7u64.to_be_bytes()).unwrap(), None);
        let last = |key: u64| db.last_key(Table::Records, &key.to_be_bytes()).unwrap();
        assert_eq!((last(7), last(99)), (Some(7u64.to_be_bytes().to_vec()), Some(19u64.to_be_bytes().to_vec())));
        let mut batch = Batch::default();
        batch.clear_from(Table::Records, &12u64.to_be_bytes());
        db.write(batch).unwrap();
        assert_eq!(last(99), Some(11u64.to_be_bytes().to_vec()), "the others are gone");
        assert_eq!(db.last_key(Table::Meta, &7u64.to_be_bytes()).unwrap(), None);
    }

    #[test]
    fn clearing_takes_what_was_there_before_and_nothing_after() {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(&dir.path().join("db"), true).unwrap();
        put(&db, 1, b"a");
        put(&db, u64::MAX, b"z");
        let mut batch = Batch::default();
        batch.clear(Table::Records);
        batch.put(Table::Records, &2u64.to_be_bytes(), b"b".to_vec());
        db.write(batch).unwrap();
        let pairs = db.scan(Table::Records, &[], 10).unwrap();
        assert_eq!(pairs, vec![(2u64.to_be_bytes().to_vec(), b"b".to_vec())]);
    }

    #[test]
    fn a_value_under_another_key_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(&dir.path().join("db"), true).unwrap();
        put(&db, 1, b"a");
        let family = db.family(Table::Records).unwrap();
        let raw = db.db.get_cf(family, 1u64.to_be_bytes()).unwrap().unwrap();
        db.db.put_cf(family, 2u64.to_be_bytes(), raw).unwrap();
        assert!(db.get(Table::Records, &1u64.to_be_bytes()).is_ok());
        assert!(matches!(db.get(Table::Records, &2u64.to_be_bytes()), Err(StoreError::Damaged(_))));
        assert!(matches!(db.scan(Table::Records, &[], 10), Err(StoreError::Damaged(_))));
    }

    #[test]
    fn a_missing_database_is_not_made_unasked() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(Db::open(&dir.path().join("db"), false), Err(StoreError::Damaged(_))));
    }
}
