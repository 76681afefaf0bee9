//! Separate disks of nodes: file systems of limited size, in memory, which only the lab and its children see.

use super::folder::copy_folder;
use crate::scenario::Scenario;
use anyhow::Context;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::path::{Path, PathBuf};

/// The mounted disks. They end when this is dropped, and in any case with the lab.
#[derive(Debug, Default)]
pub struct Disks {
    mounted: Vec<PathBuf>,
}

impl Disks {
    /// Makes a disk for each node that has one, as a folder below `folder`. Disks are limited only with an emulated
    /// network, since both need the same rights.
    ///
    /// # Errors
    /// If a folder or a mount cannot be made.
    pub fn make(scenario: &Scenario, emulated: bool, folder: &Path) -> anyhow::Result<Self> {
        let mut disks = Self::default();
        for seat in &scenario.topology.seats {
            let Some(mib) = seat.disk_mib else { continue };
            let disk = of(folder, &seat.name);
            std::fs::create_dir_all(&disk).with_context(|| format!("cannot make {}", disk.display()))?;
            if emulated {
                let size = std::ffi::CString::new(format!("size={mib}m,mode=0700")).context("a size is text")?;
                mount("tmpfs", &disk, "tmpfs", MountFlags::empty(), Some(size.as_c_str()))
                    .with_context(|| format!("cannot make a disk of its own for {}", seat.name))?;
                disks.mounted.push(disk);
            }
        }
        Ok(disks)
    }

    /// Unmounts the disks, and leaves their files in plain folders of the same names.
    ///
    /// # Errors
    /// If the files cannot be copied; the disk then stays until the lab ends.
    pub fn keep(mut self) -> anyhow::Result<()> {
        while let Some(disk) = self.mounted.last() {
            let mut copy = disk.clone().into_os_string();
            copy.push(".kept");
            let kept = || format!("cannot keep the files in {}", disk.display());
            copy_folder(disk, Path::new(&copy)).with_context(kept)?;
            unmount(disk, UnmountFlags::DETACH).with_context(kept)?;
            std::fs::rename(&copy, disk).with_context(kept)?;
            self.mounted.pop();
        }
        Ok(())
    }
}

impl Drop for Disks {
    fn drop(&mut self) {
        for disk in &self.mounted {
            // A disk in use ends with its last user.
            let _ = unmount(disk, UnmountFlags::DETACH);
        }
    }
}

/// The folder of a node's disk, which no other node uses.
pub fn of(folder: &Path, node: &str) -> PathBuf {
    folder.join("nodes").join(node)
}
