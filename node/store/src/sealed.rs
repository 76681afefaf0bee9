//! Files that are whole or missing, and that prove their content.
//!
//! A sealed file is `kind (8 bytes) ‖ payload length (u64 LE) ‖ payload ‖ BLAKE3 of all before it`. Every file here is
//! written to a temporary name, synced, renamed, and its folder synced: after a power cut there is the old file or the
//! new one, never a mix. Files that the node can do without are not synced; the seal shows what a power cut has left of
//! them.

use crate::folder::sync_dir;
use crate::{Part, StoreError};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// The kind of a sealed file: eight bytes, the last of them its version.
pub(crate) type Kind = [u8; 8];

const HEADER: u64 = 16;
const SEAL: u64 = 32;
const CONTEXT: &str = "starling store file v1";
/// Bytes moved at a time between f32 vectors and files.
const BLOCK: usize = 1 << 20;
/// Bytes that wait in the page cache for one sync, in files that ask for it.
const SYNCED_TOGETHER: u64 = 256 << 20;

/// A file that appears under its name only when [`AtomicFile::commit`] succeeds.
pub(crate) struct AtomicFile {
    file: BufWriter<File>,
    tmp: PathBuf,
    target: PathBuf,
    written: u64,
    /// Bytes since the last sync, in a file that is synced on the way.
    unsynced: Option<u64>,
    done: bool,
}

impl AtomicFile {
    /// Begins a file for `target` that only its owner may read. The temporary file goes to `tmp_dir`, on the same file
    /// system.
    pub fn create(tmp_dir: &Path, target: &Path) -> Result<Self, StoreError> {
        Self::with_mode(tmp_dir, target, 0o600)
    }

    /// Begins a file for other users: the process's umask decides who may read it.
    pub fn create_shared(tmp_dir: &Path, target: &Path) -> Result<Self, StoreError> {
        Self::with_mode(tmp_dir, target, 0o666)
    }

    fn with_mode(tmp_dir: &Path, target: &Path, mode: u32) -> Result<Self, StoreError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!(".tmp-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let tmp = tmp_dir.join(name);
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(mode)
            .open(&tmp)
            .map_err(|e| StoreError::io("create", &tmp, 4096, e))?;
        let target = target.to_path_buf();
        Ok(Self { file: BufWriter::with_capacity(1 << 16, file), tmp, target, written: 0, unsynced: None, done: false })
    }

    /// Syncs the file on the way, too: a large one that waited in the page cache as a whole would hold up the syncs of all
    /// others.
    pub fn synced_on_the_way(mut self) -> Self {
        self.unsynced = Some(0);
        self
    }

    /// The metadata of the temporary file, which keeps them when it is renamed.
    pub fn metadata(&self) -> Result<Metadata, StoreError> {
        self.file.get_ref().metadata().map_err(|e| StoreError::io("read", &self.tmp, 0, e))
    }

    pub fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        let length = bytes.len() as u64;
        self.written += length;
        self.file.write_all(bytes).map_err(|e| StoreError::io("write", &self.target, self.written, e))?;
        if let Some(unsynced) = &mut self.unsynced {
            *unsynced += length;
            if *unsynced >= SYNCED_TOGETHER {
                *unsynced = 0;
                self.sync()?;
            }
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<(), StoreError> {
        let synced = self.file.flush().and_then(|()| self.file.get_ref().sync_all());
        synced.map_err(|e| StoreError::io("sync", &self.target, self.written, e))
    }

    /// Writes bytes to their place in a file that takes none by [`Self::write`].
    pub fn write_at(&self, at: u64, bytes: &[u8]) -> Result<(), StoreError> {
        let length = bytes.len() as u64;
        self.file.get_ref().write_all_at(bytes, at).map_err(|e| StoreError::io("write", &self.tmp, length, e))
    }

    /// Syncs what [`Self::write_at`] has written.
    pub fn sync_data(&self) -> Result<(), StoreError> {
        self.file.get_ref().sync_data().map_err(|e| StoreError::io("sync", &self.tmp, 0, e))
    }

    /// As [`Self::commit_unsynced_name`] under another name than the one with which it began.
    pub fn commit_as(mut self, target: PathBuf) -> Result<(), StoreError> {
        self.target = target;
        self.commit_unsynced_name()
    }

    /// Syncs and renames. The caller syncs the folder, once for many files.
    pub fn commit_unsynced_name(mut self) -> Result<(), StoreError> {
        self.sync()?;
        fs::rename(&self.tmp, &self.target).map_err(|e| StoreError::io("rename to", &self.target, 4096, e))?;
        self.done = true;
        Ok(())
    }

    /// Renames without waiting for the disk: after a power cut there may be the old file, the new one, or a torn one.
    pub fn commit_unsynced(mut self) -> Result<(), StoreError> {
        self.file.flush().map_err(|e| StoreError::io("write", &self.target, self.written, e))?;
        fs::rename(&self.tmp, &self.target).map_err(|e| StoreError::io("rename to", &self.target, 4096, e))?;
        self.done = true;
        Ok(())
    }

    /// Makes the file durable under its name.
    pub fn commit(self) -> Result<(), StoreError> {
        let folder = self.target.parent().map(Path::to_path_buf).unwrap_or_default();
        self.commit_unsynced_name()?;
        sync_dir(&folder)
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if !self.done {
            // A file that stays is removed at the next start.
            let _ = fs::remove_file(&self.tmp);
        }
    }
}

/// Writes a sealed file piece by piece. The payload's length is given first and checked last.
pub(crate) struct SealedWriter {
    file: AtomicFile,
    hasher: blake3::Hasher,
    left: u64,
}

impl SealedWriter {
    pub fn begin(file: AtomicFile, kind: &Kind, payload: u64) -> Result<Self, StoreError> {
        let hasher = blake3::Hasher::new_derive_key(CONTEXT);
        let mut writer = Self { file, hasher, left: payload + HEADER };
        writer.write(kind)?;
        writer.write(&payload.to_le_bytes())?;
        Ok(writer)
    }

    pub fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        let n = bytes.len() as u64;
        self.left = self.left.checked_sub(n).ok_or_else(|| self.length_error())?;
        self.hasher.update(bytes);
        self.file.write(bytes)
    }

    /// Writes little-endian f32 values.
    pub fn write_f32s(&mut self, values: &[f32]) -> Result<(), StoreError> {
        let mut block = Vec::with_capacity(BLOCK.min(values.len() * 4));
        for part in values.chunks(BLOCK / 4) {
            block.clear();
            extend_le(&mut block, part);
            self.write(&block)?;
        }
        Ok(())
    }

    pub fn commit(self) -> Result<(), StoreError> {
        self.sealed()?.commit()
    }

    /// As [`AtomicFile::commit_unsynced`]: the seal shows whether the file is whole.
    pub fn commit_unsynced(self) -> Result<(), StoreError> {
        self.sealed()?.commit_unsynced()
    }

    fn sealed(mut self) -> Result<AtomicFile, StoreError> {
        if self.left != 0 {
            return Err(self.length_error());
        }
        let seal = self.hasher.finalize();
        self.file.write(seal.as_bytes())?;
        Ok(self.file)
    }

    fn length_error(&self) -> StoreError {
        let source = io::Error::new(io::ErrorKind::InvalidInput, "its length is not the one announced");
        StoreError::Io { action: "write", path: self.file.target.clone(), source }
    }
}

/// Writes a sealed file in one go.
pub(crate) fn write_sealed(tmp_dir: &Path, target: &Path, kind: &Kind, parts: &[&[u8]]) -> Result<(), StoreError> {
    let payload = parts.iter().map(|part| part.len() as u64).sum();
    let mut writer = SealedWriter::begin(AtomicFile::create(tmp_dir, target)?, kind, payload)?;
    for part in parts {
        writer.write(part)?;
    }
    writer.commit()
}

/// Reads a sealed file piece by piece. The bytes may be used only after [`SealedReader::finish`] has succeeded.
pub(crate) struct SealedReader {
    file: BufReader<File>,
    path: PathBuf,
    part: Part,
    hasher: blake3::Hasher,
    left: u64,
}

impl SealedReader {
    /// Opens `path`; `None` when it does not exist.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] with `part` when it is not a sealed file of this kind, of the length that its header
    /// says and of at most `limit` bytes of payload.
    pub fn open(path: &Path, kind: &Kind, limit: u64, part: Part) -> Result<Option<Self>, StoreError> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(StoreError::io("open", path, 0, e)),
        };
        let length = file.metadata().map_err(|e| StoreError::io("read", path, 0, e))?.len();
        let damaged = |detail: &str| StoreError::damaged(part, path, detail);
        let payload = length.checked_sub(HEADER + SEAL).ok_or_else(|| damaged("it is truncated"))?;
        if payload > limit {
            return Err(damaged("it is larger than anything Starling writes there"));
        }
        let hasher = blake3::Hasher::new_derive_key(CONTEXT);
        let file = BufReader::with_capacity(1 << 16, file);
        let mut reader = Self { file, path: path.to_path_buf(), part, hasher, left: HEADER + payload };
        let mut header = [0u8; HEADER as usize];
        reader.read(&mut header)?;
        if header[..8] != kind[..] {
            return Err(damaged("it is not the kind of file that belongs there"));
        }
        if header[8..] != payload.to_le_bytes() {
            return Err(damaged("it is truncated or has grown"));
        }
        Ok(Some(reader))
    }

    /// Bytes of payload not yet read.
    pub fn remaining(&self) -> u64 {
        self.left
    }

    /// Fills `bytes` from the payload.
    pub fn read(&mut self, bytes: &mut [u8]) -> Result<(), StoreError> {
        let n = bytes.len() as u64;
        self.left = self.left.checked_sub(n).ok_or_else(|| self.damage("it ends too early"))?;
        self.file.read_exact(bytes).map_err(|e| self.read_error(e))?;
        self.hasher.update(bytes);
        Ok(())
    }

    /// Reads `count` little-endian f32 values.
    pub fn read_f32s(&mut self, count: usize) -> Result<Vec<f32>, StoreError> {
        if (count as u64).checked_mul(4).is_none_or(|bytes| bytes > self.left) {
            return Err(self.damage("it ends too early"));
        }
        let mut values = vec![0.0; count];
        self.fill_f32s(&mut values)?;
        Ok(values)
    }

    /// Fills `values` with little-endian f32 values.
    pub fn fill_f32s(&mut self, values: &mut [f32]) -> Result<(), StoreError> {
        for part in values.chunks_mut(BLOCK / 4) {
            self.read(bytemuck::cast_slice_mut(part))?;
            part.iter_mut().for_each(|value| *value = f32::from_bits(u32::from_le(value.to_bits())));
        }
        Ok(())
    }

    /// Checks that all was read and that the seal holds.
    pub fn finish(mut self) -> Result<(), StoreError> {
        if self.left != 0 {
            return Err(self.damage("it holds more than belongs there"));
        }
        let mut seal = [0u8; SEAL as usize];
        self.file.read_exact(&mut seal).map_err(|e| self.read_error(e))?;
        // blake3's Hash compares in constant time, which costs nothing here.
        if self.hasher.finalize() != blake3::Hash::from_bytes(seal) {
            return Err(self.damage("its checksum does not hold"));
        }
        Ok(())
    }

    fn damage(&self, detail: &str) -> StoreError {
        StoreError::damaged(self.part, &self.path, detail)
    }

    fn read_error(&self, e: io::Error) -> StoreError {
        match e.kind() {
            io::ErrorKind::UnexpectedEof => self.damage("it is truncated"),
            _ => StoreError::io("read", &self.path, 0, e),
        }
    }
}

/// Reads a whole sealed file of at most `limit` bytes of payload; `None` when it does not exist.
pub(crate) fn read_sealed(path: &Path, kind: &Kind, limit: u64, part: Part) -> Result<Option<Vec<u8>>, StoreError> {
    let Some(mut reader) = SealedReader::open(path, kind, limit, part)? else { return Ok(None) };
    let mut payload = vec![0u8; reader.remaining() as usize];
    reader.read(&mut payload)?;
    reader.finish()?;
    Ok(Some(payload))
}

/// Appends `values` as little-endian bytes.
pub(crate) fn extend_le(bytes: &mut Vec<u8>, values: &[f32]) {
    if cfg!(target_endian = "little") {
        bytes.extend_from_slice(bytemuck::cast_slice(values));
    } else {
        values.iter().for_each(|v| bytes.extend_from_slice(&v.to_le_bytes()));
    }
}

/// Appends the little-endian f32 values in `bytes`; a remainder below four bytes is left out.
pub(crate) fn extend_f32(values: &mut Vec<f32>, bytes: &[u8]) {
    values.extend(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])));
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: Kind = *b"SLTEST-1";

    fn sealed(payload: &[u8]) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        write_sealed(dir.path(), &path, &KIND, &[payload]).unwrap();
        (dir, path)
    }

    #[test]
    fn a_sealed_file_is_read_back_and_its_absence_is_no_damage() {
        let (dir, path) = sealed(b"a payload");
        assert_eq!(read_sealed(&path, &KIND, 9, Part::Private).unwrap().unwrap(), b"a payload");
        assert!(read_sealed(&dir.path().join("other"), &KIND, 9, Part::Private).unwrap().is_none());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "the temporary file is gone");
    }

    #[test]
    fn every_flipped_bit_and_every_truncation_is_damage() {
        let (_dir, path) = sealed(b"some payload");
        let good = fs::read(&path).unwrap();
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            fs::write(&path, &bad).unwrap();
            assert!(matches!(read_sealed(&path, &KIND, 64, Part::Chain), Err(StoreError::Damaged(_))), "bit {bit}");
        }
        for length in 0..good.len() {
            fs::write(&path, &good[..length]).unwrap();
            assert!(matches!(read_sealed(&path, &KIND, 64, Part::Chain), Err(StoreError::Damaged(_))), "{length}");
        }
        let mut longer = good.clone();
        longer.push(0);
        fs::write(&path, &longer).unwrap();
        assert!(matches!(read_sealed(&path, &KIND, 64, Part::Chain), Err(StoreError::Damaged(_))));
    }

    #[test]
    fn a_file_over_its_limit_is_refused_before_it_is_read() {
        let (_dir, path) = sealed(&[7; 100]);
        assert!(matches!(read_sealed(&path, &KIND, 99, Part::Chain), Err(StoreError::Damaged(_))));
    }

    #[test]
    fn a_writer_that_breaks_its_announced_length_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let mut short = SealedWriter::begin(AtomicFile::create(dir.path(), &path).unwrap(), &KIND, 4).unwrap();
        short.write(b"abc").unwrap();
        assert!(short.commit().is_err());
        let mut long = SealedWriter::begin(AtomicFile::create(dir.path(), &path).unwrap(), &KIND, 4).unwrap();
        assert!(long.write(b"abcde").is_err());
        drop(long);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn floats_keep_their_bits() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let values: Vec<f32> = (0..300_000u32).map(|i| f32::from_bits(i.wrapping_mul(2_654_435_761))).collect();
        let file = AtomicFile::create_shared(dir.path(), &path).unwrap();
        let mut writer = SealedWriter::begin(file, &KIND, values.len() as u64 * 4).unwrap();
        writer.write_f32s(&values).unwrap();
        writer.commit().unwrap();
        let mut reader = SealedReader::open(&path, &KIND, 1 << 30, Part::State).unwrap().unwrap();
        let read = reader.read_f32s(values.len()).unwrap();
        reader.finish().unwrap();
        assert!(values.iter().zip(&read).all(|(a, b)| a.to_bits() == b.to_bits()));
    }
}
