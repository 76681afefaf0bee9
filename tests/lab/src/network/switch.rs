//! The switch: one thread that takes every packet from the machines' devices and gives it to another machine when it is
//! due.

use super::link::{Link, Wire};
use super::nat::{Nat, NatKind};
use super::packet::{self, Layout, TCP};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// Bytes of the largest packet.
pub const MTU: usize = 1500;
/// Packets in transit in the whole network: 96 MiB of them.
const PACKETS_MAX: usize = 1 << 16;
/// Packets taken from one machine before the others have their turn.
const TURN: usize = 64;
/// Niceness of the switch's thread.
const PRIORITY: i32 = -15;
/// A packet that is due within this many nanoseconds is due now: a sleep would take longer.
const NOW: u64 = 20_000;

/// A machine's place in the network.
#[derive(Clone, Debug)]
pub struct Port {
    /// The address by which others know the machine.
    pub address: Ipv4Addr,
    /// The machine's site; machines of one site receive each other's multicast.
    pub site: usize,
    /// The machine's access line: bits a second in either direction, 0 = no limit.
    pub up: u64,
    pub down: u64,
    /// Packets that would wait longer for the access line are lost.
    pub queue: Duration,
    /// The NAT box of the machine, and its own address behind the box.
    pub nat: Option<(NatKind, Ipv4Addr)>,
}

/// A change while packets are in transit.
pub enum Command {
    Link {
        from: usize,
        to: usize,
        link: Link,
    },
    Access {
        machine: usize,
        up: u64,
        down: u64,
        queue: Duration,
    },
    /// Resets, at both ends, every TCP connection between the two that sends a packet within this time.
    Reset {
        a: usize,
        b: usize,
        lasting: Duration,
    },
    /// Makes the machine's NAT box forget its mappings.
    Forget {
        machine: usize,
    },
    Stop,
}

/// The counters of one machine's device: packets and bytes.
#[derive(Debug, Default)]
pub struct Counts {
    pub sent_packets: AtomicU64,
    pub sent_bytes: AtomicU64,
    pub received_packets: AtomicU64,
    pub received_bytes: AtomicU64,
    /// Packets of this machine that were lost to chance, a full queue, a cut, a small MTU or its box, or had no
    /// receiver.
    pub lost: AtomicU64,
    pub overflowed: AtomicU64,
    pub cut: AtomicU64,
    pub oversize: AtomicU64,
    pub filtered: AtomicU64,
    pub nowhere: AtomicU64,
}

struct Seat {
    port: Port,
    device: OwnedFd,
    nat: Option<Nat>,
    up: Wire,
    down: Wire,
    counts: Arc<Counts>,
}

struct Pair {
    link: Link,
    wire: Wire,
    /// The time at which the last packet in order arrives.
    last: u64,
    reset_until: u64,
}

impl Pair {
    /// Replaces the link. Packets in transit keep their times; later packets need not wait for them.
    fn change(&mut self, link: Link, now: u64) {
        self.wire.change(now, self.link.rate, link.rate);
        let soonest = self.wire.free_at().max(now) + (link.delay + link.jitter).as_nanos() as u64;
        self.last = self.last.min(soonest);
        self.link = link;
    }
}

struct Packet {
    bytes: Box<[u8]>,
    len: usize,
}

/// A packet's next station: a time, a number that keeps equal times in order, the packet, and its receiver.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Due {
    at: u64,
    order: u64,
    slot: usize,
    to: usize,
    /// Whether the packet has passed the receiver's access line as well.
    through: bool,
}

/// The state of the switch; it belongs to the switch's thread.
pub struct Switch {
    seats: Vec<Seat>,
    pairs: Vec<Pair>,
    by_address: BTreeMap<Ipv4Addr, usize>,
    due: BinaryHeap<Reverse<Due>>,
    packets: Vec<Option<Packet>>,
    free: Vec<usize>,
    spare: Vec<Packet>,
    order: u64,
    random: StdRng,
    started: Instant,
    wake: OwnedFd,
    commands: Receiver<Command>,
}

impl Switch {
    /// Makes a switch. `machines` have their devices and counters; `links` are by sender, then receiver; `wake` becomes
    /// readable when a command waits.
    pub fn new(
        machines: Vec<(Port, OwnedFd, Arc<Counts>)>,
        links: Vec<Link>,
        seed: u64,
        wake: OwnedFd,
        commands: Receiver<Command>,
    ) -> Self {
        let seat = |(port, device, counts): (Port, OwnedFd, Arc<Counts>)| {
            let nat = port.nat.map(|(kind, inner)| Nat::new(kind, inner, port.address));
            Seat { port, device, nat, up: Wire::default(), down: Wire::default(), counts }
        };
        let seats: Vec<Seat> = machines.into_iter().map(seat).collect();
        let by_address = seats.iter().enumerate().map(|(n, s)| (s.port.address, n)).collect();
        let pair = |link| Pair { link, wire: Wire::default(), last: 0, reset_until: 0 };
        Self {
            seats,
            pairs: links.into_iter().map(pair).collect(),
            by_address,
            due: BinaryHeap::new(),
            packets: Vec::new(),
            free: Vec::new(),
            spare: Vec::new(),
            order: 0,
            random: StdRng::seed_from_u64(seed),
            started: Instant::now(),
            wake,
            commands,
        }
    }

    /// Carries packets until it is told to stop.
    pub fn run(mut self) {
        // The switch needs priority over the nodes, whose work would delay packets. Without that right, packets are
        // delayed.
        let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), PRIORITY);
        loop {
            self.deliver_due();
            let ready = self.wait();
            if ready.last() == Some(&true) && !self.obey() {
                return;
            }
            for (machine, ready) in ready.iter().enumerate().take(self.seats.len()) {
                if *ready {
                    self.take_from(machine);
                }
            }
        }
    }

    fn now(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    /// Sleeps until a packet is due or input comes. Returns for each machine whether it has sent, and last, whether a
    /// command waits.
    fn wait(&self) -> Vec<bool> {
        let fds = self.seats.iter().map(|s| &s.device).chain([&self.wake]);
        let mut fds: Vec<PollFd> = fds.map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        let left = self.due.peek().map(|Reverse(due)| due.at.saturating_sub(self.now()));
        let left =
            left.map(|ns| Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 });
        // An interrupted wait needs no handling: the caller looks at the ready devices and waits again.
        let _ = poll(&mut fds, left.as_ref());
        fds.iter().map(|fd| fd.revents().contains(PollFlags::IN)).collect()
    }

    fn take_from(&mut self, machine: usize) {
        for _ in 0..TURN {
            let mut packet = self.spare.pop().unwrap_or_else(|| Packet { bytes: vec![0; MTU].into(), len: 0 });
            match rustix::io::read(&self.seats[machine].device, &mut packet.bytes[..]) {
                Ok(len) if len > 0 => packet.len = len,
                _ => return self.spare.push(packet),
            }
            self.enter(machine, packet);
        }
    }

    /// Handles a packet that leaves a machine.
    fn enter(&mut self, from: usize, mut packet: Packet) {
        let now = self.now();
        let seat = &mut self.seats[from];
        seat.counts.sent_packets.fetch_add(1, Ordering::Relaxed);
        seat.counts.sent_bytes.fetch_add(packet.len as u64, Ordering::Relaxed);
        let bytes = &mut packet.bytes[..packet.len];
        let Some(layout) = Layout::of(bytes) else {
            seat.counts.nowhere.fetch_add(1, Ordering::Relaxed);
            return self.spare.push(packet);
        };
        if layout.destination.is_multicast() {
            return self.spread(from, packet, now);
        }
        let passed = match &mut seat.nat {
            Some(nat) => nat.outbound(bytes, &layout, now),
            None => true,
        };
        if !passed {
            seat.counts.filtered.fetch_add(1, Ordering::Relaxed);
            return self.spare.push(packet);
        }
        match self.by_address.get(&layout.destination) {
            Some(to) => self.send(from, *to, packet, now),
            None => {
                seat.counts.nowhere.fetch_add(1, Ordering::Relaxed);
                self.spare.push(packet);
            }
        }
    }

    /// Delivers multicast within the site; it does not pass a NAT box.
    fn spread(&mut self, from: usize, packet: Packet, now: u64) {
        let site = self.seats[from].port.site;
        if self.seats[from].nat.is_none() {
            for to in 0..self.seats.len() {
                if to != from && self.seats[to].port.site == site && self.seats[to].nat.is_none() {
                    self.send(from, to, Packet { bytes: packet.bytes.clone(), len: packet.len }, now);
                }
            }
        }
        self.spare.push(packet);
    }

    fn send(&mut self, from: usize, to: usize, mut packet: Packet, now: u64) {
        let at = self.pair(from, to);
        let link = self.pairs[at].link;
        let counts = self.seats[from].counts.clone();
        let lost = |counter: &AtomicU64| {
            counter.fetch_add(1, Ordering::Relaxed);
        };
        // The sender's own line comes first: it also carries the packets that are lost later.
        let seat = &mut self.seats[from];
        let Some(left) = seat.up.pass(now, packet.len, seat.port.up, seat.port.queue) else {
            lost(&counts.overflowed);
            return self.spare.push(packet);
        };
        if link.cut {
            lost(&counts.cut);
            return self.spare.push(packet);
        }
        if link.mtu > 0 && packet.len > link.mtu {
            lost(&counts.oversize);
            return self.spare.push(packet);
        }
        if self.chance(link.loss) {
            lost(&counts.lost);
            return self.spare.push(packet);
        }
        if now < self.pairs[at].reset_until && self.reset(from, to, &packet, now) {
            return self.spare.push(packet);
        }
        if self.chance(link.corrupt) {
            let draw = self.random.random();
            let bytes = &mut packet.bytes[..packet.len];
            if let Some(layout) = Layout::of(bytes) {
                packet::corrupt(bytes, &layout, draw);
            }
        }
        let Some(left) = self.pairs[at].wire.pass(left, packet.len, link.rate, link.queue) else {
            lost(&counts.overflowed);
            return self.spare.push(packet);
        };
        if self.chance(link.duplicate) {
            let copy = Packet { bytes: packet.bytes.clone(), len: packet.len };
            let arrives = self.arrival(at, left);
            self.schedule(arrives, to, copy, false);
        }
        let arrives = self.arrival(at, left);
        self.schedule(arrives, to, packet, false);
    }

    /// The time at which a packet that has left the sender arrives at the receiver's access line.
    fn arrival(&mut self, at: usize, left: u64) -> u64 {
        let link = self.pairs[at].link;
        let spread = link.jitter.as_nanos() as u64;
        let drawn = if spread > 0 { self.random.random_range(0..=2 * spread) } else { 0 };
        let arrives = (left + link.delay.as_nanos() as u64 + drawn).saturating_sub(spread).max(left);
        if self.chance(link.reorder) {
            // Later packets overtake this one.
            return arrives + (link.delay.as_nanos() as u64 / 4).max(2_000_000);
        }
        let pair = &mut self.pairs[at];
        pair.last = pair.last.max(arrives);
        pair.last
    }

    /// Ends the packet's connection at both ends; `false` if the packet has none.
    fn reset(&mut self, from: usize, to: usize, packet: &Packet, now: u64) -> bool {
        let bytes = &packet.bytes[..packet.len];
        let Some(layout) = Layout::of(bytes).filter(|l| l.protocol == TCP) else { return false };
        let Some((forward, backward)) = packet::resets(bytes, &layout) else { return false };
        for (to, reset) in [(to, forward), (from, backward)] {
            let mut bytes: Box<[u8]> = vec![0; MTU].into();
            bytes[..reset.len()].copy_from_slice(&reset);
            self.schedule(now, to, Packet { bytes, len: reset.len() }, true);
        }
        true
    }

    fn schedule(&mut self, at: u64, to: usize, packet: Packet, through: bool) {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.packets.len() < PACKETS_MAX => {
                self.packets.push(None);
                self.packets.len() - 1
            }
            None => {
                self.seats[to].counts.overflowed.fetch_add(1, Ordering::Relaxed);
                return self.spare.push(packet);
            }
        };
        self.packets[slot] = Some(packet);
        self.order += 1;
        self.due.push(Reverse(Due { at, order: self.order, slot, to, through }));
    }

    fn deliver_due(&mut self) {
        let now = self.now() + NOW;
        while self.due.peek().is_some_and(|Reverse(due)| due.at <= now) {
            let Some(Reverse(due)) = self.due.pop() else { return };
            let Some(packet) = self.packets[due.slot].take() else { continue };
            self.free.push(due.slot);
            if due.through {
                self.deliver(due.to, packet);
                continue;
            }
            let seat = &mut self.seats[due.to];
            match seat.down.pass(due.at, packet.len, seat.port.down, seat.port.queue) {
                Some(at) if at <= now => self.deliver(due.to, packet),
                Some(at) => self.schedule(at, due.to, packet, true),
                None => {
                    seat.counts.overflowed.fetch_add(1, Ordering::Relaxed);
                    self.spare.push(packet);
                }
            }
        }
    }

    fn deliver(&mut self, to: usize, mut packet: Packet) {
        let now = self.now();
        let seat = &mut self.seats[to];
        let bytes = &mut packet.bytes[..packet.len];
        let passed = match (&mut seat.nat, Layout::of(bytes)) {
            (Some(nat), Some(layout)) => nat.inbound(bytes, &layout, now),
            (Some(_), None) => false,
            (None, _) => true,
        };
        // A device with a full queue loses the packet, as a network card does.
        if passed && rustix::io::write(&seat.device, bytes).is_ok() {
            seat.counts.received_packets.fetch_add(1, Ordering::Relaxed);
            seat.counts.received_bytes.fetch_add(packet.len as u64, Ordering::Relaxed);
        } else if passed {
            seat.counts.overflowed.fetch_add(1, Ordering::Relaxed);
        } else {
            seat.counts.filtered.fetch_add(1, Ordering::Relaxed);
        }
        self.spare.push(packet);
    }

    /// Obeys the commands that wait; `false` if one of them is to stop.
    fn obey(&mut self) -> bool {
        let mut told = [0; 8];
        let _ = rustix::io::read(&self.wake, &mut told);
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Link { from, to, link } => {
                    let (at, now) = (self.pair(from, to), self.now());
                    self.pairs[at].change(link, now);
                }
                Command::Access { machine, up, down, queue } => {
                    let now = self.now();
                    let seat = &mut self.seats[machine];
                    seat.up.change(now, seat.port.up, up);
                    seat.down.change(now, seat.port.down, down);
                    (seat.port.up, seat.port.down, seat.port.queue) = (up, down, queue);
                }
                Command::Reset { a, b, lasting } => {
                    let until = self.now() + lasting.as_nanos() as u64;
                    for at in [self.pair(a, b), self.pair(b, a)] {
                        self.pairs[at].reset_until = until;
                    }
                }
                Command::Forget { machine } => {
                    if let Some(nat) = &mut self.seats[machine].nat {
                        nat.forget();
                    }
                }
                Command::Stop => return false,
            }
        }
        true
    }

    fn pair(&self, from: usize, to: usize) -> usize {
        from * self.seats.len() + to
    }

    fn chance(&mut self, share: f64) -> bool {
        share > 0.0 && self.random.random_bool(share.min(1.0))
    }
}
