//! The device's codecs behind the same choice of device as a trainer's.

use super::{CodecKind, DeviceCodecError, RuntimeCodec};
use crate::device::{DeviceChoice, DeviceError, DeviceInfo, graphics};
use cubecl::Runtime;
use cubecl::wgpu::WgpuRuntime;

/// The codecs on a device that was chosen at run time.
pub struct DeviceCodec {
    device: DeviceInfo,
    software: bool,
    codec: AnyCodec,
}

enum AnyCodec {
    Wgpu(RuntimeCodec<WgpuRuntime>),
    #[cfg(feature = "cuda")]
    Cuda(RuntimeCodec<cubecl::cuda::CudaRuntime>),
}

/// Evaluates a call on the codec of the runtime that was chosen.
macro_rules! on_runtime {
    ($any:expr, $codec:ident => $call:expr) => {
        match $any {
            AnyCodec::Wgpu($codec) => $call,
            #[cfg(feature = "cuda")]
            AnyCodec::Cuda($codec) => $call,
        }
    };
}

/// Why there is no codec.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenCodecError {
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error("{0} codes with the CPU's codecs, which need no device")]
    Cpu(DeviceChoice),
}

impl DeviceCodec {
    /// Opens the chosen device. [`DeviceChoice::Auto`] takes CUDA, then a graphics adapter that is no software; without
    /// either, and for [`DeviceChoice::Cpu`], use the functions of [`crate::codec`].
    pub fn open(choice: &DeviceChoice) -> Result<Self, OpenCodecError> {
        match *choice {
            DeviceChoice::Wgpu(index) => Ok(Self::on_adapter(graphics::find(index)?)?),
            DeviceChoice::Cuda(index) => Ok(Self::on_cuda(index)?),
            DeviceChoice::Cpu => Err(OpenCodecError::Cpu(*choice)),
            DeviceChoice::Auto => {
                if let Ok(codec) = Self::on_cuda(0) {
                    return Ok(codec);
                }
                let real = graphics::adapters().into_iter().find(|adapter| !adapter.software);
                Ok(Self::on_adapter(real.ok_or(OpenCodecError::Cpu(*choice))?)?)
            }
        }
    }

    fn on_adapter(found: graphics::Found) -> Result<Self, DeviceError> {
        let (device, software) = (found.info.clone(), found.software);
        let failed = |reason| DeviceError::Failed { device: device.to_string(), reason };
        let codec = RuntimeCodec::new(WgpuRuntime::client(&graphics::start(found).map_err(failed)?));
        Ok(Self { device, software, codec: AnyCodec::Wgpu(codec) })
    }

    #[cfg(feature = "cuda")]
    fn on_cuda(index: usize) -> Result<Self, DeviceError> {
        use cubecl::cuda::{CudaDevice, CudaRuntime};
        // The driver and the device are there. cubecl reports any other failure by a panic.
        let device = crate::device::cuda::find(index)?;
        let client = std::panic::catch_unwind(|| CudaRuntime::client(&CudaDevice::new(index)));
        let reason = "CUDA's libraries do not start: see the log".to_owned();
        let client = client.map_err(|_| DeviceError::Failed { device: device.to_string(), reason })?;
        Ok(Self { device, software: false, codec: AnyCodec::Cuda(RuntimeCodec::new(client)) })
    }

    #[cfg(not(feature = "cuda"))]
    fn on_cuda(_: usize) -> Result<Self, DeviceError> {
        Err(DeviceError::WithoutCuda)
    }

    /// The device of this codec.
    pub fn device(&self) -> &DeviceInfo {
        &self.device
    }

    /// Whether the device is an adapter whose work the CPU does.
    pub fn is_software(&self) -> bool {
        self.software
    }

    /// [`RuntimeCodec::encode`].
    pub fn encode(&self, kind: CodecKind, src: &[f32], dst: &mut [u8]) -> Result<(), DeviceCodecError> {
        on_runtime!(&self.codec, codec => codec.encode(kind, src, dst))
    }

    /// [`RuntimeCodec::encode_chunks`].
    pub fn encode_chunks(
        &self,
        kind: CodecKind,
        src: &[f32],
        chunk: usize,
        dst: &mut [u8],
    ) -> Result<(), DeviceCodecError> {
        on_runtime!(&self.codec, codec => codec.encode_chunks(kind, src, chunk, dst))
    }

    /// [`RuntimeCodec::decode`].
    pub fn decode(&self, kind: CodecKind, bytes: &[u8], dst: &mut [f32]) -> Result<(), DeviceCodecError> {
        on_runtime!(&self.codec, codec => codec.decode(kind, bytes, dst))
    }

    /// [`RuntimeCodec::decode_add`].
    pub fn decode_add(&self, kind: CodecKind, bytes: &[u8], dst: &mut [f32]) -> Result<(), DeviceCodecError> {
        on_runtime!(&self.codec, codec => codec.decode_add(kind, bytes, dst))
    }

    /// [`RuntimeCodec::topk_encode`].
    pub fn topk_encode(&self, k: usize, src: &[f32], out: &mut Vec<u8>) -> Result<(), DeviceCodecError> {
        on_runtime!(&self.codec, codec => codec.topk_encode(k, src, out))
    }

    /// [`RuntimeCodec::topk_decode`].
    pub fn topk_decode(&self, k: usize, bytes: &[u8], dst: &mut [f32]) -> Result<(), DeviceCodecError> {
        on_runtime!(&self.codec, codec => codec.topk_decode(k, bytes, dst))
    }

    /// [`RuntimeCodec::topk_decode_add`].
    pub fn topk_decode_add(&self, k: usize, bytes: &[u8], dst: &mut [f32]) -> Result<(), DeviceCodecError> {
        on_runtime!(&self.codec, codec => codec.topk_decode_add(k, bytes, dst))
    }

    #[cfg(test)]
    pub(super) fn wgpu(&self) -> Option<&RuntimeCodec<WgpuRuntime>> {
        match &self.codec {
            AnyCodec::Wgpu(codec) => Some(codec),
            #[cfg(feature = "cuda")]
            AnyCodec::Cuda(_) => None,
        }
    }
}
