//! `starling-bootstrap`: see `starling_bootstrap::service`.

use clap::Parser;
use starling_bootstrap::service::{self, BootstrapConfig, Flags};
use starling_bootstrap::telemetry;
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};

fn main() -> ExitCode {
    let flags = Flags::parse();
    let config = match BootstrapConfig::from_flags(&flags) {
        Ok(config) => config,
        Err(error) => return fail(&error, 2),
    };
    if flags.print_config {
        return match config.to_toml() {
            Ok(text) => {
                print!("{text}");
                ExitCode::SUCCESS
            }
            Err(error) => fail(&error, 1),
        };
    }
    if let Err(error) = telemetry::init_logs(&config.log, "", std::io::stderr) {
        return fail(&error, 2);
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&format!("cannot start threads: {}", starling_words::of(&error)), 1),
    };
    let result = runtime.block_on(async { service::run(&config, &mut std::io::stdout(), stopped()).await });
    // Connections end with the process; nothing here needs to be waited for.
    runtime.shutdown_background();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error, error.exit_code()),
    }
}

fn fail(error: &dyn std::fmt::Display, code: u8) -> ExitCode {
    eprintln!("starling-bootstrap: {error}");
    ExitCode::from(code)
}

/// Resolves on SIGTERM or Ctrl-C.
async fn stopped() {
    let (Ok(mut terminate), Ok(mut interrupt)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        tracing::warn!("signals cannot be caught: they end the process at once");
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}
