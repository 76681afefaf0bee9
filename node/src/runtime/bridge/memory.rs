//! The memory that a node and its trainer share (`docs/bridge.md`, section 3.3). The node never maps it: it reads and
//! writes in pieces, so that whatever a trainer does to it cannot end the node.

use bytemuck::{cast_slice, cast_slice_mut};
use serde::Serialize;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// All offsets are multiples of this.
const PAGE: u64 = 4096;
/// Numbers that are read or written at a time: 1 MiB of f32.
const PIECE: usize = 1 << 18;
/// Numbers of samples that are written at a time.
const NUMBERS: usize = 1 << 13;

/// The places of things in the memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Layout {
    pub bytes: u64,
    pub parameters: u64,
    pub areas: [u64; 2],
    pub area_samples: u64,
}

impl Layout {
    /// The layout for so many parameters, and leases of at most so many samples. Both have bounds, so that nothing
    /// overflows.
    pub fn new(elements: u64, samples: u64) -> Self {
        let parameters = (4 * elements).next_multiple_of(PAGE);
        let area = (8 * samples).next_multiple_of(PAGE).max(PAGE);
        let areas = [parameters, parameters + area];
        Self { bytes: parameters + 2 * area, parameters: 0, areas, area_samples: area / 8 }
    }
}

/// The shared memory of one connection.
#[derive(Debug)]
pub struct Memory {
    file: File,
    pub layout: Layout,
    elements: usize,
}

impl Memory {
    /// New memory of zeros. Where the system has no memory without a name, a file in the folder stands for it.
    pub fn new(elements: usize, samples: u64, folder: &Path) -> io::Result<Self> {
        let layout = Layout::new(elements as u64, samples);
        let file = open(layout.bytes, folder)?;
        Ok(Self { file, layout, elements })
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    /// Puts parameters into the memory.
    pub fn write(&self, parameters: &[f32]) -> io::Result<()> {
        self.fits(parameters.len())?;
        let mut at = self.layout.parameters;
        for piece in parameters.chunks(PIECE) {
            let bytes: &[u8] = cast_slice(piece);
            self.file.write_all_at(bytes, at)?;
            at += bytes.len() as u64;
        }
        Ok(())
    }

    /// Copies parameters out of the memory.
    pub fn read(&self, parameters: &mut [f32]) -> io::Result<()> {
        self.fits(parameters.len())?;
        let mut at = self.layout.parameters;
        for piece in parameters.chunks_mut(PIECE) {
            let bytes: &mut [u8] = cast_slice_mut(piece);
            self.file.read_exact_at(bytes, at)?;
            at += bytes.len() as u64;
        }
        Ok(())
    }

    /// Puts numbers of samples into an area; returns how many.
    pub fn write_numbers(&self, area: usize, numbers: &mut dyn Iterator<Item = u64>) -> io::Result<u64> {
        let start = self.layout.areas.get(area).copied().ok_or(io::ErrorKind::InvalidInput)?;
        let (mut written, mut piece) = (0u64, Vec::<u64>::with_capacity(NUMBERS));
        loop {
            piece.clear();
            piece.extend(Iterator::take(&mut *numbers, NUMBERS));
            if piece.is_empty() {
                return Ok(written);
            }
            if written + piece.len() as u64 > self.layout.area_samples {
                return Err(io::Error::other("a lease has more samples than its area"));
            }
            let bytes: &[u8] = cast_slice(&piece);
            self.file.write_all_at(bytes, start + 8 * written)?;
            written += piece.len() as u64;
        }
    }

    fn fits(&self, elements: usize) -> io::Result<()> {
        if elements == self.elements { Ok(()) } else { Err(io::Error::other("parameters of another model")) }
    }
}

#[cfg(target_os = "linux")]
fn open(bytes: u64, _folder: &Path) -> io::Result<File> {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

    let file = File::from(memfd_create("starling-trainer", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
    file.set_len(bytes)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

#[cfg(not(target_os = "linux"))]
fn open(bytes: u64, folder: &Path) -> io::Result<File> {
    let path = folder.join(format!("memory-{}", rand::random::<u64>()));
    let file = File::options().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    file.set_len(bytes)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_lie_apart_on_whole_pages() {
        let layout = Layout::new(10_000_000, 240);
        assert_eq!((layout.areas, layout.area_samples), ([40_001_536, 40_005_632], 512));
        assert_eq!((layout.bytes, layout.parameters), (40_009_728, 0));
        let large = Layout::new(1 << 36, 1 << 22);
        assert!(large.bytes > 4 << 36 && large.area_samples == 1 << 22);
    }

    #[test]
    fn numbers_come_back_and_what_does_not_fit_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let elements = PIECE + 3;
        let memory = Memory::new(elements, 20_000, folder.path()).expect("memory");
        let parameters: Vec<f32> = (0..elements).map(|i| i as f32 * 0.5).collect();
        memory.write(&parameters).expect("it fits");
        let mut read = vec![0.0; elements];
        memory.read(&mut read).expect("it fits");
        assert_eq!(read, parameters);
        assert!(memory.write(&parameters[1..]).is_err() && memory.read(&mut read[1..]).is_err());

        assert_eq!(memory.write_numbers(1, &mut (7..20_007_u64)).expect("it fits"), 20_000);
        let mut last = [0; 8];
        let at = memory.layout.areas[1] + 8 * 19_999;
        memory.file().read_exact_at(&mut last, at).expect("it is there");
        assert_eq!(u64::from_le_bytes(last), 20_006);
        let most = memory.layout.area_samples;
        assert!(memory.write_numbers(0, &mut (0..=most)).is_err(), "more than the area holds");
        assert!(memory.write_numbers(2, &mut (0..1_u64)).is_err());
        memory.read(&mut read).expect("it fits");
        assert_eq!(read, parameters, "areas lie behind the parameters");
    }

    /// A trainer that shortens the memory would end a node that maps it.
    #[cfg(target_os = "linux")]
    #[test]
    fn its_size_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        let memory = Memory::new(10, 10, folder.path()).expect("memory");
        assert!(memory.file().set_len(0).is_err() && memory.file().set_len(1 << 20).is_err());
    }
}
