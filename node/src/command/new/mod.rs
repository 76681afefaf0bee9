//! `starling new`: a short run file, from flags or a few questions.

mod answers;
mod sizes;
mod written;

use crate::cli::NewArgs;
use crate::config::flock_tables::{AdmissionName, node_id};
use crate::config::node_file::{NodeFile, runs_folder};
use crate::config::run_file::{DataTable, RunFile, tokenizer_choice};
use crate::exit::{Code, Failure, is_full_disk};
use crate::runtime::Machine;
use crate::watch::screen::bytes as human_bytes;
use crate::watch::terminal;
use answers::{Asked, Asker, admission, count, short};
use sizes::Size;
use starling_bootstrap::config_file::nearest;
use starling_bootstrap::identity;
use starling_data::{CRATES_SOURCE, Tokenizer, default_sources, text_bytes};
use starling_protocol::Digest;
use starling_protocol::limits::RUN_NAME_CHARS_MAX;
use starling_protocol::run::DataSpec;
use std::fs::{self, OpenOptions};
use std::io::{self, BufRead, ErrorKind, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use written::Choice;

/// The name of a run to which nobody gives one.
const NAME: &str = "my-run";
/// Names that are tried if folders of other runs have the first ones.
const NAMES_MAX: u32 = 1000;

/// Writes the file, and prints the next command.
pub fn run(args: &NewArgs) -> Result<ExitCode, Failure> {
    let mut input = std::io::stdin().lock();
    let is_person = input.is_terminal();
    let mut out = std::io::stderr();
    let mut asker = Asker::new(is_person.then_some(&mut input as &mut dyn BufRead), &mut out);
    terminal::put(&written_by(args, &mut asker)?);
    Ok(ExitCode::SUCCESS)
}

/// Writes the file; returns what there is to say about it.
fn written_by(args: &NewArgs, asker: &mut Asker<'_>) -> Result<String, Failure> {
    let name = name(args);
    if !is_name(&name) {
        let such = if is_name(&plain(&name)) { plain(&name) } else { NAME.into() };
        let why = format!("--name {name}: give 1 to {RUN_NAME_CHARS_MAX} of a-z, 0-9 and -, such as {such}");
        return Err(Failure::message(Code::Usage, why));
    }
    let path = args.output.clone().unwrap_or_else(|| format!("{name}.toml").into());
    if path.exists() && !args.force {
        return Err(is_there(&path));
    }
    let available = Machine::here().map(|machine| machine.available);
    let (choice, tokenizer) = choose(args, asker, (name, &path), available)?;
    let text = written::text(&choice);
    // A start reads the same text in the same way, so a wrong flag shows now.
    let data = DataSpec { manifest: Digest::default(), tokenizer: tokenizer.digest() };
    RunFile::parse(&text, &path)?.spec(data, tokenizer.vocab())?;
    write(&path, &text, args.force)?;
    Ok(next(args, &choice, &path, available))
}

/// Asks what the flags do not say.
fn choose(
    args: &NewArgs,
    asker: &mut Asker<'_>,
    (name, path): (String, &Path),
    available: Option<u64>,
) -> Result<(Choice, Tokenizer), Failure> {
    let (sources, text) = sources(args, asker)?;
    let asked = Asked {
        flag: "--tokenizer",
        words: "Tokenizer: bytes, or a Hugging Face tokenizer.json",
        default: Some("bytes"),
    };
    let load = |text: &str| -> Result<(String, Tokenizer), String> {
        let tokenizer = Tokenizer::load(&tokenizer_choice(text)).map_err(|e| e.to_string())?;
        Ok((text.to_owned(), tokenizer))
    };
    let (tokenizer_name, tokenizer) = asker.answer(&asked, args.tokenizer.as_deref(), load)?;
    let by_bytes = tokenizer_name == "bytes";
    let defaults = DataTable::default();
    let of_text = sizes::text_tokens(text, by_bytes, defaults.holdout);

    let sizes = sizes::all(tokenizer.vocab(), available)?;
    asker.say(&table(&sizes, available, of_text))?;
    let default = sizes::largest(&sizes, of_text).map(|size| size.preset);
    let asked = Asked { flag: "--size", words: "Size of the model", default };
    let size = asker.answer(&asked, args.size.as_deref(), |text| preset(&sizes, text))?;

    let hint = short(size.tokens(of_text));
    let asked = Asked {
        flag: "--tokens",
        words: "Tokens to train on, of all nodes together (twenty a parameter, if the text has them)",
        default: Some(hint.as_str()),
    };
    let tokens = asker.answer(&asked, args.tokens.as_deref(), count)?;
    let asked = Asked { flag: "--admission", words: "Who may join: open, ticket or list", default: Some("open") };
    let admission = asker.answer(&asked, args.admission.as_deref(), admission)?;
    let (creator, allow) = people(args, asker, &name, admission)?;

    let needed = sizes::bytes_of(tokens, by_bytes, defaults.holdout).min(text);
    let choice = Choice {
        name,
        creator,
        sources: sources.iter().map(|source| as_in(path, source)).collect(),
        tokenizer: if by_bytes { tokenizer_name } else { as_in(path, &tokenizer_name) },
        bytes_max: (needed > defaults.bytes_max).then_some(needed),
        size,
        tokens,
        admission,
        allow,
    };
    Ok((choice, tokenizer))
}

/// The sources of the text, and their bytes.
fn sources(args: &NewArgs, asker: &mut Asker<'_>) -> Result<(Vec<String>, u64), Failure> {
    if !args.data.is_empty() {
        let bytes = text_bytes(&args.data).map_err(|e| Failure::message(Code::Usage, format!("--data: {e}")))?;
        return Ok((args.data.clone(), bytes));
    }
    // The default corpus is text for a try; not every machine has it.
    let default = text_bytes(&default_sources()).is_ok().then_some(CRATES_SOURCE);
    let asked = Asked { flag: "--data", words: "Text to train on: a file, a folder or a glob", default };
    asker.answer(&asked, None, |text| {
        let sources = vec![text.to_owned()];
        let bytes = text_bytes(&sources).map_err(|e| e.to_string())?;
        Ok((sources, bytes))
    })
}

/// The only node that may invite, if there is one, and the nodes on the list, if there is one.
fn people(
    args: &NewArgs,
    asker: &mut Asker<'_>,
    run: &str,
    admission: AdmissionName,
) -> Result<(Option<String>, Vec<String>), Failure> {
    if let Some(creator) = &args.creator {
        node_id("--creator", creator)?;
    }
    if admission != AdmissionName::List && !args.allow.is_empty() {
        let why = "--allow goes with --admission list: give that, or leave --allow out";
        return Err(Failure::message(Code::Usage, why));
    }
    match admission {
        AdmissionName::Open => Ok((args.creator.clone(), Vec::new())),
        AdmissionName::Ticket => {
            let creator = args.creator.clone().map_or_else(|| this_node(args, run), Ok)?;
            Ok((Some(creator), Vec::new()))
        }
        AdmissionName::List => {
            let mut allow = args.allow.clone();
            if allow.is_empty() {
                let words = "Ids of the other nodes, with blanks between them (they can be added to the file later)";
                let asked = Asked { flag: "--allow", words, default: Some("none") };
                allow = asker.answer(&asked, None, ids)?;
            }
            for id in &allow {
                node_id("--allow", id)?;
            }
            let me = this_node(args, run)?;
            if !allow.contains(&me) {
                allow.insert(0, me);
            }
            Ok((args.creator.clone(), allow))
        }
    }
}

/// Node ids of one line.
fn ids(text: &str) -> Result<Vec<String>, String> {
    let ids = text.split_whitespace().filter(|id| *id != "none").map(|id| -> Result<String, String> {
        node_id("--allow", id).map_err(|failure| failure.error.to_string())?;
        Ok(id.to_owned())
    });
    ids.collect()
}

/// The id that this machine's node of the run has, or is going to have: its key is made now if there is none.
fn this_node(args: &NewArgs, run: &str) -> Result<String, Failure> {
    let node = NodeFile { home: args.home.clone(), ..NodeFile::default() };
    let identity = identity::load_or_create(&node.home_for(run).join("key"))?;
    Ok(identity.node_id().to_string())
}

/// The run's name: the flag's, the file's, or one that no other run on this machine has.
fn name(args: &NewArgs) -> String {
    if let Some(name) = &args.name {
        return name.clone();
    }
    let stem = args.output.as_deref().and_then(Path::file_stem).map(|stem| plain(&stem.to_string_lossy()));
    if let Some(name) = stem.filter(|name| !name.is_empty()) {
        return name;
    }
    let is_free = |name: &String| args.home.is_some() || !runs_folder().join(name).join("run.spec").exists();
    let others = (2..NAMES_MAX).map(|number| format!("{NAME}-{number}"));
    std::iter::once(NAME.to_owned()).chain(others).find(is_free).unwrap_or_else(|| NAME.into())
}

fn is_name(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=RUN_NAME_CHARS_MAX).contains(&text.len()) && text.chars().all(fits)
}

/// The text as a run's name: lower-case letters, digits and dashes.
fn plain(text: &str) -> String {
    let plain = text.to_ascii_lowercase().replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    plain.trim_matches('-').chars().take(RUN_NAME_CHARS_MAX).collect()
}

/// A path that the user gave, as the run file at `path` has to name it: there, relative paths count from its folder.
fn as_in(path: &Path, given: &str) -> String {
    let beside = path.parent().is_none_or(|folder| folder.as_os_str().is_empty() || folder == Path::new("."));
    if beside || given == CRATES_SOURCE {
        return given.to_owned();
    }
    std::path::absolute(given).map_or_else(|_| given.to_owned(), |path| path.to_string_lossy().into_owned())
}

fn preset(sizes: &[Size], text: &str) -> Result<Size, String> {
    let wanted = text.trim().to_ascii_lowercase();
    sizes.iter().find(|size| size.preset == wanted).copied().ok_or_else(|| {
        let names: Vec<_> = sizes.iter().map(|size| size.preset).collect();
        let near = nearest(&wanted, names.iter().copied()).map(|near| format!("; did you mean {near}?"));
        format!("there are {}{}", names.join(", "), near.unwrap_or_default())
    })
}

/// The sizes with what they take, for a person.
fn table(sizes: &[Size], available: Option<u64>, of_text: u64) -> String {
    let there = available.map_or("unknown".into(), human_bytes);
    let mut out = format!("  memory available: {there} · tokens in the text: about {}\n", short(of_text));
    for size in sizes {
        let fits = if size.fits { "" } else { "  more than this machine has, unless a card with its own trains" };
        let (parameters, memory) = (short(size.parameters), human_bytes(size.memory));
        out += &format!("  {:>6}  {parameters:>7} parameters  {memory:>10}{fits}\n", size.preset);
    }
    out
}

fn is_there(path: &Path) -> Failure {
    let why = format!("{} is there already: name another file, or give --force to replace it", path.display());
    Failure::message(Code::Usage, why)
}

/// Writes the file; one that is there is replaced only with `force`.
fn write(path: &Path, text: &str, force: bool) -> Result<(), Failure> {
    let written = match force && path.exists() {
        true if path.is_file() => replace(path, text),
        // A device is written to as it is.
        true => fs::write(path, text),
        false => create(path, text),
    };
    written.map_err(|e| {
        if e.kind() == ErrorKind::AlreadyExists {
            return is_there(path);
        }
        let advice = if is_full_disk(&e) { "free some space" } else { "name another file" };
        let why = format!("cannot write {}: {}; {advice}", path.display(), starling_words::of(&e));
        Failure::from(anyhow::Error::new(e).context(why))
    })
}

/// Writes a file that is not there yet, and leaves none that is cut.
fn create(path: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    file.write_all(text.as_bytes()).inspect_err(|_| drop(fs::remove_file(path)))
}

/// Puts another file in the place of one that is there, which stays if that fails.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    // A link stays one.
    let path = path.canonicalize()?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let beside = path.with_file_name(format!(".{name}.{}.new", std::process::id()));
    create(&beside, text)?;
    let replaced = fs::metadata(&path).and_then(|old| fs::set_permissions(&beside, old.permissions()));
    replaced.and_then(|()| fs::rename(&beside, &path)).inspect_err(|_| drop(fs::remove_file(&beside)))
}

/// Says what was written, and the commands that come next.
fn next(args: &NewArgs, choice: &Choice, path: &Path, available: Option<u64>) -> String {
    let size = &choice.size;
    let who = match choice.admission {
        AdmissionName::Open => "everybody may join",
        AdmissionName::Ticket => "holders of a ticket may join",
        AdmissionName::List => "the nodes on its list may join",
    };
    let mut out = format!(
        "wrote {}: size {} ({} parameters), {} tokens, {who}\n",
        path.display(),
        size.preset,
        short(size.parameters),
        short(choice.tokens)
    );
    let there = available.map(|bytes| format!("; this machine has {} available", human_bytes(bytes)));
    out += &format!("a node takes {} of memory{}\n", human_bytes(size.memory), there.unwrap_or_default());
    if !size.fits {
        out += "that is too little, unless a card with memory of its own trains: name it with --device\n";
    }
    let home = args.home.as_ref().map(|home| format!(" --home {}", quoted(home))).unwrap_or_default();
    let node = format!("--run {}{home}", quoted(path));
    out += &format!("\nnext:\n  starling doctor {node}    # is this machine fit for it?\n  starling train {node}\n");
    out += match choice.admission {
        AdmissionName::List => "then, on each machine of the list, with the same run file and a --bootstrap address:\n",
        _ => "then, for another machine, while this one trains:\n",
    };
    out += &match choice.admission {
        AdmissionName::List => format!("  starling train --run {} --bootstrap ADDRESS\n", quoted(path)),
        _ => format!("  starling invite {node}\n"),
    };
    out
}

/// A path as a shell takes it.
fn quoted(path: &Path) -> String {
    let text = path.to_string_lossy();
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+,:@%".contains(c);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.into_owned(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
#[path = "new_test.rs"]
mod tests;
