//! The processes' use of the machine, by the kernel's counters; nothing without `/proc`.

use super::cast::Cast;
use serde_json::{Value, json};

/// One row for each machine whose process runs: `node`, `rss_kib`, `files`, `cpu_ms`.
pub fn of(cast: &Cast) -> Vec<Value> {
    let running = cast.actors.iter().enumerate().filter_map(|(n, actor)| Some((n, actor.process.as_ref()?.id())));
    let row = |(machine, pid): (usize, u32)| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let files = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count();
        let cpu = cpu_ms(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?;
        Some(json!({"node": cast.name(machine), "rss_kib": resident_kib(&status)?, "files": files, "cpu_ms": cpu}))
    };
    running.filter_map(row).collect()
}

/// `VmRSS` in a `/proc/PID/status`.
fn resident_kib(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

/// Processor time in a `/proc/PID/stat`: Linux counts it in hundredths of a second on every machine.
fn cpu_ms(stat: &str) -> Option<u64> {
    // The name, in parentheses, may contain spaces and parentheses.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    Some(10 * (ticks()? + ticks()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_says_how_long_it_ran() {
        let stat = "7 (star) ling) S 1 7 7 0 -1 4194560 900 0 3 0 120 30 1 2 20 0 9 0 55 1 2";
        assert_eq!(cpu_ms(stat), Some(1500));
        assert_eq!(cpu_ms("7 (x) S 1"), None);
    }

    #[test]
    fn the_kernel_says_how_much_is_resident() {
        assert_eq!(resident_kib("Name:\tx\nVmHWM:\t  9 kB\nVmRSS:\t    1234 kB\n"), Some(1234));
        assert_eq!(resident_kib("Name:\tx\n"), None, "a process that is gone has no memory");
    }
}
