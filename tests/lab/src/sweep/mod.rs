//! `starling-lab sweep`: plays one scenario with all combinations of some settings, and tabulates the figures.

mod grid;
mod table;

pub use grid::{Axis, CELLS_MAX, Cell, Grid};
pub use table::Row;

use crate::history::History;
use crate::report::page;
use crate::report::{self};
use crate::run::{self, Request};
use crate::scenario::Scenario;
use crate::stage;
use anyhow::Context;
use serde_json::json;
use std::path::Path;

/// The file that marks a folder as an earlier sweep's.
const ROWS: &str = "sweep.json";

/// Plays all cells; `true` if the checks held in each.
///
/// # Errors
/// If the sweep or a cell's scenario is wrong (before any is played), a program is missing, or a folder cannot be
/// written.
pub fn run(file: &Path, request: &Request) -> anyhow::Result<bool> {
    let grid = Grid::load(file)?;
    let folder = request.out.join(&grid.name);
    run::empty(&folder, ROWS)?;
    std::fs::create_dir_all(folder.join("scenarios")).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut rows = Vec::new();
    // The first write marks the folder as the lab's, however the sweep ends.
    write(&folder, &grid, &rows, request)?;
    let scenarios = grid.cells.iter().map(|cell| write_scenario(&grid, cell, &folder, request));
    let scenarios = scenarios.collect::<anyhow::Result<Vec<_>>>()?;
    run::programs_there(&request.bin_dir, &scenarios)?;
    scenarios.iter().try_for_each(|s| stage::check_run_file(s, &request.bin_dir.join("starling")))?;
    let cells = Request { out: folder.join("cells"), ..request.clone() };
    println!("{}: {} cells{}", grid.name, scenarios.len(), of_left_out(&grid));
    for (n, scenario) in scenarios.iter().enumerate() {
        let report = run::play(scenario, &cells)?;
        let history = History::read(&stage::folder_of(&cells.out, scenario))?;
        let row = Row::new(&grid, n, &report, &history);
        println!(
            "[{}/{}] {}: {} rounds, {:.0} s{}",
            n + 1,
            scenarios.len(),
            row.name,
            row.rounds,
            row.seconds,
            if row.ok { String::new() } else { format!("; RED: {}", row.broken.join(", ")) }
        );
        rows.push(row);
        write(&folder, &grid, &rows, request)?;
    }
    println!("\n{}\nreport: {}", table::text(&grid, &rows), folder.join("index.html").display());
    Ok(rows.iter().all(|row| row.ok))
}

fn of_left_out(grid: &Grid) -> String {
    match grid.left_out.len() {
        0 => String::new(),
        n => format!(", {n} combinations left out that cannot be"),
    }
}

/// Writes the cell's scenario as a file, which can be played alone.
fn write_scenario(grid: &Grid, cell: &Cell, folder: &Path, request: &Request) -> anyhow::Result<Scenario> {
    let path = folder.join("scenarios").join(format!("{}.toml", cell.name));
    let mut table = cell.scenario.clone();
    table.insert("about".into(), format!("{}: {}", grid.name, cell.name).into());
    let text = toml::to_string(&table).context("a scenario is text")?;
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    let mut scenario = Scenario::load(&path)?;
    scenario.seed = request.seed.unwrap_or(scenario.seed);
    Ok(scenario)
}

fn write(folder: &Path, grid: &Grid, rows: &[Row], request: &Request) -> anyhow::Result<()> {
    let put = |name: &str, text: String| {
        let path = folder.join(name);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    let axes = grid.axes.iter().map(|(axis, values)| json!({"axis": axis.key(), "values": values}));
    let left_out = grid.left_out.iter().map(|(name, why)| json!({"name": name, "why": why}));
    let all = json!({
        "sweep": grid.name, "about": grid.about, "ok": rows.iter().all(|row| row.ok), "plain": request.plain,
        "axes": axes.collect::<Vec<_>>(), "cells": rows, "left_out": left_out.collect::<Vec<_>>(),
    });
    put(ROWS, serde_json::to_string_pretty(&all).context("rows are JSON")?)?;
    put("sweep.csv", table::csv(grid, rows))?;
    let pictures = table::pictures(grid, rows)?;
    report::write_pictures(folder, &pictures)?;
    let mut body = format!("<p>{}</p>\n", page::escape(&grid.about));
    if rows.len() < grid.cells.len() {
        body += &format!("<p class=\"note\">{} of {} cells were played.</p>\n", rows.len(), grid.cells.len());
    }
    pictures.iter().for_each(|picture| body += &page::figure_of(picture));
    body += &table::html(grid, rows);
    body += "<p class=\"note\">Seconds are medians of rounds from the first commit with everybody on. Rounds, tokens and loss \
             count from the first node's beginning. All nodes share this machine's processor.</p>\n";
    put("index.html", page::frame(&grid.name, rows.iter().all(|row| row.ok), &body))
}
