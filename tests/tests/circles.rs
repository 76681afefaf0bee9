//! No circles between files: no file uses a file that uses it, directly or through others.
//!
//! An arrow runs from a file that imports a name, or writes a path to it, to the file that defines the name. A
//! re-export alone makes no arrow, so a module's file may declare its parts and re-export their names. The check does
//! not see calls of methods, and ignores code for tests only.

mod repository;

use repository::Source;
use repository::code::{code_of, without_tests};
use std::collections::{BTreeMap, BTreeSet};

/// Most imports of imports that the check follows; the compiler has excluded circles of them.
const STEPS_MAX: usize = 16;

/// The meaning of a name inside a module.
enum Name {
    /// An item that the module itself defines.
    Item,
    /// An import, by its path.
    Import(Vec<String>),
}

/// The target of a path.
#[derive(Clone, Copy)]
enum Target {
    Module(usize),
    /// An item of this file.
    Item(usize),
}

#[derive(Default)]
struct Module {
    /// Number of the module's file.
    file: usize,
    parent: Option<usize>,
    /// The modules that it declares, by number.
    parts: BTreeMap<String, usize>,
    /// All its other names; one may also be the name of a part.
    names: BTreeMap<String, Name>,
    /// Modules from which it imports all names.
    globs: Vec<Vec<String>>,
    /// Imports for its own use, and all paths in its code, including those of one segment.
    uses: BTreeSet<Vec<String>>,
}

/// The modules of all crates, and their files.
#[derive(Default)]
struct Tree {
    files: Vec<String>,
    modules: Vec<Module>,
}

/// Arrows between files by their paths, with the names that make each.
type Arrows<'a> = BTreeMap<&'a str, BTreeMap<&'a str, BTreeSet<String>>>;

impl Tree {
    /// Reads the modules of each `lib.rs` and `main.rs` below a folder `src`, without modules for tests alone.
    ///
    /// # Errors
    /// If a declared module has no file among the sources.
    fn of(sources: &[Source]) -> Result<Self, String> {
        let texts: BTreeMap<&str, &str> = sources.iter().map(|s| (s.path.as_str(), s.text.as_str())).collect();
        let mut tree = Self::default();
        let roots = texts.keys().filter(|p| p.contains("src/") && (p.ends_with("/lib.rs") || p.ends_with("/main.rs")));
        let mut open: Vec<(String, Option<(usize, String)>)> = roots.map(|p| ((*p).to_owned(), None)).collect();
        while let Some((path, declared)) = open.pop() {
            let text =
                texts.get(path.as_str()).ok_or_else(|| format!("no file {path} for a module that is declared"))?;
            tree.files.push(path.clone());
            let module = tree.add(tree.files.len() - 1, declared.as_ref().map(|(parent, _)| *parent));
            if let Some((parent, name)) = declared {
                tree.modules[parent].parts.insert(name, module);
            }
            let code = without_tests(&code_of(text));
            for (parent, name) in Reader::new(&code).read(&mut tree, module) {
                let folder = folder_of(&path);
                let flat = format!("{folder}/{name}.rs");
                let file = if texts.contains_key(flat.as_str()) { flat } else { format!("{folder}/{name}/mod.rs") };
                open.push((file, Some((parent, name))));
            }
        }
        Ok(tree)
    }

    fn add(&mut self, file: usize, parent: Option<usize>) -> usize {
        self.modules.push(Module { file, parent, ..Module::default() });
        self.modules.len() - 1
    }

    /// The target of the path from inside a module; none if it is in another crate. With `inside` the path goes on, so
    /// that it must lead to a module.
    fn find(&self, from: usize, path: &[String], inside: bool, steps: usize) -> Option<Target> {
        let mut at = from;
        for (place, segment) in path.iter().enumerate() {
            let target = match segment.as_str() {
                "crate" => Target::Module(self.root(at)),
                "self" => Target::Module(at),
                "super" => Target::Module(self.modules[at].parent?),
                name => match self.look_up(at, name, inside || place + 1 < path.len(), steps) {
                    // A name that the module's code does not define comes from a macro.
                    None if place > 0 => Target::Item(self.modules[at].file),
                    found => found?,
                },
            };
            match target {
                Target::Module(module) => at = module,
                item @ Target::Item(_) => return Some(item),
            }
        }
        Some(Target::Module(at))
    }

    /// The target of a name in a module; a part and an item of the module may have one name.
    fn look_up(&self, at: usize, name: &str, inside: bool, steps: usize) -> Option<Target> {
        let steps = steps.checked_sub(1)?;
        let module = &self.modules[at];
        let part = || module.parts.get(name).map(|part| Target::Module(*part));
        let through_glob = |path: &Vec<String>| match self.find(at, path, true, steps)? {
            Target::Module(other) => self.look_up(other, name, inside, steps),
            Target::Item(_) => None,
        };
        match module.names.get(name) {
            _ if inside && part().is_some() => part(),
            Some(Name::Item) => Some(Target::Item(module.file)),
            Some(Name::Import(path)) => self.find(at, path, inside, steps),
            None => part().or_else(|| module.globs.iter().find_map(through_glob)),
        }
    }

    fn root(&self, module: usize) -> usize {
        self.modules[module].parent.map_or(module, |parent| self.root(parent))
    }

    fn arrows(&self) -> Arrows<'_> {
        let mut arrows = Arrows::new();
        for (number, module) in self.modules.iter().enumerate() {
            for path in &module.uses {
                if let Some(Target::Item(file)) = self.find(number, path, false, STEPS_MAX)
                    && file != module.file
                {
                    let from = arrows.entry(self.files[module.file].as_str()).or_default();
                    from.entry(self.files[file].as_str()).or_default().extend(path.last().cloned());
                }
            }
        }
        arrows
    }
}

/// The folder of the modules that a file declares.
fn folder_of(path: &str) -> &str {
    let own = path.strip_suffix("/mod.rs").or(path.strip_suffix("/lib.rs")).or(path.strip_suffix("/main.rs"));
    own.unwrap_or(path.trim_end_matches(".rs"))
}

/// Reads the code of one file, a token at a time.
struct Reader<'a> {
    tokens: Vec<&'a str>,
    at: usize,
}

impl<'a> Reader<'a> {
    fn new(code: &'a str) -> Self {
        let mut tokens = Vec::new();
        let mut rest = code.trim_start();
        while let Some(first) = rest.chars().next() {
            let len = match first {
                _ if is_name(rest) => rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len()),
                ':' if rest.starts_with("::") => 2,
                c => c.len_utf8(),
            };
            tokens.push(&rest[..len]);
            rest = rest[len..].trim_start();
        }
        Self { tokens, at: 0 }
    }

    /// The token at this distance from the next one.
    fn peek(&self, ahead: usize) -> &'a str {
        self.tokens.get(self.at + ahead).copied().unwrap_or_default()
    }

    fn before(&self) -> &'a str {
        self.at.checked_sub(1).map_or("", |at| self.tokens[at])
    }

    /// Notes the names and uses of a module and of the modules within it. Returns the modules that have files of their
    /// own: the number of the module that declares each, and its name.
    fn read(&mut self, tree: &mut Tree, module: usize) -> Vec<(usize, String)> {
        let mut declared = Vec::new();
        // The open modules, and the depth of braces inside each.
        let mut within = vec![(module, 0)];
        // Whether an attribute `path` names a file of another crate for the next module.
        let mut elsewhere = false;
        while let (false, Some((module, depth))) = (self.peek(0).is_empty(), within.last_mut()) {
            let (token, next) = (self.peek(0), self.peek(1));
            let here = &mut tree.modules[*module];
            match token {
                "{" => *depth += 1,
                "}" if *depth == 0 => drop(within.pop()),
                "}" => *depth -= 1,
                "use" => {
                    let exported = ["pub", ")"].contains(&self.before());
                    self.at += 1;
                    self.imports(&[], &mut |path, name| match name {
                        "*" => here.globs.push(path.to_vec()),
                        _ => {
                            here.names.entry(name.to_owned()).or_insert(Name::Import(path.to_vec()));
                            here.uses.extend((!exported).then(|| path.to_vec()));
                        }
                    });
                }
                "path" if (self.before(), next) == ("[", "=") => elsewhere = true,
                "mod" if elsewhere => elsewhere = false,
                "mod" if self.peek(2) == ";" => declared.push((*module, next.to_owned())),
                "mod" if self.peek(2) == "{" => {
                    let parent = *module;
                    let inner = tree.add(tree.modules[parent].file, Some(parent));
                    tree.modules[parent].parts.insert(next.to_owned(), inner);
                    within.push((inner, 0));
                    self.at += 2;
                }
                // The lifetime `static` comes after a quote, and is no item.
                "fn" | "struct" | "enum" | "trait" | "type" | "const" | "static"
                    if *depth == 0 && is_name(next) && self.before() != "'" =>
                {
                    here.names.insert(next.to_owned(), Name::Item);
                }
                "macro_rules" => drop(here.names.insert(self.peek(2).to_owned(), Name::Item)),
                // Fields, methods, and names that are declared here are no uses.
                name if !is_name(name) || next == ":" || [".", "::", "fn", "mod", "let"].contains(&self.before()) => {}
                _ => drop(here.uses.insert(self.path())),
            }
            self.at += 1;
        }
        declared
    }

    /// Reads the path that begins here; stops at its last segment.
    fn path(&mut self) -> Vec<String> {
        let mut path = vec![self.peek(0).to_owned()];
        while self.peek(1) == "::" && is_name(self.peek(2)) {
            path.push(self.peek(2).to_owned());
            self.at += 2;
        }
        path
    }

    /// Calls `found` with each path of an import and the name that it gets; `*` for all names of the path.
    fn imports(&mut self, before: &[String], found: &mut impl FnMut(&[String], &str)) {
        let mut path = before.to_vec();
        loop {
            match self.peek(0) {
                "{" => {
                    while !["}", ""].contains(&self.peek(0)) {
                        self.at += 1;
                        self.imports(&path, found);
                    }
                    self.at += 1;
                    return;
                }
                "as" => {
                    found(&path, self.peek(1));
                    self.at += 2;
                    return;
                }
                "*" => {
                    found(&path, "*");
                    self.at += 1;
                    return;
                }
                "::" => {}
                "self" if !path.is_empty() => {}
                name if is_name(name) => path.push(name.to_owned()),
                _ => {
                    if path.len() > before.len() || !before.is_empty() && self.tokens[self.at - 1] == "self" {
                        found(&path, path.last().map_or("", String::as_str));
                    }
                    return;
                }
            }
            self.at += 1;
        }
    }
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Circles of a graph: sets of files that all reach each other.
fn circles<'a>(arrows: &Arrows<'a>) -> BTreeSet<BTreeSet<&'a str>> {
    let reach = |from: &'a str| {
        let mut seen = BTreeSet::new();
        let mut open = vec![from];
        while let Some(at) = open.pop() {
            open.extend(arrows.get(at).into_iter().flat_map(BTreeMap::keys).filter(|to| seen.insert(**to)));
        }
        seen
    };
    let reached: BTreeMap<&str, BTreeSet<&str>> = arrows.keys().map(|file| (*file, reach(file))).collect();
    let mutual = |(from, to): (&&str, &BTreeSet<&'a str>)| {
        let back = |to: &&&str| reached.get(**to).is_some_and(|back| back.contains(from));
        to.iter().filter(back).copied().collect()
    };
    reached.iter().map(mutual).filter(|circle: &BTreeSet<&str>| !circle.is_empty()).collect()
}

/// The folder that holds all of these files.
fn common_folder<'a>(files: &BTreeSet<&'a str>) -> &'a str {
    let mut folder = files.first().map_or("", |file| folder(file));
    while !files.iter().all(|file| file.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))) {
        folder = self::folder(folder);
    }
    folder
}

fn folder(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// The circles, and the names that make the arrows of each.
fn complaints(sources: &[Source]) -> Result<Vec<String>, String> {
    let tree = Tree::of(sources)?;
    let arrows = tree.arrows();
    let mut found = Vec::new();
    for circle in circles(&arrows) {
        let (folder, files) = (common_folder(&circle), circle.len());
        found.push(format!("circle of {files} files in {folder}: move what ties it to where it belongs"));
        for from in &circle {
            for (to, names) in arrows[from].iter().filter(|(to, _)| circle.contains(*to)) {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                found.push(format!("  {from} -> {to}: {}", names.join(", ")));
            }
        }
    }
    Ok(found)
}

#[test]
fn no_file_uses_what_uses_it() {
    let sources = repository::sources();
    let tree = Tree::of(&sources).unwrap();
    let arrows: usize = tree.arrows().values().map(BTreeMap::len).sum();
    assert!(
        tree.files.len() > 400 && arrows > 1500,
        "the sources are read: {} files, {arrows} arrows",
        tree.files.len()
    );
    let found = complaints(&sources).unwrap();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[cfg(test)]
mod injected {
    use super::*;

    fn sources(files: &[(&str, &str)]) -> Vec<Source> {
        let path = |name: &str| format!("c/src/{name}.rs");
        files.iter().map(|(name, text)| Source { path: path(name), text: (*text).to_owned() }).collect()
    }

    /// The complaints about a crate of these files, whose names are without `.rs`.
    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let found = complaints(&sources(files)).unwrap();
        found.into_iter().filter(|line| line.starts_with("  ")).map(|line| line.replace("c/src/", "")).collect()
    }

    const A_AND_B: [&str; 2] = ["  a.rs -> b.rs: B", "  b.rs -> a.rs: A"];

    #[test]
    fn two_files() {
        let b = ("b", "use super::a::A;\npub struct B(A);\n");
        let root = ("lib", "mod a;\nmod b;\n");
        assert_eq!(found(&[root, ("a", "use crate::b::B;\npub struct A;\n"), b]), A_AND_B);
        assert!(found(&[root, ("a", "pub struct A;\n"), b]).is_empty());
    }

    #[test]
    fn paths_in_code() {
        let root = ("lib", "mod a;\nmod b;\n");
        let b = ("b", "pub struct B;\nfn f() -> bool { matches!(x, crate::a::A { .. }) }\n");
        assert_eq!(found(&[root, ("a", "use crate::b;\npub struct A(b::B);\n"), b]), A_AND_B);
        assert_eq!(found(&[root, ("a", "use crate::b as c;\npub struct A;\nfn f() { c::B.go() }\n"), b]), A_AND_B);
    }

    #[test]
    fn lists_and_globs() {
        let root = ("lib", "mod a;\nmod b;\n");
        let a = ("a", "use crate::{b::{self, B as C, other::*}, nothing};\npub struct A;\n");
        assert_eq!(found(&[root, a, ("b", "use crate::a::*;\npub struct B(A);\n")]), A_AND_B);
        assert!(found(&[root, a, ("b", "use crate::a::*;\npub struct B(u8);\n")]).is_empty(), "no name is taken");
    }

    #[test]
    fn three_files_and_what_only_leads_there() {
        let root = ("main", "mod a;\nmod b;\nmod c;\nmod d;\nfn main() { a::a() }\n");
        let files = [
            root,
            ("a", "pub fn a() { crate::b::b() }\n"),
            ("b", "pub fn b() { crate::c::c() }\n"),
            ("c", "pub fn c() { crate::a::a(); crate::d::d() }\n"),
            ("d", "pub fn d() {}\n"),
        ];
        assert_eq!(found(&files), ["  a.rs -> b.rs: b", "  b.rs -> c.rs: c", "  c.rs -> a.rs: a"]);
    }

    #[test]
    fn a_re_export_counts_as_what_it_leads_to() {
        let root = ("lib", "mod a;\nmod b;\npub use a::A;\npub(crate) use b::{B as C};\n");
        let (a, b) = (("a", "use crate::C;\npub struct A;\n"), ("b", "use super::A;\npub struct B;\n"));
        assert_eq!(found(&[root, a, b]), ["  a.rs -> b.rs: C", "  b.rs -> a.rs: A"]);
    }

    #[test]
    fn a_module_may_hand_on_what_its_parts_define() {
        let (root, b) = (("lib", "mod a;\n"), ("a/b", "use super::C;\npub struct B(C);\n"));
        let c = ("a/c", "pub struct C;\n");
        assert!(found(&[root, ("a/mod", "mod b;\nmod c;\npub use b::B;\npub use c::C;\n"), b, c]).is_empty());
        let defines = ("a", "mod b;\npub use b::B;\npub struct C;\nfn f(_: &'static B) {}\n");
        assert_eq!(found(&[root, defines, b]), ["  a.rs -> a/b.rs: B", "  a/b.rs -> a.rs: C"]);
        let only_defines = ("a", "mod b;\npub use b::B;\npub struct C;\nfn f(x: X) { x.B() }\n");
        assert!(found(&[root, only_defines, b]).is_empty());
    }

    #[test]
    fn a_module_and_an_item_may_have_one_name() {
        let root = ("lib", "mod a;\nmod b;\n");
        let a = ("a", "mod inner;\npub use inner::inner;\n");
        let inner = ("a/inner", "pub fn inner() { crate::b::b() }\n");
        let b = ("b", "use crate::a::inner;\npub fn b() { inner() }\n");
        assert_eq!(found(&[root, a, inner, b]), ["  a/inner.rs -> b.rs: b", "  b.rs -> a/inner.rs: inner"]);
        assert!(found(&[root, a, inner, ("b", "use tempfile::tempfile;\npub fn b() { tempfile() }\n")]).is_empty());
    }

    #[test]
    fn an_item_that_a_macro_defines_is_in_the_file_of_the_macro() {
        let root = ("lib", "mod a;\nmod b;\n");
        let a = ("a", "macro_rules! make { ($x:ident) => { pub struct $x(crate::b::B); } }\nmake!(A);\n");
        assert_eq!(found(&[root, a, ("b", "use crate::a::A;\npub struct B;\n")]), A_AND_B);
    }

    #[test]
    fn tests_comments_and_inner_modules_are_no_use() {
        let root = ("lib", "mod a;\nmod b;\n#[cfg(test)]\nmod gone;\n#[path = \"../../x.rs\"]\nmod elsewhere;\n");
        let a = ("a", "// crate::b::B\npub struct A;\n#[cfg(test)]\nmod tests { use crate::b::B; }\n");
        assert!(found(&[root, a, ("b", "use crate::a::A;\npub struct B;\n")]).is_empty());
        let inner = ("b", "pub struct B;\nmod inner { use super::B; fn f() -> super::super::a::A {} }\n");
        assert_eq!(found(&[root, ("a", "use crate::b::B;\npub struct A;\n"), inner]), A_AND_B);
    }

    #[test]
    fn a_circle_is_told_with_its_folder() {
        let files = [
            ("lib", "mod a;\nmod b;\n"),
            ("a", "use crate::b::B;\npub struct A;\n"),
            ("b", "use crate::a::A;\npub struct B;\n"),
        ];
        let found = complaints(&sources(&files)).unwrap();
        assert_eq!(found[0], "circle of 2 files in c/src: move what ties it to where it belongs");
    }

    #[test]
    fn a_module_without_a_file() {
        let error = complaints(&sources(&[("lib", "mod a;\n")])).unwrap_err();
        assert_eq!(error, "no file c/src/a/mod.rs for a module that is declared");
    }
}
