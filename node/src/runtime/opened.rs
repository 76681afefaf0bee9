//! The words of a trainer about the device that was opened, and the folder for what was compiled for it.

use starling_kernels::{DeviceInfo, Trainer};
use std::path::Path;

/// Folder of a node's home for kernels that were compiled for its devices.
const KERNELS: &str = "kernels";

/// Keeps what is compiled for devices in the node's home. It has to be called before the first device is opened.
pub fn keep_kernels(home: &Path) {
    starling_kernels::keep_compiled_in(&home.join(KERNELS));
}

/// Whether a sentence is of a device that was passed over: such a one does not name the device that was opened.
pub fn is_of_another(said: &str, device: &DeviceInfo) -> bool {
    !said.contains(&device.to_string())
}

/// Logs what was said when the device was opened. A device in the place of a better one is worth a warning.
pub fn log(trainer: &dyn Trainer) {
    for said in trainer.told() {
        match is_of_another(said, trainer.device()) {
            true => tracing::warn!("{said}"),
            false => tracing::info!("{said}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling_kernels::DeviceKind;

    #[test]
    fn a_device_in_the_place_of_another_is_told_from_one_with_less_memory() {
        let device = |kind, name: &str| DeviceInfo { kind, index: 0, name: name.into(), why: "a test".into() };
        let (card, processor) = (device(DeviceKind::Cuda, "NVIDIA H100"), device(DeviceKind::Cpu, "2 threads"));
        let fell = "cuda:0 (NVIDIA H100) does not do: it has no NVRTC; the CPU trains instead";
        let less = "cuda:0 (NVIDIA H100) has memory for 4 sequences at a time, and not for inner.batch = 8";
        assert!(is_of_another(fell, &processor));
        assert!(!is_of_another(less, &card));
    }
}
