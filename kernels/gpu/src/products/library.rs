//! cuBLASLt's functions, loaded at run time. Names, numbers and sizes are those of `cublasLt.h` and `library_types.h` of
//! CUDA 13, which CUDA 12 shares.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::{Path, PathBuf};

pub type Status = c_int;
/// A pointer to an object of the library, or to memory.
pub type Raw = *mut c_void;

/// `cudaDataType`.
pub const TYPE_F32: c_int = 0;
pub const TYPE_BF16: c_int = 14;
/// `cublasComputeType_t`: products and sums in f32, without TF32.
pub const COMPUTE_F32: c_int = 68;
/// `cublasOperation_t`.
pub const AS_STORED: i32 = 0;
pub const TRANSPOSED: i32 = 1;
/// `cublasLtMatmulDescAttributes_t`.
pub const TRANSPOSE_LEFT: c_int = 3;
pub const TRANSPOSE_RIGHT: c_int = 4;
/// `cublasLtMatrixLayoutAttribute_t`.
pub const MATRICES: c_int = 5;
pub const DISTANCE: c_int = 6;
/// `cublasLtMatmulPreferenceAttributes_t`.
pub const MOST_WORKSPACE: c_int = 1;
pub const REDUCTIONS: c_int = 3;
/// `cublasLtReductionScheme_t`: parts of a sum are kept in the compute type and added by a step of its own. The other
/// schemes add in the output's type.
pub const REDUCTION_IN_COMPUTE_TYPE: u32 = 2;

/// `cublasLtMatmulAlgo_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Algorithm {
    data: [u64; 8],
}

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Candidate {
    pub algorithm: Algorithm,
    pub workspace: usize,
    pub state: Status,
    waves: f32,
    reserved: [c_int; 4],
}

impl Candidate {
    /// An entry for the library to fill.
    pub const EMPTY: Self =
        Self { algorithm: Algorithm { data: [0; 8] }, workspace: 0, state: -1, waves: 0.0, reserved: [0; 4] };
}

macro_rules! functions {
    ($($name:ident = $symbol:literal ($($argument:ty),*) -> $answer:ty;)*) => {
        /// The functions, and the library that must stay loaded for them.
        pub struct Library {
            $(pub $name: unsafe extern "C" fn($($argument),*) -> $answer,)*
            _loaded: libloading::Library,
        }

        impl Library {
            fn find(loaded: libloading::Library) -> Result<Self, libloading::Error> {
                // SAFETY: the types are those of the header.
                $(let $name = unsafe { *loaded.get::<unsafe extern "C" fn($($argument),*) -> $answer>($symbol)? };)*
                Ok(Self { $($name,)* _loaded: loaded })
            }
        }
    };
}

functions! {
    create = b"cublasLtCreate\0" (*mut Raw) -> Status;
    destroy = b"cublasLtDestroy\0" (Raw) -> Status;
    version = b"cublasLtGetVersion\0" () -> usize;
    status_name = b"cublasLtGetStatusName\0" (Status) -> *const c_char;
    operation_create = b"cublasLtMatmulDescCreate\0" (*mut Raw, c_int, c_int) -> Status;
    operation_destroy = b"cublasLtMatmulDescDestroy\0" (Raw) -> Status;
    operation_set = b"cublasLtMatmulDescSetAttribute\0" (Raw, c_int, *const c_void, usize) -> Status;
    layout_create = b"cublasLtMatrixLayoutCreate\0" (*mut Raw, c_int, u64, u64, i64) -> Status;
    layout_set = b"cublasLtMatrixLayoutSetAttribute\0" (Raw, c_int, *const c_void, usize) -> Status;
    layout_destroy = b"cublasLtMatrixLayoutDestroy\0" (Raw) -> Status;
    preference_create = b"cublasLtMatmulPreferenceCreate\0" (*mut Raw) -> Status;
    preference_destroy = b"cublasLtMatmulPreferenceDestroy\0" (Raw) -> Status;
    preference_set = b"cublasLtMatmulPreferenceSetAttribute\0" (Raw, c_int, *const c_void, usize) -> Status;
    choose = b"cublasLtMatmulAlgoGetHeuristic\0"
        (Raw, Raw, Raw, Raw, Raw, Raw, Raw, c_int, *mut Candidate, *mut c_int) -> Status;
    multiply = b"cublasLtMatmul\0"
        (Raw, Raw, *const c_void, Raw, Raw, Raw, Raw, *const c_void, Raw, Raw, Raw, Raw, *const Algorithm, Raw, usize, Raw)
        -> Status;
}

#[cfg(windows)]
const NAMES: [&str; 2] = ["cublasLt64_13.dll", "cublasLt64_12.dll"];
#[cfg(not(windows))]
const NAMES: [&str; 2] = ["libcublasLt.so.13", "libcublasLt.so.12"];

/// The places of the library that exist, the newest version first; names without a folder are the loader's to find.
pub fn places() -> Vec<PathBuf> {
    let mut folders = Vec::new();
    if let Some(path) = std::env::var_os("CUDA_PATH") {
        folders.extend(["lib64", "lib", "bin/x64", "bin"].map(|folder| Path::new(&path).join(folder)));
    }
    folders.push(PathBuf::from("/usr/local/cuda/lib64"));
    let mut places = Vec::new();
    for name in NAMES {
        places.push(PathBuf::from(name));
        places.extend(folders.iter().map(|folder| folder.join(name)).filter(|file| file.exists()));
    }
    places
}

/// The words for no library at all.
pub fn none_found() -> String {
    format!("{} and {} were not found", NAMES[0], NAMES[1])
}

impl Library {
    /// Loads the library at a place; `None` where nothing lies there.
    ///
    /// # Errors
    ///
    /// A file that does not load, or that lacks a function.
    pub fn load(place: &Path) -> Result<Option<Self>, String> {
        // SAFETY: the library's initialisers are NVIDIA's.
        let loaded = match unsafe { libloading::Library::new(place) } {
            Ok(loaded) => loaded,
            // The loader's own words name another file where a dependency is missing.
            Err(e) if place.parent() == Some(Path::new("")) && is_missing(&e, place) => return Ok(None),
            Err(e) => return Err(format!("{} does not load: {}", place.display(), cause(&e))),
        };
        let library = Self::find(loaded).map_err(|e| format!("{} does not serve: {}", place.display(), cause(&e)))?;
        Ok(Some(library))
    }

    /// The words for an error of the library.
    pub fn words(&self, status: Status) -> String {
        // SAFETY: the function returns a constant string, or null.
        let name = unsafe { (self.status_name)(status) };
        if name.is_null() {
            return format!("status {status}");
        }
        // SAFETY: a constant string ends with 0.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }

    /// The version as people write it.
    pub fn version(&self) -> String {
        // SAFETY: the function takes nothing.
        let version = unsafe { (self.version)() };
        format!("{}.{}", version / 10_000, version / 100 % 100)
    }
}

fn is_missing(error: &libloading::Error, place: &Path) -> bool {
    cfg!(windows) || cause(error).starts_with(&format!("{}: cannot open", place.display()))
}

/// The loader's own words.
pub fn cause(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structs_have_the_sizes_of_the_header() {
        assert_eq!((size_of::<Algorithm>(), align_of::<Algorithm>()), (64, 8));
        assert_eq!((size_of::<Candidate>(), align_of::<Candidate>()), (96, 8));
        assert_eq!(std::mem::offset_of!(Candidate, workspace), 64);
        assert_eq!(std::mem::offset_of!(Candidate, state), 72);
    }

    /// Compares the numbers with the headers, where they are installed.
    #[test]
    fn numbers_are_those_of_the_headers() {
        let Some(cuda) = std::env::var_os("CUDA_PATH") else { return };
        let read = |name| std::fs::read_to_string(Path::new(&cuda).join("include").join(name)).unwrap_or_default();
        let text = read("library_types.h") + &read("cublas_api.h") + &read("cublasLt.h");
        if text.is_empty() {
            return;
        }
        let value = |name: &str| {
            let words: Vec<&str> =
                text.split(|c: char| c.is_whitespace() || c == ',').filter(|w| !w.is_empty()).collect();
            let at = words.windows(2).position(|pair| pair == [name, "="]);
            words[at.expect(name) + 2].parse::<i64>().expect(name)
        };
        let numbers = [
            ("CUDA_R_32F", i64::from(TYPE_F32)),
            ("CUDA_R_16BF", i64::from(TYPE_BF16)),
            ("CUBLAS_COMPUTE_32F", i64::from(COMPUTE_F32)),
            ("CUBLAS_OP_N", i64::from(AS_STORED)),
            ("CUBLAS_OP_T", i64::from(TRANSPOSED)),
            ("CUBLASLT_MATMUL_DESC_TRANSA", i64::from(TRANSPOSE_LEFT)),
            ("CUBLASLT_MATMUL_DESC_TRANSB", i64::from(TRANSPOSE_RIGHT)),
            ("CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT", i64::from(MATRICES)),
            ("CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET", i64::from(DISTANCE)),
            ("CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES", i64::from(MOST_WORKSPACE)),
            ("CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK", i64::from(REDUCTIONS)),
            ("CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE", i64::from(REDUCTION_IN_COMPUTE_TYPE)),
        ];
        for (name, ours) in numbers {
            assert_eq!(value(name), ours, "{name}");
        }
    }
}
