//! Plays the scenario of a bench.

use crate::history::History;
use crate::run::{self, Request};
use crate::scenario::Scenario;
use crate::stage;
use anyhow::Context;
use clap::Args;
use starling_tests::flock::built_binaries;
use std::path::PathBuf;

/// The folders of a bench, and the file for its row.
#[derive(Clone, Debug, Args)]
pub struct Place {
    /// Folder for the results
    #[arg(long, value_name = "DIR", default_value = "out/lab")]
    pub out: PathBuf,
    /// Folder of `starling` and `starling-bootstrap` (default: the folder of this program)
    #[arg(long, value_name = "DIR")]
    pub bin_dir: Option<PathBuf>,
    /// Append the figures as a JSON object to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

impl Place {
    /// Plays a scenario, given as text; returns the history, and whether every check held. Needs
    /// [`crate::network::rights::acquire`] before.
    ///
    /// # Errors
    /// If nodes would refuse the settings, a program is missing, or the scenario cannot be played.
    pub(super) fn play(&self, name: &str, text: &str) -> anyhow::Result<(History, bool)> {
        let bin_dir = self.bin_dir.clone().map_or_else(built_binaries, Ok)?;
        std::fs::create_dir_all(&self.out).with_context(|| format!("cannot make {}", self.out.display()))?;
        let path = self.out.join(format!("{name}.toml"));
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        let scenario = Scenario::load(&path)?;
        run::programs_there(&bin_dir, std::slice::from_ref(&scenario))?;
        stage::check_run_file(&scenario, &bin_dir.join("starling"))?;
        let folder = stage::folder_of(&self.out, &scenario);
        println!("{name}: {} (report: {})", scenario.about, folder.join("index.html").display());
        let out = self.out.clone();
        let request = Request { paths: Vec::new(), out, bin_dir, plain: false, seed: None, quiet: true };
        let report = run::play(&scenario, &request)?;
        if !report.ok {
            println!("{}", report.text());
        }
        Ok((History::read(&folder)?, report.ok))
    }
}

/// Lines of a table: what a figure is, and its value.
pub(super) fn table(rows: &[(&str, String)]) -> String {
    let width = rows.iter().map(|(what, _)| what.len()).max().unwrap_or_default();
    rows.iter().map(|(what, value)| format!("  {what:width$}  {value}\n")).collect()
}
