//! `bench-control`: the flock's choice of its inner steps and codec beside other rules, in simulated flocks.
//!
//! A round costs what its bytes take on the members' uplinks, four round trips, and a fixed part, all with noise; a token
//! is worth what the law of rounds says. So the bench shows how well a rule chooses where that law holds, not whether
//! it holds. Each rule plays the same flocks with the same noise. Its *score* is its goodput, as a share of what the
//! best fixed number of steps in the best codec gives there.

mod flock;
mod rule;

use anyhow::Result;
use clap::Parser;
use flock::{Flock, GRID, Played};
use rule::Rule;
use serde_json::json;
use starling_benches::{append_row, json_file};
use std::path::PathBuf;

/// Rounds after which steps should be settled, after the start and after a change of the lines.
const SETTLED_IN: usize = 12;

/// Compare rules that choose the inner steps and the codec of rounds, in simulated flocks
#[derive(Parser)]
struct Arguments {
    /// Rounds of each run
    #[arg(long, default_value_t = 200)]
    rounds: usize,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Append one JSON object a flock and rule to this file (default: the file that the variable JSON names)
    #[arg(long)]
    json: Option<PathBuf>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let json_file = json_file(arguments.json.as_deref());
    let mut scores: Vec<(Rule, Vec<Played>)> = Rule::ALL.iter().map(|rule| (*rule, Vec::new())).collect();
    let flocks = GRID.flocks();
    for flock in &flocks {
        for (rule, played) in &mut scores {
            let one = flock.play(*rule, arguments.rounds, arguments.seed);
            let row = json!({
                "bench": "control", "rule": rule.name(), "uplink_mbit": flock.uplink_mbit, "rtt_ms": flock.rtt_ms,
                "members": flock.members, "parameters": flock.parameters, "step_us": flock.step_us, "drops": flock.drops,
                "score": one.score, "settled_in": one.settled_in, "turns": one.turns, "steps": one.last.inner_steps,
                "codec": one.last.codec.name(),
                "rounds": arguments.rounds, "seed": arguments.seed,
            });
            append_row(json_file.as_deref(), &row)?;
            played.push(one);
        }
    }
    println!(
        "goodput by that of the best fixed number of steps and codec, in {} flocks of {} rounds\n",
        flocks.len(),
        arguments.rounds
    );
    println!("{:<24} {:>6} {:>6} {:>17} {:>12}", "rule", "mean", "least", "settled within 12", "turns in 20");
    for (rule, played) in &scores {
        let share = |score: f64| format!("{:.1} %", score * 100.0);
        let mean = played.iter().map(|one| one.score).sum::<f64>() / played.len() as f64;
        let least = played.iter().map(|one| one.score).fold(f64::INFINITY, f64::min);
        let settled = played.iter().filter(|one| one.settled_in <= SETTLED_IN).count() as f64 / played.len() as f64;
        let turns = played.iter().map(|one| one.turns).sum::<usize>() as f64 * 20.0;
        let turns = turns / (played.len() * arguments.rounds) as f64;
        println!("{:<24} {:>6} {:>6} {:>17} {turns:>12.2}", rule.name(), share(mean), share(least), share(settled));
    }
    heat_map(&flocks, &scores[0].1);
    Ok(())
}

/// The flock's own rule: a row for each kind of line, a column for each number of members, over all models.
fn heat_map(flocks: &[Flock], played: &[Played]) {
    println!("\n{}, the least over models and drops of bandwidth, in %:\n", Rule::ALL[0].name());
    print!("{:<24}", "uplink, round trip");
    GRID.members.iter().for_each(|members| print!(" {:>10}", format!("{members} nodes")));
    println!();
    for uplink in GRID.uplinks {
        for rtt in GRID.round_trips {
            print!("{:<24}", format!("{uplink} Mbit/s, {rtt} ms"));
            for members in GRID.members {
                let here = |flock: &Flock| (flock.uplink_mbit, flock.rtt_ms, flock.members) == (uplink, rtt, members);
                let scores = flocks.iter().zip(played).filter(|(flock, _)| here(flock)).map(|(_, one)| one.score);
                print!(" {:>10.1}", scores.fold(f64::INFINITY, f64::min) * 100.0);
            }
            println!();
        }
    }
}
