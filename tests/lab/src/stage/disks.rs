//! Disks of nodes' own: file systems of a size of their own, in memory, which nobody but the lab and what it starts sees.

use super::folder::copy_folder;
use crate::scenario::Scenario;
use anyhow::Context;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::path::{Path, PathBuf};

/// Those that are mounted. They end with this, and in any case with the lab.
#[derive(Debug, Default)]
pub struct Disks {
    mounted: Vec<PathBuf>,
}

impl Disks {
    /// One for each node that has one, as a folder of its own below `folder`; limited only where a network is emulated,
    /// since both need the same rights.
    ///
    /// # Errors
    /// A folder or a mount cannot be made.
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

    /// Ends them, and leaves what is on them in plain folders of the same names.
    ///
    /// # Errors
    /// It cannot be copied; the disk is there until the lab ends, then.
    pub fn keep(mut self) -> anyhow::Result<()> {
        while let Some(disk) = self.mounted.last() {
            let mut copy = disk.clone().into_os_string();
            copy.push(".kept");
            let kept = || format!("cannot keep what is in {}", disk.display());
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
            // One that is still in use ends with its last user.
            let _ = unmount(disk, UnmountFlags::DETACH);
        }
    }
}

/// Folder of a node's disk: what is in it is the node's alone.
pub fn of(folder: &Path, node: &str) -> PathBuf {
    folder.join("nodes").join(node)
}
