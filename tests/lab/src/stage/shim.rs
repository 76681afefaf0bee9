//! Faults of disks and clocks, by a library that is loaded into nodes (LD_PRELOAD). It is compiled when it is needed,
//! and steered by a file for each node, which it maps.

use crate::scenario::Refusal;
use anyhow::{Context, ensure};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const SOURCE: &str = include_str!("../../shim/fault.c");
/// The bits of calls in the library's mask.
const SYNCS: i64 = 1;
const WRITES: i64 = 2;
const NAMES: i64 = 4;
/// Bytes of a word of the library's file, and the offset of the word that tells that the library is loaded.
const WORD: usize = 8;
const LOADED: u64 = 4 * WORD as u64;

/// The faults of a node's disk and clock; all zero without faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ailment {
    pub delay: Duration,
    pub refusal: Option<Refusal>,
    pub clock_ns: i64,
}

impl Ailment {
    /// The words of the library's file.
    fn words(&self) -> [i64; 4] {
        let io = rustix::io::Errno::IO.raw_os_error();
        let (errno, calls) = match self.refusal {
            None => (0, 0),
            Some(Refusal::Syncs) => (io, SYNCS),
            Some(Refusal::Writes) => (io, WRITES),
            Some(Refusal::Both) => (io, SYNCS | WRITES),
            Some(Refusal::ReadOnly) => (rustix::io::Errno::ROFS.raw_os_error(), SYNCS | WRITES | NAMES),
        };
        [self.delay.as_micros() as i64, i64::from(errno), calls, self.clock_ns]
    }
}

/// The library, and the faults of each node.
pub struct Shim {
    folder: PathBuf,
    ailments: BTreeMap<String, Ailment>,
}

/// Checks that the library can be made here.
///
/// # Errors
/// If it cannot; the message says why.
pub fn available() -> anyhow::Result<()> {
    ensure!(cfg!(target_os = "linux"), "faults of disks and clocks need Linux");
    let there = Command::new("cc").arg("--version").output().is_ok_and(|said| said.status.success());
    ensure!(there, "faults of disks and clocks need a C compiler: there is no `cc` (install gcc or clang)");
    Ok(())
}

impl Shim {
    /// Compiles the library into a folder of its own.
    ///
    /// # Errors
    /// If there is no compiler, or it refuses the source.
    pub fn build(folder: PathBuf) -> anyhow::Result<Self> {
        available()?;
        // The loader splits LD_PRELOAD at these characters, knows no escapes, and ignores a library that it does not
        // find.
        let split = folder.to_string_lossy().contains(|c: char| c == ':' || c.is_whitespace());
        ensure!(
            !split,
            "faults of disks and clocks need a folder without spaces and colons: say --out, not {folder:?}"
        );
        std::fs::create_dir_all(&folder)?;
        let (source, library) = (folder.join("fault.c"), folder.join("fault.so"));
        std::fs::write(&source, SOURCE).with_context(|| format!("cannot write {}", source.display()))?;
        let mut command = Command::new("cc");
        command.args(["-O2", "-shared", "-fPIC", "-o"]).arg(&library).arg(&source).arg("-ldl");
        let said = command.output().context("cannot run `cc`")?;
        ensure!(said.status.success(), "`cc` refused {}: {}", source.display(), String::from_utf8_lossy(&said.stderr));
        Ok(Self { folder, ailments: BTreeMap::new() })
    }

    fn control(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.words"))
    }

    /// Makes the program start with the library; files below `disk` are the node's.
    ///
    /// # Errors
    /// If the node's file cannot be written.
    pub fn hold(&mut self, command: &mut Command, name: &str, disk: &Path) -> anyhow::Result<()> {
        self.change(name, |_| {})?;
        let path = self.control(name);
        let unloaded = File::options().write(true).open(&path).and_then(|file| file.write_all_at(&[0; WORD], LOADED));
        unloaded.with_context(|| format!("cannot write {}", path.display()))?;
        command.env("LD_PRELOAD", self.folder.join("fault.so"));
        command.env("STARLING_LAB_FAULTS", self.control(name)).env("STARLING_LAB_FOLDER", disk);
        Ok(())
    }

    /// Whether the node's process has loaded the library: a process that cannot load it starts without it.
    pub fn is_loaded(&self, name: &str) -> bool {
        let mut word = [0; WORD];
        let read = File::open(self.control(name)).and_then(|file| file.read_exact_at(&mut word, LOADED));
        read.is_ok() && word != [0; WORD]
    }

    /// Changes the faults of a node, at once.
    ///
    /// # Errors
    /// If its file cannot be written.
    pub fn change(&mut self, name: &str, change: impl FnOnce(&mut Ailment)) -> anyhow::Result<()> {
        let path = self.control(name);
        let ailment = self.ailments.entry(name.to_owned()).or_default();
        change(ailment);
        let bytes: Vec<u8> = ailment.words().iter().flat_map(|word| word.to_ne_bytes()).collect();
        // The file is never truncated: a process that has mapped it would be killed.
        let file = File::options().create(true).truncate(false).write(true).open(&path);
        let written = file.and_then(|file| file.write_all_at(&bytes, 0));
        written.with_context(|| format!("cannot write {}", path.display()))
    }
}

#[cfg(test)]
#[path = "shim_test.rs"]
mod tests;
