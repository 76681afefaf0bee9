//! Causes within I/O errors, which libp2p wraps.

use std::error::Error;
use std::io;

/// The kind of the innermost I/O error: libp2p wraps the system's error several times.
pub(crate) fn root_kind(error: &io::Error) -> Option<io::ErrorKind> {
    if error.raw_os_error().is_some() {
        return Some(error.kind());
    }
    let mut inner: Option<&(dyn Error + 'static)> = error.get_ref().map(|e| e as _);
    while let Some(error) = inner {
        if let Some(kind) = error.downcast_ref::<io::Error>().and_then(root_kind) {
            return Some(kind);
        }
        inner = error.source();
    }
    (error.kind() != io::ErrorKind::Other).then(|| error.kind())
}

/// Whether an error of this type is among the causes.
pub(crate) fn chain_has<E: Error + 'static>(error: &io::Error) -> bool {
    let mut inner: Option<&(dyn Error + 'static)> = error.get_ref().map(|e| e as _);
    while let Some(error) = inner {
        let nested = error.downcast_ref::<io::Error>().is_some_and(chain_has::<E>);
        if nested || error.is::<E>() {
            return true;
        }
        inner = error.source();
    }
    false
}
