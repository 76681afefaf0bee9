//! The rights that namespaces and devices need: root's, or those of a user namespace.

use anyhow::Context;
use rustix::thread::UnshareFlags;

/// Advice for a machine that cannot emulate a network, in one line.
const ADVICE: &str = "run as root, allow unprivileged user namespaces, or use --plain (loopback, no emulated network)";

/// Gets the rights, before the process has a second thread. A process without root becomes the root of a user namespace
/// of its own. Only the lab and its children see later mounts, and these end with the lab.
///
/// # Errors
/// If the system does not allow it; the message says what is missing and what to do.
pub fn acquire() -> anyhow::Result<()> {
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    if user.is_root() {
        unshare(UnshareFlags::NEWNS).with_context(|| format!("no mount namespace: {ADVICE}"))?;
    } else {
        unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNS).with_context(|| format!("no user namespace: {ADVICE}"))?;
        let map = |file: &str, text: String| {
            std::fs::write(file, text).with_context(|| format!("cannot write {file}: {ADVICE}"))
        };
        map("/proc/self/setgroups", "deny".into())?;
        map("/proc/self/uid_map", format!("0 {} 1", user.as_raw()))?;
        map("/proc/self/gid_map", format!("0 {} 1", group.as_raw()))?;
    }
    let flags = rustix::mount::MountPropagationFlags::PRIVATE | rustix::mount::MountPropagationFlags::REC;
    rustix::mount::mount_change("/", flags).with_context(|| format!("cannot keep mounts to ourselves: {ADVICE}"))?;
    let device = std::fs::OpenOptions::new().read(true).write(true).open("/dev/net/tun");
    device.context("/dev/net/tun cannot be opened: load the module `tun`, let this user open it, or use --plain")?;
    let there = std::process::Command::new("ip").arg("-V").output().is_ok_and(|said| said.status.success());
    anyhow::ensure!(there, "there is no `ip`: install iproute2, or use --plain");
    Ok(())
}

fn unshare(flags: UnshareFlags) -> rustix::io::Result<()> {
    // SAFETY: file descriptors stay shared, and the process has one thread yet.
    unsafe { rustix::thread::unshare_unsafe(flags) }
}
