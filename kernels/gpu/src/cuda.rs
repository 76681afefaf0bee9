//! CUDA devices. Driver and libraries are loaded at run time; a machine without them has no device, and nothing panics.

use cudarc::driver::{DriverError, result};
use cudarc::{driver, nvrtc};
use std::fmt;
use std::path::PathBuf;

/// A version of CUDA, of which drivers and NVRTC tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    pub major: i32,
    pub minor: i32,
}

impl Version {
    /// The least version of a driver and of NVRTC with which the trainer's kernels compile and load.
    pub const LEAST: Self = Self { major: 12, minor: 0 };

    /// The version that a driver gives as one number: 12050 is 12.5.
    const fn of(number: i32) -> Self {
        Self { major: number / 1000, minor: number % 1000 / 10 }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

fn says(error: DriverError) -> String {
    format!("the driver says {error}")
}

/// The version of CUDA that the driver of this machine's devices has. Nothing else is asked of the driver.
///
/// # Errors
/// There is no driver, or it does not tell.
fn driver() -> Result<Version, String> {
    // cudarc panics when it needs a library that is not there.
    // SAFETY: the driver does nothing dangerous when loaded.
    if !unsafe { driver::sys::is_culib_present() } {
        return Err("this machine has no CUDA driver".into());
    }
    let mut number = 0;
    // SAFETY: the driver is there, and writes one number.
    unsafe { driver::sys::cuDriverGetVersion(&mut number) }.result().map_err(says)?;
    Ok(Version::of(number))
}

/// Why there is no CUDA device with a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Absent {
    /// The driver is older than [`Version::LEAST`].
    OldDriver(Version),
    /// The machine's devices, in words.
    Other(String),
}

impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OldDriver(version) => {
                write!(f, "this machine's driver is of CUDA {version}, and {} is needed", Version::LEAST)
            }
            Self::Other(found) => f.write_str(found),
        }
    }
}

/// The name of the device with this number.
///
/// # Errors
/// There is no such device, or its driver is too old.
pub fn find(index: usize) -> Result<String, Absent> {
    let version = driver().map_err(Absent::Other)?;
    if version < Version::LEAST {
        return Err(Absent::OldDriver(version));
    }
    name(index).map_err(Absent::Other)
}

/// The name of a device whose driver is new enough.
fn name(index: usize) -> Result<String, String> {
    result::init().map_err(says)?;
    let count = result::device::get_count().map_err(says)?;
    let number = i32::try_from(index).ok().filter(|&n| n < count);
    let number = number.ok_or_else(|| format!("this machine has {count}"))?;
    let device = result::device::get(number).map_err(says)?;
    Ok(result::device::get_name(device).unwrap_or_else(|_| "no name".into()))
}

/// A reason why this machine's CUDA compiles no kernels that its driver loads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// There is no compiler NVRTC.
    NoCompiler,
    /// NVRTC is older than [`Version::LEAST`].
    OldCompiler(Version),
    /// NVRTC is of a later major version than the driver, which loads none of its kernels.
    Ahead(Ahead),
    /// The folder where CUDA's headers would be.
    NoHeaders(PathBuf),
}

/// An NVRTC that is newer than the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ahead {
    pub driver: Version,
    pub compiler: Version,
}

/// The version of NVRTC, if it is there.
fn compiler() -> Option<Version> {
    // SAFETY: NVRTC does nothing dangerous when loaded, and writes two numbers.
    unsafe {
        let (mut major, mut minor) = (0, 0);
        let asked = nvrtc::sys::is_culib_present().then(|| nvrtc::sys::nvrtcVersion(&mut major, &mut minor).result());
        asked?.ok().map(|()| Version { major, minor })
    }
}

/// The versions, where NVRTC is newer than the driver. Such a driver may load its kernels all the same if only the minor
/// versions differ.
pub fn ahead() -> Option<Ahead> {
    let (driver, compiler) = (driver().ok()?, compiler()?);
    (compiler > driver).then_some(Ahead { driver, compiler })
}

/// The reason why this machine's toolkit is unfit for its driver, or for the trainer.
pub fn unfit() -> Option<Unfit> {
    let Some(compiler) = compiler() else { return Some(Unfit::NoCompiler) };
    if compiler < Version::LEAST {
        return Some(Unfit::OldCompiler(compiler));
    }
    if let Some(ahead) = ahead().filter(|ahead| ahead.compiler.major > ahead.driver.major) {
        return Some(Unfit::Ahead(ahead));
    }
    // The folders in which cubecl looks.
    let root = std::env::var_os("CUDA_PATH").map(PathBuf::from);
    let root = root.unwrap_or_else(|| {
        let usual = ["/usr/local/cuda", "/opt/cuda"].map(PathBuf::from);
        usual.into_iter().find(|folder| folder.exists()).unwrap_or_else(|| "/usr".into())
    });
    let headers = root.join("include");
    (!headers.join("cuda_fp16.h").exists()).then_some(Unfit::NoHeaders(headers))
}

/// The architecture of all devices, as a folder's name: `None` without devices, or if they differ. A compiled kernel fits
/// one architecture, and is not found by it.
pub(crate) fn architecture() -> Option<String> {
    use cudarc::driver::sys::CUdevice_attribute as Attribute;
    find(0).ok()?;
    let of = |number: i32| {
        let device = result::device::get(number).ok()?;
        let parts = [
            Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        ];
        // SAFETY: the device exists.
        let [major, minor] = parts.map(|part| unsafe { result::device::get_attribute(device, part) }.ok());
        Some(format!("sm_{}{}", major?, minor?))
    };
    let first = of(0)?;
    let count = result::device::get_count().ok()?;
    (1..count).all(|number| of(number).as_ref() == Some(&first)).then_some(first)
}

/// Bytes of the device's memory that nobody has taken, and all of them.
///
/// # Errors
/// The driver's words.
pub(crate) fn memory(index: usize) -> Result<(u64, u64), String> {
    let number = i32::try_from(index).map_err(|_| "there is no such device".to_string())?;
    let device = result::device::get(number).map_err(says)?;
    // SAFETY: the device exists. The primary context is the one that cubecl uses; it is held for as long as this is read.
    unsafe {
        let context = result::primary_ctx::retain(device).map_err(says)?;
        let read = result::ctx::set_current(context).and_then(|()| result::mem_get_info());
        let released = result::primary_ctx::release(device);
        let (free, total) = read.map_err(says)?;
        released.map_err(says)?;
        Ok((free as u64, total as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drivers_number_is_a_version() {
        let version = Version::of(12050);
        assert_eq!((version.to_string().as_str(), version > Version::LEAST), ("12.5", true));
        assert!(Version::of(11080) < Version::LEAST && Version::of(12000) == Version::LEAST);
        assert!(Version::of(12090) < Version::of(13000) && Version::of(13010).to_string() == "13.1");
    }
}
