//! Checks which crate may depend on which. The rules are data; they hold for cargo's resolution, and find injected
//! edges.

mod repository;

use cargo_metadata::{DependencyKind, Metadata, PackageId};
use std::collections::{BTreeMap, BTreeSet};

/// Our crates, and those of ours that each may name in its manifest.
const OURS: &[(&str, &[&str])] = &[
    ("starling-protocol", &[]),
    ("starling-gpu", &[]),
    ("starling-kernels", &["starling-gpu"]),
    ("starling-words", &[]),
    ("starling-bootstrap", &["starling-protocol", "starling-words"]),
    ("starling-data", &["starling-protocol", "starling-words"]),
    ("starling-net", &["starling-protocol", "starling-bootstrap", "starling-words"]),
    ("starling-store", &["starling-protocol", "starling-words"]),
    (
        "starling-node",
        &[
            "starling-protocol",
            "starling-kernels",
            "starling-bootstrap",
            "starling-data",
            "starling-net",
            "starling-store",
            "starling-words",
        ],
    ),
    ("starling-lab", &["starling-protocol", "starling-bootstrap", "starling-tests", "starling-words"]),
    (
        "starling-tests",
        &[
            "starling-protocol",
            "starling-kernels",
            "starling-bootstrap",
            "starling-data",
            "starling-store",
            "starling-node",
        ],
    ),
    (
        "starling-benches",
        &[
            "starling-protocol",
            "starling-gpu",
            "starling-kernels",
            "starling-bootstrap",
            "starling-data",
            "starling-store",
            "starling-node",
            "starling-tests",
        ],
    ),
];

/// Crates of others, by name or by prefix (`*`), and the only crates of ours that may name them in a manifest.
const RESERVED: &[(&str, &[&str])] = &[
    ("burn*", &["starling-kernels"]),
    ("cubecl*", &["starling-gpu"]),
    ("cubek*", &["starling-gpu"]),
    ("cudarc", &["starling-gpu"]),
    ("wgpu*", &["starling-gpu"]),
    ("rocksdb", &["starling-store"]),
    ("librocksdb-sys", &["starling-store"]),
    (
        "libp2p*",
        &["starling-bootstrap", "starling-net", "starling-node", "starling-tests", "starling-lab", "starling-benches"],
    ),
    (
        "tokio*",
        &["starling-bootstrap", "starling-net", "starling-node", "starling-tests", "starling-lab", "starling-benches"],
    ),
];

/// Crates that must not be among those that a crate of ours is built from.
const UNREACHABLE: &[(&str, &[&str])] = &[
    (
        "starling-bootstrap",
        &["burn*", "cubecl*", "wgpu*", "rocksdb", "librocksdb-sys", "starling-kernels", "starling-gpu"],
    ),
    ("starling-protocol", &["tokio*", "libp2p*", "rocksdb", "cubecl*", "burn*", "rand", "metrics*"]),
    ("starling-kernels", &["libp2p*", "rocksdb", "librocksdb-sys"]),
    ("starling-net", &["burn*", "cubecl*", "wgpu*", "rocksdb", "librocksdb-sys", "starling-kernels", "starling-node"]),
];

/// The dependencies of a workspace, by name.
#[derive(Default)]
struct Graph {
    /// Each of our crates with all crates that its manifest names, of any kind.
    named: BTreeMap<String, BTreeSet<String>>,
    /// Each of our crates with all crates that it is built from: normal and build dependencies, and theirs.
    built_from: BTreeMap<String, BTreeSet<String>>,
}

impl Graph {
    fn of(metadata: &Metadata) -> Self {
        let resolve = metadata.resolve.as_ref().expect("cargo resolves the workspace");
        let nodes: BTreeMap<&PackageId, _> = resolve.nodes.iter().map(|node| (&node.id, node)).collect();
        let names: BTreeMap<&PackageId, &str> = metadata.packages.iter().map(|p| (&p.id, p.name.as_str())).collect();
        let mut graph = Self::default();
        for package in metadata.workspace_packages() {
            let named = package.dependencies.iter().map(|d| d.name.clone()).collect();
            graph.named.insert(package.name.to_string(), named);
            let mut seen = BTreeSet::new();
            let mut open = vec![&package.id];
            while let Some(id) = open.pop() {
                for dep in &nodes[id].deps {
                    let built = dep.dep_kinds.iter().any(|k| k.kind != DependencyKind::Development);
                    if built && seen.insert(&dep.pkg) {
                        open.push(&dep.pkg);
                    }
                }
            }
            let built_from = seen.into_iter().map(|id| names[id].to_owned()).collect();
            graph.built_from.insert(package.name.to_string(), built_from);
        }
        graph
    }

    /// Every broken rule, as text.
    fn violations(&self) -> Vec<String> {
        let mut found = Vec::new();
        let ours: BTreeMap<&str, &[&str]> = OURS.iter().copied().collect();
        for (name, dependencies) in &self.named {
            let Some(allowed) = ours.get(name.as_str()) else {
                found.push(format!("{name} has no place in the layers yet: add it to OURS"));
                continue;
            };
            for dependency in dependencies {
                if ours.contains_key(dependency.as_str()) && !allowed.contains(&dependency.as_str()) {
                    found.push(format!("{name} must not know {dependency}"));
                }
                for (pattern, owners) in RESERVED {
                    if matches(pattern, dependency) && !owners.contains(&name.as_str()) {
                        found.push(format!("{name} names {dependency}, which only {} may", owners.join(", ")));
                    }
                }
            }
        }
        for (name, patterns) in UNREACHABLE {
            for dependency in self.built_from.get(*name).into_iter().flatten() {
                if patterns.iter().any(|pattern| matches(pattern, dependency)) {
                    found.push(format!("{name} is built from {dependency}, through its dependencies"));
                }
            }
        }
        found
    }
}

/// Whether a name is the pattern, or begins with it if it ends in `*`.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => name == pattern,
    }
}

#[test]
fn the_workspace_keeps_its_layers() {
    let graph = Graph::of(&repository::metadata());
    for (name, _) in OURS {
        assert!(graph.named.contains_key(*name), "{name} is no member of the workspace any more: adjust OURS");
    }
    // An empty graph would pass every check.
    assert!(graph.built_from["starling-kernels"].contains("cubecl-runtime"));
    assert!(graph.built_from["starling-node"].contains("librocksdb-sys"));
    assert!(graph.built_from["starling-bootstrap"].contains("libp2p-core"));
    assert_eq!(graph.violations(), Vec::<String>::new());
}

/// A graph with one crate that names, or is built from, one other.
fn injected(name: &str, named: &str, built_from: &str) -> Vec<String> {
    let edge = |to: &str| BTreeMap::from([(name.to_owned(), BTreeSet::from([to.to_owned()]))]);
    Graph { named: edge(named), built_from: edge(built_from) }.violations()
}

#[test]
fn injected_edges_between_our_crates_are_found() {
    for (name, dependency) in [
        ("starling-protocol", "starling-kernels"),
        ("starling-kernels", "starling-protocol"),
        ("starling-bootstrap", "starling-node"),
        ("starling-store", "starling-data"),
        ("starling-node", "starling-tests"),
        ("starling-tests", "starling-benches"),
    ] {
        assert_eq!(injected(name, dependency, "serde"), [format!("{name} must not know {dependency}")]);
    }
    assert_eq!(injected("starling-node", "starling-kernels", "serde"), Vec::<String>::new());
    assert_eq!(
        injected("starling-new", "serde", "serde"),
        ["starling-new has no place in the layers yet: add it to OURS"]
    );
}

#[test]
fn injected_foreign_crates_are_found() {
    assert_eq!(
        injected("starling-node", "burn-tensor", "serde"),
        ["starling-node names burn-tensor, which only starling-kernels may"]
    );
    assert_eq!(
        injected("starling-node", "rocksdb", "serde"),
        ["starling-node names rocksdb, which only starling-store may"]
    );
    for name in ["starling-protocol", "starling-kernels", "starling-data", "starling-store"] {
        let found = injected(name, "libp2p-swarm", "serde");
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with(&format!("{name} names libp2p-swarm")));
    }
}

#[test]
fn injected_indirect_dependencies_are_found() {
    for dependency in ["wgpu-core", "cubecl-runtime", "burn-flex", "rocksdb", "librocksdb-sys"] {
        assert_eq!(
            injected("starling-bootstrap", "serde", dependency),
            [format!("starling-bootstrap is built from {dependency}, through its dependencies")]
        );
    }
    assert_eq!(injected("starling-protocol", "serde", "rand").len(), 1);
    assert_eq!(injected("starling-bootstrap", "serde", "tokio"), Vec::<String>::new());
}
