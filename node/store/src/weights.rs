//! Weights as safetensors files, for other programs.
//!
//! The format is eight bytes of header length, a JSON header, and the tensors' bytes end to end. The library parses and
//! checks the header. The tensors are streamed, so that no second copy of a model is ever in memory.

use crate::halves::{of_bf16, of_f16, to_bf16, to_f16};
use crate::sealed::{AtomicFile, extend_f32, extend_le};
use crate::{Part, StoreError};
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use serde::{Deserialize, Serialize};
use starling_protocol::run::TensorType;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Bytes of the largest header that is read; a model of a thousand layers needs about a tenth.
const HEADER_BYTES_MAX: u64 = 16 << 20;
const BLOCK_FLOATS: usize = 1 << 18;

/// Name and shape of a tensor; row-major.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorShape {
    pub name: String,
    pub shape: Vec<usize>,
}

impl TensorShape {
    /// Number of elements; `None` when it does not fit a `usize`.
    pub fn elements(&self) -> Option<usize> {
        self.shape.iter().try_fold(1usize, |n, dim| n.checked_mul(*dim))
    }
}

/// A tensor to be written.
#[derive(Clone, Copy, Debug)]
pub struct TensorView<'a> {
    pub name: &'a str,
    pub shape: &'a [usize],
    /// The type as which the values are written.
    pub dtype: TensorType,
    /// Row-major.
    pub values: &'a [f32],
}

impl TensorView<'_> {
    /// Bytes of the values as they are written.
    pub(crate) fn bytes(&self) -> u64 {
        (width(self.dtype) * self.values.len()) as u64
    }
}

/// A tensor that was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    pub name: String,
    pub shape: Vec<usize>,
    /// Row-major.
    pub values: Vec<f32>,
}

/// Writes `tensors` and `metadata` to `path` in the safetensors format, atomically: there is the old file or the
/// new one.
pub(crate) fn export_safetensors(
    path: &Path,
    tensors: &[TensorView<'_>],
    metadata: &BTreeMap<String, String>,
) -> Result<(), StoreError> {
    let folder = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let file = AtomicFile::create_shared(folder, &folder.join(path.file_name().unwrap_or_default()))?;
    let mut file = file.synced_on_the_way();
    // Wider numbers come first, so that each lies at a multiple of its width, as with the library.
    let mut tensors: Vec<_> = tensors.iter().collect();
    tensors.sort_by_key(|tensor| Reverse(width(tensor.dtype)));
    write_safetensors(&tensors, metadata, |bytes| file.write(bytes))?;
    file.commit()
}

/// The bytes of a safetensors file before its values: of tensors by name, shape, number of elements and type, whose
/// values follow one another in this order.
pub(crate) fn safetensors_header<'a>(
    tensors: impl IntoIterator<Item = (&'a str, &'a [usize], usize, TensorType)>,
    metadata: &BTreeMap<String, String>,
) -> Result<Vec<u8>, StoreError> {
    let malformed = |why: String| StoreError::Malformed { what: "the list of tensors", why };
    let mut offset = 0;
    let mut infos = BTreeMap::new();
    for (name, shape, elements, number) in tensors {
        let end = offset + width(number) * elements;
        let info = TensorInfo { dtype: dtype_of(number), shape: shape.to_vec(), data_offsets: (offset, end) };
        if infos.insert(name.to_owned(), (offset, info)).is_some() {
            return Err(malformed(format!("two tensors are called {name}")));
        }
        offset = end;
    }
    let mut infos: Vec<_> = infos.into_iter().map(|(name, (offset, info))| (offset, name, info)).collect();
    infos.sort_by_key(|(offset, ..)| *offset);
    let infos = infos.into_iter().map(|(_, name, info)| (name, info)).collect();
    let header =
        Metadata::new(Some(metadata.clone().into_iter().collect()), infos).map_err(|e| malformed(e.to_string()))?;
    // The detour over a JSON value sorts the keys, so that equal models give equal files.
    let header = serde_json::to_value(&header).and_then(|value| serde_json::to_vec(&value));
    let mut header = header.map_err(|e| malformed(e.to_string()))?;
    header.resize(header.len().next_multiple_of(8), b' ');
    Ok([&(header.len() as u64).to_le_bytes()[..], &header].concat())
}

/// Hands the bytes of a safetensors file to `write`, piece by piece.
fn write_safetensors(
    tensors: &[&TensorView<'_>],
    metadata: &BTreeMap<String, String>,
    mut write: impl FnMut(&[u8]) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let listed = tensors.iter().map(|tensor| (tensor.name, tensor.shape, tensor.values.len(), tensor.dtype));
    write(&safetensors_header(listed, metadata)?)?;
    let mut block = Vec::with_capacity(4 * BLOCK_FLOATS);
    for tensor in tensors {
        for part in tensor.values.chunks(BLOCK_FLOATS) {
            block.clear();
            extend_as(tensor.dtype, &mut block, part);
            write(&block)?;
        }
    }
    Ok(())
}

/// Bytes of a number.
fn width(number: TensorType) -> usize {
    match number {
        TensorType::Bf16 | TensorType::F16 => 2,
        TensorType::F32 => 4,
        TensorType::F64 => 8,
    }
}

fn dtype_of(number: TensorType) -> Dtype {
    match number {
        TensorType::F32 => Dtype::F32,
        TensorType::Bf16 => Dtype::BF16,
        TensorType::F16 => Dtype::F16,
        TensorType::F64 => Dtype::F64,
    }
}

/// Appends values as numbers of this type, little endian.
fn extend_as(number: TensorType, bytes: &mut Vec<u8>, values: &[f32]) {
    match number {
        TensorType::F32 => extend_le(bytes, values),
        TensorType::Bf16 => bytes.extend(values.iter().flat_map(|value| to_bf16(*value).to_le_bytes())),
        TensorType::F16 => bytes.extend(values.iter().flat_map(|value| to_f16(*value).to_le_bytes())),
        TensorType::F64 => bytes.extend(values.iter().flat_map(|value| f64::from(*value).to_le_bytes())),
    }
}

/// Reads all tensors of a safetensors file, in the order of their bytes. bf16 and f16 become the f32 of the same value.
///
/// # Errors
/// [`StoreError::Damaged`] when the file is not a whole safetensors file; [`StoreError::OtherNumbers`] when it has
/// numbers of another kind.
pub fn read_safetensors(path: &Path) -> Result<Vec<Tensor>, StoreError> {
    let mut file = SafetensorsFile::open(path)?;
    let names = file.metadata.offset_keys();
    let read = |name: String| {
        let shape = file.shape(&name).unwrap_or_default();
        let mut values = Vec::new();
        file.append(&name, &mut values)?;
        Ok(Tensor { name, shape, values })
    };
    names.into_iter().map(read).collect()
}

/// An open safetensors file with a valid header.
pub(crate) struct SafetensorsFile {
    file: File,
    path: PathBuf,
    metadata: Metadata,
    /// The offset of the tensors' bytes.
    start: u64,
}

impl SafetensorsFile {
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let damaged = |detail: String| StoreError::damaged(Part::Checkpoint, path, detail);
        let mut file = File::open(path).map_err(|e| StoreError::io("open", path, 0, e))?;
        let length = file.metadata().map_err(|e| StoreError::io("read", path, 0, e))?.len();
        let mut prefix = [0u8; 8];
        file.read_exact(&mut prefix).map_err(|e| read_error(path, e))?;
        let header_bytes = u64::from_le_bytes(prefix);
        if header_bytes > HEADER_BYTES_MAX || header_bytes.saturating_add(8) > length {
            return Err(damaged(format!("its header of {header_bytes} bytes cannot be right")));
        }
        let mut header = vec![0u8; header_bytes as usize];
        file.read_exact(&mut header).map_err(|e| read_error(path, e))?;
        let metadata: Metadata =
            serde_json::from_slice(&header).map_err(|_| damaged("its header is no list of tensors".into()))?;
        let start = header_bytes + 8;
        if start.checked_add(metadata.data_len() as u64) != Some(length) {
            return Err(damaged("it is truncated or has grown".into()));
        }
        Ok(Self { file, path: path.to_path_buf(), metadata, start })
    }

    pub fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.metadata.info(name).map(|info| info.shape.clone())
    }

    /// Number of tensors.
    pub fn len(&self) -> usize {
        self.metadata.offset_keys().len()
    }

    /// Appends the values of tensor `name`.
    pub fn append(&mut self, name: &str, values: &mut Vec<f32>) -> Result<(), StoreError> {
        let damaged = |detail: String| StoreError::damaged(Part::Checkpoint, &self.path, detail);
        let info = self.metadata.info(name).ok_or_else(|| damaged(format!("it has no tensor {name}")))?;
        let Some((bytes_each, append)) = reader_of(info.dtype) else {
            let (tensor, numbers) = (name.to_owned(), format!("{:?}", info.dtype));
            return Err(StoreError::OtherNumbers { path: self.path.clone(), tensor, numbers });
        };
        // The header was checked: offsets lie within the file and agree with the shape.
        let (begin, end) = info.data_offsets;
        let at = SeekFrom::Start(self.start + begin as u64);
        self.file.seek(at).map_err(|e| StoreError::io("read", &self.path, 0, e))?;
        let mut left = end - begin;
        values.reserve_exact(left / bytes_each);
        let mut block = vec![0u8; left.min(4 * BLOCK_FLOATS)];
        while left > 0 {
            let n = left.min(block.len());
            self.file.read_exact(&mut block[..n]).map_err(|e| read_error(&self.path, e))?;
            append(values, &block[..n]);
            left -= n;
        }
        Ok(())
    }
}

/// Appends the numbers that these bytes hold.
type Append = fn(&mut Vec<f32>, &[u8]);

/// The bytes of a number, and its reader; `None` for kinds that an f32 does not hold.
fn reader_of(dtype: Dtype) -> Option<(usize, Append)> {
    match dtype {
        Dtype::F32 => Some((4, extend_f32)),
        Dtype::BF16 => Some((2, |values, bytes| values.extend(halves(bytes).map(of_bf16)))),
        Dtype::F16 => Some((2, |values, bytes| values.extend(halves(bytes).map(of_f16)))),
        _ => None,
    }
}

fn halves(bytes: &[u8]) -> impl Iterator<Item = u16> + '_ {
    bytes.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]))
}

fn read_error(path: &Path, e: io::Error) -> StoreError {
    match e.kind() {
        io::ErrorKind::UnexpectedEof => StoreError::damaged(Part::Checkpoint, path, "it is truncated"),
        _ => StoreError::io("read", path, 0, e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn export(path: &Path) -> Vec<f32> {
        let values: Vec<f32> = (0..7).map(|i| i as f32 / 3.0).collect();
        let tensors = [
            TensorView { name: "z.weight", shape: &[2, 3], dtype: TensorType::F32, values: &values[..6] },
            TensorView { name: "a.bias", shape: &[1], dtype: TensorType::F32, values: &values[6..] },
        ];
        let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned()), ("run".to_owned(), "x".to_owned())]);
        export_safetensors(path, &tensors, &metadata).unwrap();
        values
    }

    #[test]
    fn exported_weights_are_read_by_us_and_by_the_library() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.safetensors");
        let values = export(&path);
        let tensors = read_safetensors(&path).unwrap();
        assert_eq!(tensors[0], Tensor { name: "z.weight".into(), shape: vec![2, 3], values: values[..6].to_vec() });
        assert_eq!(tensors[1], Tensor { name: "a.bias".into(), shape: vec![1], values: values[6..].to_vec() });
        let bytes = std::fs::read(&path).unwrap();
        let library = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(library.len(), 2);
        assert_eq!(library.tensor("a.bias").unwrap().data(), values[6].to_le_bytes());
    }

    #[test]
    fn equal_tensors_give_equal_files() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        export(&a);
        export(&b);
        assert_eq!(std::fs::read(a).unwrap(), std::fs::read(b).unwrap());
    }

    #[test]
    fn tensors_that_contradict_themselves_are_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.safetensors");
        let wrong = TensorView { name: "a", shape: &[2], dtype: TensorType::F32, values: &[1.0] };
        assert!(export_safetensors(&path, &[wrong], &BTreeMap::new()).is_err());
        let twice = TensorView { name: "a", shape: &[1], dtype: TensorType::F32, values: &[1.0] };
        assert!(export_safetensors(&path, &[twice, twice], &BTreeMap::new()).is_err());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn truncated_and_hostile_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.safetensors");
        export(&path);
        let good = std::fs::read(&path).unwrap();
        for length in 0..good.len() {
            std::fs::write(&path, &good[..length]).unwrap();
            assert!(matches!(read_safetensors(&path), Err(StoreError::Damaged(_))), "{length}");
        }
        let mut huge = u64::MAX.to_le_bytes().to_vec();
        huge.extend_from_slice(&good[8..]);
        std::fs::write(&path, &huge).unwrap();
        assert!(matches!(read_safetensors(&path), Err(StoreError::Damaged(_))));
        std::fs::write(&path, file_of("F32", &[0; 12])).unwrap();
        let said = read_safetensors(&path).unwrap_err();
        assert!(matches!(said, StoreError::Damaged(_)), "three numbers where two are listed: {said}");
        assert!(said.to_string().contains("its header is no list of tensors; "), "no library's sentence: {said}");
    }

    /// A file with one tensor of two numbers.
    fn file_of(dtype: &str, bytes: &[u8]) -> Vec<u8> {
        let header = format!(r#"{{"a":{{"dtype":"{dtype}","shape":[2],"data_offsets":[0,{}]}}}}"#, bytes.len());
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), bytes].concat()
    }

    #[test]
    fn halves_are_read_as_the_same_values_and_other_numbers_are_no_damage() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.safetensors");
        let read = |dtype: &str, bytes: &[u8]| {
            std::fs::write(&path, file_of(dtype, bytes)).unwrap();
            read_safetensors(&path)
        };
        assert_eq!(read("BF16", &[0x80, 0x3f, 0x49, 0xc0]).unwrap()[0].values, [1.0, -3.140625]);
        assert_eq!(read("F16", &[0x00, 0x3c, 0x48, 0xc2]).unwrap()[0].values, [1.0, -3.140625]);
        let other = read("F64", &[0; 16]).unwrap_err();
        assert_eq!(other.exit_code(), 3);
        let said = other.to_string();
        assert!(said.contains("tensor a") && said.contains("F64") && said.contains("float32"), "{said}");
    }

    #[test]
    fn each_tensor_is_written_as_its_own_type() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.safetensors");
        let values = [1.0f32, -3.140625, 65_504.0];
        let view = |name, dtype| TensorView { name, shape: &[3], dtype, values: &values };
        let tensors = [
            view("f64", TensorType::F64),
            view("f16", TensorType::F16),
            view("bf16", TensorType::Bf16),
            view("f32", TensorType::F32),
        ];
        export_safetensors(&path, &tensors, &BTreeMap::new()).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let library = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        for (name, dtype, last) in [
            ("f64", Dtype::F64, 65_504.0f64.to_le_bytes().to_vec()),
            ("f16", Dtype::F16, vec![0xff, 0x7b]),
            // The nearest number with eight bits of fraction.
            ("bf16", Dtype::BF16, vec![0x80, 0x47]),
            ("f32", Dtype::F32, 65_504.0f32.to_le_bytes().to_vec()),
        ] {
            let tensor = library.tensor(name).unwrap();
            assert_eq!((tensor.dtype(), tensor.shape()), (dtype, [3usize].as_slice()), "{name}");
            assert!(tensor.data().ends_with(&last), "{name}: {:?}", tensor.data());
        }
        let written: u64 = tensors.iter().map(TensorView::bytes).sum();
        assert_eq!(written, 3 * (8 + 2 + 2 + 4));
    }
}
