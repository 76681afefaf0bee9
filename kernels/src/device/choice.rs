//! The names of devices that a user can give.

use std::fmt;
use std::str::FromStr;

/// `auto`, `cpu`, `wgpu`, `wgpu:N`, `cuda` or `cuda:N`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The best device that is really there.
    #[default]
    Auto,
    Cpu,
    /// The N-th graphics adapter, from the best to the least.
    Wgpu(usize),
    /// The N-th CUDA device.
    Cuda(usize),
}

/// The error for a name that is no device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no device; say auto, cpu, wgpu, wgpu:N, cuda or cuda:N")]
pub struct ChoiceError(String);

impl FromStr for DeviceChoice {
    type Err = ChoiceError;

    fn from_str(text: &str) -> Result<Self, ChoiceError> {
        let error = || ChoiceError(text.to_string());
        let (kind, index) = match text.split_once(':') {
            // Drivers count in u16. The parser of integers would accept a sign, so the digits are checked first.
            Some((kind, index)) if index.bytes().all(|b| b.is_ascii_digit()) => {
                (kind, Some(index.parse::<u16>().map_err(|_| error())?))
            }
            Some(_) => return Err(error()),
            None => (text, None),
        };
        match (kind, index) {
            ("auto", None) => Ok(Self::Auto),
            ("cpu", None) => Ok(Self::Cpu),
            ("wgpu", index) => Ok(Self::Wgpu(index.unwrap_or(0).into())),
            ("cuda", index) => Ok(Self::Cuda(index.unwrap_or(0).into())),
            _ => Err(error()),
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Wgpu(index) => write!(f, "wgpu:{index}"),
            Self::Cuda(index) => write!(f, "cuda:{index}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for name in ["auto", "cpu", "wgpu:0", "wgpu:3", "cuda:1"] {
            assert_eq!(name.parse::<DeviceChoice>().unwrap().to_string(), name);
        }
        assert_eq!("cuda".parse(), Ok(DeviceChoice::Cuda(0)));
        assert_eq!("wgpu".parse(), Ok(DeviceChoice::Wgpu(0)));
        for bad in ["", "gpu", "cpu:0", "auto:1", "cuda:", "cuda:-1", "cuda:+1", "wgpu:99999", "CPU", "cuda:0:1"] {
            let error = bad.parse::<DeviceChoice>().unwrap_err().to_string();
            assert!(error.contains("say auto, cpu"), "{error}");
        }
    }
}
