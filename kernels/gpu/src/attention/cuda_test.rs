//! The tensor cores' kernels: run by hand where there is CUDA, `cargo test -p starling-gpu --features cuda -- --ignored`.

use super::reference::{Reference, largest_error, noise};
use crate::attention::{Backward, Forward, Shape, Way, backward, forward, ways};
use cubecl::Runtime;
use cubecl::cuda::{CudaDevice, CudaRuntime};
use half::bf16;

/// Runs both passes: `out`, `lse`, `dqkv`.
fn run(way: Way, shape: Shape, qkv: &[bf16], dout: &[bf16]) -> [Vec<f32>; 3] {
    let client = CudaRuntime::client(&CudaDevice::default());
    assert!(ways::<CudaRuntime, bf16>(&client, shape).contains(&way), "{shape:?} {way:?}");
    let upload = |data: &[bf16]| client.create_from_slice(bytemuck::cast_slice(data));
    let sums = || client.create_from_slice(bytemuck::cast_slice(&vec![f32::MAX; shape.sums()]));
    let garbage = |len: usize| upload(&vec![bf16::MAX; len]);
    let (q, d, tally) = (upload(qkv), upload(dout), client.create_from_slice(&[0; 4]));
    let (out, dqkv, lse, dsum) = (garbage(dout.len()), garbage(qkv.len()), sums(), sums());
    let tensors = Forward { qkv: &q, out: &out, lse: &lse };
    forward::<_, bf16>(&client, way, shape, tensors, &tally).unwrap();
    let tensors = Backward { forward: tensors, dout: &d, dsum: &dsum, dqkv: &dqkv };
    backward::<_, bf16>(&client, way, shape, tensors, &tally).unwrap();
    let wide = |handle| {
        let bytes = client.read_one(handle).unwrap();
        bytemuck::cast_slice::<u8, bf16>(&bytes).iter().map(|x| x.to_f32()).collect()
    };
    let lse = bytemuck::cast_slice::<u8, f32>(&client.read_one(lse).unwrap()).to_vec();
    let counted = bytemuck::cast_slice::<u8, u32>(&client.read_one(tally).unwrap()).to_vec();
    if std::env::var_os("STUB_PTX").is_none() {
        assert_eq!(counted, [4], "{shape:?}: a kernel did not run");
    }
    [wide(out), lse, wide(dqkv)]
}

#[test]
#[ignore = "needs CUDA; with the stub driver it only compiles the kernels"]
fn tensor_cores_agree() {
    let shapes = [(1, 64), (17, 64), (100, 64), (300, 64), (257, 32), (200, 128)];
    for (tokens, head_dim) in shapes {
        for (heads, kv_heads) in [(4, 4), (12, 4), (8, 1)] {
            let shape = Shape { batch: 2, tokens, heads, kv_heads, head_dim };
            let narrow = |len, seed| noise(len, seed).iter().map(|&x| bf16::from_f32(x)).collect::<Vec<_>>();
            let qkv = narrow(shape.rows() * shape.width(), 1);
            let dout = narrow(shape.rows() * heads * head_dim, 2);
            let got = run(Way::TensorCores, shape, &qkv, &dout);
            let portable = run(Way::Portable, shape, &qkv, &dout);
            if std::env::var_os("STUB_PTX").is_some() {
                continue;
            }
            let wide = |data: &[bf16]| data.iter().map(|x| x.to_f32()).collect::<Vec<_>>();
            let right = Reference::new(shape, &wide(&qkv), &wide(&dout));
            for (got, want, name) in
                [(&got[0], right.out, "out"), (&got[1], right.lse, "lse"), (&got[2], right.dqkv, "dqkv")]
            {
                let error = largest_error(got, &want);
                println!("{shape:?} {name}: {error:.2e}");
                assert!(error < 1e-2, "{shape:?} {name}: {error}");
            }
            for (got, want, name) in [(&got[0], &portable[0], "out"), (&got[2], &portable[2], "dqkv")] {
                let want: Vec<f64> = want.iter().map(|&x| x as f64).collect();
                assert!(largest_error(got, &want) < 1e-2, "{shape:?} {name}: the ways differ");
            }
        }
    }
}
