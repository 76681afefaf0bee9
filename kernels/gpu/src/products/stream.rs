//! The CUDA stream of a cubecl client, for libraries that enqueue between cubecl's launches.
//!
//! cubecl 0.10 hands out no stream. Its server prints its streams, each with a cursor that every use moves; the stream of a
//! client is the one whose cursor a flush by that client moves. The check runs on the device's thread, which nothing else
//! uses meanwhile.

use super::library::{Raw, cause};
use cubecl::cuda::CudaRuntime;
use cubecl::device::DeviceId;
use cubecl::device_handle::DeviceHandle;
use cubecl::prelude::*;
use cubecl::server::ComputeServer;
use cubecl::stream_id::StreamId;
use std::ffi::c_int;

pub type Server = <CudaRuntime as Runtime>::Server;

/// A stream, and the thread that may use it.
pub struct Stream {
    /// The `CUstream`.
    raw: usize,
    id: StreamId,
    device: DeviceHandle<Server>,
}

impl Stream {
    /// Finds the stream of the client.
    ///
    /// # Errors
    ///
    /// Words about the step that failed; none of the steps changes anything but the cursor.
    pub fn find(client: &ComputeClient<CudaRuntime>) -> Result<Self, String> {
        let id = client.empty(1).stream;
        // A flush makes the context current on the device's thread.
        client.flush().map_err(|e| format!("the device is in error: {e:?}"))?;
        let driver = Driver::load()?;
        let (driver, ordinal) = client
            .exclusive(move || driver.ordinal().map(|ordinal| (driver, ordinal)))
            .map_err(|e| format!("the device's thread does not answer: {e:?}"))??;
        let device = DeviceHandle::<Server>::new(DeviceId { type_id: 0, index_id: ordinal });
        let find = move |server: &mut Server| {
            let before = streams(&format!("{server:?}"))?;
            server.flush(id).map_err(|e| format!("the device is in error: {e:?}"))?;
            let raw = moved(&before, &streams(&format!("{server:?}"))?)?;
            driver.belongs(raw).map(|()| raw)
        };
        let raw = device.submit_blocking(find).map_err(|_| "the device's thread does not answer".to_string())??;
        Ok(Self { raw, id, device })
    }

    /// The `CUstream`.
    pub fn raw(&self) -> usize {
        self.raw
    }

    /// cubecl's name for the stream.
    pub fn id(&self) -> StreamId {
        self.id
    }

    /// Runs a task on the device's thread after the tasks before, and waits for it.
    ///
    /// # Errors
    ///
    /// A task that panicked.
    pub fn wait<T: Send>(&self, task: impl FnOnce(&mut Server) -> T + Send) -> Result<T, String> {
        self.device.submit_blocking(task).map_err(|_| "a task failed on the device's thread".to_string())
    }

    /// Runs a task on the device's thread after the tasks before, some time.
    pub fn send(&self, task: impl FnOnce(&mut Server) + Send + 'static) {
        self.device.submit(task);
    }
}

/// A stream in the server's print.
type Printed = (usize, u64);

/// The streams and cursors in the server's print.
fn streams(text: &str) -> Result<Vec<Printed>, String> {
    let entries: Option<Vec<Printed>> = text.split("StreamWrapper {").skip(1).map(entry).collect();
    entries.ok_or_else(|| "cubecl prints its streams in another way".to_string())
}

fn entry(text: &str) -> Option<Printed> {
    // The fields between the stream and its cursor are other structs, so that the cursor is sought from its end.
    let own = &text[..text.find("last_synced: {")?];
    let (_, stream) = own.split_once("sys: 0x")?;
    let raw = stream.split(|c: char| !c.is_ascii_hexdigit()).next()?;
    let (_, cursor) = own.rsplit_once("cursor: ")?;
    let cursor = cursor.trim_end_matches([' ', ',']);
    Some((usize::from_str_radix(raw, 16).ok()?, cursor.parse().ok()?))
}

/// The one stream that is new or has another cursor.
fn moved(before: &[Printed], after: &[Printed]) -> Result<usize, String> {
    let moved: Vec<usize> = after.iter().filter(|entry| !before.contains(entry)).map(|entry| entry.0).collect();
    match moved.as_slice() {
        [raw] if *raw != 0 => Ok(*raw),
        _ => Err(format!("{} of cubecl's streams moved in a flush of one", moved.len())),
    }
}

type Ordinal = unsafe extern "C" fn(*mut c_int) -> c_int;
type Current = unsafe extern "C" fn(*mut Raw) -> c_int;
type Context = unsafe extern "C" fn(Raw, *mut Raw) -> c_int;

/// The driver's functions that are asked here.
struct Driver {
    ordinal: Ordinal,
    current: Current,
    context: Context,
    _loaded: libloading::Library,
}

impl Driver {
    fn load() -> Result<Self, String> {
        let name = if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so.1" };
        let lacks = |e| format!("the driver does not tell of its streams: {}", cause(&e));
        // SAFETY: cubecl has loaded the driver before; the types are those of `cuda.h`.
        unsafe {
            let loaded = libloading::Library::new(name).map_err(lacks)?;
            let ordinal = *loaded.get::<Ordinal>(b"cuCtxGetDevice\0").map_err(lacks)?;
            let current = *loaded.get::<Current>(b"cuCtxGetCurrent\0").map_err(lacks)?;
            let context = *loaded.get::<Context>(b"cuStreamGetCtx\0").map_err(lacks)?;
            Ok(Self { ordinal, current, context, _loaded: loaded })
        }
    }

    /// The number of the device whose context is current on this thread.
    fn ordinal(&self) -> Result<u16, String> {
        let mut ordinal = -1;
        // SAFETY: the pointer is to a c_int.
        let status = unsafe { (self.ordinal)(&mut ordinal) };
        let found = u16::try_from(ordinal).ok().filter(|_| status == 0);
        found.ok_or_else(|| format!("the driver does not say which device is current (error {status})"))
    }

    /// Refuses what is no stream of the context that is current on this thread.
    fn belongs(&self, raw: usize) -> Result<(), String> {
        let (mut own, mut current) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the pointers are to pointers; the driver looks the stream up.
        let status = unsafe { [(self.context)(raw as Raw, &mut own), (self.current)(&mut current)] };
        match status == [0, 0] && own == current && !own.is_null() {
            true => Ok(()),
            false => Err(format!("cubecl's stream is not of its context (errors {status:?})")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn print(entries: &[(&str, u64)]) -> String {
        let entries: Vec<String> = entries
            .iter()
            .map(|(raw, cursor)| {
                let stream =
                    format!("Stream {{ sys: {raw}, pool: Pool {{ cursor: 77, slices: [None] }}, errors: [] }}");
                format!("Some(StreamWrapper {{ stream: {stream}, cursor: {cursor}, last_synced: {{0: 3}} }})")
            })
            .collect();
        let list = entries.join(", None, ");
        format!("CudaServer {{ streams: MultiStream {{ streams: [{list}] }}, comm_stream: 0x77, max_streams: 128 }}")
    }

    #[test]
    fn the_moved_stream_is_found() {
        let before = streams(&print(&[("0x7f10", 4), ("0x7f20", 4)])).unwrap();
        assert_eq!(before, [(0x7f10, 4), (0x7f20, 4)]);
        let after = streams(&print(&[("0x7f10", 4), ("0x7f20", 6)])).unwrap();
        assert_eq!(moved(&before, &after), Ok(0x7f20));
        let new = streams(&print(&[("0x7f30", 1), ("0x7f10", 4), ("0x7f20", 4)])).unwrap();
        assert_eq!(moved(&before, &new), Ok(0x7f30));
    }

    #[test]
    fn doubt_is_an_error() {
        let before = streams(&print(&[("0x7f10", 4), ("0x7f20", 4)])).unwrap();
        assert!(moved(&before, &before).unwrap_err().starts_with("0 of"));
        let both = streams(&print(&[("0x7f10", 5), ("0x7f20", 5)])).unwrap();
        assert!(moved(&before, &both).unwrap_err().starts_with("2 of"));
        assert!(moved(&[], &[(0, 1)]).is_err());
        assert!(streams("StreamWrapper { stream: 0x10 }").is_err());
        assert_eq!(streams("no streams yet"), Ok(Vec::new()));
    }
}
