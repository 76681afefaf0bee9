//! Where a terminal cannot show the block of lines, and where there is none, a node prints plain lines. A disk without
//! room for a checkpoint is told of, and ends no node.

use rustix::fs::statvfs;
use starling_tests::flock::{Flock, NodeOptions, built_binaries};
use starling_tests::process::run;
use starling_tests::skips::skipped;
use starling_tests::terminal::Terminal;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(60);
/// What a renewed block has, and plain lines have not: the rest of a line or of the screen is erased.
const RENEWS: [&str; 2] = ["\x1b[K", "\x1b[J"];
/// MiB of a small disk, and KiB that are left on it: less than a node keeps free for records, and enough for hundreds.
const DISK_MIB: u32 = 128;
const LEFT_KIB: u64 = 24 << 10;
/// The exit code for a disk without room.
const FULL: i32 = 5;

/// A folder with a text, and with a run file that ends with `inner` and `budget`.
fn folder(inner: &str, budget: &str) -> (TempDir, String) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(folder.path().join("text.txt"), "All happy families are alike.\n".repeat(6000)).expect("write");
    let run_toml = format!(
        "name = \"plain\"\n[model]\npreset = \"0.1m\"\nseq_len = 32\n[data]\nsources = [\"text.txt\"]\nholdout = 0.1\n\
         [inner]\nbatch = 2\n{inner}{budget}"
    );
    std::fs::write(folder.path().join("run.toml"), &run_toml).expect("write");
    (folder, run_toml)
}

/// The arguments of a node that trains for two rounds, in a folder of its own.
fn arguments(folder: &Path, home: &str) -> Vec<String> {
    let text = |name: &str| folder.join(name).to_string_lossy().into_owned();
    let flags = [
        ("--run", text("run.toml")),
        ("--home", text(home)),
        ("--cache", text("cache")),
        ("--metrics", "off".to_owned()),
        ("--listen", "/ip4/127.0.0.1/tcp/0".to_owned()),
        ("--device", "cpu".to_owned()),
        ("--threads", "1".to_owned()),
    ];
    let flags = flags.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]);
    ["train", "--no-mdns"].map(String::from).into_iter().chain(flags).collect()
}

fn starling() -> PathBuf {
    built_binaries().expect("the folder of this test").join("starling")
}

/// Checks for the lines that tell of a run from its beginning to its end, none of which is ever taken back.
fn assert_plain(said: &str) {
    for part in ["begins to train", "checkpoint of round 2", "finished: "] {
        assert!(said.lines().any(|line| line.contains(part)), "`{part}` is missing in: {said:?}");
    }
    assert!(!RENEWS.iter().any(|renews| said.contains(renews)), "{said:?}");
}

#[test]
fn terminals_that_cannot_show_the_block_get_plain_lines() {
    let (folder, _) = folder("steps = 2\n", "[budget]\nrounds = 2\n");
    let on = |term: &'static str, columns: u16| {
        let arguments = arguments(folder.path(), &format!("home-{term}-{columns}"));
        let terminal = Terminal { term, columns, rows: 30 };
        let (code, said) = terminal.run(&starling(), &arguments, LIMIT).expect("it ends");
        assert_eq!(code, Some(0), "{terminal:?}: {said}");
        said
    };
    let able = on("xterm-256color", 100);
    assert!(RENEWS.iter().all(|renews| able.contains(renews)), "no block was shown: {able:?}");
    assert_plain(&on("xterm-256color", 40));
    let dumb = on("dumb", 100);
    assert_plain(&dumb);
    assert!(!dumb.contains('\x1b'), "log lines have no colours either: {dumb:?}");
}

#[test]
fn a_pipe_gets_plain_lines() {
    let (folder, _) = folder("steps = 2\n", "[budget]\nrounds = 2\n");
    let ended = run(&starling(), &arguments(folder.path(), "home"), LIMIT).expect("it ends");
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_plain(&ended.stdout);
    assert!(!ended.stdout.contains('\x1b') && !ended.stderr.contains('\x1b'), "{ended:?}");
}

/// A small file system; unmounted when dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts it; `None`, with the reason printed, where mounting is not allowed.
    fn mount(at: &Path) -> Option<Self> {
        std::fs::create_dir_all(at).expect("a folder");
        let size = format!("size={DISK_MIB}m");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "starling-test"]).arg(at).output();
        let why = match mounted {
            Ok(output) if output.status.success() => return Some(Self(at.into())),
            Ok(output) => format!("cannot mount a tmpfs: {}", String::from_utf8_lossy(&output.stderr).trim()),
            Err(e) => format!("cannot run mount: {e}"),
        };
        skipped(format_args!("a checkpoint without room is not tested: {why}"));
        None
    }

    /// Fills the disk up to the last KiB.
    fn fill(&self) {
        let stat = statvfs(&self.0).expect("its free space");
        let free = stat.f_bavail * stat.f_frsize;
        let mut filler = File::create(self.0.join("filler")).expect("a file");
        filler.write_all(&vec![0; free.saturating_sub(LEFT_KIB << 10) as usize]).expect("there is room");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // The unmount is lazy, since a failed test may still have its node there.
        let unmounted = Command::new("umount").arg("-l").arg(&self.0).status();
        let gone = unmounted.is_ok_and(|status| status.success());
        assert!(gone || std::thread::panicking(), "the test's tmpfs is still mounted");
    }
}

#[test]
fn a_checkpoint_without_room_ends_no_node() {
    // Rounds are long enough that records do not fill the rest of the disk while the test looks.
    let (folder, run_toml) = folder("steps = 200\n", "");
    let Some(disk) = SmallDisk::mount(&folder.path().join("nodes")) else { return };
    let bin = built_binaries().expect("the folder of this test");
    let flock = Flock::start(&bin, folder.path(), &run_toml).expect("a bootstrap peer");
    let mut node = flock.node("alone", &NodeOptions::small(true)).expect("a node");
    node.wait(LIMIT, "committed", |_| true).expect("it trains");
    disk.fill();
    let home = flock.home("alone").to_string_lossy().into_owned();
    let asked = run(&starling(), &["checkpoint", "now", "--home", &home], LIMIT).expect("it ends");
    assert_eq!(asked.code, Some(FULL), "{asked:?}");
    assert!(asked.stderr.contains("bytes free") && asked.stderr.contains("checkpoint.keep"), "{}", asked.stderr);
    let failed = node.wait(LIMIT, "checkpoint_failed", |_| true).expect("it is told");
    assert!(failed["reason"].as_str().is_some_and(|why| why.contains("free some space")), "{failed}");
    let mark = node.mark();
    node.wait_since(mark, LIMIT, "committed", |_| true).expect("the node goes on");
    let left = std::fs::read_dir(Path::new(&home).join("checkpoints")).map_or(0, Iterator::count);
    assert_eq!(left, 0, "nothing is left of it");
    node.terminate();
    assert!(node.wait_exit(LIMIT).expect("it leaves").success(), "{}", node.last_words());
    // The node and its disk go before the folder.
    drop((node, disk));
}
