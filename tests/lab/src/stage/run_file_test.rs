use super::*;

const SCENARIO: &str = "end_s = 5\nseed = 3\n\n[run.inner]\nsteps = 5\nstepz = 5\n\n[[nodes]]\nname = \"n\"\n";

/// The result of `check` with a program that runs this script; the run file is its `$4`.
fn checked(script: &str) -> anyhow::Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let (program, path) = (folder.path().join("program"), folder.path().join("scenario.toml"));
    std::fs::write(&path, SCENARIO).unwrap();
    let source = folder.path().join("program.sh");
    std::fs::write(&source, format!("#!/bin/sh\n{script}\n")).unwrap();
    // Another process writes the program: a file that this process has open for writing cannot be started while another
    // test forks.
    let installed = Command::new("install").args(["-m", "755"]).args([&source, &program]).status().unwrap();
    assert!(installed.success());
    check(&Scenario::load(&path).unwrap(), &program)
}

/// The program counts the lines of the run file, but a user has only the scenario.
#[test]
fn a_refused_line_is_named_as_the_scenario_has_it() {
    checked("grep -q '^stepz = 5' \"$4\"").expect("the run file has what the scenario says");
    let script = "at=$(grep -n stepz \"$4\" | cut -d: -f1); echo \"starling: $4: unknown key \\`stepz\\` at line $at\" >&2; exit 2";
    let error = checked(script).unwrap_err().to_string();
    assert!(error.ends_with("scenario.toml: nodes would refuse [run]: unknown key `stepz` at line 6"), "{error}");
}

#[test]
fn a_line_that_the_lab_filled_in_is_named_as_such() {
    let run = "name = \"lab\"\nseed = 3\n\n[inner]\nbatch = 4\nsteps = 5\n";
    let said = |words: &str| placed(words, run, SCENARIO);
    assert_eq!(said("line 5: batch is wrong"), "line 5: batch is wrong (a line of the run file that follows from it)");
    assert_eq!(said("line 2: seed"), "line 2: seed (a line of the run file that follows from it)", "not above [run]");
    assert_eq!(said("steps must be 1 or more"), "steps must be 1 or more");
    assert_eq!(said("line 6: steps"), "line 5: steps");
}
