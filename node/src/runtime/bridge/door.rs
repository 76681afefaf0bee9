//! The socket at which a trainer comes in (`docs/bridge.md`, section 1). A thread of its own listens, so that a second
//! trainer is told at once that there is one.

use super::frames::{Frames, is_alive};
use super::link::{Link, Terms, send_away};
use super::refusal::{Broken, Reason, Refusal};
use anyhow::Context;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Name of the socket in the node's folder.
const SOCKET: &str = "trainer.sock";
/// Pause after a failure to take a connection in, as without free descriptors.
const PAUSE: Duration = Duration::from_millis(500);

/// The door of one node, which is shut when this is dropped.
pub struct Door {
    path: PathBuf,
    /// The socket in the node's folder, or a link to it.
    sign: PathBuf,
    /// A node before this one has not shut its door: it was killed.
    was_left: bool,
    hall: Arc<Hall>,
}

/// The things that the listening thread and the node share.
struct Hall {
    inside: Mutex<Inside>,
    came: Condvar,
}

struct Inside {
    terms: Terms,
    /// A trainer that was welcome and waits to be asked.
    waiting: Option<Link>,
    /// The connection of the trainer that the node has, waiting or not, and its number.
    held: Option<(u64, UnixStream)>,
    /// Trainers that were welcome so far.
    count: u64,
    is_shut: bool,
}

impl Hall {
    /// No statement leaves the fields half-changed, so a poisoned lock is still good.
    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at one connection.
    fn meet(&self, stream: UnixStream) {
        if !is_own(&stream) {
            tracing::warn!("another user of this machine came to the trainer's socket, and was sent away");
            return;
        }
        let terms = {
            let mut inside = self.inside();
            if inside.held.as_ref().is_some_and(|(_, stream)| is_alive(stream)) {
                drop(inside);
                let why = "this node has a trainer already: end that one, or start another node";
                send_away(stream, &Refusal::new(Reason::Taken, why));
                return;
            }
            (inside.held, inside.waiting) = (None, None);
            inside.terms.clone()
        };
        let welcome = Frames::new(stream).map_err(|e| Broken::Ended(starling_words::of(&e)));
        match welcome.and_then(|frames| Link::welcome(frames, &terms)) {
            Ok(mut link) => {
                let mut inside = self.inside();
                // The run has been founded by another one meanwhile: this one comes again, on other terms.
                if inside.terms.wanted != terms.wanted {
                    return;
                }
                inside.count += 1;
                link.number = inside.count;
                inside.held = link.handle().ok().map(|stream| (link.number, stream));
                inside.waiting = Some(link);
                self.came.notify_all();
            }
            Err(broken) => tracing::warn!("{broken}"),
        }
    }
}

impl Door {
    /// Opens the door in the node's folder, which only its user may enter.
    pub fn open(home: &Path, terms: Terms) -> anyhow::Result<Self> {
        std::fs::create_dir_all(&terms.folder)
            .with_context(|| format!("cannot make the folder {}", terms.folder.display()))?;
        // A node that was killed between the two steps of a replacement has left what was saved before.
        if !terms.saved().exists() {
            let _ = std::fs::rename(terms.former(), terms.saved());
        }
        let sign = std::path::absolute(home).unwrap_or_else(|_| home.to_path_buf()).join(SOCKET);
        let (path, was_left) = (socket_path(&sign), std::fs::symlink_metadata(&sign).is_ok());
        if UnixStream::connect(&path).is_ok() {
            anyhow::bail!(
                "another node waits for a trainer at {}: end it, or give this one a folder of its own with --home",
                path.display()
            );
        }
        for old in [&sign, &path] {
            let _ = std::fs::remove_file(old);
        }
        let cannot = || format!("cannot listen for a trainer at {}", path.display());
        let listener = UnixListener::bind(&path).with_context(cannot)?;
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).with_context(cannot)?;
        if sign != path {
            std::os::unix::fs::symlink(&path, &sign).with_context(cannot)?;
        }
        let inside = Inside { terms, waiting: None, held: None, count: 0, is_shut: false };
        let hall = Arc::new(Hall { inside: Mutex::new(inside), came: Condvar::new() });
        let theirs = hall.clone();
        let listening = move || {
            for stream in listener.incoming() {
                if theirs.inside().is_shut {
                    return;
                }
                match stream {
                    Ok(stream) => theirs.meet(stream),
                    Err(e) => {
                        tracing::warn!("no trainer could be taken in: {}", starling_words::of(&e));
                        std::thread::sleep(PAUSE);
                    }
                }
            }
        };
        std::thread::Builder::new().name("trainer-door".into()).spawn(listening).with_context(cannot)?;
        Ok(Self { path, sign, was_left, hall })
    }

    /// The socket, as a trainer's program is told.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the trainer of a node that was killed may still be there, and look for the next node.
    pub fn was_left(&self) -> bool {
        self.was_left
    }

    /// Whether a trainer is here.
    pub fn has_trainer(&self) -> bool {
        self.hall.inside().held.as_ref().is_some_and(|(_, stream)| is_alive(stream))
    }

    /// From now on trainers have to fit these terms.
    pub fn set_terms(&self, terms: Terms) {
        self.hall.inside().terms = terms;
    }

    pub fn terms(&self) -> Terms {
        self.hall.inside().terms.clone()
    }

    /// The trainer that waits, or comes within this time.
    pub fn take(&self, within: Duration) -> Option<Link> {
        let inside = self.hall.inside();
        let waited = self.hall.came.wait_timeout_while(inside, within, |inside| inside.waiting.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.waiting.take()
    }

    /// Gives a trainer back that the node has asked before, for the next to take it.
    pub fn put(&self, link: Link) {
        self.hall.inside().waiting = Some(link);
        self.hall.came.notify_all();
    }

    /// Ends a connection that is of no more use, so that the next trainer may come.
    pub fn end(&self, link: Link) {
        let number = link.number;
        drop(link);
        self.hall.inside().held.take_if(|(held, _)| *held == number);
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.hall.inside().is_shut = true;
        // The thread waits for a connection.
        let _ = UnixStream::connect(&self.path);
        for path in [&self.path, &self.sign] {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Whether a process of this node's user is at the other end, as far as the system tells.
#[cfg(target_os = "linux")]
fn is_own(stream: &UnixStream) -> bool {
    rustix::net::sockopt::socket_peercred(stream).is_ok_and(|peer| peer.uid == rustix::process::getuid())
}

#[cfg(not(target_os = "linux"))]
fn is_own(_stream: &UnixStream) -> bool {
    true
}

/// The path of the socket whose place is `sign`. Socket paths are limited to about 100 bytes, so a deep folder gets one
/// in the temporary folder.
fn socket_path(sign: &Path) -> PathBuf {
    if sign.as_os_str().len() < 100 {
        return sign.to_path_buf();
    }
    let digest = blake3::hash(sign.as_os_str().as_encoded_bytes()).to_hex();
    std::env::temp_dir().join(format!("starling-{}-trainer.sock", &digest[..16]))
}
