//! How a node was started, kept in its folder: `starling train --home DIR` alone starts it again in the same way.

use super::kept;
use crate::config::node_file::NodeFile;
use crate::config::run_file::RunFile;
use crate::exit::{Code, Failure};
use serde::{Deserialize, Serialize};
use starling_bootstrap::addresses::PeerAddress;
use starling_bootstrap::config_file;
use starling_data::CRATES_SOURCE;
use starling_store::Run;
use std::path::{Path, PathBuf};

/// Name of the file in the node's folder.
const FILE: &str = "start.toml";
const HEADER: &str = "\
# How this node was last started with --run or --join. `starling train --home DIR` alone starts it again so; flags\n\
# win over what stands here.\n";

/// The settings of a start. Paths in it are absolute.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Again {
    /// The ticket, if the node came with one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ticket: Option<String>,
    /// The node file, with the flags over it.
    #[serde(default)]
    pub node: NodeFile,
    /// The run file; without it the run's specification lies in the folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunFile>,
}

impl Again {
    /// The start that the folder holds. A folder that holds a run and no start, as one of an older release, gives its
    /// run.
    ///
    /// # Errors
    /// If there is neither, or the file cannot be read.
    pub fn of(home: &Path) -> Result<Self, Failure> {
        let path = home.join(FILE);
        if path.exists() {
            return config_file::load(&path).map_err(|error| {
                let why = format!("{error}; give --run RUN.toml or --join TICKET, as at this node's first start");
                Failure::message(Code::Usage, why)
            });
        }
        match Run::of_folder(home) {
            Some(_) => Ok(Self { ticket: None, node: NodeFile::default(), run: None }),
            None => {
                let why = format!("{} holds no run yet: give --run RUN.toml or --join TICKET", home.display());
                Err(Failure::message(Code::Usage, why))
            }
        }
    }

    /// The start of a node with these settings; `bootstrap` are its well-known peers, `data` the sources that replace
    /// those of the run file.
    pub fn new(
        home: &Path,
        node: &NodeFile,
        bootstrap: &[PeerAddress],
        (run, data): (Option<&RunFile>, &[String]),
        ticket: Option<String>,
    ) -> Self {
        let mut node = node.clone();
        node.home = Some(absolute(home));
        node.cache = node.cache.as_deref().map(absolute);
        node.bootstrap = bootstrap.iter().map(ToString::to_string).collect();
        let mut run = run.cloned();
        if let Some(run) = &mut run {
            let sources = if data.is_empty() { run.data.sources.as_slice() } else { data };
            run.data.sources = sources.iter().map(|source| absolute_text(source, CRATES_SOURCE)).collect();
            run.data.files = run.data.files.iter().map(|file| absolute_text(file, CRATES_SOURCE)).collect();
            run.data.tokenizer = absolute_text(&run.data.tokenizer, "bytes");
        }
        Self { ticket, node, run }
    }

    /// Keeps the start in the folder. Without it the node runs all the same.
    pub fn keep(&self, home: &Path) {
        let text = toml::to_string(self).map_err(std::io::Error::other);
        let write = |text: String| kept::write(&home.join(FILE), format!("{HEADER}\n{text}").as_bytes());
        if let Err(error) = text.and_then(write) {
            let why = starling_words::of(&error);
            tracing::warn!("this start is not kept, so that the next one needs --run or --join again: {why}");
        }
    }

    /// Whether the folder holds a start.
    pub fn is_kept(home: &Path) -> bool {
        home.join(FILE).exists()
    }
}

/// The path from the root. One that cannot be told stays as it is.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf())
}

/// The same for a path or glob in text, unless it is the word that means something else.
fn absolute_text(path: &str, word: &str) -> String {
    if path == word { path.to_owned() } else { absolute(Path::new(path)).to_string_lossy().into_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_comes_back_from_the_folder_with_absolute_paths() {
        let home = tempfile::tempdir().expect("a folder");
        let empty = Again::of(home.path()).expect_err("nothing is there");
        assert_eq!(empty.code, Code::Usage);
        assert!(empty.error.to_string().contains("holds no run yet: give --run"), "{}", empty.error);

        let mut run: RunFile = toml::from_str("name = \"small\"\nsync = \"every-step\"").expect("a run file");
        run.data.sources = vec!["texts/*.md".into(), CRATES_SOURCE.into()];
        let mut node = NodeFile { device: "cpu".into(), cache: Some("cache".into()), ..NodeFile::default() };
        node.bootstrap = vec!["peers.txt".into()];
        let text = "/ip4/192.0.2.7/tcp/7400/p2p/12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp";
        let peers = [starling_bootstrap::addresses::parse_with_peer(text).expect("a peer")];
        let start = Again::new(home.path(), &node, &peers, (Some(&run), &[]), Some("starling2abc".into()));
        assert!(!Again::is_kept(home.path()));
        start.keep(home.path());
        let again = Again::of(home.path()).expect("it is there");
        assert_eq!((again.ticket.as_deref(), again.node.device.as_str()), (Some("starling2abc"), "cpu"));
        assert_eq!(again.node.home.as_deref(), Some(home.path()));
        assert_eq!(again.node.bootstrap, [text]);
        let here = std::env::current_dir().expect("a folder");
        assert_eq!(again.node.cache, Some(here.join("cache")));
        let data = again.run.expect("a run file").data;
        assert_eq!(data.sources, [here.join("texts/*.md").to_string_lossy().into_owned(), CRATES_SOURCE.to_owned()]);
        assert_eq!(data.tokenizer, "bytes");

        let replaced = Again::new(home.path(), &node, &[], (Some(&run), &["/other".to_owned()]), None);
        assert_eq!(replaced.run.expect("a run file").data.sources, ["/other"]);
        std::fs::write(home.path().join(FILE), "tiket = 1").expect("written");
        let damaged = Again::of(home.path()).expect_err("an unknown key");
        assert!(damaged.error.to_string().contains("as at this node's first start"), "{}", damaged.error);
    }
}
