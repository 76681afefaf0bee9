//! What the processes take of the machine, as the kernel counts it; nothing where there is no `/proc`.

use super::cast::Cast;
use serde_json::{Value, json};

/// One row for each machine whose process runs: `node`, `rss_kib`, `files`.
pub fn of(cast: &Cast) -> Vec<Value> {
    let running = cast.actors.iter().enumerate().filter_map(|(n, actor)| Some((n, actor.process.as_ref()?.id())));
    let row = |(machine, pid): (usize, u32)| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let files = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count();
        Some(json!({"node": cast.name(machine), "rss_kib": resident_kib(&status)?, "files": files}))
    };
    running.filter_map(row).collect()
}

/// `VmRSS` of a `/proc/PID/status`.
fn resident_kib(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_says_how_much_is_resident() {
        assert_eq!(resident_kib("Name:\tx\nVmHWM:\t  9 kB\nVmRSS:\t    1234 kB\n"), Some(1234));
        assert_eq!(resident_kib("Name:\tx\n"), None, "a process that is gone has no memory");
    }
}
