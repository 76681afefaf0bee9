//! Logs and metrics of the process.

use crate::exit::{Code, Failure};
use metrics_exporter_prometheus::PrometheusBuilder;
use std::io::IsTerminal;
use std::net::{SocketAddr, TcpListener};
use tracing_subscriber::EnvFilter;

/// Sends logs to standard error. A filter that does not parse is a usage error.
pub fn init_logs(filter: &str) -> Result<(), Failure> {
    let filter = EnvFilter::try_new(filter)
        .map_err(|e| Failure::message(Code::Usage, format!("--log {filter}: {e}; try `info` or `starling=debug`")))?;
    let noisy = [
        "libp2p_swarm=warn",
        "libp2p_kad=error",
        "libp2p_mdns=error",
        "netlink_proto=error",
        "wgpu_hal=off",
        "libp2p_gossipsub=error",
    ];
    let filter = noisy.iter().fold(filter, |f, d| match d.parse() {
        Ok(directive) => f.add_directive(directive),
        Err(_) => f,
    });
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal())
        .compact()
        .init();
    Ok(())
}

/// Serves Prometheus metrics on `address`; `off` or empty serves none. Returns the address really used.
///
/// # Errors
/// The address is malformed, or something else listens on it.
pub fn serve_metrics(address: &str) -> Result<Option<SocketAddr>, Failure> {
    if address.is_empty() || address == "off" {
        return Ok(None);
    }
    let wanted: SocketAddr = address.parse().map_err(|_| {
        Failure::message(Code::Usage, format!("--metrics {address} is not IP:PORT; try 127.0.0.1:9100, or `off`"))
    })?;
    // The exporter cannot tell which port it got: pick one first.
    let bound = TcpListener::bind(wanted).and_then(|l| l.local_addr()).map_err(|e| {
        Failure::message(
            Code::Refused,
            format!("cannot serve metrics on {wanted}: {e}; choose another --metrics, or `off`"),
        )
    })?;
    PrometheusBuilder::new()
        .with_http_listener(bound)
        .install()
        .map_err(|e| Failure::message(Code::Refused, format!("cannot serve metrics on {bound}: {e}")))?;
    Ok(Some(bound))
}
