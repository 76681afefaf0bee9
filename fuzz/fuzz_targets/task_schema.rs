#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| starling_fuzz::task_schema(data));
