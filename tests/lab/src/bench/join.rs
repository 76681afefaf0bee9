//! `make bench-join`: a newcomer joins a flying flock. The bench tells when it has the state and when it takes part, at
//! which share of the donors' lines it fetched, and what that costs the flock's rounds.

use super::play::{Place, table};
use crate::history::{Commit, History};
use crate::rows::{append, median};
use crate::stage::What;
use crate::waits;
use anyhow::Context;
use clap::Args;
use serde_json::{Value, json};

/// The newcomer's name in the scenario.
const NEWCOMER: &str = "late";
/// Bytes of the state for each parameter: the parameter itself and the outer optimizer's moment, both f32.
const STATE_BYTES: u64 = 8;

/// The settings of the bench.
#[derive(Clone, Debug, Args)]
pub struct JoinSetting {
    /// Model, as in a run file
    #[arg(long, default_value = "30m")]
    pub preset: String,
    /// Number of nodes that fly before the newcomer comes
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(2..=32))]
    pub donors: u32,
    /// Mbit/s of each donor's line, both ways
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub mbit: u32,
    /// Mbit/s of the newcomer's line, both ways
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub newcomer_mbit: u32,
    /// Inner steps of a round, of 50 ms each
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub steps: u32,
    /// The newcomer starts when this round is committed
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(2..=1_000))]
    pub at_round: u32,
    /// MiB of a disk of its own for each node, in memory; 0: all share this machine's
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=4096))]
    pub disk_mib: u32,
}

impl JoinSetting {
    /// Plays the join, prints the figures and appends their row. `false` if a check of the scenario failed.
    ///
    /// # Errors
    /// If the scenario cannot be played, the newcomer never took part, or the row cannot be written.
    pub fn run(&self, place: &Place) -> anyhow::Result<bool> {
        let (history, ok) = place.play("bench-join", &self.scenario())?;
        let join = Join::of(&history, self.lines_mbit())?;
        println!("{}", self.text(&join));
        append(place.json.as_deref(), &self.row(&join, ok))?;
        Ok(ok)
    }

    /// The donors' lines together, in Mbit/s.
    fn lines_mbit(&self) -> f64 {
        f64::from(self.donors) * f64::from(self.mbit)
    }

    /// The scenario ends with the first commit that holds a contribution of everybody, the newcomer included.
    fn scenario(&self) -> String {
        let Self { preset, donors, mbit, newcomer_mbit, steps, at_round, .. } = self;
        let disk = if self.disk_mib == 0 { String::new() } else { format!("disk_mib = {}\n", self.disk_mib) };
        format!(
            "about = \"a newcomer joins a flying flock of {donors}\"\nend_s = 1\nlimit_s = 3600\n\
             null_trainer_ms = 50\n\
             [run.model]\npreset = {preset:?}\n[run.inner]\nsteps = {steps}\n\
             [[nodes]]\nname = \"donor\"\ncount = {donors}\nsite = \"room\"\nup_mbit = {mbit}\ndown_mbit = {mbit}\n{disk}\
             [[nodes]]\nname = \"{NEWCOMER}\"\nsite = \"room\"\nup_mbit = {newcomer_mbit}\n\
             down_mbit = {newcomer_mbit}\n{disk}later = true\n\
             [[faults]]\nkind = \"start\"\nat_round = {at_round}\nnodes = [\"{NEWCOMER}\"]\n\
             [expect]\nmax_gap_s = 900\nsettle_s = 1800\nrounds = {at_round}\n"
        )
    }

    fn text(&self, join: &Join) -> String {
        let Self { preset, donors, mbit, newcomer_mbit, steps, .. } = self;
        let mb = |bytes: u64| format!("{:.1} MB", bytes as f64 / 1e6);
        let s = |seconds: f64| format!("{seconds:.1} s");
        let fetched = format!("{}, updates after its snapshot included", mb(join.fetched_bytes));
        let share = format!("{:.0} % of the donors' {} Mbit/s", 100.0 * join.share_of_lines, self.lines_mbit());
        let rounds = |seconds: f64, of: usize| format!("{seconds:.2} s, median of {of}");
        let rows = [
            ("bytes of the state", mb(join.state_bytes)),
            ("bytes that the newcomer fetched", fetched),
            ("from its start to its verified state", s(join.state_seconds)),
            ("of it the fetch", s(join.fetch_seconds)),
            ("the fetch's rate", share),
            ("from its start to the first commit with it", s(join.contribution_seconds)),
            ("a round before", rounds(join.round_seconds_before, join.rounds_before)),
            ("a round meanwhile", rounds(join.round_seconds_meanwhile, join.rounds_meanwhile)),
            ("meanwhile against before", format!("{:.2}", join.round_ratio())),
            ("rounds waited for newcomers, forming included", s(join.waited_seconds)),
        ];
        format!(
            "{preset} ({:.1} million parameters), {donors} donors of {mbit} Mbit/s, a newcomer of {newcomer_mbit} \
             Mbit/s, rounds of {steps} steps\n{}",
            join.parameters as f64 / 1e6,
            table(&rows)
        )
    }

    fn row(&self, join: &Join, ok: bool) -> Value {
        json!({
            "bench": "join", "preset": self.preset, "donors": self.donors, "donor_mbit": self.mbit,
            "newcomer_mbit": self.newcomer_mbit, "steps": self.steps, "disk_mib": self.disk_mib, "parameters": join.parameters,
            "state_bytes": join.state_bytes, "fetched_bytes": join.fetched_bytes,
            "state_seconds": join.state_seconds, "fetch_seconds": join.fetch_seconds,
            "contribution_seconds": join.contribution_seconds, "share_of_lines": join.share_of_lines,
            "rounds_before": join.rounds_before, "round_seconds_before": join.round_seconds_before,
            "rounds_meanwhile": join.rounds_meanwhile, "round_seconds_meanwhile": join.round_seconds_meanwhile,
            "round_ratio": join.round_ratio(), "waited_seconds": join.waited_seconds, "ok": ok,
        })
    }
}

/// The figures of a join.
#[derive(Clone, Debug, PartialEq)]
pub struct Join {
    pub parameters: u64,
    pub state_bytes: u64,
    /// Bytes that the newcomer fetched until it had the state: less than the state if parts of it are alike, more by
    /// the updates after the snapshot.
    pub fetched_bytes: u64,
    /// From the newcomer's start until it had the verified state at the flock's head.
    pub state_seconds: f64,
    /// Of these the catch-up, without the start of the process and the search for the flock.
    pub fetch_seconds: f64,
    /// From the newcomer's start to the first commit that holds a contribution of it.
    pub contribution_seconds: f64,
    /// The fetch's rate by that of the donors' lines together.
    pub share_of_lines: f64,
    pub rounds_before: usize,
    /// Medians; rounds count as *meanwhile* if they end between the newcomer's start and its first contribution.
    pub round_seconds_before: f64,
    pub rounds_meanwhile: usize,
    pub round_seconds_meanwhile: f64,
    /// Time in which rounds waited for newcomers, since the flock's founding.
    pub waited_seconds: f64,
}

impl Join {
    /// Reads the figures from a history; `lines_mbit` is the rate of the donors' lines together.
    ///
    /// # Errors
    /// If the newcomer never took part, or too few rounds were seen.
    pub fn of(history: &History, lines_mbit: f64) -> anyhow::Result<Self> {
        let newcomer = history.nodes.iter().find(|node| node.name == NEWCOMER);
        let newcomer = newcomer.context("the newcomer said nothing")?;
        let (from, _) = history.lives(NEWCOMER).first().copied().context("the newcomer never started")?;
        let started = newcomer.named("started").next().context("the newcomer never started")?;
        let parameters = started["parameters"].as_u64().context("`started` has no parameters")?;
        let had = newcomer.named("caught_up").next().context("the newcomer never had the state")?;
        let number = |key: &str| had[key].as_f64().with_context(|| format!("`caught_up` has no {key}"));
        let (fetched, fetch_seconds) = (number("bytes")?, number("seconds")?);
        let takes_part = |commit: &&Commit<'_>| {
            commit.contributors.iter().any(|id| newcomer.ids.iter().any(|own| own.as_str() == *id))
        };
        let commits = history.first_commits();
        let first = commits.iter().find(takes_part).context("the newcomer contributed to no commit")?.seen;
        let all_in = history.when(What::AllIn).context("the donors never were in one commit")?;
        let ends: Vec<f64> = commits.iter().map(|commit| commit.seen).filter(|seen| *seen >= all_in).collect();
        let rounds = |within: &dyn Fn(f64) -> bool| -> Vec<f64> {
            ends.windows(2).filter(|pair| within(pair[1])).map(|pair| pair[1] - pair[0]).collect()
        };
        let before = rounds(&|end| end <= from);
        let meanwhile = rounds(&|end| end > from && end <= first);
        Ok(Self {
            parameters,
            state_bytes: parameters * STATE_BYTES,
            fetched_bytes: fetched as u64,
            state_seconds: number("seen")? - from,
            fetch_seconds,
            contribution_seconds: first - from,
            share_of_lines: fetched * 8.0 / fetch_seconds.max(1e-9) / (lines_mbit * 1e6),
            rounds_before: before.len(),
            round_seconds_before: median(before).context("no round ended before the newcomer came")?,
            rounds_meanwhile: meanwhile.len(),
            round_seconds_meanwhile: median(meanwhile).context("no round ended while the newcomer joined")?,
            waited_seconds: waits::seconds(history),
        })
    }

    fn round_ratio(&self) -> f64 {
        self.round_seconds_meanwhile / self.round_seconds_before
    }
}

#[cfg(test)]
#[path = "join_test.rs"]
mod tests;
