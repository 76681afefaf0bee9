//! Runs the simulator over many seeds, and prints the results.

mod figures;
mod simulation;

use clap::Parser;
use simulation::Batch;
use starling_protocol::limits::MEMBERS_MAX;
use starling_protocol::sim::history::Settings;
use std::path::PathBuf;
use std::process::ExitCode;

/// Simulates flocks in virtual time: each seed is one history with its own faults, and every invariant of the protocol
/// is checked at every step.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// Number of seeds.
    #[arg(long, default_value_t = 1_000)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Run this seed only; with --verbose, print its events
    #[arg(long)]
    seed: Option<u64>,
    /// With --seed or --measure: most nodes
    #[arg(long)]
    nodes: Option<usize>,
    /// With --seed: a large flock of so many nodes that wake up together, with the faults that large flocks meet
    #[arg(long, value_name = "NODES", requires = "seed", conflicts_with = "nodes",
        value_parser = clap::value_parser!(u16).range(32..=MEMBERS_MAX as i64))]
    large: Option<u16>,
    /// With --seed: keep only these faults of its schedule, as `3,7`, or `none`
    #[arg(long)]
    faults: Option<String>,
    /// With --seed: inject this bug. With --mutations: run this one only, or these, as `half-quorum,count-twice`
    #[arg(long)]
    mutation: Option<String>,
    #[arg(long)]
    verbose: bool,
    /// Threads; 0: one for each core.
    #[arg(long, default_value_t = 0)]
    jobs: usize,
    /// One seed in so many runs twice, and must run the same
    #[arg(long, default_value_t = 50)]
    twice_every: u64,
    /// Run every injected bug until it is caught, for at most so many seeds each
    #[arg(long, value_name = "SEEDS")]
    mutations: Option<u64>,
    /// Check only that a history with a bug is reported as one
    #[arg(long)]
    canary: bool,
    /// Measure the cost of agreement, in flocks of up to 1,000 nodes
    #[arg(long)]
    measure: bool,
    /// Measure what a round costs a node in calm flocks of these sizes: control messages and bytes by kind,
    /// connections, the engine's time
    #[arg(long, value_name = "NODES", value_delimiter = ',')]
    cost: Vec<usize>,
    /// Measure, for so many seeds, the time without a commit while nodes come and go for ten minutes
    #[arg(long, value_name = "SEEDS")]
    churn: Option<u64>,
    /// Measure the time until flocks go on after their last fault: so many seeds of each kind of fault
    #[arg(long, value_name = "SEEDS")]
    recovery: Option<u64>,
    /// With --recovery: measure this kind of fault only. With --seed: inject this kind only
    #[arg(long)]
    class: Option<String>,
    /// With --churn: seconds until a node without a quorum forks
    #[arg(long, default_value_t = 8)]
    grace: u64,
    /// Print only the digest of all inputs and outputs of so many seeds, from --from on; a change that keeps the
    /// behaviour keeps the digests
    #[arg(long, value_name = "SEEDS")]
    traces: Option<u64>,
    /// File for the table, as JSON
    #[arg(long)]
    json: Option<PathBuf>,
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    simulation::hush();
    let only = arguments.mutation.as_deref().map_or_else(|| Ok(Vec::new()), simulation::parse_mutations)?;
    let good = if let Some(seed) = arguments.seed {
        let faults = arguments.faults.as_deref().map(simulation::parse_faults).transpose()?;
        let class = arguments.class.as_deref().map(figures::parse_class).transpose()?;
        let settings = Settings {
            nodes: arguments.nodes,
            large: arguments.large.map(usize::from),
            keep: faults,
            class,
            ..Settings::default()
        };
        simulation::one(seed, settings, only.first().copied(), arguments.verbose)
    } else if arguments.canary {
        simulation::canary()
    } else if let Some(seeds) = arguments.traces {
        simulation::traces(arguments.from, seeds, arguments.jobs)
    } else if let Some(seeds) = arguments.recovery {
        figures::recovery(arguments.from, seeds, arguments.jobs, arguments.class.as_deref())
    } else if let Some(seeds) = arguments.churn {
        figures::churn(arguments.from, seeds, arguments.nodes.unwrap_or(10), arguments.grace)
    } else if arguments.measure {
        figures::measure(arguments.nodes)
    } else if !arguments.cost.is_empty() {
        figures::costs(&arguments.cost, arguments.json.as_deref())?
    } else {
        let Arguments { seeds, from, jobs, twice_every, mutations, json, .. } = arguments;
        Batch { seeds, from, jobs, twice_every, mutations, only }.run(json.as_deref())?
    };
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
