//! The device's encoder behind the same choice of device as a trainer's.

use super::{EncodeError, RuntimeEncoder};
use crate::device::{DeviceChoice, DeviceError, DeviceInfo, graphics};
use cubecl::Runtime;
use cubecl::wgpu::WgpuRuntime;

/// The int8 encoder on a device that was chosen at run time.
pub struct Int8Encoder {
    device: DeviceInfo,
    encoder: AnyEncoder,
}

enum AnyEncoder {
    Wgpu(RuntimeEncoder<WgpuRuntime>),
    #[cfg(feature = "cuda")]
    Cuda(RuntimeEncoder<cubecl::cuda::CudaRuntime>),
}

/// Why there is no encoder.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenEncoderError {
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error("{0} encodes with the CPU's codecs, which need no device")]
    Cpu(DeviceChoice),
}

impl Int8Encoder {
    /// Opens the chosen device. [`DeviceChoice::Auto`] takes CUDA, then a graphics adapter that is no software; without
    /// either, and for [`DeviceChoice::Cpu`], use [`crate::codec::int8_encode`].
    pub fn open(choice: &DeviceChoice) -> Result<Self, OpenEncoderError> {
        match *choice {
            DeviceChoice::Wgpu(index) => Ok(Self::on_adapter(graphics::find(index)?)?),
            DeviceChoice::Cuda(index) => Ok(Self::on_cuda(index)?),
            DeviceChoice::Cpu => Err(OpenEncoderError::Cpu(*choice)),
            DeviceChoice::Auto => {
                if let Ok(encoder) = Self::on_cuda(0) {
                    return Ok(encoder);
                }
                let real = graphics::adapters().into_iter().find(|adapter| !adapter.software);
                Ok(Self::on_adapter(real.ok_or(OpenEncoderError::Cpu(*choice))?)?)
            }
        }
    }

    fn on_adapter(found: graphics::Found) -> Result<Self, DeviceError> {
        let device = found.info.clone();
        let failed = |reason| DeviceError::Failed { device: device.to_string(), reason };
        let encoder = RuntimeEncoder::new(WgpuRuntime::client(&graphics::start(found).map_err(failed)?));
        Ok(Self { device, encoder: AnyEncoder::Wgpu(encoder) })
    }

    #[cfg(feature = "cuda")]
    fn on_cuda(index: usize) -> Result<Self, DeviceError> {
        use cubecl::cuda::{CudaDevice, CudaRuntime};
        // The driver and the device were found to be there; what cubecl still trips over, it says by panicking.
        let device = crate::device::cuda::find(index)?;
        let client = std::panic::catch_unwind(|| CudaRuntime::client(&CudaDevice::new(index)));
        let reason = "CUDA's libraries do not start: see the log".to_owned();
        let client = client.map_err(|_| DeviceError::Failed { device: device.to_string(), reason })?;
        Ok(Self { device, encoder: AnyEncoder::Cuda(RuntimeEncoder::new(client)) })
    }

    #[cfg(not(feature = "cuda"))]
    fn on_cuda(_: usize) -> Result<Self, DeviceError> {
        Err(DeviceError::WithoutCuda)
    }

    /// Where it runs.
    pub fn device(&self) -> &DeviceInfo {
        &self.device
    }

    /// [`RuntimeEncoder::encode`].
    pub fn encode(&self, src: &[f32], dst: &mut [u8]) -> Result<(), EncodeError> {
        match &self.encoder {
            AnyEncoder::Wgpu(encoder) => encoder.encode(src, dst),
            #[cfg(feature = "cuda")]
            AnyEncoder::Cuda(encoder) => encoder.encode(src, dst),
        }
    }

    /// [`RuntimeEncoder::encode_chunks`].
    pub fn encode_chunks(&self, src: &[f32], chunk: usize, dst: &mut [u8]) -> Result<(), EncodeError> {
        match &self.encoder {
            AnyEncoder::Wgpu(encoder) => encoder.encode_chunks(src, chunk, dst),
            #[cfg(feature = "cuda")]
            AnyEncoder::Cuda(encoder) => encoder.encode_chunks(src, chunk, dst),
        }
    }

    #[cfg(test)]
    pub(super) fn wgpu(&self) -> Option<&RuntimeEncoder<WgpuRuntime>> {
        match &self.encoder {
            AnyEncoder::Wgpu(encoder) => Some(encoder),
            #[cfg(feature = "cuda")]
            AnyEncoder::Cuda(_) => None,
        }
    }
}
