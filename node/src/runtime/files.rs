//! The files of a run whose trainers bring the model: found by content, and laid out in a folder for the trainer
//! (`docs/bridge.md`, section 1; `docs/data.md`).

use super::bridge::trainer_folder;
use crate::config::run_file::RunFile;
use crate::exit::{Code, Failure};
use anyhow::Context;
use starling_data::{DataError, Dataset, lay_out_files, prepare_files};
use starling_protocol::Digest;
use starling_protocol::run::RunSpec;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Name of the link to the files' folder, in the trainer's folder.
const LINK: &str = "files";
/// Interval at which a thread looks whether the files have come, and whether anybody waits for them.
const LOOK: Duration = Duration::from_secs(1);
const LOOK_AT_END: Duration = Duration::from_millis(100);
/// The pause after files could not be laid out, as on a full disk.
const PAUSE: Duration = Duration::from_secs(30);

/// The files of a node's run, which may still be on their way.
pub struct Files {
    /// The link to their folder, which is there once they are.
    link: PathBuf,
    are_here: Arc<AtomicBool>,
    is_over: Arc<AtomicBool>,
}

impl Files {
    /// The files of a run that has some. Those that are here are laid out at once, others once they have come.
    ///
    /// # Errors
    /// They are here, and cannot be laid out.
    pub fn of(spec: &RunSpec, data: &Arc<Dataset>, home: &Path) -> Result<Option<Self>, Failure> {
        let link = link_of(home);
        if spec.data.manifest == Digest::default() {
            remove_link(&link).with_context(|| format!("cannot remove {}", link.display()))?;
            return Ok(None);
        }
        let (are_here, is_over) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        if data.missing().is_empty() && is_laid_out(data, &link)? {
            are_here.store(true, Ordering::Release);
        } else {
            // No trainer takes the files of a former start for those of this one.
            remove_link(&link).with_context(|| format!("cannot remove {}", link.display()))?;
            tracing::info!("the trainer's files are on their way from peers");
            let (data, link) = (data.clone(), link.clone());
            let (here, over) = (are_here.clone(), is_over.clone());
            let waiting = move || wait_for(&data, &link, &here, &over);
            std::thread::Builder::new().name("trainer-files".into()).spawn(waiting)?;
        }
        Ok(Some(Self { link, are_here, is_over }))
    }

    /// The folder, as a trainer is told: it is there once the files are.
    pub fn folder(&self) -> &Path {
        &self.link
    }

    /// Tells whether they are here, as long as anybody asks.
    pub fn watch(&self) -> Arc<AtomicBool> {
        self.are_here.clone()
    }
}

impl Drop for Files {
    /// The thread may be writing files for long, and a node that ends does not wait for it: the next one goes on.
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
    }
}

/// The files of a run, away from threads that others wait for.
pub async fn open(spec: &RunSpec, data: &Arc<Dataset>, home: &Path) -> Result<Option<Files>, Failure> {
    let (spec, data, home) = (spec.clone(), data.clone(), home.to_path_buf());
    let opening = move || Files::of(&spec, &data, &home);
    tokio::task::spawn_blocking(opening).await.context("laying the files out stopped")?
}

/// Lays the files out once all of them are here.
fn wait_for(data: &Dataset, link: &Path, are_here: &AtomicBool, is_over: &AtomicBool) {
    let rest = |time: Duration| {
        let until = Instant::now() + time;
        while Instant::now() < until && !is_over.load(Ordering::Acquire) {
            std::thread::sleep(LOOK_AT_END);
        }
    };
    while !is_over.load(Ordering::Acquire) {
        if !data.missing().is_empty() {
            rest(LOOK);
            continue;
        }
        match is_laid_out(data, link) {
            Ok(true) => return are_here.store(true, Ordering::Release),
            // A shard was damaged, and is fetched again.
            Ok(false) => rest(LOOK),
            Err(e) => {
                let why = starling_words::of_chain(e.error.chain());
                tracing::warn!("the trainer's files are not there yet: {why}; trying again");
                rest(PAUSE);
            }
        }
    }
}

/// Lays the files out, and sets the link; false if one of their shards turns out to be missing.
fn is_laid_out(data: &Dataset, link: &Path) -> Result<bool, Failure> {
    let (folder, count) = match lay_out_files(data) {
        Err(DataError::MissingShard { .. }) => return Ok(false),
        laid_out => laid_out?,
    };
    let folder = std::path::absolute(&folder).unwrap_or(folder);
    let cannot = || format!("cannot set the link {}", link.display());
    if fs::read_link(link).is_ok_and(|there| there == folder) {
        return Ok(true);
    }
    let unfinished = link.with_extension("new");
    remove_link(&unfinished).with_context(cannot)?;
    if let Some(parent) = link.parent() {
        fs::create_dir_all(parent).with_context(cannot)?;
    }
    std::os::unix::fs::symlink(&folder, &unfinished).with_context(cannot)?;
    fs::rename(&unfinished, link).with_context(cannot)?;
    let files = starling_words::count(count, "file");
    tracing::info!("the trainer's files ({files}) are in {}, to which {} leads", folder.display(), link.display());
    Ok(true)
}

fn link_of(home: &Path) -> PathBuf {
    trainer_folder(home).join(LINK)
}

fn remove_link(link: &Path) -> io::Result<()> {
    match fs::remove_file(link) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// Reads the files that a run file names into the cache; none if it names none.
///
/// # Errors
/// One cannot be read, or the file names another manifest than theirs.
pub async fn prepared(file: &RunFile, cache: &Path) -> Result<Option<Dataset>, Failure> {
    if file.data.files.is_empty() {
        return Ok(None);
    }
    let (sources, base) = (file.data.files.clone(), file.written.folder().to_path_buf());
    let cache = cache.to_path_buf();
    tracing::info!("reading the trainer's files (done once; later starts use the cache)");
    let preparing = move || prepare_files(&sources, &base, &cache, &mut |_| {});
    let data = tokio::task::spawn_blocking(preparing).await.context("reading the files stopped")??;
    match file.pinned_manifest()? {
        Some(pinned) if pinned != data.digest() => {
            let why = format!(
                "data.files are others than data.manifest says ({} here): leave one of the two out",
                data.digest()
            );
            Err(Failure::message(Code::ConfigMismatch, why))
        }
        _ => Ok(Some(data)),
    }
}

/// Completes the run file of a founder with the manifest of its files, and lays them out for its trainer, which counts
/// samples before there is a run. They are none if the file names none.
///
/// # Errors
/// The founder lacks some of the files.
pub async fn begun(file: &mut RunFile, cache: &Path, home: &Path) -> Result<Option<Files>, Failure> {
    if let Some(data) = prepared(file, cache).await? {
        file.data.manifest = Some(data.digest().to_string());
    }
    let spec = file.before_founding()?;
    let manifest = spec.data.manifest;
    let data = if manifest == Digest::default() {
        Dataset::empty(cache)?
    } else {
        let lacking = "the run begins with files (data.manifest) that are not on this machine: name them in data.files";
        let known = Dataset::open_cached(cache, &manifest)?.filter(|data| data.missing().is_empty());
        known.ok_or_else(|| Failure::message(Code::Usage, lacking))?
    };
    open(&spec, &Arc::new(data), home).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling_protocol::run::DataSpec;

    const TEXT: &str = "name = \"a\"\n[task]\nkind = \"external\"\n[data]\nfiles = [\"samples\"]\n";

    fn run_file(folder: &Path) -> RunFile {
        fs::create_dir_all(folder.join("samples/deep")).expect("made");
        fs::write(folder.join("samples/deep/one"), "1 2 3").expect("written");
        fs::write(folder.join("samples/two"), "4").expect("written");
        fs::write(folder.join("run.toml"), TEXT).expect("written");
        RunFile::load(&folder.join("run.toml")).expect("it is sound")
    }

    #[tokio::test]
    async fn a_founder_has_its_files_in_a_folder_before_there_is_a_run() {
        let (folder, cache, home) = (tempfile::tempdir(), tempfile::tempdir(), tempfile::tempdir());
        let (folder, cache, home) = (folder.expect("a folder"), cache.expect("a folder"), home.expect("a folder"));
        let mut file = run_file(folder.path());
        let files = begun(&mut file, cache.path(), home.path()).await.expect("they are here").expect("some are named");
        assert!(files.watch().load(Ordering::Acquire) && files.folder().starts_with(home.path()));
        assert_eq!(fs::read_to_string(files.folder().join("samples/deep/one")).expect("it is there"), "1 2 3");
        let manifest = file.data.manifest.clone().and_then(|hex| Digest::from_hex(&hex)).expect("it is known now");

        // A node that lacks one shard has no folder until it has come.
        let other = tempfile::tempdir().expect("a folder");
        let ours = Dataset::open_cached(cache.path(), &manifest).expect("a cache").expect("it is there");
        let theirs = Arc::new(Dataset::open(other.path(), ours.manifest()).expect("a cache"));
        let mut spec = file.before_founding().expect("it is sound");
        let late = Files::of(&spec, &theirs, other.path()).expect("they may come").expect("the run has some");
        assert!(!late.watch().load(Ordering::Acquire) && !late.folder().exists());
        for shard in theirs.missing() {
            let bytes = ours.shard_piece(&shard.digest, 0).expect("a small shard");
            theirs.add_shard(&shard.digest, &bytes).expect("it is one of them");
        }
        let until = Instant::now() + Duration::from_secs(20);
        while !late.watch().load(Ordering::Acquire) && Instant::now() < until {
            tokio::time::sleep(LOOK_AT_END).await;
        }
        assert_eq!(fs::read_to_string(late.folder().join("samples/two")).expect("it is there"), "4");

        // A run without files leaves nothing of them.
        let link = late.folder().to_path_buf();
        drop(late);
        spec.data = DataSpec::of_external();
        assert!(Files::of(&spec, &theirs, other.path()).expect("nothing to do").is_none() && !link.exists());
    }

    #[tokio::test]
    async fn files_that_are_not_those_of_the_run_are_refused() {
        let (folder, cache) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let mut file = run_file(folder.path());
        file.data.manifest = Some(Digest([9; 32]).to_string());
        let failure = prepared(&file, cache.path()).await.map(drop).expect_err("another manifest");
        assert!(failure.code == Code::ConfigMismatch, "{}", failure.error);
        file.data.files.clear();
        let failure = begun(&mut file, cache.path(), folder.path()).await.map(drop).expect_err("nobody has them");
        assert!(failure.error.to_string().contains("name them in data.files"), "{}", failure.error);
    }
}
