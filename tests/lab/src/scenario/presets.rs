//! Access lines and networks by name.

use super::place::Place;
use crate::network::{Link, LinkChange};
use starling_bootstrap::config_file::nearest;
use std::time::Duration;

/// Queue of an access line without a setting of its own, in ms.
pub(super) const QUEUE_MS: f64 = 100.0;
/// Names of lines that have presets.
const LINES: [&str; 6] = ["open", "cloud", "lan", "fibre", "dsl", "satellite"];

/// Up and down, in bits a second, and the queue of an access line: the preset's, unless `given` has them in Mbit/s and
/// ms.
pub(super) fn access(
    place: Place<'_>,
    line: Option<&str>,
    given: [Option<f64>; 3],
) -> anyhow::Result<(u64, u64, Duration)> {
    // Mbit/s up and down, and the queue in ms, as such lines are sold. DSL and satellite have their usual long queues.
    let (up, down, queue) = match line {
        None | Some("open") => (0.0, 0.0, QUEUE_MS),
        Some("cloud") => (1000.0, 1000.0, 50.0),
        Some("lan") => (1000.0, 1000.0, 20.0),
        Some("fibre") => (100.0, 300.0, 50.0),
        Some("dsl") => (10.0, 50.0, 250.0),
        Some("satellite") => (15.0, 100.0, 300.0),
        Some(other) => {
            let hint = nearest(other, LINES).map_or(String::new(), |near| format!("; did you mean {near:?}?"));
            return place.refuse(&format!("there is no line called {other:?}{hint} (known: {})", LINES.join(", ")));
        }
    };
    let [up, down, queue] =
        [(given[0], up), (given[1], down), (given[2], queue)].map(|(g, preset)| g.unwrap_or(preset));
    for (key, value, max) in [("up_mbit", up, 1e6), ("down_mbit", down, 1e6), ("queue_ms", queue, 60_000.0)] {
        if !(0.0..=max).contains(&value) {
            return place.refuse(&format!("{key} is {value}, allowed is 0 to {max}"));
        }
    }
    Ok(((up * 1e6) as u64, (down * 1e6) as u64, Duration::from_secs_f64(queue / 1000.0)))
}

/// Links within a site and between sites.
pub(super) fn preset_of(whole: Place<'_>, preset: Option<&str>) -> anyhow::Result<(Link, Link)> {
    let link = |delay_ms: f64, jitter_ms: f64, loss: f64| {
        let change = LinkChange {
            delay_ms: Some(delay_ms),
            jitter_ms: Some(jitter_ms),
            loss: Some(loss),
            ..LinkChange::default()
        };
        change.on(Link::default())
    };
    const KNOWN: [&str; 5] = ["lan", "three-clouds", "homes", "transatlantic", "satellite"];
    Ok(match preset {
        None | Some("lan") => (link(0.1, 0.0, 0.0), link(0.1, 0.0, 0.0)),
        Some("three-clouds") => (link(0.3, 0.1, 0.0), link(40.0, 1.0, 0.0001)),
        Some("homes") => (link(1.0, 0.5, 0.0), link(15.0, 3.0, 0.001)),
        Some("transatlantic") => (link(0.3, 0.1, 0.0), link(45.0, 1.0, 0.0001)),
        Some("satellite") => (link(1.0, 0.5, 0.0), link(280.0, 15.0, 0.005)),
        Some(other) => {
            let hint = nearest(other, KNOWN).map_or(String::new(), |near| format!("; did you mean {near:?}?"));
            return whole
                .refuse(&format!("there is no network preset called {other:?}{hint} (known: {})", KNOWN.join(", ")));
        }
    })
}
