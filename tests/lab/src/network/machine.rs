//! A machine of the emulated network: a network namespace whose only link is a TUN device that the switch holds.
//!
//! Namespace and device have no name. They end with the last process in the namespace and the last descriptor, so that
//! nothing is left, however the lab ends.

use anyhow::{Context, bail};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::thread::{LinkNameSpaceType, UnshareFlags};
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

/// The device's name within the namespace.
const DEVICE: &str = "wan0";
/// `TUNSETIFF` of the kernel's `if_tun.h`.
const TUNSETIFF: u32 = 0x4004_54ca;
/// `IFF_TUN | IFF_NO_PI`: whole IP packets, without a header before them.
const TUN_NO_PI: u16 = 0x1001;
/// Packets that the kernel keeps for the switch before it loses some.
const QUEUE: &str = "2000";

/// The kernel's `struct ifreq`, as far as `TUNSETIFF` reads it.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; 16],
    flags: u16,
    rest: [u8; 22],
}

/// A namespace that programs can be started in.
#[derive(Clone, Debug)]
pub struct Machine {
    namespace: Arc<OwnedFd>,
    /// Its own address; other machines see another one if it is behind a NAT box.
    pub address: Ipv4Addr,
}

impl Machine {
    /// A new machine with that address, and the other end of its device.
    ///
    /// # Errors
    /// If the system does not allow a namespace or a device.
    pub fn make(address: Ipv4Addr) -> anyhow::Result<(Self, OwnedFd)> {
        // The work has a thread of its own, since it changes the thread's namespace for good.
        let made = std::thread::spawn(move || in_new_namespace(address)).join();
        let (namespace, device) = made.map_err(|_| anyhow::anyhow!("making a machine panicked"))??;
        Ok((Self { namespace: Arc::new(namespace), address }, device))
    }

    /// Makes the program start on this machine.
    pub fn hold(&self, command: &mut Command) {
        let namespace = self.namespace.clone();
        // SAFETY: the closure runs between fork and exec and makes one async-signal-safe system call.
        unsafe {
            command.pre_exec(move || {
                enter(namespace.as_fd())?;
                Ok(())
            });
        }
    }

    /// Runs `work` on a thread of this machine, for sockets in its network.
    ///
    /// # Errors
    /// If the namespace cannot be entered, or `work` panics.
    pub fn on<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> anyhow::Result<T> {
        let namespace = self.namespace.clone();
        let done = std::thread::spawn(move || enter(namespace.as_fd()).map(|()| work())).join();
        Ok(done.map_err(|_| anyhow::anyhow!("work on a machine panicked"))??)
    }
}

fn enter(namespace: BorrowedFd<'_>) -> rustix::io::Result<()> {
    rustix::thread::move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network))
}

fn in_new_namespace(address: Ipv4Addr) -> anyhow::Result<(OwnedFd, OwnedFd)> {
    // SAFETY: descriptors and memory stay shared; only this thread's network changes, and nothing else runs on it.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }.context("cannot make a network namespace")?;
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let device = rustix::fs::open("/dev/net/tun", flags, Mode::empty()).context("cannot open /dev/net/tun")?;
    let mut name = [0; 16];
    name[..DEVICE.len()].copy_from_slice(DEVICE.as_bytes());
    let request = InterfaceRequest { name, flags: TUN_NO_PI, rest: [0; 22] };
    // SAFETY: TUNSETIFF reads a `struct ifreq`, and `InterfaceRequest` has its layout.
    unsafe { rustix::ioctl::ioctl(&device, rustix::ioctl::Setter::<TUNSETIFF, _>::new(request)) }
        .context("cannot make a TUN device")?;
    // The emulated network speaks IPv4 alone; without this the kernel sends IPv6. Without the file there is no IPv6.
    let _ = std::fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1");
    ip(&["link", "set", "lo", "up"])?;
    ip(&["addr", "add", &format!("{address}/32"), "dev", DEVICE])?;
    ip(&["link", "set", DEVICE, "mtu", "1500", "txqueuelen", QUEUE, "up"])?;
    ip(&["route", "add", "default", "dev", DEVICE, "src", &address.to_string()])?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let namespace =
        rustix::fs::open("/proc/thread-self/ns/net", flags, Mode::empty()).context("cannot hold the namespace")?;
    Ok((namespace, device))
}

/// Runs `ip` in the namespace of the calling thread.
fn ip(arguments: &[&str]) -> anyhow::Result<()> {
    let said = Command::new("ip").args(arguments).output().context("cannot run `ip` (package iproute2)")?;
    if !said.status.success() {
        bail!("`ip {}` failed: {}", arguments.join(" "), String::from_utf8_lossy(&said.stderr).trim());
    }
    Ok(())
}
