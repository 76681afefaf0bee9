//! Fetches a node's counters from its endpoint for Prometheus.

use anyhow::{Context, ensure};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// The time in which a node must answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Most bytes of all metrics.
const BYTES_MAX: u64 = 4 << 20;

/// The text at `http://IP:PORT/PATH`.
///
/// # Errors
/// If there is no answer in time, or it holds no metrics.
pub fn fetch(url: &str) -> anyhow::Result<String> {
    let (host, path) = url.strip_prefix("http://").and_then(|u| u.split_once('/')).context("not such a URL")?;
    let address: SocketAddr = host.parse().with_context(|| format!("{host} is no address"))?;
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(stream, "GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")?;
    let mut said = String::new();
    stream.take(BYTES_MAX).read_to_string(&mut said)?;
    ensure!(said.starts_with("HTTP/1.1 200"), "{host} answers {:?}", said.lines().next().unwrap_or_default());
    Ok(said.split_once("\r\n\r\n").map_or(said.clone(), |(_, body)| body.to_owned()))
}
