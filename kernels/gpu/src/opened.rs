//! An open device: what it can do, what memory it has, and models on it.

use crate::attention::{self, Way};
use crate::buffers::Batch;
use crate::graphics::Adapter;
use crate::machine::Machine;
use crate::measure;
use crate::session::Session;
use crate::sizes::Sizes;
use crate::ways::Ways;
use crate::words;
use cubecl::Runtime;
use cubecl::client::ComputeClient;
use cubecl::config::cache::CacheConfig;
use cubecl::config::{CubeClRuntimeConfig, RuntimeConfig};
use cubecl::ir::{ElemType, FloatKind};
use cubecl::stream_id::StreamId;
use cubecl::wgpu::WgpuRuntime;
use half::bf16;
use std::path::{Path, PathBuf};
use std::sync::Once;

/// A device to open.
pub enum Device {
    Graphics(Adapter),
    #[cfg(feature = "cuda")]
    Cuda(usize),
}

/// A device that is open.
pub struct Opened {
    client: Client,
}

enum Client {
    Graphics(ComputeClient<WgpuRuntime>),
    #[cfg(feature = "cuda")]
    Cuda(ComputeClient<cubecl::cuda::CudaRuntime>, usize),
}

static SETTINGS: Once = Once::new();

/// The part of a folder for the kernels of this machine's devices.
#[cfg(feature = "cuda")]
fn own_folder(folder: &Path) -> Option<PathBuf> {
    crate::cuda::architecture().map(|architecture| folder.join(architecture))
}

/// Only CUDA's kernels are kept.
#[cfg(not(feature = "cuda"))]
fn own_folder(_: &Path) -> Option<PathBuf> {
    None
}

/// Chooses settings of all devices of this process: `kernels` is a folder for compiled ones. Only the first call counts,
/// and only before a device is opened.
pub fn settle(kernels: Option<&Path>) {
    SETTINGS.call_once(|| {
        let mut config = CubeClRuntimeConfig::default();
        // One stream a device, so that every thread's work is in one order, and libraries can join it.
        config.streaming.max_streams = 1;
        config.compilation.cache = kernels.and_then(own_folder).map(CacheConfig::File);
        // A second setting would panic; a first cannot.
        let _ = words::guarded(|| CubeClRuntimeConfig::set(config));
        words::watch();
    });
}

/// A client whose work is in one order, whichever thread asks for it.
fn joined<R: Runtime>(mut client: ComputeClient<R>) -> ComputeClient<R> {
    // SAFETY: a device has one stream here, so that this name is the only one.
    unsafe { client.set_stream(StreamId { value: 0 }) };
    client
}

impl Opened {
    /// Opens the device.
    ///
    /// # Errors
    /// The driver's words.
    pub fn new(device: Device) -> Result<Self, String> {
        settle(None);
        let client = match device {
            Device::Graphics(adapter) => {
                let device = crate::graphics::start(adapter)?;
                words::guarded(|| Client::Graphics(joined(WgpuRuntime::client(&device))))?
            }
            #[cfg(feature = "cuda")]
            Device::Cuda(index) => {
                let device = cubecl::cuda::CudaDevice::new(index);
                words::guarded(|| Client::Cuda(joined(cubecl::cuda::CudaRuntime::client(&device)), index))?
            }
        };
        Ok(Self { client })
    }

    /// Bytes of memory that nobody has taken, where the device tells.
    pub fn free_memory(&self) -> Option<u64> {
        match &self.client {
            Client::Graphics(_) => None,
            #[cfg(feature = "cuda")]
            Client::Cuda(_, index) => crate::cuda::memory(*index).ok().map(|(free, _)| free),
        }
    }

    /// Bytes of the largest buffer.
    pub fn largest(&self) -> u64 {
        match &self.client {
            Client::Graphics(client) => client.properties().memory.max_page_size,
            #[cfg(feature = "cuda")]
            Client::Cuda(..) => u64::MAX,
        }
    }

    /// The ways that the device offers for a model, from the fastest to the most portable.
    pub fn ways(&self, sizes: &Sizes) -> Vec<Ways> {
        match &self.client {
            Client::Graphics(_) => vec![Ways { bf16: false, tensor_cores: false, cublas: false }],
            #[cfg(feature = "cuda")]
            Client::Cuda(client, _) => {
                let bf16 = client.properties().supports_type(ElemType::Float(FloatKind::BF16));
                let ways = attention::ways::<_, bf16>(client, attention::Shape::of(sizes, 1));
                let tensor_cores = bf16 && ways.contains(&Way::TensorCores);
                let both = |first: bool| if first { vec![true, false] } else { vec![false] };
                let mut ways = Vec::new();
                for cublas in [true, false] {
                    for tensor_cores in both(tensor_cores) {
                        ways.push(Ways { bf16, tensor_cores, cublas });
                    }
                }
                ways.extend(bf16.then_some(Ways { bf16: false, tensor_cores: false, cublas: false }));
                ways
            }
        }
    }

    /// A model on the device, with parameters and moments of zero.
    ///
    /// # Errors
    /// The device's words; a library that is not there among them.
    pub fn session(&self, sizes: &Sizes, batch: &Batch, ways: Ways) -> Result<Box<dyn Session>, String> {
        match &self.client {
            Client::Graphics(client) => session(client, sizes, batch, ways),
            #[cfg(feature = "cuda")]
            Client::Cuda(client, _) => session(client, sizes, batch, ways),
        }
    }
}

impl Opened {
    /// Seconds of attention forward and backward; sizes are heads, key heads, a head's width, sequences and tokens.
    ///
    /// # Errors
    /// The device's words.
    pub fn time_attention(&self, sizes: [usize; 5], tensor_cores: bool) -> Result<[f64; 2], String> {
        match &self.client {
            Client::Graphics(client) => measure::attention::<_, f32>(client, sizes, tensor_cores),
            #[cfg(feature = "cuda")]
            Client::Cuda(client, _) => measure::attention::<_, bf16>(client, sizes, tensor_cores),
        }
    }

    /// Seconds of each product of a model's step.
    pub fn time_products(&self, sizes: &Sizes, sequences: usize, ways: Ways) -> Vec<measure::Timed> {
        match &self.client {
            Client::Graphics(client) => measure::products(client, sizes, sequences, ways),
            #[cfg(feature = "cuda")]
            Client::Cuda(client, _) => measure::products(client, sizes, sequences, ways),
        }
    }
}

fn session<R: Runtime>(
    client: &ComputeClient<R>,
    sizes: &Sizes,
    batch: &Batch,
    ways: Ways,
) -> Result<Box<dyn Session>, String> {
    Ok(match ways.bf16 {
        true => Box::new(Machine::<R, bf16>::new(client.clone(), sizes, batch, ways)?),
        false => Box::new(Machine::<R, f32>::new(client.clone(), sizes, batch, ways)?),
    })
}
