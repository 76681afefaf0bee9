//! Compares the memory estimate with the memory of the process. The test has a process of its own, so that no other
//! memory is counted.

#![cfg(target_os = "linux")]

use starling_kernels::host::optimizer::Rule;
use starling_kernels::{DeviceChoice, ModelConfig, TrainerOptions, initial_parameters, memory_estimate, open_trainer};

/// Memory of this process in bytes: the peak ("VmHWM") or the current ("VmRSS").
fn resident(line: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with(line)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

#[test]
fn the_estimate_is_what_a_step_takes() {
    let model = ModelConfig { layers: 6, ..ModelConfig::preset("1m").unwrap() };
    let options = TrainerOptions {
        batch: 64,
        accumulate: 1,
        threads: 2,
        rule: Rule::AdamW,
        beta1: 0.9,
        beta2: 0.99,
        eps: 1e-8,
        weight_decay: 0.1,
        clip: 1.0,
    };
    let estimate = memory_estimate(&model, &options).total();
    let theta = initial_parameters(&model, 1);
    let tokens = vec![7; options.batch * (model.seq_len + 1)];
    let before = resident("VmRSS");
    let mut trainer = open_trainer(&DeviceChoice::Cpu, &model, &options).unwrap();
    trainer.load(&theta).unwrap();
    for _ in 0..2 {
        trainer.step(&tokens, 1e-3).unwrap();
    }
    let taken = resident("VmHWM") - before;
    let ratio = taken as f64 / estimate as f64;
    println!("estimated {} MiB, took {} MiB: {ratio:.2}", estimate >> 20, taken >> 20);
    assert!((0.75..1.15).contains(&ratio), "estimated {estimate} bytes, took {taken}");
}
