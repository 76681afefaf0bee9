//! `bench-reduce`: averaging a vector over real processes and real connections, beside gloo and hivemind, in turns
//! within one run.
//!
//! On loopback the floor is what encryption, the kernel's copies and the codec take when each is measured alone, spread
//! over the cores; on links of limited rate it is the wire: 2 (n - 1) / n of the encoded vector over each node's link.

mod floor;
mod place;
mod process;
mod rivals;
mod worker;

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use floor::Floor;
use place::Places;
use process::Process;
use rivals::Rival;
use serde_json::json;
use starling_benches::{append_row, json_file, median};
use starling_kernels::codec::{CodecKind, encoded_len};
use std::path::PathBuf;
use worker::{Answer, Order};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Time averaging over processes, beside gloo and hivemind.
#[derive(Parser)]
struct Arguments {
    /// Numbers of processes.
    #[arg(long, value_delimiter = ',', default_values_t = [2, 4])]
    nodes: Vec<usize>,
    /// Sizes of the vector, in MiB of f32.
    #[arg(long, value_delimiter = ',', default_values_t = [64])]
    mib: Vec<usize>,
    /// bf16, int8
    #[arg(long, value_delimiter = ',', default_values_t = ["bf16".to_owned(), "int8".to_owned()])]
    codec: Vec<String>,
    /// Each node's link carries so many Mbit/s either way (needs root: network namespaces); else loopback.
    #[arg(long)]
    rate: Option<u32>,
    /// Turns of each; one more before them warms up.
    #[arg(long, default_value_t = 5)]
    turns: usize,
    /// A Python that has PyTorch and perhaps hivemind; else what PYTHON names, else python3.
    #[arg(long)]
    python: Option<String>,
    /// Starling alone.
    #[arg(long)]
    no_rivals: bool,
    /// Append one JSON object a row to this file; else to what JSON names.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Be the worker of this index, at the address after it.
    #[arg(long, hide = true, num_args = 2, value_names = ["INDEX", "HOST"])]
    worker: Option<Vec<String>>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if let Some([index, host]) = arguments.worker.as_deref() {
        return worker::run(index.parse()?, host);
    }
    let cores = std::thread::available_parallelism()?.get();
    match arguments.rate {
        Some(rate) => println!("links of {rate} Mbit/s a node, {cores} cores"),
        None => println!("loopback, {cores} cores"),
    }
    println!(
        "{:>5} {:>6}  {:<16} {:>9} {:>9} {:>9} {:>7}",
        "nodes", "MiB", "", "ms", "floor ms", "of floor", "bus GB/s"
    );
    for &nodes in &arguments.nodes {
        ensure!(nodes >= 2, "--nodes: a flock has at least 2 members, not {nodes}");
        for &mib in &arguments.mib {
            Case { arguments: &arguments, nodes, elements: mib << 18, cores }.run()?;
        }
    }
    Ok(())
}

/// One size and number of nodes.
struct Case<'a> {
    arguments: &'a Arguments,
    nodes: usize,
    elements: usize,
    cores: usize,
}

/// Who takes turns, and the seconds of each turn.
struct Contestant {
    kind: Kind,
    seconds: Vec<f64>,
    cpu: Vec<f64>,
}

enum Kind {
    Ring(String),
    Rival(Rival, rivals::Flock),
}

impl Case<'_> {
    fn run(&self) -> Result<()> {
        let places = Places::new(self.nodes, self.arguments.rate)?;
        let mut workers = self.meet(&places)?;
        let mut contestants: Vec<_> = self.arguments.codec.iter().map(|name| Kind::Ring(name.clone())).collect();
        if !self.arguments.no_rivals {
            contestants.extend(self.rivals(&places));
        }
        let empty = |kind| Contestant { kind, seconds: Vec::new(), cpu: Vec::new() };
        let mut contestants: Vec<_> = contestants.into_iter().map(empty).collect();
        let mut attempt = 0;
        for turn in 0..=self.arguments.turns {
            for contestant in &mut contestants {
                let (seconds, cpu) = match &mut contestant.kind {
                    Kind::Ring(codec) => {
                        attempt += 1;
                        self.reduce(&mut workers, attempt, codec)?
                    }
                    Kind::Rival(_, flock) => (flock.turn()?, 0.0),
                };
                // The first warms up.
                if turn > 0 {
                    contestant.seconds.push(seconds);
                    contestant.cpu.push(cpu);
                }
            }
        }
        contestants.iter().try_for_each(|contestant| self.report(contestant))
    }

    fn meet(&self, places: &Places) -> Result<Vec<Process>> {
        let program = std::env::current_exe()?.to_string_lossy().into_owned();
        let start = |index: usize| {
            let command = [program.clone(), "--worker".into(), index.to_string(), places.host(index)];
            Process::start(&places.on(index, &command), true)
        };
        let mut workers = (0..self.nodes).map(start).collect::<Result<Vec<_>>>()?;
        let mut peers = Vec::new();
        for worker in &mut workers {
            match worker.hear()? {
                Answer::Here(member) => peers.push(member),
                other => bail!("a worker said {other:?} first"),
            }
        }
        let order = serde_json::to_string(&Order::Meet { peers })?;
        workers.iter_mut().try_for_each(|worker| worker.tell(&order))?;
        for worker in &mut workers {
            ensure!(matches!(worker.hear()?, Answer::Met), "a worker met nobody");
        }
        Ok(workers)
    }

    fn rivals(&self, places: &Places) -> Vec<Kind> {
        let named = self.arguments.python.clone().or_else(|| std::env::var("PYTHON").ok());
        let python = named.unwrap_or_else(|| "python3".into());
        let start = |rival: Rival| match rivals::Flock::start(rival, &python, places, self.elements) {
            Ok(flock) => Some(Kind::Rival(rival, flock)),
            Err(error) => {
                println!("{} SKIPPED: {python} does not run it ({error:#})", rival.name());
                None
            }
        };
        Rival::ALL.into_iter().filter_map(start).collect()
    }

    /// One reduction: seconds of the slowest member, and CPU seconds of all.
    fn reduce(&self, workers: &mut [Process], attempt: u32, codec: &str) -> Result<(f64, f64)> {
        let order = Order::Reduce { attempt, elements: self.elements, codec: codec.into() };
        let order = serde_json::to_string(&order)?;
        workers.iter_mut().try_for_each(|worker| worker.tell(&order))?;
        let (mut slowest, mut work, mut same) = (0f64, 0.0, None);
        for worker in workers {
            let Answer::Reduced { seconds, cpu, digest, error } = worker.hear()? else { bail!("no result") };
            // int8 rounds by 1/254 of a block's largest value at each hop.
            ensure!(error < 0.02 * self.nodes as f64, "the result is {error} of the largest value away from the mean");
            ensure!(same.get_or_insert_with(|| digest.clone()) == &digest, "two members hold different bytes");
            slowest = slowest.max(seconds);
            work += cpu;
        }
        Ok((slowest, work))
    }

    fn report(&self, contestant: &Contestant) -> Result<()> {
        let (engine, codec, peer, wire) = match &contestant.kind {
            Kind::Ring(codec) => ("ring", codec.as_str(), "starling", encoded_len(kind_of(codec)?, self.elements)),
            Kind::Rival(rival, _) => ("all-reduce", rival.codec(), rival.name(), self.elements * rival.value_bytes()),
        };
        let share = 2.0 * (self.nodes - 1) as f64 / self.nodes as f64;
        let parts = match (&contestant.kind, self.arguments.rate) {
            (Kind::Ring(codec), None) => Some(Floor::ring(kind_of(codec)?, self.elements, self.nodes, self.cores)?),
            _ => None,
        };
        let wire_floor = self.arguments.rate.map(|rate| share * wire as f64 * 8.0 / (f64::from(rate) * 1e6));
        let floor = wire_floor.or(parts.map(|parts| parts.sum()));
        let bytes = self.elements * 4;
        let seconds = median(contestant.seconds.iter().copied()).unwrap_or(f64::NAN);
        let cpu = median(contestant.cpu.iter().copied()).unwrap_or_default();
        let bus = share * bytes as f64 / seconds / 1e9;
        let show = |value: Option<f64>, unit: f64| value.map_or("-".into(), |value| format!("{:.2}", value * unit));
        println!(
            "{:>5} {:>6}  {:<16} {:>9.1} {:>9} {:>9} {:>7.2}",
            self.nodes,
            bytes >> 20,
            format!("{peer} {codec}"),
            seconds * 1e3,
            show(floor, 1e3),
            show(floor.map(|floor| seconds / floor), 1.0),
            bus
        );
        if let Some(Floor { encryption, copies, codec }) = parts {
            println!(
                "{:14} alone: encryption {:.1}, copies {:.1}, codec {:.1} ms; CPU of all members {:.1} ms",
                "",
                encryption * 1e3,
                copies * 1e3,
                codec * 1e3,
                cpu * 1e3
            );
        }
        let version = match &contestant.kind {
            Kind::Ring(_) => env!("CARGO_PKG_VERSION"),
            Kind::Rival(_, flock) => &flock.version,
        };
        let row = json!({
            "bench": "reduce", "engine": engine, "codec": codec, "nodes": self.nodes, "bytes": bytes,
            "seconds": seconds, "all_seconds": contestant.seconds, "cpu_seconds": cpu,
            "floor_seconds": floor, "bus_gb_per_s": bus, "peer": peer, "version": version,
            "rate_mbit_per_s": self.arguments.rate, "cores": self.cores,
        });
        append_row(json_file(self.arguments.json.as_deref()).as_deref(), &row)
    }
}

fn kind_of(codec: &str) -> Result<CodecKind> {
    match codec {
        "bf16" => Ok(CodecKind::Bf16),
        "int8" => Ok(CodecKind::Int8),
        _ => Err(anyhow::anyhow!("--codec: there is no {codec:?} for this engine; take bf16 or int8")),
    }
    .context("which codec")
}
