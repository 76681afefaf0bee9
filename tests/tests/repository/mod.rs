//! The repository as the checks see it: its root, its sources, and what cargo knows about it.

// Each test binary compiles this module for itself and uses a part of it.
#![allow(dead_code)]

pub mod code;

use cargo_metadata::{Metadata, MetadataCommand};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder of the workspace's manifest.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests' crate lies in the workspace").to_path_buf()
}

/// The workspace resolved for this machine, from the lock file and without a network.
pub fn metadata() -> Metadata {
    let host = host_triple();
    // Without the filter cargo wants the sources of other systems' crates, which no build here has fetched.
    let options = ["--offline", "--locked", "--filter-platform", &host].map(str::to_owned).to_vec();
    MetadataCommand::new()
        .manifest_path(root().join("Cargo.toml"))
        .other_options(options)
        .exec()
        .expect("cargo metadata resolves the workspace: Cargo.lock fits the manifests, and the crates are fetched")
}

fn host_triple() -> String {
    let output = Command::new("rustc").arg("-vV").output().expect("rustc runs");
    let text = String::from_utf8(output.stdout).expect("rustc prints UTF-8");
    text.lines().find_map(|line| line.strip_prefix("host: ")).expect("rustc names its host").to_owned()
}

/// A source file: path from the root with forward slashes, and its text.
pub struct Source {
    pub path: String,
    pub text: String,
}

/// All Rust sources of the workspace, sorted by path.
pub fn sources() -> Vec<Source> {
    texts(&["rs"])
}

/// All files of the workspace whose names end so, without a dot, sorted by path.
pub fn texts(extensions: &[&str]) -> Vec<Source> {
    let root = root();
    let mut found = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("the repository can be read") {
            let path = entry.expect("the repository can be read").path();
            let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default().to_owned();
            if path.is_dir() && !name.starts_with('.') && name != "target" && name != "out" {
                folders.push(path);
            } else if path.extension().and_then(|e| e.to_str()).is_some_and(|e| extensions.contains(&e)) {
                let relative = path.strip_prefix(&root).expect("found below the root");
                found.push(Source {
                    path: relative.to_string_lossy().replace('\\', "/"),
                    text: fs::read_to_string(&path).expect("sources are UTF-8"),
                });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}
