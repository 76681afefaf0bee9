//! A full disk: writes are refused with path and bytes, nothing is lost, and enough room is left to end cleanly.

use crate::support::{ELEMENTS, History, SCHEMA, copy_dir, create, open, options, spec_bytes};
use starling_store::{Store, StoreError, StoreOptions};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::Command;

/// A small file system for one test; unmounted when dropped.
struct SmallDisk {
    dir: tempfile::TempDir,
}

impl SmallDisk {
    /// Mounts it; `None`, with the reason printed, where mounting is not allowed.
    fn mount(mebibytes: u32) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={mebibytes}m"), "starling-test"])
            .arg(dir.path())
            .output();
        match mounted {
            Ok(output) if output.status.success() => Some(Self { dir }),
            Ok(output) => skipped(&format!("cannot mount a tmpfs: {}", String::from_utf8_lossy(&output.stderr).trim())),
            Err(e) => skipped(&format!("cannot run mount: {e}")),
        }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Fills the disk up to the last `left` KiB.
    fn fill(&self, left: u64) {
        let stat = rustix::fs::statvfs(self.path()).unwrap();
        let free = stat.f_bavail * stat.f_frsize;
        let mut filler = OpenOptions::new().append(true).create(true).open(self.path().join("filler")).unwrap();
        filler.write_all(&vec![0; free.saturating_sub(left << 10) as usize]).unwrap();
    }

    fn free_up(&self) {
        fs::remove_file(self.path().join("filler")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // The unmount is lazy, since a failed test may still hold its store open.
        let unmounted = Command::new("umount").arg("-l").arg(self.path()).status();
        let gone = unmounted.is_ok_and(|status| status.success());
        assert!(gone || std::thread::panicking(), "the test's tmpfs is still mounted");
    }
}

/// Reports a skipped test past the capture of output: it must not look like a passed one.
fn skipped(why: &str) -> Option<SmallDisk> {
    // Unlike eprintln, this is not captured.
    let mut stderr = std::io::stderr();
    writeln!(stderr, "SKIPPED: full disks are not tested: {why}").unwrap();
    None
}

#[test]
fn a_full_disk_at_the_start_is_named_and_harms_nothing() {
    let Some(disk) = SmallDisk::mount(24) else { return };
    let dir = disk.path().join("node");
    let (history, store) = History::founded(&dir, 1000);
    drop(store);
    disk.fill(100);
    match Store::open(&dir, options()).map(|_| ()) {
        Err(e @ StoreError::Full { needed, free, .. }) => {
            assert_eq!(e.exit_code(), 5);
            assert!(needed > free);
            assert!(e.to_string().contains(dir.to_str().unwrap()), "{e}");
        }
        other => panic!("expected Full, got {other:?}"),
    }
    disk.free_up();
    history.assert_loaded_from(&open(&dir));
}

#[test]
fn bulk_is_refused_before_the_disk_is_full_and_goes_on_when_there_is_room() {
    let Some(disk) = SmallDisk::mount(32) else { return };
    let dir = disk.path().join("node");
    let (mut history, store) = History::founded(&dir, ELEMENTS);
    history.commit(&store);
    disk.fill(2 << 10);
    let snapshot = || store.write_snapshot(&history.record, &SCHEMA, &history.state);
    assert!(matches!(snapshot(), Err(StoreError::Full { .. })));
    assert!(matches!(store.write_private("adamw", 2 << 20), Err(StoreError::Full { .. })));
    let mut other = history.clone();
    other.advance(1);
    assert!(matches!(store.begin_adopt(&other.manifest()), Err(StoreError::Full { .. })));
    assert!(dir.join("ballast").exists(), "refusing in time does not cost the ballast");
    assert!(!store.disk_space().unwrap().low);
    disk.free_up();
    snapshot().unwrap();
    history.commit(&store);
    history.assert_loaded_from(&store);
}

#[test]
fn the_ballast_lets_work_end_on_a_full_disk() {
    let Some(disk) = SmallDisk::mount(32) else { return };
    let dir = disk.path().join("node");
    let ballast = StoreOptions { ballast_bytes: 4 << 20, reserve_bytes: 1 << 20, max_bytes: 0 };
    let store = Store::open(&dir, ballast).unwrap().store;
    store.bind_run(&spec_bytes()).unwrap();
    let mut history = History::genesis(1000);
    store.found(&history.record, &SCHEMA, &history.state).unwrap();
    disk.fill(0);
    assert!(store.disk_space().unwrap().low);
    history.commit(&store);
    history.commit(&store);
    assert!(!dir.join("ballast").exists());
    history.assert_loaded_from(&store);
    disk.fill(0);
    let update = history.advance(0);
    match store.commit(&history.record, Some(&update), &history.certificate()) {
        Err(StoreError::Full { .. }) => {}
        other => panic!("nothing is left to give back, and yet: {other:?}"),
    }
    disk.free_up();
    history.put(&store, &update);
    drop(store);
    history.assert_loaded_from(&open(&dir));
}

#[test]
fn commits_until_the_disk_is_full_lose_nothing() {
    let Some(disk) = SmallDisk::mount(20) else { return };
    let dir = disk.path().join("node");
    let mut history = History::genesis(ELEMENTS);
    let store = create(&dir);
    store.found(&history.record, &SCHEMA, &history.state).unwrap();
    let last = loop {
        let before = history.clone();
        let update = history.advance(0);
        match store.commit(&history.record, Some(&update), &history.certificate()) {
            Ok(()) => assert!(history.record.seq < 200, "the disk does not fill"),
            Err(StoreError::Full { .. }) => break before,
            Err(e) => panic!("not said to be full: {e}"),
        }
    };
    assert_eq!(store.head(), Some(last.record.clone()));
    drop(store);
    fs::create_dir_all(disk.path().join("elsewhere")).unwrap();
    let copy = tempfile::tempdir().unwrap();
    copy_dir(&dir, copy.path());
    last.assert_loaded_from(&open(copy.path()));
}
