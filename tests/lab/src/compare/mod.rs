//! `starling-lab compare`: Starling, PyTorch's DDP and hivemind with the same model, text and emulated links. It
//! measures the time to a target loss, the bytes, and the cost of a death.

mod agreement;
mod play;
mod settings;
mod system;
mod table;

pub use agreement::Agreement;
pub use play::Outcome;
pub use settings::Settings;
pub use system::{Said, System};
pub use table::Comparison;

use crate::report::{self, page};
use crate::run;
use anyhow::{Context, ensure};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use system::Place;

/// The file that marks a folder as an earlier comparison's.
const FOUND: &str = "compare.json";

/// Plays all systems one after the other. Returns `true` if Starling reached the target and went on after the kill, and
/// no rival that this Python has failed.
///
/// # Errors
/// If the settings are wrong, a program is missing, Starling's nodes do not begin, or a folder cannot be written.
pub fn run(
    (file, text): (Option<&Path>, Option<&Path>),
    out: &Path,
    bin_dir: &Path,
    python: &str,
) -> anyhow::Result<bool> {
    let mut settings = file.map_or_else(|| Ok(Settings::default()), Settings::load)?;
    settings.text = text.map(Path::to_path_buf).or(settings.text);
    run::programs_there(bin_dir, &[])?;
    let folder = out.join("compare");
    run::empty(&folder, FOUND)?;
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let folder = folder.canonicalize()?;
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut comparison =
        Comparison { settings, outcomes: Vec::new(), skipped: BTreeMap::new(), failed: BTreeMap::new(), cores };
    write(&folder, &comparison)?;
    let programs = folder.join("programs");
    System::write_programs(&programs)?;
    let hosts = play::hosts(comparison.settings.nodes);
    let mut text = [PathBuf::new(), PathBuf::new()];
    let rivals: Vec<System> = comparison.settings.rivals.iter().filter_map(|name| System::named(name)).collect();
    for system in [System::Starling].into_iter().chain(rivals) {
        if let Err(why) = system.have(python) {
            println!("{}: SKIPPED: {why:#}", system.title());
            comparison.skipped.insert(system.title().into(), format!("{why:#}"));
            continue;
        }
        println!("{} ...", system.title());
        let own = folder.join(system.name());
        let settings = comparison.settings.clone();
        let place = Place { settings: &settings, folder: &own, hosts: &hosts, python, text: &text };
        match play::play(system, &place, bin_dir, &programs) {
            Ok(mut outcome) => {
                outcome.from_mean = agreement::read(&own, settings.nodes);
                comparison.outcomes.push(outcome);
            }
            Err(why) if system == System::Starling => return Err(why),
            Err(why) => {
                let first = format!("{why:#}").lines().next().unwrap_or_default().to_owned();
                println!("{why:#}");
                comparison.failed.insert(system.title().into(), first);
            }
        }
        if system == System::Starling {
            text = texts(&own.join("cache"))?;
        }
        write(&folder, &comparison)?;
    }
    println!("\n{}\nreport: {}", comparison.text(), folder.join("index.html").display());
    Ok(fine(&comparison))
}

fn fine(comparison: &Comparison) -> bool {
    let ours = comparison.outcomes.first().filter(|o| o.system == System::Starling.name());
    comparison.failed.is_empty() && ours.is_some_and(|o| o.target_s.is_some() && o.next_s.is_some())
}

/// Training and held-out text, which Starling's nodes have cut: two shards of a byte a token. The smaller one is held
/// out.
fn texts(cache: &Path) -> anyhow::Result<[PathBuf; 2]> {
    let folder = cache.join("shards");
    let entries = std::fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut shards: Vec<(u64, PathBuf)> =
        entries.flatten().filter_map(|e| Some((e.metadata().ok()?.len(), e.path()))).collect();
    shards.sort();
    ensure!(shards.len() == 2, "{} holds {} shards, not two", folder.display(), shards.len());
    let held_out = shards.swap_remove(0).1;
    Ok([shards.swap_remove(0).1, held_out])
}

fn write(folder: &Path, comparison: &Comparison) -> anyhow::Result<()> {
    let put = |name: &str, text: String| {
        let path = folder.join(name);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    put(FOUND, serde_json::to_string_pretty(comparison).context("a comparison is JSON")?)?;
    let picture = comparison.picture()?;
    let body = comparison.html(&page::figure_of(&picture));
    put("index.html", page::frame("Starling beside other systems", fine(comparison), &body))?;
    report::write_pictures(folder, &[picture])
}

#[cfg(test)]
#[path = "system_test.rs"]
mod tests;
