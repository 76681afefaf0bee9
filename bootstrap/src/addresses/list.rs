//! Bootstrap lists: the first peers of a node.
//!
//! `--bootstrap` may be repeated; each value is an address that ends in `/p2p/PEER`, or a file of such addresses, one
//! a line, with `#` comments. Order does not matter and duplicates are dropped.

use super::{AddressError, PeerAddress, parse_with_peer};
use crate::config_file::{self, ConfigError};
use std::path::{Path, PathBuf};

/// Addresses of all lists together.
pub const BOOTSTRAP_MAX: usize = 256;

/// The reason why a bootstrap list cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    #[error("--bootstrap: {0}")]
    Address(#[from] AddressError),
    #[error("{} line {line}: {source}", path.display())]
    Line { path: PathBuf, line: usize, source: AddressError },
    #[error("--bootstrap: {0}")]
    File(#[from] ConfigError),
    #[error("--bootstrap {}: the file names no address; write one a line, each ending in /p2p/ and the node's id", path.display())]
    Empty { path: PathBuf },
    #[error("--bootstrap: more than {BOOTSTRAP_MAX} addresses; a few that are always up are enough")]
    TooMany,
}

/// The peers that a node gets at its start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BootstrapList(Vec<PeerAddress>);

impl BootstrapList {
    /// Loads the values of `--bootstrap`, or of the configuration's `bootstrap`.
    pub fn load_all<S: AsRef<str>>(values: &[S]) -> Result<Self, ListError> {
        let mut list = Self::default();
        for value in values {
            let value = value.as_ref();
            match parse_with_peer(value) {
                Ok(peer) => list.push(peer)?,
                Err(error) => list.add_file_or(value, error)?,
            }
        }
        Ok(list)
    }

    /// Parses the text of a list; `path` is for messages.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ListError> {
        let mut list = Self::default();
        for (index, line) in text.lines().enumerate() {
            let entry = line.split('#').next().unwrap_or_default().trim();
            if entry.is_empty() {
                continue;
            }
            let at = |source| ListError::Line { path: path.to_path_buf(), line: index + 1, source };
            list.push(parse_with_peer(entry).map_err(at)?)?;
        }
        match list.0.is_empty() {
            true => Err(ListError::Empty { path: path.to_path_buf() }),
            false => Ok(list),
        }
    }

    pub fn peers(&self) -> &[PeerAddress] {
        &self.0
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn into_peers(self) -> Vec<PeerAddress> {
        self.0
    }

    /// A value that is no address is read as a file. When it is neither, the more helpful of the two errors is
    /// returned.
    fn add_file_or(&mut self, value: &str, error: AddressError) -> Result<(), ListError> {
        let path = Path::new(value);
        if !path.exists() {
            let meant_as_path = value.ends_with(".txt") || value.ends_with(".list") || value.starts_with('.');
            if !meant_as_path {
                return Err(error.into());
            }
        }
        for peer in Self::parse(&config_file::read(path)?, path)?.0 {
            self.push(peer)?;
        }
        Ok(())
    }

    fn push(&mut self, peer: PeerAddress) -> Result<(), ListError> {
        if self.0.contains(&peer) {
            return Ok(());
        }
        if self.0.len() == BOOTSTRAP_MAX {
            return Err(ListError::TooMany);
        }
        self.0.push(peer);
        Ok(())
    }
}

/// Adds peers while there is room; a full list has more than enough.
impl Extend<PeerAddress> for BootstrapList {
    fn extend<I: IntoIterator<Item = PeerAddress>>(&mut self, peers: I) {
        for peer in peers {
            if self.push(peer).is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "/ip4/192.0.2.7/tcp/7400/p2p/12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp";
    const B: &str = "/dns4/b.example/udp/7400/quic-v1/p2p/12D3KooWH3uVF6wv47WnArKHk5p6cvgCJEb74UTmxztmQDc298L3";

    #[test]
    fn addresses_and_files_mix() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("peers");
        std::fs::write(&path, format!("# ours\n\n  {A}  # the first\n{B}\n{A}\n")).unwrap();
        let list = BootstrapList::load_all(&[A, path.to_str().unwrap()]).unwrap();
        let shown: Vec<String> = list.peers().iter().map(|p| p.to_string()).collect();
        assert_eq!(shown, [A, B]);
    }

    #[test]
    fn errors_name_file_and_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("peers.txt");
        std::fs::write(&path, format!("{A}\n192.0.2.9:7400\n")).unwrap();
        let message = BootstrapList::load_all(&[path.to_str().unwrap()]).unwrap_err().to_string();
        assert!(message.contains("peers.txt line 2") && message.contains("/ip4/192.0.2.9/tcp/7400"), "{message}");
        std::fs::write(&path, "# nothing yet\n").unwrap();
        assert!(matches!(BootstrapList::load_all(&[path.to_str().unwrap()]), Err(ListError::Empty { .. })));
    }

    #[test]
    fn neither_address_nor_file() {
        let message = |v: &str| BootstrapList::load_all(&[v]).unwrap_err().to_string();
        assert!(message("/ip4/192.0.2.7/tcp/7400").contains("add /p2p/"), "{}", message("/ip4/192.0.2.7/tcp/7400"));
        assert!(message("192.0.2.7:7400").contains("/ip4/192.0.2.7/tcp/7400"));
        assert!(message("no-such.txt").contains("cannot read no-such.txt"), "{}", message("no-such.txt"));
    }

    #[test]
    fn lists_are_bounded() {
        let id = A.rsplit('/').next().unwrap();
        let text: String = (0..=BOOTSTRAP_MAX).map(|i| format!("/ip4/192.0.2.7/tcp/{}/p2p/{id}\n", i + 1)).collect();
        assert!(matches!(BootstrapList::parse(&text, Path::new("x")), Err(ListError::TooMany)));
    }
}
