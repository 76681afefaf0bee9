//! CUDA devices. The driver is loaded at run time; a machine without one has no device, and nothing panics.

use super::{DeviceError, DeviceInfo, DeviceKind};
use crate::config::ModelConfig;
use crate::train::{RemoteTrainer, Trainer, TrainerOptions};
use burn_autodiff::Autodiff;
use burn_cuda::{Cuda, CudaDevice};
use cudarc::driver::result;

/// Whether a library is there. cudarc panics when it needs one that is not.
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

/// A trainer on the device. Unit tests are built without: it takes minutes to compile.
pub fn open(info: DeviceInfo, model: &ModelConfig, options: &TrainerOptions) -> Result<Box<dyn Trainer>, DeviceError> {
    if cfg!(test) {
        return Err(DeviceError::Failed { device: info.to_string(), reason: "left out of this build".into() });
    }
    let device = CudaDevice::new(info.index);
    match RemoteTrainer::<Autodiff<Cuda>>::new(info.clone(), device, model, options) {
        Ok(trainer) => Ok(Box::new(trainer)),
        Err(reason) => Err(DeviceError::Failed { device: info.to_string(), reason }),
    }
}
