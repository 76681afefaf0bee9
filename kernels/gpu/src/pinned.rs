//! Vectors between the host and a CUDA device by way of pinned memory, which the device copies from and to by itself:
//! it moves one buffer of a ring while threads of the host fill or empty another.

use crate::products::Stream;
use crate::transfer::{Overlap, PIECE, Places};
use crate::words;
use cubecl::cuda::CudaRuntime;
use cubecl::prelude::*;
use cubecl::server::{ComputeServer, Handle};
use cudarc::driver::{DriverError, result, sys};
use rayon::iter::{IntoParallelIterator, ParallelIterator};
use std::mem::take;
use std::ops::Range;

/// Buffers of the ring, each with [`PIECE`] elements: 64 MiB in all.
const BUFFERS: usize = 4;
/// Threads that copy between the host's vector and a buffer, at most: one alone is slower than the bus.
const THREADS: usize = 8;
/// Elements that a thread copies at a time: 256 KiB.
const SHARE: usize = 1 << 16;

/// A range of the device's vector that fits a buffer.
pub struct Piece {
    device: Range<usize>,
    /// The places on the host, in the device's order, each with its part of the range; the rest is padding.
    parts: Vec<Overlap>,
}

/// Numbers to copy, and their target.
type Share<'a> = (&'a mut [f32], &'a [f32]);

impl Piece {
    /// The pieces of all numbers.
    pub fn whole(places: &Places) -> Vec<Self> {
        let piece = |device: Range<usize>| Self { parts: places.overlaps(device.clone()).collect(), device };
        places.pieces().map(piece).collect()
    }

    /// The pieces of the host's `len` numbers from `start` on, without padding. Places on the host count from `start`.
    pub fn some(places: &Places, start: usize, len: usize) -> Vec<Self> {
        let mut pieces = Vec::new();
        for (device, host) in places.parts(start, len) {
            for first in (0..host.len()).step_by(PIECE) {
                let (len, host) = (PIECE.min(host.len() - first), host.start + first);
                let device = device.start + first;
                pieces.push(Self { device: device..device + len, parts: vec![(host..host + len, 0..len)] });
            }
        }
        pieces
    }

    /// The copies that fill the piece's buffer with the host's numbers. Padding is set to zero at once.
    fn gathered<'a>(&self, values: &'a [f32], mut buffer: &'a mut [f32]) -> Vec<Share<'a>> {
        let (mut shares, mut at) = (Vec::new(), 0);
        for (host, part) in &self.parts {
            let (padding, rest) = take(&mut buffer).split_at_mut(part.start - at);
            padding.fill(0.0);
            let (own, rest) = rest.split_at_mut(part.len());
            shares.extend(own.chunks_mut(SHARE).zip(values[host.clone()].chunks(SHARE)));
            (buffer, at) = (rest, part.end);
        }
        buffer.fill(0.0);
        shares
    }

    /// The copies that bring the piece's numbers from its buffer to the host's places.
    fn scattered<'a>(&self, buffer: &'a [f32], mut values: &'a mut [f32]) -> Vec<Share<'a>> {
        let mut parts: Vec<&Overlap> = self.parts.iter().collect();
        parts.sort_by_key(|(host, _)| host.start);
        let (mut shares, mut at) = (Vec::new(), 0);
        for (host, part) in parts {
            let (_, rest) = take(&mut values).split_at_mut(host.start - at);
            let (own, rest) = rest.split_at_mut(host.len());
            shares.extend(own.chunks_mut(SHARE).zip(buffer[part.clone()].chunks(SHARE)));
            (values, at) = (rest, host.end);
        }
        shares
    }
}

/// A ring of pinned buffers, and the stream on which the device copies.
pub struct Pinned {
    stream: Stream,
    ring: Ring,
    threads: rayon::ThreadPool,
}

impl Pinned {
    /// Finds cubecl's stream and sets the buffers aside.
    ///
    /// # Errors
    /// Words about what is missing, as the end of a sentence.
    pub fn open(client: &ComputeClient<CudaRuntime>) -> Result<Self, String> {
        let count = std::thread::available_parallelism().map_or(1, |count| count.get().min(THREADS));
        let threads = rayon::ThreadPoolBuilder::new().num_threads(count).thread_name(|n| format!("transfer-{n}"));
        let threads = threads.build().map_err(|error| format!("{count} threads do not start: {error}"))?;
        let stream = Stream::find(client)?;
        let raw = stream.raw();
        let ring = stream.wait(move |_| Ring::open(raw))?;
        let ring = ring.map_err(|error| {
            let mib = (4 * BUFFERS * PIECE) >> 20;
            format!("the driver gives no {mib} MiB of pinned memory: {}", says(error))
        })?;
        Ok(Self { stream, ring, threads })
    }

    /// Copies the host's numbers to `target`, after all launches before, and does not wait for the device. Padding of
    /// the pieces becomes zero.
    ///
    /// # Errors
    /// A vector that is too short; the driver's words.
    pub fn write(&mut self, target: &Handle, values: &[f32], pieces: &[Piece]) -> Result<(), String> {
        self.run(target, values.len(), pieces, |ring, threads, start| {
            for (at, piece) in pieces.iter().enumerate() {
                let slot = &mut ring.slots[at % BUFFERS];
                copy(threads, piece.gathered(values, slot.buffer(piece)?));
                slot.send(start, piece, ring.stream)?;
            }
            Ok(())
        })
    }

    /// Copies numbers of `source` to the host, after all launches before.
    ///
    /// # Errors
    /// A vector that is too short; the driver's words, which may be about an earlier launch.
    pub fn read(&mut self, source: &Handle, values: &mut [f32], pieces: &[Piece]) -> Result<(), String> {
        self.run(source, values.len(), pieces, |ring, threads, start| {
            for (piece, slot) in pieces.iter().zip(&mut ring.slots) {
                slot.fetch(start, piece, ring.stream)?;
            }
            for (at, piece) in pieces.iter().enumerate() {
                let slot = &mut ring.slots[at % BUFFERS];
                copy(threads, piece.scattered(slot.buffer(piece)?, values));
                if let Some(next) = pieces.get(at + BUFFERS) {
                    slot.fetch(start, next, ring.stream)?;
                }
            }
            Ok(())
        })
    }

    /// Runs a transfer on the device's thread, with the address of the vector. After an error no copy is under way.
    fn run(
        &mut self,
        vector: &Handle,
        host: usize,
        pieces: &[Piece],
        transfer: impl FnOnce(&mut Ring, &rayon::ThreadPool, u64) -> Result<(), DriverError> + Send,
    ) -> Result<(), String> {
        let (device, id) = (vector.size_in_used() / 4, self.stream.id());
        for piece in pieces {
            let needed = piece.parts.iter().map(|(host, _)| host.end).max().unwrap_or(0);
            if piece.device.end as u64 > device || needed > host {
                let (end, there) = (piece.device.end, [device, host as u64]);
                return Err(format!("a transfer up to {end} and {needed} is beyond its vectors of {there:?} numbers"));
            }
        }
        if vector.stream != id {
            return Err("a vector to transfer belongs to another stream".into());
        }
        let Self { stream, ring, threads } = self;
        let binding = vector.clone().binding();
        let done = stream.wait(move |server| {
            // cubecl makes its context current here, and keeps the memory until the resource is dropped.
            let resource = server.get_resource(binding, id);
            let resource = resource.map_err(|error| format!("a vector to transfer has no memory: {error:?}"))?;
            let done = transfer(ring, threads, resource.resource().ptr);
            done.map_err(|error| {
                ring.settle();
                format!("a transfer failed: {}", says(error))
            })
        });
        // A panic of the device's thread has more to say than that there was one.
        done.map_err(|why| words::last().unwrap_or(why))?
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // The memory is given back on the device's thread, where its context is current.
        let ring = take(&mut self.ring);
        self.stream.send(move |_| drop(ring));
    }
}

/// The driver's words.
fn says(error: DriverError) -> String {
    words::plain(&format!("{error:?}"))
}

fn copy(threads: &rayon::ThreadPool, shares: Vec<Share>) {
    threads.install(|| shares.into_par_iter().for_each(|(to, from)| to.copy_from_slice(from)));
}

#[derive(Default)]
struct Ring {
    slots: Vec<Slot>,
    /// The `CUstream`.
    stream: usize,
}

impl Ring {
    /// Sets the buffers aside, on the device's thread.
    fn open(stream: usize) -> Result<Self, DriverError> {
        let slots: Result<Vec<Slot>, _> = (0..BUFFERS).map(|_| Slot::open()).collect();
        Ok(Self { slots: slots?, stream })
    }

    /// Waits for all copies. A stream that fails has none any more.
    fn settle(&self) {
        // SAFETY: cubecl does not close its streams while the device's thread runs.
        let _ = unsafe { result::stream::synchronize(self.stream as sys::CUstream) };
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if !self.slots.is_empty() {
            self.settle();
        }
    }
}

/// A buffer of [`PIECE`] f32 in pinned memory, and an event after the last copy from or to it.
struct Slot {
    memory: *mut f32,
    event: sys::CUevent,
}

// SAFETY: memory and event belong to the slot alone, and the driver's functions may be called from any thread on which
// the context is current: ours are called on the device's.
unsafe impl Send for Slot {}

impl Slot {
    fn open() -> Result<Self, DriverError> {
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)?;
        let mut slot = Self { memory: std::ptr::null_mut(), event };
        // SAFETY: the memory is as large as is asked for, and all of it is written before it is read.
        unsafe {
            slot.memory = result::malloc_host(4 * PIECE, 0)?.cast();
            slot.memory.write_bytes(0, PIECE);
        }
        Ok(slot)
    }

    /// The elements for a piece, once the device has done the last copy.
    fn buffer(&mut self, piece: &Piece) -> Result<&mut [f32], DriverError> {
        let len = piece.device.len();
        assert!(len <= PIECE, "a piece of {len} elements");
        // SAFETY: the event is the slot's own; it is over at once if there was no copy. So many elements are there and
        // were written, and nothing else reads or writes them now.
        unsafe {
            result::event::synchronize(self.event)?;
            Ok(std::slice::from_raw_parts_mut(self.memory, len))
        }
    }

    /// Enqueues the copy of a piece to the vector at `start`.
    fn send(&mut self, start: u64, piece: &Piece, stream: usize) -> Result<(), DriverError> {
        let (place, stream) = (start + 4 * piece.device.start as u64, stream as sys::CUstream);
        let (event, buffer) = (self.event, self.buffer(piece)?);
        // SAFETY: the vector has the piece, as was checked. Nobody touches the buffer until the event is over.
        unsafe {
            result::memcpy_htod_async(place, buffer, stream)?;
            result::event::record(event, stream)
        }
    }

    /// Enqueues the copy of a piece of the vector at `start`.
    fn fetch(&mut self, start: u64, piece: &Piece, stream: usize) -> Result<(), DriverError> {
        let (place, stream) = (start + 4 * piece.device.start as u64, stream as sys::CUstream);
        let (event, buffer) = (self.event, self.buffer(piece)?);
        // SAFETY: as above.
        unsafe {
            result::memcpy_dtoh_async(buffer, place, stream)?;
            result::event::record(event, stream)
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // SAFETY: both are the slot's own, and no copy is under way. A failure changes nothing here.
        unsafe {
            let _ = result::event::destroy(self.event);
            if !self.memory.is_null() {
                let _ = result::free_host(self.memory.cast());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sizes::{Layout, Sizes};

    fn copied(shares: Vec<Share>) {
        shares.into_iter().for_each(|(to, from)| to.copy_from_slice(from));
    }

    /// Numbers that are gathered piece by piece have zeros between the weights, and come back where they were.
    #[test]
    fn pieces_carry_every_number() {
        let (vocab, width, layers, heads, kv_heads, ffn) = (50_000, 96, 3, 6, 2, 100);
        let sizes =
            Sizes { vocab, width, layers, heads, kv_heads, ffn, tokens: 33, tied: false, theta: 1e4, eps: 1e-5 };
        let layout = Layout::of(&sizes);
        let places = Places::of(&layout);
        let values: Vec<f32> = (1..=layout.host).map(|n| n as f32).collect();
        let (mut device, mut back) = (vec![f32::NAN; layout.device], vec![f32::NAN; layout.host]);
        let pieces = Piece::whole(&places);
        assert!(pieces.len() > 1 && layout.device > layout.host);
        for piece in &pieces {
            copied(piece.gathered(&values, &mut device[piece.device.clone()]));
            copied(piece.scattered(&device[piece.device.clone()], &mut back));
        }
        assert_eq!(device.iter().filter(|&&number| number == 0.0).count(), layout.device - layout.host);
        assert!(back == values);
        // Some of the numbers, from the middle of a weight on.
        let (start, len) = (width + 1, vocab * width + 1000);
        let mut some = vec![f32::NAN; len];
        for piece in Piece::some(&places, start, len) {
            assert!(piece.device.len() <= PIECE);
            copied(piece.scattered(&device[piece.device.clone()], &mut some));
        }
        assert!(some == values[start..start + len]);
    }
}
