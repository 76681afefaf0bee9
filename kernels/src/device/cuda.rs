//! CUDA devices. The driver is loaded at run time; a machine without one has no device, and nothing panics.

use super::{DeviceError, DeviceInfo, DeviceKind};
use cudarc::driver::result;

/// Whether a library can be loaded. cudarc panics when it needs one that cannot.
fn present(name: &str) -> bool {
    // SAFETY: NVIDIA's libraries do nothing dangerous when loaded.
    unsafe { libloading::Library::new(name) }.is_ok()
}

/// The device with this number.
pub fn find(index: usize) -> Result<DeviceInfo, DeviceError> {
    let none = |found: &str| DeviceError::NoCuda { index, found: found.to_string() };
    let driver = if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so.1" };
    if !present(driver) {
        return Err(none("this machine has no CUDA driver"));
    }
    result::init().map_err(|e| none(&format!("the driver says {e}")))?;
    let count = result::device::get_count().map_err(|e| none(&format!("the driver says {e}")))?;
    let number = i32::try_from(index).ok().filter(|&n| n < count);
    let number = number.ok_or_else(|| none(&format!("this machine has {count}")))?;
    let device = result::device::get(number).map_err(|e| none(&format!("the driver says {e}")))?;
    let name = result::device::get_name(device).unwrap_or_else(|_| "no name".into());
    Ok(DeviceInfo { kind: DeviceKind::Cuda, index, name, why: "asked for".into() })
}
