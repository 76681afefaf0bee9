//! CUDA devices. Driver and libraries are loaded at run time; a machine without them has no device, and nothing panics.

use cudarc::driver::result;
use std::path::PathBuf;

/// Whether a library can be loaded. cudarc panics when it needs one that cannot.
fn present(name: &str) -> bool {
    // SAFETY: NVIDIA's libraries do nothing dangerous when loaded.
    unsafe { libloading::Library::new(name) }.is_ok()
}

/// The name of the device with this number.
///
/// # Errors
/// The machine's devices, in words.
pub fn find(index: usize) -> Result<String, String> {
    let driver = if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so.1" };
    if !present(driver) {
        return Err("this machine has no CUDA driver".into());
    }
    let says = |e: cudarc::driver::DriverError| format!("the driver says {e}");
    result::init().map_err(says)?;
    let count = result::device::get_count().map_err(says)?;
    let number = i32::try_from(index).ok().filter(|&n| n < count);
    let number = number.ok_or_else(|| format!("this machine has {count}"))?;
    let device = result::device::get(number).map_err(says)?;
    Ok(result::device::get_name(device).unwrap_or_else(|_| "no name".into()))
}

/// A part of CUDA's toolkit that compiling kernels needs, and that this machine lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Missing {
    /// The compiler NVRTC.
    Compiler,
    /// The folder of the toolkit's headers.
    Headers(PathBuf),
}

/// The toolkit's parts that are not there.
pub fn missing() -> Option<Missing> {
    let names = ["libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12", "nvrtc64_130_0.dll", "nvrtc64_120_0.dll"];
    if !names.into_iter().any(present) {
        return Some(Missing::Compiler);
    }
    // The folders in which cubecl looks.
    let root = std::env::var_os("CUDA_PATH").map(PathBuf::from);
    let root = root.unwrap_or_else(|| {
        let usual = ["/usr/local/cuda", "/opt/cuda"].map(PathBuf::from);
        usual.into_iter().find(|folder| folder.exists()).unwrap_or_else(|| "/usr".into())
    });
    let headers = root.join("include");
    (!headers.join("cuda_fp16.h").exists()).then_some(Missing::Headers(headers))
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
    let says = |e: cudarc::driver::DriverError| format!("the driver says {e}");
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
