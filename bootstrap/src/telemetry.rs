//! Logs and metrics of a process: the same for the node and for the well-known peer.

use metrics_exporter_prometheus::PrometheusBuilder;
use std::io::{IsTerminal, Write};
use std::net::{SocketAddr, TcpListener};
use tracing_subscriber::EnvFilter;

/// Log levels of libraries, as long as the user's filter does not ask for more.
const QUIET: &str = "libp2p=warn,libp2p_kad=error,libp2p_mdns=error,libp2p_gossipsub=error,netlink_proto=error";

/// The reason why logs or metrics cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    #[error("--log {filter} is no filter for logs; try `info`, or `info,libp2p_kad=debug`")]
    Filter { filter: String },
    #[error("--metrics {address} is not IP:PORT; try 127.0.0.1:9100, or `off`")]
    Address { address: String },
    #[error("cannot serve metrics on {address}: {reason}; choose another --metrics, or `off`")]
    Serve { address: SocketAddr, reason: String },
}

impl TelemetryError {
    /// Whether the request itself is wrong, as opposed to impossible here.
    pub fn is_usage(&self) -> bool {
        !matches!(self, Self::Serve { .. })
    }
}

/// The user's filter on top of the one that keeps libraries quiet; `quiet` adds to the latter.
fn log_filter(filter: &str, quiet: &str) -> Result<EnvFilter, TelemetryError> {
    // The later one of two directives for one target counts.
    let all: Vec<&str> = [QUIET, quiet, filter].into_iter().filter(|part| !part.is_empty()).collect();
    EnvFilter::try_new(all.join(",")).map_err(|_| TelemetryError::Filter { filter: filter.to_owned() })
}

/// Sends logs to the writer of standard error, in colour only if that is a terminal that knows colours and the user has
/// not said `NO_COLOR`. `quiet` holds further directives for noisy libraries, or nothing.
///
/// # Errors
/// [`TelemetryError::Filter`] when `filter` does not parse.
pub fn init_logs<W: Write + 'static>(
    filter: &str,
    quiet: &str,
    writer: impl Fn() -> W + Send + Sync + 'static,
) -> Result<(), TelemetryError> {
    let text = |name| std::env::var(name).ok();
    let coloured =
        std::io::stderr().is_terminal() && knows_colours(text("TERM").as_deref(), text("NO_COLOR").as_deref());
    tracing_subscriber::fmt()
        .with_env_filter(log_filter(filter, quiet)?)
        .with_writer(writer)
        .with_target(false)
        .with_ansi(coloured)
        .compact()
        .init();
    Ok(())
}

/// Whether a terminal shows colours in place of the characters that set them, and its user wants them.
fn knows_colours(term: Option<&str>, no_color: Option<&str>) -> bool {
    term.is_some_and(|term| !term.is_empty() && term != "dumb") && no_color.is_none_or(str::is_empty)
}

/// Checks a filter for logs.
///
/// # Errors
/// [`TelemetryError::Filter`] when it does not parse.
pub fn check_filter(filter: &str) -> Result<(), TelemetryError> {
    log_filter(filter, "").map(drop)
}

/// The address at which metrics are asked for; none if they are switched off.
///
/// # Errors
/// [`TelemetryError::Address`] when it does not parse.
pub fn check_metrics(address: &str) -> Result<Option<SocketAddr>, TelemetryError> {
    if address.is_empty() || address == "off" {
        return Ok(None);
    }
    address.parse().map(Some).map_err(|_| TelemetryError::Address { address: address.to_owned() })
}

/// Serves Prometheus metrics at `address` over HTTP; `off` or empty serves none. Must be called inside a tokio runtime,
/// at most once a process. Returns the address really used.
///
/// # Errors
/// The address is malformed, or something else listens on it.
pub fn serve_metrics(address: &str) -> Result<Option<SocketAddr>, TelemetryError> {
    let Some(wanted) = check_metrics(address)? else { return Ok(None) };
    // The exporter does not tell which port it got: pick one first.
    let bound = TcpListener::bind(wanted)
        .and_then(|listener| listener.local_addr())
        .map_err(|e| TelemetryError::Serve { address: wanted, reason: starling_words::of(&e) })?;
    PrometheusBuilder::new()
        .with_http_listener(bound)
        .install()
        .map_err(|e| TelemetryError::Serve { address: bound, reason: starling_words::plain(&e.to_string()) })?;
    Ok(Some(bound))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_quiet_unless_the_user_asks() {
        let shown = |filter: &str| log_filter(filter, "wgpu_hal=off").unwrap().to_string();
        for filter in ["info", "debug", "trace"] {
            let shown = shown(filter);
            assert!(shown.contains("libp2p=warn") && shown.contains("wgpu_hal=off"), "{shown}");
            assert!(shown.split(',').any(|directive| directive == filter), "{shown}");
        }
        let asked = shown("info,libp2p_kad=debug");
        assert!(asked.contains("libp2p_kad=debug") && !asked.contains("libp2p_kad=error"), "{asked}");
        assert!(matches!(log_filter("==", ""), Err(TelemetryError::Filter { .. })));
    }

    #[test]
    fn only_a_terminal_that_knows_colours_gets_them() {
        assert!(knows_colours(Some("xterm"), None) && knows_colours(Some("xterm"), Some("")));
        assert!(!knows_colours(Some("xterm"), Some("1")));
        assert!(!knows_colours(Some("dumb"), None) && !knows_colours(Some(""), None) && !knows_colours(None, None));
    }

    #[test]
    fn no_metrics_are_served_when_switched_off_or_mistyped() {
        for off in ["", "off"] {
            assert_eq!(serve_metrics(off).unwrap(), None);
        }
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(serve_metrics("9100").unwrap_err().is_usage());
        assert!(!serve_metrics(&taken.local_addr().unwrap().to_string()).unwrap_err().is_usage());
    }
}
