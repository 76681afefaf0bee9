//! The runs that `make follower` verifies: a flock that loses nodes, gains some and splits, and a short run of each
//! other averaging mode. Their chains become recordings of `starling chain export`.

use crate::flock::{Flock, NodeOptions};
use crate::process::{Process, run};
use anyhow::Context;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest time for one step: a step that takes longer on any machine is broken.
const PATIENCE: Duration = Duration::from_secs(120);
/// Commits after each step of the flock.
const COMMITS: usize = 4;
/// Short runs of one node: name, `snapshot_every`, run file.
const ALONE: [(&str, u64, &str); 4] = [
    ("bf16", 1000, "[inner]\nsteps = 2\nbatch = 2\n[sync]\ncodec = \"bf16\"\n[budget]\nrounds = 4\n"),
    (
        "int4-fragments",
        1000,
        "[inner]\nsteps = 2\nbatch = 2\n[sync]\ncodec = \"int4\"\nfragments = 3\n[budget]\nrounds = 8\n",
    ),
    ("top-k", 20, "[inner]\nsteps = 1\nbatch = 1\n[sync]\ncodec = \"top-k\"\nk = 1024\n[budget]\nrounds = 80\n"),
    ("every-step", 4, "[inner]\nbatch = 2\n[sync]\nmode = \"every-step\"\n[budget]\nrounds = 14\n"),
];

/// Plays all runs below `out`, which is emptied first; returns the folders of the recordings.
///
/// # Errors
/// If a program does not start, or an expected event does not come in time.
pub fn record(bin_dir: &Path, out: &Path) -> anyhow::Result<Vec<PathBuf>> {
    if out.exists() {
        std::fs::remove_dir_all(out).with_context(|| format!("cannot empty {}", out.display()))?;
    }
    std::fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
    let out = out.canonicalize()?;
    let mut recordings = play_flock(bin_dir, &out)?;
    for (name, snapshot_every, tables) in ALONE {
        let flock = start(bin_dir, &out, name, tables)?;
        let node = founder(&flock, snapshot_every, None)?;
        recordings.push(ended(&flock, node, &out.join("recordings").join(name))?);
    }
    // A run that begins with the last state of another one.
    let (name, model) = ("from-weights", out.join(ALONE[0].0).join("nodes").join("node-1"));
    let flock = start(bin_dir, &out, name, "[inner]\nsteps = 2\nbatch = 2\n[budget]\nrounds = 4\n")?;
    let node = founder(&flock, 1000, Some(&model))?;
    recordings.push(ended(&flock, node, &out.join("recordings").join(name))?);
    Ok(recordings)
}

/// Waits for the end of a run of one node, and exports its chain.
fn ended(flock: &Flock, mut node: Process, to: &Path) -> anyhow::Result<PathBuf> {
    let status = node.wait_exit(PATIENCE)?;
    anyhow::ensure!(status.success(), "{} ended with {status}\n{}", to.display(), node.last_words());
    export(flock, "node-1", to)
}

/// Plays a flock of four nodes; one is killed; two join; three are killed at once, so that the others fork; one leaves.
fn play_flock(bin_dir: &Path, out: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let tables = "[inner]\nsteps = 8\nbatch = 4\n[partition]\ngrace_s = 1\n[budget]\nrounds = 100000\n";
    let flock = start(bin_dir, out, "flock", tables)?;
    let mut nodes = vec![founder(&flock, 5_000, None)?];
    for n in 2..=4 {
        nodes.push(flock.node(&format!("node-{n}"), &NodeOptions::small(false))?);
    }
    wait_for(&mut nodes[0], |e| e["voters"] == 4)?;
    nodes[3].kill();
    wait_for(&mut nodes[0], |e| e["members"] == 3)?;
    for n in 5..=6 {
        let options = NodeOptions { ticket: Some(flock.invite("node-1")?), ..NodeOptions::small(false) };
        nodes.push(flock.node(&format!("node-{n}"), &options)?);
    }
    wait_for(&mut nodes[0], |e| e["voters"] == 5)?;
    let mark = nodes[0].mark();
    for n in [2, 4, 5] {
        nodes[n].kill();
    }
    nodes[0].wait_since(mark, PATIENCE, "forked", |_| true)?;
    wait_for(&mut nodes[0], |e| e["contributors"].as_array().is_some_and(|c| c.len() == 2))?;
    nodes[1].terminate();
    wait_for(&mut nodes[0], |e| e["members"] == 1)?;
    for n in [1, 0] {
        nodes[n].terminate();
        nodes[n].wait_exit(PATIENCE)?;
    }
    let recordings = out.join("recordings");
    let named = [("node-1", "founder"), ("node-2", "member"), ("node-5", "joiner")];
    named.into_iter().map(|(node, name)| export(&flock, node, &recordings.join(name))).collect()
}

/// A flock whose nodes train a tiny model on a text of its own.
fn start(bin_dir: &Path, out: &Path, name: &str, tables: &str) -> anyhow::Result<Flock> {
    let folder = out.join(name);
    std::fs::create_dir_all(&folder)?;
    let text: String = (0..4000).map(|n| format!("line {n}: a text to learn from, {}\n", n * 7919 % 1000)).collect();
    std::fs::write(folder.join("text.txt"), text)?;
    let head = "[model]\npreset = \"0.1m\"\nseq_len = 32\n[data]\nsources = [\"text.txt\"]\nholdout = 0.1\n";
    Flock::start(bin_dir, &folder, &format!("name = \"{name}\"\n{head}{tables}"))
}

/// Starts the founder, which writes a snapshot every `snapshot_every` commits and keeps the updates since the last but
/// one. Its run may begin from a model.
fn founder(flock: &Flock, snapshot_every: u64, from: Option<&Path>) -> anyhow::Result<Process> {
    let config = flock.folder.join("founder.toml");
    std::fs::write(&config, format!("snapshot_every = {snapshot_every}\n"))?;
    let mut options = NodeOptions::small(true);
    options.arguments.extend(["--config".into(), config.to_string_lossy().into_owned()]);
    options.arguments.extend(from.into_iter().flat_map(|from| ["--from".into(), from.to_string_lossy().into_owned()]));
    let mut node = flock.node("node-1", &options)?;
    node.wait(PATIENCE, "founded", |_| true)?;
    Ok(node)
}

/// Waits for an accepted commit, and for some more after it.
fn wait_for(node: &mut Process, accept: impl Fn(&Value) -> bool) -> anyhow::Result<()> {
    let mark = node.mark();
    node.wait_since(mark, PATIENCE, "committed", accept)?;
    for _ in 0..COMMITS {
        let mark = node.mark();
        node.wait_since(mark, PATIENCE, "committed", |_| true)?;
    }
    Ok(())
}

/// Exports the chain of a node that has ended.
fn export(flock: &Flock, node: &str, to: &Path) -> anyhow::Result<PathBuf> {
    std::fs::create_dir_all(to.parent().context("recordings lie in a folder")?)?;
    let (home, output) = (flock.home(node).to_string_lossy().into_owned(), to.to_string_lossy().into_owned());
    let ended = run(&flock.bin_dir.join("starling"), &["chain", "export", "--home", &home, "-o", &output], PATIENCE)?;
    anyhow::ensure!(ended.code == Some(0), "starling chain export failed: {}", ended.stderr);
    println!("{}: {}", flock.run_file.parent().unwrap_or(to).display(), ended.stdout.trim());
    Ok(to.to_path_buf())
}
