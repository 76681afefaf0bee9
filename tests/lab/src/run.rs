//! `starling-lab run`: plays scenarios one after the other and prints the result of each.

use crate::history::History;
use crate::report::{self, Report};
use crate::scenario::{self, Scenario, Seat};
use crate::stage::{self, Options, shim};
use anyhow::Context;
use std::path::{Path, PathBuf};

/// The results of the nodes' audits, kept for a report that is made again.
const AUDITS: &str = "audits.json";
/// The file that marks a folder as an earlier run's.
const DIARY: &str = "lab.jsonl";

/// The arguments of `run`.
#[derive(Clone)]
pub struct Request {
    pub paths: Vec<PathBuf>,
    pub out: PathBuf,
    pub bin_dir: PathBuf,
    pub plain: bool,
    pub seed: Option<u64>,
    pub quiet: bool,
}

/// Plays all scenarios; `true` if all passed.
///
/// # Errors
/// If a scenario file is wrong (before any is played), a program is missing, or a folder cannot be written.
pub fn run(request: &Request) -> anyhow::Result<bool> {
    let mut scenarios = Vec::new();
    for path in &request.paths {
        for file in scenario::files(path)? {
            let scenario = Scenario::load(&file)?;
            if let Err(why) = if scenario.needs_shim() { shim::available() } else { Ok(()) } {
                let why = starling_words::of_chain(why.chain());
                anyhow::ensure!(path.is_dir(), "{} cannot be played: {why}", file.display());
                println!("SKIPPED {}: {why}", scenario.name);
                continue;
            }
            scenarios.push(scenario);
        }
    }
    programs_there(&request.bin_dir, &scenarios)?;
    scenarios.iter().try_for_each(|s| stage::check_run_file(s, &request.bin_dir.join("starling")))?;
    let mut red = Vec::new();
    let mut reports = Vec::new();
    let count = scenarios.len();
    for (n, mut scenario) in scenarios.into_iter().enumerate() {
        if let Some(seed) = request.seed {
            scenario.seed = seed;
        }
        println!("[{}/{count}] {}: {}", n + 1, scenario.name, scenario.about);
        let report = play(&scenario, request)?;
        println!("{}", report.text());
        let folder = stage::folder_of(&request.out, &scenario);
        println!(
            "{} {}   report: {}",
            if report.ok { "GREEN" } else { "RED  " },
            scenario.name,
            folder.join("index.html").display()
        );
        if !report.ok {
            println!("again:  {}", again(&scenario, request));
            red.push(scenario.name);
        }
        reports.push(report);
    }
    if count > 1 {
        report::write_summary(&request.out, &reports)?;
        println!(
            "\n{} of {count} scenarios green{}",
            count - red.len(),
            if red.is_empty() { String::new() } else { format!("; red: {}", red.join(", ")) }
        );
        // Many scenarios scroll by, and a log on another machine may keep only the end: the end repeats all failures.
        reports.iter().flat_map(Report::wrong).for_each(|line| println!("  FAIL  {line}"));
    }
    Ok(red.is_empty())
}

/// Checks that the programs of the scenarios are built.
///
/// # Errors
/// If one is not.
pub fn programs_there(bin_dir: &Path, scenarios: &[Scenario]) -> anyhow::Result<()> {
    let all = scenarios.iter().flat_map(|s| s.topology.seats.iter().map(Seat::program));
    for program in ["starling", "starling-bootstrap"].into_iter().chain(all) {
        let path = bin_dir.join(program);
        let how = if program == "starling-byzantine" { "make byzantine" } else { "make build" };
        anyhow::ensure!(path.is_file(), "{} is not there: build it (`{how}`), or say --bin-dir", path.display());
    }
    Ok(())
}

/// Plays one scenario and writes its report.
///
/// # Errors
/// If the network, a process or the folder cannot be made, or the folder holds other files.
pub fn play(scenario: &Scenario, request: &Request) -> anyhow::Result<Report> {
    let folder = stage::folder_of(&request.out, scenario);
    empty(&folder, DIARY)?;
    let options = Options {
        bin_dir: request.bin_dir.clone(),
        folder: folder.clone(),
        plain: request.plain,
        quiet: request.quiet,
    };
    let played = stage::play(scenario, &options)?;
    let mut history = History::read(&folder)?;
    history.set_aside(|name| scenario.runs_another_program(name));
    let report = Report::new(scenario, &history, &played.audits, &folder, request.plain);
    report::write(&folder, &report, &history, &again(scenario, request))?;
    let kept = folder.join("scenario.toml");
    std::fs::copy(&scenario.path, &kept).with_context(|| format!("cannot write {}", kept.display()))?;
    let audits = serde_json::to_vec(&played.audits).context("audits are JSON")?;
    std::fs::write(folder.join(AUDITS), audits).context("cannot write the results of the audits")?;
    if report.ok {
        drop(played.disks);
        // A passed scenario keeps its report and its logs only.
        for heavy in ["nodes", "cache", "shim"] {
            let _ = std::fs::remove_dir_all(folder.join(heavy));
        }
    } else {
        played.disks.keep()?;
    }
    Ok(report)
}

/// Makes the report of a played scenario again, from the files in its folder.
///
/// # Errors
/// If the folder has no played scenario, or cannot be written.
pub fn report(folder: &Path) -> anyhow::Result<Report> {
    let mut history = History::read(folder)?;
    let mut scenario = Scenario::load(&folder.join("scenario.toml"))?;
    history.set_aside(|name| scenario.runs_another_program(name));
    let read =
        |name: &str| std::fs::read(folder.join(name)).with_context(|| format!("{} lacks {name}", folder.display()));
    let before: Report = serde_json::from_slice(&read("report.json")?).context("report.json is damaged")?;
    let audits: Vec<(String, bool, String)> =
        serde_json::from_slice(&read(AUDITS)?).context("the audits are damaged")?;
    (scenario.name, scenario.seed) = (before.scenario, before.seed);
    let report = Report::new(&scenario, &history, &audits, folder, before.plain);
    let again = format!("starling-lab run {} --seed {}", folder.join("scenario.toml").display(), report.seed);
    report::write(folder, &report, &history, &again)?;
    Ok(report)
}

/// Removes a folder of an earlier run, known by the file `mark`; refuses a folder that holds other files.
///
/// # Errors
/// If it holds other files, or cannot be removed.
pub fn empty(folder: &Path, mark: &str) -> anyhow::Result<()> {
    if !folder.exists() {
        return Ok(());
    }
    let ours = folder.join(mark).exists();
    let bare = std::fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_none());
    anyhow::ensure!(
        ours || bare,
        "{} holds something else than an earlier run of the lab: name another --out",
        folder.display()
    );
    std::fs::remove_dir_all(folder).with_context(|| format!("cannot empty {}", folder.display()))
}

/// The command that plays the scenario again.
fn again(scenario: &Scenario, request: &Request) -> String {
    let plain = if request.plain { " --plain" } else { "" };
    format!("starling-lab run {} --seed {}{plain}", scenario.path.display(), scenario.seed)
}
