//! `bench-reduce`: averaging a vector over real processes and real connections, beside gloo and hivemind, in turns
//! within one run.
//!
//! On loopback the floor is the time of encryption, the kernel's copies and the codec, each measured alone and spread
//! over the cores. On links of limited rate it is the wire: 2 (n - 1) / n of the encoded vector over each node's link.

mod death;
mod delayed;
mod floor;
mod place;
mod process;
mod rivals;
mod worker;

use anyhow::{Result, bail, ensure};
use clap::Parser;
use death::After;
use floor::Floor;
use place::Places;
use process::Process;
use rivals::Rival;
use serde_json::json;
use starling_benches::heap::Heap;
use starling_benches::way::Way;
use starling_benches::{append_row, json_file, median};
use starling_protocol::run::EngineKind;
use starling_protocol::update::{self, owners::Owners};
use std::path::PathBuf;
use std::time::Duration;
use worker::{Answer, Order};

#[global_allocator]
static ALLOCATOR: Heap = Heap;

/// Time averaging over processes, beside gloo and hivemind.
#[derive(Parser)]
struct Arguments {
    /// Numbers of processes.
    #[arg(long, value_delimiter = ',', default_values_t = [2, 4])]
    nodes: Vec<usize>,
    /// Sizes of the vector, in MiB of f32.
    #[arg(long, value_delimiter = ',', default_values_t = [64])]
    mib: Vec<usize>,
    /// Engines: ring, owners
    #[arg(long, value_delimiter = ',', default_values_t = ["ring".to_owned(), "owners".to_owned()])]
    engine: Vec<String>,
    /// Codecs: bf16, int8, and with owners int4 and top-k
    #[arg(long, value_delimiter = ',', default_values_t = ["bf16", "int8", "int4"].map(String::from))]
    codec: Vec<String>,
    /// Mbit/s that each node's link carries in either direction (needs root: network namespaces); without it, loopback.
    /// One rate for all, or one for each node: then owners also run with their chunks dealt by these rates, beside
    /// equal shares
    #[arg(long, value_delimiter = ',')]
    rate: Vec<u32>,
    /// Milliseconds of the links' queues at their rate
    #[arg(long, default_value_t = 50, requires = "rate")]
    queue: u32,
    /// Run all members in this process, so many milliseconds away from each other, without encryption and rivals
    #[arg(long, conflicts_with = "rate")]
    delay: Option<u64>,
    /// With --delay: deal the members in turn to so many sites; members of a site are 1 ms from each other. Rings that
    /// know the distances then take turns with rings that do not
    #[arg(long, default_value_t = 1, requires = "delay")]
    sites: usize,
    /// Let a member die at so many moments of a reduction, one after another, and count the bytes that the others send
    /// again; in this process, without encryption and rivals
    #[arg(long, conflicts_with_all = ["rate", "delay"])]
    deaths: Option<usize>,
    /// KiB of f32 instead of --mib, for small rounds.
    #[arg(long)]
    kib: Option<usize>,
    /// Turns of each; one more before them warms up.
    #[arg(long, default_value_t = 5)]
    turns: usize,
    /// A Python with PyTorch and perhaps hivemind (default: the one that the variable PYTHON names, or python3)
    #[arg(long)]
    python: Option<String>,
    /// Run Starling alone
    #[arg(long)]
    no_rivals: bool,
    /// Append one JSON object a row to this file (default: the file that the variable JSON names)
    #[arg(long)]
    json: Option<PathBuf>,
    /// Run as the worker of this index, at the address after it
    #[arg(long, hide = true, num_args = 2, value_names = ["INDEX", "HOST"])]
    worker: Option<Vec<String>>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if let Some([index, host]) = arguments.worker.as_deref() {
        return worker::run(index.parse()?, host);
    }
    let cores = std::thread::available_parallelism()?.get();
    match (&arguments.rate[..], arguments.delay) {
        ([], None) if arguments.deaths.is_some() => println!("pipes, {cores} cores"),
        ([], None) => println!("loopback, {cores} cores"),
        (_, Some(delay)) => println!("pipes with {delay} ms of delay one way, {cores} cores"),
        (rates, None) => println!("links of {rates:?} Mbit/s a node, {cores} cores"),
    }
    if arguments.deaths.is_some() {
        println!("{:>5} {:>7}  {:<16} {:>9} {:>9} {:>9}", "nodes", "MiB", "", "deaths", "again %", "at most %");
    } else {
        println!(
            "{:>5} {:>7}  {:<16} {:>9} {:>9} {:>9} {:>7}",
            "nodes", "MiB", "", "ms", "floor ms", "of floor", "bus GB/s"
        );
    }
    for &nodes in &arguments.nodes {
        ensure!(nodes >= 2, "--nodes: a flock has at least 2 members, not {nodes}");
        let rates = match &arguments.rate[..] {
            [one] => vec![*one; nodes],
            rates => rates.to_vec(),
        };
        ensure!(rates.is_empty() || rates.len() == nodes, "--rate: one for all, or one for each of {nodes} nodes");
        let sizes = arguments.kib.map_or_else(|| arguments.mib.iter().map(|mib| mib << 18).collect(), |k| vec![k << 8]);
        for elements in sizes {
            let case = Case { arguments: &arguments, nodes, elements, cores, rates: &rates };
            match (arguments.deaths, arguments.delay) {
                (Some(deaths), _) => case.run_deaths(deaths)?,
                (None, Some(delay)) => case.run_delayed(Duration::from_millis(delay))?,
                (None, None) => case.run()?,
            }
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
    /// Mbit/s of each node's link; empty on loopback.
    rates: &'a [u32],
}

/// A system that takes turns, and its measurements.
struct Contestant {
    kind: Kind,
    seconds: Vec<f64>,
    cpu: Vec<f64>,
    /// Bytes of the encoded vector in the last turn.
    encoded: usize,
    /// The most bytes that a member had in use in a turn, beyond those before the turn.
    held: usize,
    /// Seconds of the delays alone.
    floor: Option<f64>,
    /// The uplink of each node, in kbit/s, as it has measured it so far.
    uplinks: Vec<u32>,
    /// The contestant has failed, and takes no more turns.
    out: bool,
}

/// The measurements of one turn of Starling: the slowest member's seconds, all members' CPU seconds, the bytes of the
/// update, and the most bytes that a member had in use.
#[derive(Default)]
struct Turn {
    seconds: f64,
    cpu: f64,
    encoded: usize,
    held: usize,
    uplinks: Vec<u32>,
}

enum Kind {
    Starling(Way, Known),
    Rival(Rival, rivals::Flock),
}

/// The links as an engine sees them.
#[derive(Clone, Copy, PartialEq)]
enum Known {
    Nothing,
    /// The links' rates, by which owners are dealt their chunks.
    Rates,
    /// The distances between members, by which the ring is ordered.
    Trips,
}

impl Contestant {
    fn new(kind: Kind, floor: Option<f64>) -> Self {
        Self { kind, seconds: Vec::new(), cpu: Vec::new(), encoded: 0, held: 0, floor, uplinks: Vec::new(), out: false }
    }
}

impl Case<'_> {
    fn run(&self) -> Result<()> {
        let places = Places::new(self.rates, self.arguments.queue, self.nodes)?;
        let mut workers = self.meet(&places)?;
        let ways = Way::all(&self.arguments.engine, &self.arguments.codec)?;
        let differ = self.rates.windows(2).any(|pair| pair[0] != pair[1]);
        let known = |way: Way| {
            let by_rate = (differ && way.engine == EngineKind::Owners).then_some(Known::Rates);
            [Some(Known::Nothing), by_rate].into_iter().flatten().map(move |known| Kind::Starling(way, known))
        };
        let mut contestants: Vec<_> = ways.into_iter().flat_map(known).collect();
        if !self.arguments.no_rivals {
            contestants.extend(self.rivals(&places));
        }
        let mut contestants: Vec<_> = contestants.into_iter().map(|kind| Contestant::new(kind, None)).collect();
        let mut number = 0;
        for turn in 0..=self.arguments.turns {
            for contestant in contestants.iter_mut().filter(|contestant| !contestant.out) {
                let done = match &mut contestant.kind {
                    Kind::Starling(way, known) => {
                        number += 1;
                        self.reduce(&mut workers, number, *way, *known)?
                    }
                    Kind::Rival(rival, flock) => {
                        let encoded = self.elements * rival.value_bytes();
                        match flock.turn() {
                            Ok(seconds) => Turn { seconds, encoded, ..Turn::default() },
                            Err(error) => {
                                println!("{} LEFT OUT: its turn {turn} failed ({error:#})", rival.name());
                                contestant.out = true;
                                continue;
                            }
                        }
                    }
                };
                (contestant.encoded, contestant.uplinks) = (done.encoded, done.uplinks);
                contestant.held = contestant.held.max(done.held);
                // The first turn warms up.
                if turn > 0 {
                    contestant.seconds.push(done.seconds);
                    contestant.cpu.push(done.cpu);
                }
            }
        }
        contestants.iter().filter(|contestant| !contestant.out).try_for_each(|contestant| self.report(contestant))
    }

    fn run_delayed(&self, across: Duration) -> Result<()> {
        let sites = self.arguments.sites.max(1);
        let flock = delayed::Flock::new(self.nodes, self.elements, delayed::Map { across, sites })?;
        let mut number = 0;
        for way in Way::all(&self.arguments.engine, &self.arguments.codec)? {
            let trips = (sites > 1 && way.engine == EngineKind::Ring).then_some(Known::Trips);
            let knowing = [Some(Known::Nothing), trips].into_iter().flatten();
            let mut contestants: Vec<_> =
                knowing.map(|known| Contestant::new(Kind::Starling(way, known), Some(flock.floor(way)))).collect();
            for turn in 0..=self.arguments.turns {
                for contestant in &mut contestants {
                    number += 1;
                    let toured = matches!(contestant.kind, Kind::Starling(_, Known::Trips));
                    let (seconds, encoded) = flock.reduce(number, way, toured)?;
                    contestant.encoded = encoded;
                    if turn > 0 {
                        contestant.seconds.push(seconds);
                    }
                }
            }
            contestants.iter().try_for_each(|contestant| self.report(contestant))?;
        }
        Ok(())
    }

    /// Counts what is sent again after deaths at moments that are spread evenly over a reduction. A death after which a
    /// survivor has the update costs nothing again, and is left out.
    fn run_deaths(&self, deaths: usize) -> Result<()> {
        let flock = death::Flock::new(self.nodes, self.elements)?;
        for way in Way::all(&self.arguments.engine, &self.arguments.codec)? {
            let whole = flock.whole(way)?;
            let mut shares = Vec::new();
            for number in 0..deaths {
                let moment = (number as f64 + 0.5) / deaths as f64;
                if let After::Again(share) = flock.death(way, number % self.nodes, moment, whole)? {
                    shares.push(share);
                }
            }
            let percent = |share: f64| 100.0 * share;
            let mean = percent(shares.iter().sum::<f64>() / shares.len().max(1) as f64);
            let most = percent(shares.iter().copied().fold(0.0, f64::max));
            let (engine, codec, bytes) = (way.engine_name(), way.codec_name(), self.elements * 4);
            println!(
                "{:>5} {:>7}  {:<16} {:>9} {mean:>9.2} {most:>9.2}",
                self.nodes,
                format!("{:.2}", bytes as f64 / f64::from(1 << 20)).trim_end_matches(".00"),
                format!("{engine} {codec}"),
                shares.len(),
            );
            let row = json!({
                "bench": "reduce-deaths", "engine": engine, "codec": codec, "nodes": self.nodes, "bytes": bytes,
                "moments": deaths, "deaths": shares.len(), "again_percent": mean, "again_percent_max": most,
                "all_again": shares, "sent_bytes": whole, "version": env!("CARGO_PKG_VERSION"), "cores": self.cores,
            });
            append_row(json_file(self.arguments.json.as_deref()).as_deref(), &row)?;
        }
        Ok(())
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

    /// Upload bandwidths by which chunks are dealt, in kbit/s.
    fn kbps(&self, known: Known) -> Vec<u32> {
        match known {
            Known::Nothing | Known::Trips => vec![0; self.nodes],
            Known::Rates => self.rates.iter().map(|rate| rate * 1000).collect(),
        }
    }

    fn reduce(&self, workers: &mut [Process], turn: u32, way: Way, known: Known) -> Result<Turn> {
        let (engine, codec, kbps) = (way.engine_name().into(), way.codec_name().into(), self.kbps(known));
        let order = serde_json::to_string(&Order::Reduce { turn, elements: self.elements, engine, codec, kbps })?;
        workers.iter_mut().try_for_each(|worker| worker.tell(&order))?;
        let (mut turn, mut same) = (Turn::default(), None);
        for worker in workers {
            let Answer::Reduced { seconds, cpu, digest, error, encoded, held, upload_kbps } = worker.hear()? else {
                bail!("no result")
            };
            ensure!(error < way.tolerance(self.nodes), "{way:?}: {error} of the largest value away from the mean");
            ensure!(same.get_or_insert_with(|| digest.clone()) == &digest, "two members hold different bytes");
            (turn.seconds, turn.cpu, turn.encoded) = (turn.seconds.max(seconds), turn.cpu + cpu, encoded);
            turn.held = turn.held.max(held);
            turn.uplinks.push(upload_kbps);
        }
        Ok(turn)
    }

    /// Seconds that the slowest link needs for its part of a vector of `bytes`: the bytes that its node sends in a
    /// ring, or with chunks dealt by these bandwidths. None on loopback.
    fn wire_floor(&self, bytes: usize, kbps: Option<Vec<u32>>) -> Option<f64> {
        let chunks = update::chunks(self.elements);
        let owners = kbps.map(|kbps| Owners::new(&kbps, chunks));
        let share = |place: usize| match &owners {
            Some(owners) => 1.0 + (self.nodes - 2) as f64 * owners.chunks(place).len() as f64 / chunks as f64,
            None => 2.0 * (self.nodes - 1) as f64 / self.nodes as f64,
        };
        let seconds = |(place, rate): (usize, &u32)| share(place) * bytes as f64 * 8.0 / (f64::from(*rate) * 1e6);
        self.rates.iter().enumerate().map(seconds).reduce(f64::max)
    }

    fn report(&self, contestant: &Contestant) -> Result<()> {
        let (engine, codec, peer, known) = match &contestant.kind {
            Kind::Starling(way, known) => (way.engine_name(), way.codec_name(), "starling", *known),
            Kind::Rival(rival, _) => ("all-reduce", rival.codec(), rival.name(), Known::Nothing),
        };
        let wire = contestant.encoded;
        let share = 2.0 * (self.nodes - 1) as f64 / self.nodes as f64;
        let parts = match (&contestant.kind, self.rates.is_empty() && contestant.floor.is_none()) {
            (Kind::Starling(way, _), true) => Floor::of(*way, self.elements, self.nodes, self.cores)?,
            _ => None,
        };
        let owners = engine == "owners";
        let floor = self
            .wire_floor(wire, owners.then(|| self.kbps(known)))
            .or(contestant.floor)
            .or(parts.map(|parts| parts.sum()));
        let bytes = self.elements * 4;
        let seconds = median(contestant.seconds.iter().copied()).unwrap_or(f64::NAN);
        let cpu = median(contestant.cpu.iter().copied()).unwrap_or_default();
        let bus = share * bytes as f64 / seconds / 1e9;
        let show = |value: Option<f64>, unit: f64| value.map_or("-".into(), |value| format!("{:.2}", value * unit));
        println!(
            "{:>5} {:>7}  {:<16} {:>9.1} {:>9} {:>9} {:>7.2}",
            self.nodes,
            format!("{:.2}", bytes as f64 / f64::from(1 << 20)).trim_end_matches(".00"),
            match (peer, known) {
                ("starling", Known::Nothing) => format!("{engine} {codec}"),
                ("starling", Known::Rates) => format!("{engine} {codec} by rate"),
                ("starling", Known::Trips) => format!("{engine} {codec} toured"),
                _ => format!("{peer} {codec}"),
            },
            seconds * 1e3,
            show(floor, 1e3),
            show(floor.map(|floor| seconds / floor), 1.0),
            bus
        );
        if let Some(Floor { encryption, copies, codec }) = parts {
            println!(
                "{:14} alone: encryption {:.1}, copies {:.1}, codec {:.1} ms; CPU of all members {:.1} ms; a member held \
                 {:.0} MiB, of {:.0} encoded",
                "",
                encryption * 1e3,
                copies * 1e3,
                codec * 1e3,
                cpu * 1e3,
                contestant.held as f64 / f64::from(1 << 20),
                wire as f64 / f64::from(1 << 20)
            );
        }
        if contestant.uplinks.iter().any(|kbps| *kbps > 0) {
            println!("{:14} uplinks by now, as each has measured: {:?} kbit/s", "", contestant.uplinks);
        }
        let version = match &contestant.kind {
            Kind::Starling(..) => env!("CARGO_PKG_VERSION"),
            Kind::Rival(_, flock) => &flock.version,
        };
        let row = json!({
            "bench": "reduce", "engine": engine, "codec": codec, "nodes": self.nodes, "bytes": bytes,
            "seconds": seconds, "all_seconds": contestant.seconds, "cpu_seconds": cpu,
            "floor_seconds": floor, "encoded_bytes": wire, "held_bytes": contestant.held, "bus_gb_per_s": bus,
            "peer": peer, "version": version,
            "rate_mbit_per_s": self.rates, "queue_ms": self.arguments.queue, "by_rate": known == Known::Rates, "sites": self.arguments.sites,
            "toured": known == Known::Trips, "uplinks_kbps": contestant.uplinks,
            "delay_ms": self.arguments.delay, "cores": self.cores,
        });
        append_row(json_file(self.arguments.json.as_deref()).as_deref(), &row)
    }
}
