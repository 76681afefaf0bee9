//! A trainer for tests of the bridge, as a node starts it with `-- starling-line [WEIGHTS]`.
//!
//! It writes its process id beside the socket, so that tests can kill it.

use starling_tests::guest::{End, Line, WEIGHTS};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// A trainer whose node is gone for so long ends.
const PATIENCE: Duration = Duration::from_secs(60);

/// The node that reads this may be gone.
fn tell(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

fn main() -> ExitCode {
    let Some(socket) = std::env::var_os("STARLING_TRAINER").map(PathBuf::from) else {
        tell("STARLING_TRAINER names no socket: start it with `starling train ... -- starling-line`");
        return ExitCode::FAILURE;
    };
    let weights = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(WEIGHTS);
    let _ = std::fs::write(socket.with_extension("pid"), std::process::id().to_string());
    let (mut line, mut seen) = (Line::new(weights), Instant::now());
    loop {
        let began = Instant::now();
        match line.follow(&socket) {
            Ok(End::Over) => return ExitCode::SUCCESS,
            Ok(End::Lost) => {}
            Ok(End::Refused(why)) => {
                tell(&why);
                return ExitCode::FAILURE;
            }
            Err(error) => tell(&format!("{error:#}")),
        }
        // A connection that held for a while shows that there is a node.
        if began.elapsed() > Duration::from_secs(1) {
            seen = Instant::now();
        }
        if seen.elapsed() > PATIENCE {
            return ExitCode::FAILURE;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}
