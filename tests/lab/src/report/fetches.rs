//! The bytes that nodes fetched to catch up: a matrix of the nodes that fetched and the peers that sent.

use super::heat::{Heat, Panel};
use crate::history::History;
use std::collections::{BTreeMap, BTreeSet};

const MIB: f64 = 1_048_576.0;
/// Letters that are shown of an id that no node of the scenario has.
const ID_LETTERS: usize = 8;
/// The panels: title, and the key in a source of the event `fetched`.
const KINDS: [(&str, &str); 2] = [("state chunks, MiB", "state_bytes"), ("updates, MiB", "update_bytes")];

/// Bytes by the node that fetched and the one that sent.
type Sums = BTreeMap<(String, String), u64>;

/// The matrix; none if no node told of a catch-up that fetched something.
pub fn matrix(history: &History) -> Option<Heat> {
    let sums = KINDS.map(|(_, key)| sums(history, key));
    let pairs = || sums.iter().flat_map(|sums| sums.keys());
    let rows: BTreeSet<&String> = pairs().map(|(to, _)| to).collect();
    let columns: BTreeSet<&String> = pairs().map(|(_, from)| from).collect();
    let panel = |(kind, sums): (&(&str, &str), &Sums)| {
        let field = |to: &String, from: &String| sums.get(&(to.clone(), from.clone())).map(|n| *n as f64 / MIB);
        let fields = rows.iter().map(|to| columns.iter().map(|from| field(to, from)).collect()).collect();
        Panel { title: kind.0.to_owned(), fields }
    };
    let panels = KINDS.iter().zip(&sums).map(panel).collect();
    let (x, y) = (("sent by".to_owned(), owned(&columns)), ("fetched by".to_owned(), owned(&rows)));
    (!rows.is_empty()).then_some(Heat { x, y, panels, digits: 1 })
}

fn owned(names: &BTreeSet<&String>) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}

fn sums(history: &History, key: &str) -> Sums {
    let nodes = || history.nodes.iter().chain(&history.aside);
    let names: BTreeMap<&str, &str> =
        nodes().flat_map(|node| node.ids.iter().map(move |id| (id.as_str(), node.name.as_str()))).collect();
    let mut sums = Sums::new();
    for node in nodes() {
        for source in node.named("fetched").filter_map(|event| event["sources"].as_array()).flatten() {
            let (Some(peer), Some(bytes)) = (source["peer"].as_str(), source[key].as_u64()) else { continue };
            if bytes > 0 {
                let from = names.get(peer).map_or_else(|| peer.chars().take(ID_LETTERS).collect(), ToString::to_string);
                *sums.entry((node.name.clone(), from)).or_default() += bytes;
            }
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::NodeHistory;
    use crate::report::picture::picture;
    use serde_json::{Value, json};

    fn node(name: &str, fetched: Vec<Value>) -> NodeHistory {
        let event = |sources: Value| json!({"event": "fetched", "seen": 1.0, "sources": sources});
        let ids = vec![format!("id-of-{name}")];
        NodeHistory { name: name.into(), ids, events: fetched.into_iter().map(event).collect() }
    }

    fn source(peer: &str, state: u64, update: u64) -> Value {
        json!({"peer": peer, "state_bytes": state << 20, "update_bytes": update << 20})
    }

    #[test]
    fn the_catch_ups_of_each_node_are_added_up_by_source() {
        let first = json!([source("id-of-old", 100, 30), source("id-of-new-2", 140, 0)]);
        let second = json!([source("id-of-old", 0, 30), source("0123456789", 1, 0)]);
        let nodes = vec![
            node("new-1", vec![first, second]),
            node("new-2", vec![json!([source("id-of-old", 240, 30)])]),
            node("old", Vec::new()),
        ];
        let heat = matrix(&History { nodes, ..History::default() }).expect("something was fetched");
        assert_eq!(heat.x.1, ["01234567", "new-2", "old"]);
        assert_eq!(heat.y.1, ["new-1", "new-2"]);
        let fields: Vec<_> = heat.panels.iter().map(|panel| panel.fields.clone()).collect();
        let state = vec![vec![Some(1.0), Some(140.0), Some(100.0)], vec![None, None, Some(240.0)]];
        let updates = vec![vec![None, None, Some(60.0)], vec![None, None, Some(30.0)]];
        assert_eq!(fields, [state, updates]);
        let drawn = picture("fetches", "fetches", &heat).expect("it can be drawn");
        assert!(drawn.svg.contains("new-2") && drawn.svg.contains("140.0") && !drawn.png.is_empty());
    }

    #[test]
    fn without_a_fetch_there_is_no_picture() {
        let nodes = vec![node("a", vec![json!([source("id-of-b", 0, 0)])]), node("b", Vec::new())];
        assert!(matrix(&History { nodes, ..History::default() }).is_none());
        assert!(matrix(&History::default()).is_none());
    }
}
