//! The capacity of the lab's switch: bits a second with eight machines and full packets, the error of its delays, and
//! its memory.

use crate::network::{Link, Machine, Network, Port};
use crate::rows::append;
use anyhow::Context;
use serde_json::json;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

const MACHINES: usize = 8;
const SECONDS: u64 = 5;
const PORT: u16 = 9000;
const PINGS: usize = 400;
/// One-way delays to measure, in ms.
const DELAYS: [u64; 3] = [1, 40, 150];

/// Prints the figures, and appends a JSON object of each to `rows`. Needs [`crate::network::rights::acquire`] before.
///
/// # Errors
/// If the network cannot be made, or a packet is lost that nothing should lose.
pub fn run(rows: Option<&Path>) -> anyhow::Result<()> {
    let bits = carried()?;
    println!("{MACHINES} machines, four TCP streams, {SECONDS} s: {:.2} Gbit/s", bits / 1e9);
    println!("memory at its highest: {} MiB, the streams' own buffers included", peak_kib()? / 1024);
    append(rows, &json!({"bench": "lab-switch", "machines": MACHINES, "gbit_per_s": bits / 1e9}))?;
    for delay in DELAYS {
        let (median, worst) = delay_error(delay)?;
        println!("{delay} ms one way: error of the round trip {:.3} ms at the median, {:.3} ms at 99 %", median, worst);
        append(rows, &json!({"bench": "lab-delay", "delay_ms": delay, "error_ms": median, "error_99_ms": worst}))?;
    }
    Ok(())
}

fn network(machines: usize, link: Link) -> anyhow::Result<Network> {
    let port = |n: usize| Port {
        address: Ipv4Addr::new(45, 1, 0, n as u8 + 1),
        site: 0,
        up: 0,
        down: 0,
        queue: Duration::from_millis(100),
        nat: None,
    };
    let ports: Vec<Port> = (0..machines).map(port).collect();
    Network::start(&ports, vec![link; machines * machines], 1)
}

/// Bits a second that arrive, over all streams, headers left out.
fn carried() -> anyhow::Result<f64> {
    let network = network(MACHINES, Link::default())?;
    let pairs = MACHINES / 2;
    let mut received = Vec::new();
    for pair in 0..pairs {
        let (sender, receiver) = (&network.machines[pair], &network.machines[pairs + pair]);
        let listener = receiver.on(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)))??;
        received.push(std::thread::spawn(move || drain(&listener)));
        let to = SocketAddrV4::new(receiver.address, PORT);
        let stream = sender.on(move || TcpStream::connect(to))??;
        std::thread::spawn(move || flood(stream));
    }
    let mut bits = 0.0;
    for stream in received {
        bits += stream.join().map_err(|_| anyhow::anyhow!("a receiver panicked"))??;
    }
    Ok(bits)
}

fn flood(mut stream: TcpStream) {
    let bytes = vec![7u8; 256 << 10];
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(SECONDS) && stream.write_all(&bytes).is_ok() {}
}

fn drain(listener: &TcpListener) -> anyhow::Result<f64> {
    let (mut stream, _) = listener.accept()?;
    let (mut bytes, mut total, started) = (vec![0u8; 256 << 10], 0usize, Instant::now());
    loop {
        match stream.read(&mut bytes)? {
            0 => return Ok(total as f64 * 8.0 / started.elapsed().as_secs_f64()),
            n => total += n,
        }
    }
}

/// Median and 99th percentile of a round trip's excess over twice the delay, in ms.
fn delay_error(delay: u64) -> anyhow::Result<(f64, f64)> {
    let network = network(2, Link { delay: Duration::from_millis(delay), ..Link::default() })?;
    let socket = |machine: &Machine| machine.on(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT)));
    let (here, there) = (socket(&network.machines[0])??, socket(&network.machines[1])??);
    let to = SocketAddrV4::new(network.machines[1].address, PORT);
    std::thread::spawn(move || {
        let mut bytes = [0; 64];
        while let Ok((n, from)) = there.recv_from(&mut bytes) {
            if there.send_to(&bytes[..n], from).is_err() {
                return;
            }
        }
    });
    here.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut errors = Vec::new();
    let pings = PINGS.min(20_000 / (2 * delay as usize));
    for _ in 0..pings {
        let sent = Instant::now();
        here.send_to(&[1; 64], to)?;
        here.recv_from(&mut [0; 64]).context("a ping was lost")?;
        errors.push((sent.elapsed().as_secs_f64() - 2.0 * delay as f64 / 1000.0) * 1000.0);
    }
    errors.sort_by(f64::total_cmp);
    Ok((errors[errors.len() / 2], errors[errors.len() * 99 / 100]))
}

fn peak_kib() -> anyhow::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).context("no VmHWM")?;
    Ok(line.trim().trim_end_matches("kB").trim().parse()?)
}
