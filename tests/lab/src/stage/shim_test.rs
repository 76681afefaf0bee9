use super::*;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

/// A shell that runs with the library, and runs a line at a time while the lab steers the library.
struct Patient {
    shim: Shim,
    disk: PathBuf,
    _folder: tempfile::TempDir,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// `None`, after a message, if there is no compiler.
fn patient(program: &[&str]) -> Option<Patient> {
    if let Err(why) = available() {
        println!("SKIPPED: {why}");
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().canonicalize().unwrap();
    let disk = root.join("disk");
    std::fs::create_dir(&disk).unwrap();
    let mut shim = Shim::build(root.join("shim")).unwrap();
    let mut command = Command::new(program[0]);
    command.args(&program[1..]).current_dir(&root).stdin(Stdio::piped()).stdout(Stdio::piped());
    shim.hold(&mut command, "n", &disk).unwrap();
    let mut child = command.spawn().unwrap();
    let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
    Some(Patient { shim, disk, _folder: folder, child, input, output })
}

impl Patient {
    /// Runs a line and returns the line that it prints.
    fn says(&mut self, line: &str) -> String {
        writeln!(self.input, "{line}").unwrap();
        let mut said = String::new();
        self.output.read_line(&mut said).unwrap();
        said.trim().to_owned()
    }
}

impl Drop for Patient {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The status of `dd`, which writes a block to the file and syncs it.
fn save(file: &Path) -> String {
    format!("dd if=/dev/zero of={} bs=512 count=1 conv=notrunc,fsync 2>/dev/null; echo $?", file.display())
}

#[test]
fn a_failing_disk_fails_below_its_folder_only() {
    let Some(mut patient) = patient(&["sh"]) else { return };
    let (inside, outside) = (patient.disk.join("file"), patient.disk.with_file_name("beside"));
    assert_eq!(patient.says(&save(&inside)), "0", "nothing is wrong yet");
    for refusal in [Refusal::Syncs, Refusal::Writes, Refusal::Both, Refusal::ReadOnly] {
        patient.shim.change("n", |a| a.refusal = Some(refusal)).unwrap();
        assert_eq!(patient.says(&save(&inside)), "1", "{refusal:?}");
        assert_eq!(patient.says(&save(&outside)), "0", "{refusal:?} is for the node's folder");
    }
    let name = |patient: &Patient| format!("mkdir {}/new 2>/dev/null; echo $?", patient.disk.display());
    let asked = name(&patient);
    assert_eq!(patient.says(&asked), "1", "names do not change on a read-only disk");
    patient.shim.change("n", |a| a.refusal = None).unwrap();
    assert_eq!(patient.says(&save(&inside)), "0", "it is over");
    assert_eq!(patient.says(&asked), "0");
}

#[test]
fn a_slow_disk_takes_longer_by_as_much_as_it_is_to() {
    let Some(mut patient) = patient(&["sh"]) else { return };
    let file = patient.disk.join("file");
    patient.shim.change("n", |a| a.delay = Duration::from_millis(150)).unwrap();
    let started = std::time::Instant::now();
    assert_eq!(patient.says(&save(&file)), "0");
    assert!(started.elapsed() >= Duration::from_millis(300), "one write and one sync: {:?}", started.elapsed());
}

#[test]
fn a_wall_clock_jumps_both_ways_and_back() {
    let Some(mut patient) = patient(&["sh"]) else { return };
    let mut offset = |by_s: i64| {
        patient.shim.change("n", |a| a.clock_ns = by_s * 1_000_000_000).unwrap();
        let shown: i64 = patient.says("date +%s").parse().unwrap();
        shown - starling_tests::process::seconds_since_epoch() as i64
    };
    for by_s in [0, 86_400, -86_400, 0] {
        let found = offset(by_s);
        assert!((found - by_s).abs() <= 30, "{found} s for {by_s} s");
    }
}

#[test]
fn the_parts_of_an_ailment_hold_side_by_side() {
    let both = Ailment { delay: Duration::from_millis(2), refusal: Some(Refusal::Syncs), clock_ns: -5 };
    assert_eq!(both.words(), [2000, 5, SYNCS, -5]);
    assert_eq!(Ailment::default().words(), [0; 4]);
}
