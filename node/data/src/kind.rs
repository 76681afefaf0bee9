//! The kind of a file, by its name.

use std::ffi::OsStr;
use std::path::Path;

/// The form of the text in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// The whole file is one document.
    Text,
    /// Each line is a JSON object, one document each.
    Jsonl,
}

/// The compression of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packing {
    Plain,
    Gzip,
    Zstd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileKind {
    pub form: Form,
    pub packing: Packing,
}

/// Prose, markup and source code: the files that a search of a folder takes.
const TEXT_EXTENSIONS: &[&str] = &[
    "txt", "text", "md", "markdown", "rst", "adoc", "org", "tex", // prose
    "rs", "c", "h", "cc", "cpp", "cxx", "hh", "hpp", "hxx", "inl", "cu", "cuh", "m", "mm", "zig", "d", "nim", "s",
    "asm", "py", "pyi", "rb", "pl", "pm", "lua", "php", "r", "jl", "tcl", "sh", "bash", "zsh", "fish",
    "ps1", // scripts
    "js", "mjs", "cjs", "jsx", "ts", "tsx", "vue", "svelte", "css", "scss", "wgsl", "glsl", "hlsl",
    "metal", // web, shaders
    "go", "java", "kt", "kts", "scala", "groovy", "cs", "fs", "vb", "swift", "dart", // managed
    "hs", "ml", "mli", "ex", "exs", "erl", "hrl", "clj", "cljs", "el", "lisp", "scm", "rkt", "lean", "v", "sv", "vhd",
    "sql", "proto", "f", "f90", "f95", "pas", "ada", "adb", "ads", "cob", "cmake",
];

impl FileKind {
    /// The kind of a file found in a folder; `None` if its name does not say that it is text.
    pub fn of_found(path: &Path) -> Option<Self> {
        let (stem, packing) = unpack_name(path);
        let form = form_of(stem.extension()?)?;
        Some(Self { form, packing })
    }

    /// The kind of a file that the user named: text, unless its name says otherwise.
    pub fn of_named(path: &Path) -> Self {
        let (stem, packing) = unpack_name(path);
        let form = stem.extension().and_then(form_of).unwrap_or(Form::Text);
        Self { form, packing }
    }
}

/// The path without the extension of its compression.
fn unpack_name(path: &Path) -> (&Path, Packing) {
    let packing = match path.extension() {
        Some(extension) if extension.eq_ignore_ascii_case("gz") => Packing::Gzip,
        Some(extension) if extension.eq_ignore_ascii_case("zst") => Packing::Zstd,
        _ => return (path, Packing::Plain),
    };
    (path.file_stem().map_or(path, Path::new), packing)
}

fn form_of(extension: &OsStr) -> Option<Form> {
    if extension.eq_ignore_ascii_case("jsonl") || extension.eq_ignore_ascii_case("ndjson") {
        return Some(Form::Jsonl);
    }
    TEXT_EXTENSIONS.iter().any(|known| extension.eq_ignore_ascii_case(known)).then_some(Form::Text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(name: &str) -> Option<(Form, Packing)> {
        FileKind::of_found(Path::new(name)).map(|kind| (kind.form, kind.packing))
    }

    #[test]
    fn names_tell_form_and_packing() {
        assert_eq!(found("a/b.txt"), Some((Form::Text, Packing::Plain)));
        assert_eq!(found("a/B.RS"), Some((Form::Text, Packing::Plain)));
        assert_eq!(found("b.jsonl.zst"), Some((Form::Jsonl, Packing::Zstd)));
        assert_eq!(found("b.md.GZ"), Some((Form::Text, Packing::Gzip)));
        for name in ["b.png", "b.gz", "b", ".gz", "b.tar.gz", "b.zip"] {
            assert_eq!(found(name), None, "{name}");
        }
    }

    #[test]
    fn a_named_file_is_text_unless_its_name_says_otherwise() {
        let kind = |name| FileKind::of_named(Path::new(name));
        assert_eq!(kind("enwik8"), FileKind { form: Form::Text, packing: Packing::Plain });
        assert_eq!(kind("enwik8.gz"), FileKind { form: Form::Text, packing: Packing::Gzip });
        assert_eq!(kind("x.log.zst"), FileKind { form: Form::Text, packing: Packing::Zstd });
        assert_eq!(kind("x.ndjson"), FileKind { form: Form::Jsonl, packing: Packing::Plain });
    }
}
