//! `bench-loss`: the cost of codecs, engines, rounds and optimizers in validation loss, at equal tokens and without a
//! network.
//!
//! Some members train one model side by side in one process, as DiLoCo does. Every case has the same text and the same
//! samples. The bench averages with the protocol's own arithmetic (ring or owners), with error feedback if the codec
//! takes it. With `every-step` it averages the gradients at each step in the same way, and the protocol's AdamW applies
//! them. Results are paired: each case is compared with the first one seed by seed. Null pairs, two runs that differ in
//! one rounding, give the noise, and from it the seeds that a difference needs.
//!
//! Rows go to a file, and runs whose rows are there are not run again: a bench that was stopped goes on.

mod arguments;
mod averager;
mod case;
mod correction;
mod fixed;
mod gossip;
mod member;
mod play;
mod plot;
mod report;
mod rounds;
mod rows;
mod run;
mod schedule;
mod setting;
mod statistic;
mod text;

use anyhow::{Context, Result};
use arguments::Arguments;
use clap::Parser;
use plot::Curves;
use report::Runs;
use rows::{Row, Rows};
use schedule::Schedule;
use setting::Setting;
use starling_kernels::DeviceChoice;
use starling_protocol::Digest;
use text::Text;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Digits of a text's digest in the keys of rows.
const DIGEST_DIGITS: usize = 12;

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if arguments.make_text {
        let path = fixed::place()?;
        fixed::text(&path, arguments.crates.as_deref())?;
        println!("{} has the digest {}", path.display(), fixed::DIGEST);
        return Ok(());
    }
    let schedule = arguments.schedule.as_deref().map(Schedule::read).transpose()?;
    let settings = arguments.cases.iter().map(|case| Setting::of(&arguments, *case, schedule.as_ref()));
    let settings: Vec<Setting> = settings.collect::<Result<_>>()?;
    let mut bench = Bench::new(&arguments)?;
    let seeds = (0..arguments.seeds).map(|n| arguments.first_seed.saturating_add(n));
    if arguments.due {
        let due = seeds.map(|seed| settings.iter().filter(|setting| bench.is_due(setting, seed)).count());
        println!("{}", due.sum::<usize>());
        return Ok(());
    }
    let mut runs: Vec<Runs> = settings.iter().map(|setting| Runs { case: setting.case, losses: Vec::new() }).collect();
    let mut curves: Vec<Curves> =
        settings.iter().map(|setting| Curves { case: setting.case.to_string(), seeds: Vec::new() }).collect();
    for seed in seeds {
        for ((setting, runs), curves) in settings.iter().zip(&mut runs).zip(&mut curves) {
            let row = bench.row(setting, seed)?;
            runs.losses.push((seed, row.loss));
            if row.loss.is_some() {
                curves.seeds.push((seed, row.curve));
            }
        }
    }
    report::lines(&runs, &arguments.claims).iter().for_each(|line| println!("{line}"));
    arguments.plot.as_ref().map_or(Ok(()), |path| plot::draw(path, &curves))
}

/// The text and the rows of all runs.
struct Bench<'a> {
    arguments: &'a Arguments,
    /// The text is read once a run needs it; rows name it by its digest.
    text: Option<Text>,
    digest: String,
    rows: Rows,
    commit: String,
}

impl<'a> Bench<'a> {
    fn new(arguments: &'a Arguments) -> Result<Self> {
        let rows = Rows::open(starling_benches::json_file(arguments.json.as_deref()).as_deref())?;
        if rows.torn > 0 {
            eprintln!("{} lines of rows are torn, and left out", rows.torn);
        }
        let (text, digest) = match &arguments.text {
            None => (None, fixed::DIGEST[..DIGEST_DIGITS].to_owned()),
            Some(path) => {
                let bytes = text::read(path)?;
                let digest = Digest::of("bench", &[&bytes]).to_string()[..DIGEST_DIGITS].to_owned();
                let text = Text::new(bytes, arguments.seq).with_context(|| format!("--text {}", path.display()))?;
                (Some(text), digest)
            }
        };
        Ok(Self { arguments, text, digest, rows, commit: rows::commit() })
    }

    fn is_due(&self, setting: &Setting, seed: u64) -> bool {
        self.rows.find(&setting.key(&self.digest), seed).is_none()
    }

    /// The result of a run: its row, or a row that is made by running it.
    fn row(&mut self, setting: &Setting, seed: u64) -> Result<Row> {
        let (case, key) = (setting.case.to_string(), setting.key(&self.digest));
        if let Some(row) = self.rows.find(&key, seed) {
            tell(row, &format!("(a row of commit {})", row.commit));
            return Ok(row.clone());
        }
        if let Some(available) = available_memory().filter(|_| self.arguments.device == DeviceChoice::Cpu) {
            setting.check_memory(available)?;
        }
        let text = match self.text.take() {
            Some(text) => text,
            None => Text::new(fixed::text(&fixed::place()?, self.arguments.crates.as_deref())?, self.arguments.seq)?,
        };
        let text = self.text.insert(text);
        let outcome = play::play(setting, &self.arguments.device, text, seed)?;
        let row = Row {
            bench: Row::bench(),
            case,
            key,
            seed,
            loss: outcome.loss,
            curve: outcome.curve,
            lab_seconds: outcome.lab_seconds,
            seconds: outcome.seconds,
            settings: setting.json(),
            commit: self.commit.clone(),
        };
        tell(&row, &format!("in {:.0} s", row.seconds));
        for ((tokens, loss), seconds) in row.curve.iter().zip(&row.lab_seconds) {
            println!("    after {seconds:8.1} s in the lab, {:.2}M tokens: {loss:.4}", tokens / 1e6);
        }
        self.rows.append(row.clone())?;
        Ok(row)
    }
}

/// Bytes of memory that no program takes, where the system tells.
fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn tell(row: &Row, how: &str) {
    let loss = row.loss.map_or("diverged".to_owned(), |loss| format!("validation {loss:.4}"));
    println!("seed {}  {:<40}  {loss}  {how}", row.seed, row.case);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays two cases with these seeds, and returns the rows.
    fn played(folder: &std::path::Path, seeds: &str) -> Vec<Row> {
        let (text, json) = (folder.join("text"), folder.join("rows.jsonl"));
        std::fs::write(&text, "a quick brown fox, and so on\n".repeat(200)).unwrap();
        let words = ["bench-loss", "--seq", "8", "--batch", "1", "--members", "2", "--steps", "2", "--rounds", "2"];
        let paths = ["--text", text.to_str().unwrap(), "--json", json.to_str().unwrap()];
        let cases = ["--threads", "1", "--seeds", seeds, "--case", "bf16:ring", "--case", "bf16:ring:null"];
        let arguments = Arguments::parse_from([&words[..], &paths[..], &cases[..]].concat());
        let mut bench = Bench::new(&arguments).unwrap();
        let settings = arguments.cases.iter().map(|case| Setting::of(&arguments, *case, None).unwrap());
        let settings: Vec<Setting> = settings.collect();
        assert!(settings.iter().all(|setting| bench.is_due(setting, arguments.seeds)));
        let seeds = 1..=arguments.seeds;
        seeds
            .flat_map(|seed| settings.iter().map(move |setting| (setting, seed)).collect::<Vec<_>>())
            .map(|(setting, seed)| bench.row(setting, seed).unwrap())
            .collect()
    }

    #[test]
    fn a_bench_goes_on_where_it_stopped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.jsonl");
        let first = played(folder.path(), "1");
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 2);
        // A row with a loss that no run has: if it comes back, the run was not played again.
        let changed = std::fs::read_to_string(&path).unwrap().replace("\"loss\":", "\"loss\":1234");
        std::fs::write(&path, changed).unwrap();
        let more = played(folder.path(), "2");
        assert_eq!((first.len(), more.len()), (2, 4));
        assert!(more[..2].iter().all(|row| row.loss.is_some_and(|loss| loss > 1000.0)), "{more:?}");
        assert!(more[2..].iter().all(|row| row.seed == 2 && row.loss.is_some_and(|loss| loss < 10.0)), "{more:?}");
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 4);
    }

    #[test]
    fn rows_name_their_text() {
        let folder = tempfile::tempdir().unwrap();
        let rows = played(folder.path(), "1");
        let fixed = Bench::new(&Arguments::parse_from(["bench-loss"])).unwrap().digest;
        assert!(rows.iter().all(|row| !row.key.contains(&fixed)), "{rows:?}");
        assert!(rows[0].key != rows[1].key && rows[0].commit == rows[1].commit);
    }
}
