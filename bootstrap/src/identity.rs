//! A node's key: one file of 32 secret bytes, and the two names that follow from it.
//!
//! [`NodeId`] is the name under which the protocol signs. libp2p's [`PeerId`] is the same ed25519 public key in another
//! encoding, so each is computed from the other and there is no table of names.

use libp2p::PeerId;
use libp2p::identity::{Keypair, ed25519};
use libp2p::multihash::Multihash;
use starling_protocol::NodeId;
use starling_protocol::identity::Ed25519Signer;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use zeroize::{Zeroize, Zeroizing};

/// Bytes of a key file: the ed25519 seed and nothing else.
pub const SECRET_BYTES: usize = 32;

/// A peer id of an ed25519 key is the identity multihash (code 0) of a 36-byte protobuf: this prefix, then the key.
const PEER_ID_PREFIX: [u8; 4] = [0x08, 0x01, 0x12, 0x20];
const IDENTITY_MULTIHASH: u64 = 0;

/// The reason why a key could not be loaded or made.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error(
        "cannot {action} the key file {}: {}; check the path and its owner",
        path.display(), starling_words::of(source)
    )]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error(
        "the key file {} may be read by others (mode {mode:03o}): run `chmod 600 {}` and, if somebody else could \
         have copied it, delete it and let a new one be made",
        path.display(), path.display()
    )]
    Exposed { path: PathBuf, mode: u32 },
    #[error(
        "the key file {} is damaged: it has {found} bytes and a key has {SECRET_BYTES}; restore it from a backup, or \
         move it away and a new identity will be made",
        path.display()
    )]
    Length { path: PathBuf, found: u64 },
    #[error(
        "the key file {} is damaged: it holds only zeros; restore it from a backup, or move it away and a new \
         identity will be made",
        path.display()
    )]
    Blank { path: PathBuf },
    #[error("{} is not a file: name a file for the key", path.display())]
    NotAFile { path: PathBuf },
    #[error("these 32 bytes are no ed25519 key")]
    Unusable,
}

/// A node's key pair. The secret is wiped from memory when it is dropped and never printed.
#[derive(Clone)]
pub struct Identity {
    secret: Zeroizing<[u8; SECRET_BYTES]>,
    keypair: Keypair,
    node: NodeId,
}

impl Identity {
    /// A fresh identity from the operating system's randomness, not stored anywhere.
    pub fn generate() -> Result<Self, IdentityError> {
        let secret = ed25519::SecretKey::generate();
        let bytes =
            Zeroizing::new(<[u8; SECRET_BYTES]>::try_from(secret.as_ref()).map_err(|_| IdentityError::Unusable)?);
        Self::from_secret(bytes)
    }

    /// An identity from the 32 bytes of an ed25519 seed.
    pub fn from_secret(secret: Zeroizing<[u8; SECRET_BYTES]>) -> Result<Self, IdentityError> {
        // The library wipes its copy.
        let mut copy = *secret;
        let key = ed25519::SecretKey::try_from_bytes(&mut copy).map_err(|_| IdentityError::Unusable);
        copy.zeroize();
        let keypair = ed25519::Keypair::from(key?);
        let node = NodeId(keypair.public().to_bytes());
        Ok(Self { secret, keypair: keypair.into(), node })
    }

    pub fn node_id(&self) -> NodeId {
        self.node
    }

    pub fn peer_id(&self) -> PeerId {
        self.keypair.public().to_peer_id()
    }

    /// The key pair that authenticates connections.
    pub fn keypair(&self) -> &Keypair {
        &self.keypair
    }

    /// A signer of protocol messages under this identity.
    pub fn signer(&self) -> Ed25519Signer {
        Ed25519Signer::from_secret(&self.secret)
    }
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Identity({})", self.node.short())
    }
}

/// The node with this peer id's key; `None` for ids of other kinds of keys.
pub fn node_id(peer: &PeerId) -> Option<NodeId> {
    let multihash = peer.as_ref();
    if multihash.code() != IDENTITY_MULTIHASH {
        return None;
    }
    let key = multihash.digest().strip_prefix(&PEER_ID_PREFIX)?;
    Some(NodeId(key.try_into().ok()?))
}

/// The peer id of a node's key. The key is not checked to be a point of the curve: if it is not, no handshake succeeds.
pub fn peer_id(node: &NodeId) -> PeerId {
    let mut bytes = [0u8; PEER_ID_PREFIX.len() + 32];
    bytes[..PEER_ID_PREFIX.len()].copy_from_slice(&PEER_ID_PREFIX);
    bytes[PEER_ID_PREFIX.len()..].copy_from_slice(&node.0);
    let multihash = Multihash::wrap(IDENTITY_MULTIHASH, &bytes).expect("36 bytes fit a multihash of 64");
    PeerId::from_multihash(multihash).expect("an identity multihash of at most 42 bytes is a peer id")
}

/// Loads the key at `path`, or creates one there (and the folders above it, mode 0700) when there is none.
pub fn load_or_create(path: &Path) -> Result<Identity, IdentityError> {
    match File::open(path) {
        Ok(file) => load_from(file, path),
        Err(e) if e.kind() == io::ErrorKind::NotFound => create(path),
        Err(source) => Err(failed("open", path)(source)),
    }
}

/// Loads the key at `path`.
pub fn load(path: &Path) -> Result<Identity, IdentityError> {
    load_from(File::open(path).map_err(failed("open", path))?, path)
}

fn load_from(mut file: File, path: &Path) -> Result<Identity, IdentityError> {
    let meta = file.metadata().map_err(failed("inspect", path))?;
    let path_owned = || path.to_path_buf();
    if !meta.is_file() {
        return Err(IdentityError::NotAFile { path: path_owned() });
    }
    if meta.mode() & 0o077 != 0 {
        return Err(IdentityError::Exposed { path: path_owned(), mode: meta.mode() & 0o777 });
    }
    if meta.len() != SECRET_BYTES as u64 {
        return Err(IdentityError::Length { path: path_owned(), found: meta.len() });
    }
    let mut secret = Zeroizing::new([0u8; SECRET_BYTES]);
    file.read_exact(secret.as_mut()).map_err(failed("read", path))?;
    // A file system that lost the data of a synced file leaves zeros; a key of zeros would be known to everybody.
    if secret.iter().all(|b| *b == 0) {
        return Err(IdentityError::Blank { path: path_owned() });
    }
    Identity::from_secret(secret)
}

/// Writes a new key beside `path`, syncs it, and links it into place. So `path` never names half a key. When two
/// processes create one at once, one of them wins and both load its key.
fn create(path: &Path) -> Result<Identity, IdentityError> {
    let folder = match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    };
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .map_err(failed("make the folder of", path))?;
    let identity = Identity::generate()?;
    let name = path.file_name().ok_or_else(|| IdentityError::NotAFile { path: path.to_path_buf() })?;
    let mut draft_name = name.to_os_string();
    draft_name.push(format!(".{}.new", std::process::id()));
    let draft = folder.join(draft_name);
    // A draft of a process that died earlier under the same process id is of no use.
    let _ = std::fs::remove_file(&draft);
    let placed = write_key(&draft, &identity).and_then(|()| place(&draft, path, &identity));
    let _ = std::fs::remove_file(&draft);
    match placed {
        Ok(()) => {
            File::open(folder).and_then(|d| d.sync_all()).map_err(failed("sync the folder of", path))?;
            Ok(identity)
        }
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => load(path),
        Err(source) => Err(failed("create", path)(source)),
    }
}

fn write_key(path: &Path, identity: &Identity) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(identity.secret.as_ref())?;
    file.sync_all()
}

fn place(draft: &Path, path: &Path, identity: &Identity) -> io::Result<()> {
    match std::fs::hard_link(draft, path) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
            // Some file systems have no hard links. Exclusive creation still never overwrites a key.
            tracing::debug!(error = starling_words::of(&e), "no hard link for the key file, creating it directly");
            write_key(path, identity)
        }
        other => other,
    }
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> IdentityError {
    let path = path.to_path_buf();
    move |source| IdentityError::Io { action, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling_protocol::Signer;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_created_key_is_private_and_loads_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/er/key");
        let made = load_or_create(&path).unwrap();
        let meta = std::fs::metadata(&path).unwrap();
        assert_eq!((meta.permissions().mode() & 0o777, meta.len()), (0o600, 32));
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "no draft is left behind");
        let again = load_or_create(&path).unwrap();
        assert_eq!(made.node_id(), again.node_id());
        assert_eq!(made.signer().id(), made.node_id());
    }

    #[test]
    fn a_key_that_others_may_read_is_refused_with_the_cure() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        load_or_create(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        let error = load_or_create(&path).unwrap_err();
        assert!(matches!(error, IdentityError::Exposed { mode: 0o640, .. }), "{error}");
        assert!(error.to_string().contains("chmod 600"), "{error}");
    }

    #[test]
    fn damaged_keys_are_refused_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        for (bytes, what) in [(vec![1u8; 31], "31 bytes"), (vec![], "0 bytes"), (vec![0u8; 32], "only zeros")] {
            let path = dir.path().join("key");
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(true).mode(0o600);
            options.open(&path).unwrap().write_all(&bytes).unwrap();
            let error = load_or_create(&path).unwrap_err();
            assert!(error.to_string().contains(what), "{error}");
            assert_eq!(std::fs::read(&path).unwrap(), bytes);
        }
        assert!(matches!(load_or_create(dir.path()), Err(IdentityError::NotAFile { .. })));
    }

    #[test]
    fn creators_that_race_end_with_one_key() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let first = create(&path).unwrap();
        // The second creator has not seen the first one's file when it starts.
        let second = create(&path).unwrap();
        assert_eq!(first.node_id(), second.node_id());
    }

    #[test]
    fn node_and_peer_ids_are_the_same_key() {
        let identity = Identity::generate().unwrap();
        assert_eq!(node_id(&identity.peer_id()), Some(identity.node_id()));
        assert_eq!(peer_id(&identity.node_id()), identity.peer_id());
        assert_eq!(node_id(&PeerId::random()), None, "a hashed key is no ed25519 key");
        for id in [[0u8; 32], [0xff; 32]] {
            assert_eq!(node_id(&peer_id(&NodeId(id))), Some(NodeId(id)));
        }
    }

    #[test]
    fn nothing_secret_is_printed() {
        let secret = Zeroizing::new([7u8; 32]);
        let identity = Identity::from_secret(secret).unwrap();
        assert!(!format!("{identity:?}").contains("07070707"));
    }
}
