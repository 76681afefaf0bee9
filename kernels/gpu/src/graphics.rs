//! Graphics adapters through wgpu, opened by fallible calls only: without a driver there is an error, no panic.

use cubecl::future::block_on;
use cubecl::wgpu::{AutoGraphicsApi, GraphicsApi, RuntimeOptions, WgpuDevice, WgpuSetup, init_device};

/// An adapter, not yet opened.
pub struct Adapter {
    /// The name that its driver gives.
    pub name: String,
    /// Whether the CPU does the adapter's work.
    pub software: bool,
    instance: wgpu::Instance,
    adapter: wgpu::Adapter,
}

/// Order of preference.
fn rank(kind: wgpu::DeviceType) -> u8 {
    match kind {
        wgpu::DeviceType::DiscreteGpu => 0,
        wgpu::DeviceType::IntegratedGpu => 1,
        wgpu::DeviceType::VirtualGpu => 2,
        wgpu::DeviceType::Other => 3,
        wgpu::DeviceType::Cpu => 4,
    }
}

/// All adapters of this system's graphics API, from the best to the least.
pub fn adapters() -> Vec<Adapter> {
    let backend = AutoGraphicsApi::backend();
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor {
        backends: backend.into(),
        ..wgpu::InstanceDescriptor::new_without_display_handle()
    });
    let mut adapters = block_on(instance.enumerate_adapters(backend.into()));
    adapters.sort_by_key(|adapter| rank(adapter.get_info().device_type));
    let found = adapters.into_iter().map(|adapter| {
        let info = adapter.get_info();
        let software = info.device_type == wgpu::DeviceType::Cpu;
        let name = if software { format!("{}, software", info.name) } else { info.name };
        Adapter { name, software, instance: instance.clone(), adapter }
    });
    found.collect()
}

/// A cubecl device on the adapter.
///
/// # Errors
/// The driver's words.
pub(crate) fn start(found: Adapter) -> Result<WgpuDevice, String> {
    let Adapter { instance, adapter, .. } = found;
    let features = adapter.features().difference(wgpu::Features::MAPPABLE_PRIMARY_BUFFERS);
    let experimental = features.intersects(wgpu::Features::all_experimental_mask());
    let request = adapter.request_device(&wgpu::DeviceDescriptor {
        label: Some("starling"),
        required_features: features,
        required_limits: adapter.limits(),
        // cubecl batches allocations itself.
        memory_hints: wgpu::MemoryHints::MemoryUsage,
        trace: wgpu::Trace::Off,
        // SAFETY: cubecl's kernels use such features only where the adapter offers them.
        experimental_features: match experimental {
            true => unsafe { wgpu::ExperimentalFeatures::enabled() },
            false => wgpu::ExperimentalFeatures::disabled(),
        },
    });
    let (device, queue) = block_on(request).map_err(|e| e.to_string())?;
    let backend = AutoGraphicsApi::backend();
    let setup = WgpuSetup { instance, adapter, device, queue, backend };
    crate::words::guarded(|| init_device(setup, RuntimeOptions::default()))
        .map_err(|words| format!("its features do not suffice ({words})"))
}
