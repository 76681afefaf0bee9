//! Applies the limits of a process.

use crate::scenario::Limits;
use rustix::process::{Resource, Rlimit, setrlimit};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Makes the program start under the limits.
pub fn hold(limits: &Limits, command: &mut Command) {
    let wanted = [(Resource::Nofile, limits.files), (Resource::Data, limits.memory_mib.map(|mib| mib << 20))];
    for (resource, most) in wanted {
        let Some(most) = most else { continue };
        // SAFETY: the closure runs between fork and exec and makes one async-signal-safe system call.
        unsafe {
            command.pre_exec(move || {
                setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
                Ok(())
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_what_it_may() {
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -n; ulimit -d; ulimit -Hn"]);
        hold(&Limits { files: Some(77), memory_mib: Some(64) }, &mut command);
        let said = String::from_utf8(command.output().unwrap().stdout).unwrap();
        assert_eq!(said.lines().collect::<Vec<_>>(), ["77", "65536", "77"]);
    }
}
