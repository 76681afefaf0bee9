//! The rate of the node's uplink, measured while it is used. The filter is that of Cardwell et al., "BBR:
//! Congestion-Based Congestion Control", ACM Queue 2016.
//!
//! Bytes count once their receiver has acknowledged them: the system's buffers and a router's queue take megabytes at
//! once, which have gone nowhere yet. The rate of the acknowledgements is the link's rate only if a sender had more to
//! send all the time. So a window begins when a sender is held back, since the buffers are full then, and ends when a
//! sender is held back again. A window in which no sender was held back for a good part measures the node's demand and
//! not the link; it counts only if it is faster than the known rate. Bytes that arrive on a connection that was not
//! written to for a while do not count: they may have been sent long before. The second fastest of a round's windows counts:
//! every disturbance slows windows down, but for acknowledgements that were late and come in at once. Of the last
//! rounds the fastest counts. All connections of the node count together: they share the uplink.
//!
//! Connections by QUIC are not measured: libp2p-quic does not tell what its peers have acknowledged.

use futures::{AsyncRead, AsyncWrite};
use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// The least length of a window: many of the system's scheduling pauses.
const WINDOW: Duration = Duration::from_millis(250);
/// Windows of a round that are kept: the last ones.
const WINDOWS: usize = 64;
/// The least bytes of a window: a connection reads its acknowledgements when it writes, some 16 KiB apart.
const WINDOW_BYTES: u64 = 512 << 10;
/// A link is busy if at most one such part of the window had no sender held back.
const IDLE_PARTS: u32 = 4;
/// A connection that was not written to for so long may have room in its buffers, and acknowledgements of long ago.
const PAUSE: Duration = Duration::from_millis(50);
/// Rounds of which the fastest counts. Older rounds do not: the link may have become slower.
const ROUNDS: usize = 4;

/// The measurement of one network; cheap to clone.
#[derive(Clone, Default, Debug)]
pub struct Uplink(Arc<Mutex<Gauge>>);

impl Uplink {
    /// The numbers are plain data, and valid even after a panic.
    fn gauge(&self) -> MutexGuard<'_, Gauge> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection over the uplink.
    pub(crate) fn over<S>(&self, io: S) -> Measured<S> {
        Measured { io, uplink: self.clone(), buffers: Buffers::default(), written: 0, arrived: 0 }
    }

    /// Ends a round, and returns the uplink's rate in kbit/s by the last rounds; 0 while it has never held back
    /// anything.
    pub fn end_round(&self) -> u32 {
        self.gauge().end_round()
    }
}

/// The bytes of a connection that its peer has.
pub(crate) trait Acknowledged {
    /// `None` if the system does not tell.
    fn acknowledged(&self) -> Option<u64>;
}

impl Acknowledged for libp2p::tcp::tokio::TcpStream {
    #[cfg(target_os = "linux")]
    fn acknowledged(&self) -> Option<u64> {
        let info = tcp_info(&self.0)?;
        // Segments behind a lost one are with the peer as well. Otherwise they would all come in at once, when the lost
        // one has been sent again.
        Some(info.tcpi_bytes_acked + u64::from(info.tcpi_sacked) * u64::from(info.tcpi_snd_mss))
    }

    #[cfg(not(target_os = "linux"))]
    fn acknowledged(&self) -> Option<u64> {
        None
    }
}

/// The system's figures of a connection (tcp(7), `TCP_INFO`).
#[cfg(target_os = "linux")]
fn tcp_info(stream: &tokio::net::TcpStream) -> Option<libc::tcp_info> {
    use std::os::fd::AsRawFd;
    // SAFETY: all of its fields are numbers, for which zeros are valid. An older system fills in the first ones only.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut size = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the stream's descriptor is open, and the system writes at most `size` bytes to `info`.
    let status = unsafe {
        let (fd, to) = (stream.as_raw_fd(), (&raw mut info).cast());
        libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, to, &raw mut size)
    };
    let told = std::mem::offset_of!(libc::tcp_info, tcpi_bytes_acked) + size_of::<u64>();
    (status == 0 && size as usize >= told).then_some(info)
}

/// A connection whose acknowledged bytes count.
pub(crate) struct Measured<S> {
    io: S,
    uplink: Uplink,
    buffers: Buffers,
    written: u64,
    /// Bytes that had arrived when the connection was written to last.
    arrived: u64,
}

/// The state of a connection's buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Buffers {
    #[default]
    New,
    /// The system takes nothing at present of the bytes to write.
    Full,
    /// The system took bytes then.
    Open(Instant),
}

impl<S: Acknowledged> Measured<S> {
    /// Notes what came of writing.
    fn wrote(&mut self, poll: &Poll<io::Result<usize>>) {
        if let Poll::Ready(done) = poll {
            self.written += done.as_ref().map_or(0, |bytes| *bytes as u64);
        }
        // Where the system tells nothing of acknowledgements, its buffers count as the link.
        let arrived = self.io.acknowledged().unwrap_or(self.written);
        let more = arrived.saturating_sub(self.arrived);
        self.arrived = arrived;
        self.uplink.gauge().wrote(&mut self.buffers, more, poll.is_pending(), Instant::now());
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Measured<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_read(cx, buf)
    }

    fn poll_read_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_read_vectored(cx, bufs)
    }
}

impl<S: AsyncWrite + Acknowledged + Unpin> AsyncWrite for Measured<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let poll = Pin::new(&mut this.io).poll_write(cx, buf);
        this.wrote(&poll);
        poll
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let poll = Pin::new(&mut this.io).poll_write_vectored(cx, bufs);
        this.wrote(&poll);
        poll
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_close(cx)
    }
}

impl<S> Drop for Measured<S> {
    fn drop(&mut self) {
        if self.buffers == Buffers::Full {
            self.uplink.gauge().goes_on(Instant::now());
        }
    }
}

#[derive(Default, Debug)]
struct Gauge {
    /// Bytes that have arrived on connections that were being written to.
    sent: u64,
    /// Senders that are held back, and since when there are none.
    held_back: usize,
    free_since: Option<Instant>,
    window: Option<Window>,
    /// The windows of this round, and the rates of those before, in kbit/s.
    windows: VecDeque<u32>,
    rounds: VecDeque<u32>,
}

#[derive(Debug)]
struct Window {
    began: Instant,
    /// Bytes that had arrived before the window.
    sent: u64,
    /// Time in which no sender was held back.
    idle: Duration,
}

impl Gauge {
    /// A connection was written to, and `arrived` more bytes of it are with its peer. It may be `held_back` now.
    fn wrote(&mut self, buffers: &mut Buffers, arrived: u64, held_back: bool, now: Instant) {
        let recent = match *buffers {
            Buffers::New => false,
            Buffers::Full => true,
            Buffers::Open(at) => now.saturating_duration_since(at) <= PAUSE,
        };
        if recent {
            self.sent += arrived;
        }
        match (*buffers == Buffers::Full, held_back) {
            (true, false) => self.goes_on(now),
            (false, true) => self.holds_back(now),
            _ => {}
        }
        *buffers = if held_back { Buffers::Full } else { Buffers::Open(now) };
    }

    fn goes_on(&mut self, now: Instant) {
        self.held_back = self.held_back.saturating_sub(1);
        if self.held_back == 0 {
            self.free_since = Some(now);
        }
    }

    fn holds_back(&mut self, now: Instant) {
        self.held_back += 1;
        let free = self.free_since.take().map(|since| now.saturating_duration_since(since)).unwrap_or_default();
        // After a longer rest the buffers are not as full as they were, so a new window begins.
        if let Some(window) = self.window.as_mut().filter(|_| free <= PAUSE) {
            window.idle += free;
            let (time, bytes) = (now.saturating_duration_since(window.began), self.sent - window.sent);
            if time < WINDOW || bytes < WINDOW_BYTES {
                return;
            }
            let busy = window.idle * IDLE_PARTS <= time;
            self.note((bytes as f64 * 8.0 / 1000.0 / time.as_secs_f64()).round().min(f64::from(u32::MAX)) as u32, busy);
        }
        self.window = Some(Window { began: now, sent: self.sent, idle: Duration::ZERO });
    }

    /// Notes a window that has ended. It counts if the link was busy, or if it is faster than the best known one.
    fn note(&mut self, kbps: u32, busy: bool) {
        let best = self.rounds.iter().chain(&self.windows).copied().max().unwrap_or(0);
        if busy || (best > 0 && kbps > best) {
            self.windows.truncate(WINDOWS - 1);
            self.windows.push_front(kbps);
        }
    }

    fn end_round(&mut self) -> u32 {
        let mut windows: Vec<u32> = self.windows.drain(..).collect();
        windows.sort_unstable();
        let second = windows.len().saturating_sub(2);
        self.rounds.push_back(windows.get(second).copied().unwrap_or(0));
        if self.rounds.len() > ROUNDS {
            self.rounds.pop_front();
        }
        self.rounds.iter().copied().max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Sends `frames` of 20 KB over a link that takes `per_ms` bytes a millisecond; the sender pauses before each
    /// frame.
    fn send(gauge: &mut Gauge, now: &mut Instant, frames: u32, per_ms: u64, thinks: Duration) {
        for _ in 0..frames {
            *now += thinks;
            let mut buffers = Buffers::default();
            gauge.wrote(&mut buffers, 0, true, *now);
            *now += MS * u32::try_from(20_000 / per_ms).unwrap();
            gauge.wrote(&mut buffers, 20_000, false, *now);
        }
    }

    #[test]
    fn a_busy_link_tells_its_rate_and_the_fastest_of_some_rounds_counts() {
        let (mut gauge, mut now) = (Gauge::default(), Instant::now());
        assert_eq!(gauge.end_round(), 0, "never held back");
        send(&mut gauge, &mut now, 400, 10_000, Duration::ZERO);
        let known = gauge.end_round();
        assert!((72_000..=80_000).contains(&known), "10 KB a millisecond are 80 Mbit/s: {known}");
        // The link has become slower. The lower rate counts once the fast rounds are too long ago.
        for round in 0..ROUNDS {
            send(&mut gauge, &mut now, 200, 1_000, Duration::ZERO);
            let said = gauge.end_round();
            let expected = if round + 1 < ROUNDS { known } else { 8_000 };
            assert_eq!(said, expected, "round {round}");
        }
    }

    #[test]
    fn a_burst_of_late_acknowledgements_is_not_taken_for_the_rate() {
        let (mut gauge, mut now) = (Gauge::default(), Instant::now());
        let mut buffers = Buffers::default();
        for window in 0..12 {
            // Nothing comes in for a window, and then twice as much.
            for arrived in if window == 6 { [0, 2 << 20] } else { [1 << 20; 2] } {
                gauge.wrote(&mut buffers, 0, true, now);
                now += WINDOW;
                gauge.wrote(&mut buffers, arrived, false, now);
            }
        }
        assert_eq!(gauge.end_round(), 33_554, "1 MiB in 250 ms");
    }

    #[test]
    fn the_traffic_of_a_node_is_not_taken_for_the_rate_of_its_link() {
        let (mut gauge, mut now) = (Gauge::default(), Instant::now());
        send(&mut gauge, &mut now, 400, 10_000, 4 * MS);
        assert_eq!(gauge.end_round(), 0, "it was not held back most of the time");
        now += 2 * PAUSE;
        send(&mut gauge, &mut now, 200, 1_000, Duration::ZERO);
        assert_eq!(gauge.end_round(), 8_000);
        // The link's rate is at least the sender's.
        now += 2 * PAUSE;
        send(&mut gauge, &mut now, 400, 10_000, 4 * MS);
        let known = gauge.end_round();
        assert!((25_000..28_000).contains(&known), "20 KB in 6 ms: {known}");
    }

    #[test]
    fn connections_count_together_and_one_that_ends_holds_nobody_back() {
        let (mut gauge, mut now) = (Gauge::default(), Instant::now());
        for _ in 0..200 {
            let mut two = [Buffers::default(); 2];
            two.iter_mut().for_each(|buffers| gauge.wrote(buffers, 0, true, now));
            now += 2 * MS;
            two.iter_mut().for_each(|buffers| gauge.wrote(buffers, 10_000, false, now));
        }
        assert_eq!(gauge.held_back, 0);
        let known = gauge.end_round();
        assert!((76_000..=80_000).contains(&known), "{known}");
        gauge.holds_back(now);
        gauge.goes_on(now);
        assert_eq!((gauge.held_back, gauge.free_since), (0, Some(now)));
    }

    /// Half a megabyte of an earlier burst arrives while nobody looks.
    #[test]
    fn what_has_arrived_in_a_pause_does_not_count() {
        let (mut gauge, mut now) = (Gauge::default(), Instant::now());
        for _ in 0..10 {
            let mut buffers = Buffers::default();
            gauge.wrote(&mut buffers, 512 << 10, false, now);
            for _ in 0..50 {
                gauge.wrote(&mut buffers, 0, true, now);
                now += 10 * MS;
                gauge.wrote(&mut buffers, 30_000, false, now);
            }
            // The connection rests, and is written to once more.
            now += 2 * PAUSE;
            gauge.wrote(&mut buffers, 512 << 10, false, now);
        }
        let known = gauge.end_round();
        assert!((20_000..=24_000).contains(&known), "3 KB a millisecond are 24 Mbit/s: {known}");
    }

    /// A connection that nobody reads from is held back with what the system has taken, and that has not arrived.
    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn bytes_that_only_the_system_has_are_not_acknowledged() {
        use futures::AsyncWriteExt;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = tokio::net::TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut far, _) = listener.accept().await.unwrap();
        let uplink = Uplink::default();
        let mut near = uplink.over(libp2p::tcp::tokio::TcpStream(near));
        // Until the write is pending, both systems' buffers take what is written.
        let piece = vec![7; 1 << 16];
        let held_back = |near: &mut Measured<_>| {
            let mut cx = Context::from_waker(std::task::Waker::noop());
            (0..1 << 12).any(|_| Pin::new(&mut *near).poll_write(&mut cx, &piece).is_pending())
        };
        assert!(held_back(&mut near) && near.buffers == Buffers::Full);
        assert!(near.arrived < near.written, "{} of {}", near.arrived, near.written);
        // All of it is acknowledged once it is read.
        let wanted = near.written;
        let read = tokio::spawn(async move {
            let mut rest = near.written;
            let mut piece = vec![0; 1 << 16];
            while rest > 0 {
                rest -= tokio::io::AsyncReadExt::read(&mut far, &mut piece).await.unwrap() as u64;
            }
            (near, far)
        });
        let (mut near, _far) = read.await.unwrap();
        near.write_all(b"one more").await.unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        while near.io.acknowledged().unwrap() < wanted {
            assert!(Instant::now() < deadline, "not acknowledged");
            tokio::task::yield_now().await;
        }
    }
}
