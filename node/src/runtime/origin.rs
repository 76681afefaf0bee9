//! The source of a run's specification: its file, a ticket, or the node's folder.

use super::again::Again;
use super::directions;
use super::ports::any_port;
use crate::cli::TrainArgs;
use crate::config::node_file::{self, NodeFile};
use crate::config::run_file::RunFile;
use crate::exit::{Code, Failure};
use libp2p::Multiaddr;
use starling_bootstrap::addresses::BootstrapList;
use starling_bootstrap::config_file;
use starling_bootstrap::ticket::{TICKET_CHARS_MAX, Ticket, TicketError};
use starling_protocol::run::RunSpec;
use starling_protocol::{Digest, NodeId, wire};
use starling_store::Run;
use std::io::{IsTerminal, Read};
use std::path::Path;

/// Folders of runs that are looked through for the one of a ticket.
const FOLDERS_MAX: usize = 1024;

/// The source that the command line names, or the folder of an earlier start.
pub struct Asked {
    pub file: Option<Box<RunFile>>,
    pub ticket: Option<Box<Ticket>>,
    /// The specification, as far as it lies on this disk.
    pub spec: Option<Box<RunSpec>>,
}

/// The source of a run's specification, and the ticket with which the node comes.
pub struct Origin {
    pub run: RunSource,
    pub ticket: Option<Box<Ticket>>,
}

/// A run file, or the specification itself.
pub enum RunSource {
    File(Box<RunFile>),
    Spec(Box<RunSpec>),
}

impl Asked {
    /// Reads the source that the command line names; `again` is the earlier start that it means if it names none.
    pub fn from_args(args: &TrainArgs, again: Option<&Again>, node: &NodeFile) -> Result<Self, Failure> {
        if let Some(again) = again {
            // A ticket of an older release: the folder knows the run by now, and peers know the node.
            let ticket = again.ticket.as_deref().and_then(|text| text.parse().ok()).map(Box::new);
            let spec = node.home.as_deref().and_then(Run::of_folder).and_then(|run| decoded(&run));
            return Ok(Self { file: again.run.clone().map(Box::new), ticket, spec });
        }
        let ticket = args.join.as_deref().map(|text| read_ticket("--join", text)).transpose()?;
        let file = args.run.as_deref().map(RunFile::load).transpose()?;
        let spec = ticket.as_ref().filter(|_| file.is_none()).and_then(|ticket| on_disk(node, &ticket.run));
        Ok(Self { file: file.map(Box::new), ticket: ticket.map(Box::new), spec })
    }

    /// Completes the source: the specification of a ticket's run that is not on this disk comes from peers.
    pub async fn resolve(self, node: &NodeFile) -> Result<Origin, Failure> {
        let Self { file, ticket, spec } = self;
        let run = match (file, spec, &ticket) {
            (Some(file), _, _) => RunSource::File(file),
            (None, Some(spec), _) => RunSource::Spec(spec),
            (None, None, Some(ticket)) => {
                let bootstrap = BootstrapList::load_all(&node.bootstrap).map_err(|e| Failure::new(Code::Usage, e))?;
                let listen = node.listen.iter().filter_map(|text| text.parse::<Multiaddr>().ok());
                let ways = (listen.filter_map(|address| any_port(&address)).collect(), node.mdns);
                let spec = directions::specification(ticket, bootstrap.into_peers(), ways).await?;
                RunSource::Spec(Box::new(spec))
            }
            (None, None, None) => {
                let why = "the folder's copy of the run specification is damaged: give --run RUN.toml or --join TICKET";
                return Err(Failure::message(Code::Usage, why));
            }
        };
        Ok(Origin { run, ticket })
    }
}

impl Origin {
    /// The admission ticket that the node `me` shows when it asks to be admitted; empty without one.
    ///
    /// # Errors
    /// If the ticket leads to another run than the run file, or admits another node.
    pub fn admission(&self, spec: &RunSpec, me: &NodeId) -> Result<Vec<u8>, Failure> {
        let Some(ticket) = &self.ticket else { return Ok(Vec::new()) };
        let run = spec.digest();
        if run != ticket.run {
            let why = format!(
                "the run file and the ticket name different runs ({} and {}): leave out --run, since the ticket is \
                 enough, or give the run file of the flock that it leads to, with the same text",
                run.short(),
                ticket.run.short()
            );
            return Err(Failure::message(Code::ConfigMismatch, why));
        }
        ticket.admission_for(spec, me).map_err(|e| Failure::message(Code::Usage, format!("--join: {e}")))
    }

    /// The run's name.
    pub fn name(&self) -> &str {
        match &self.run {
            RunSource::File(file) => &file.name,
            RunSource::Spec(spec) => &spec.name,
        }
    }
}

fn decoded(run: &Run) -> Option<Box<RunSpec>> {
    wire::decode_spec(&run.spec).ok().map(Box::new)
}

/// The specification with this digest in the node's folder, or in one of this user's folders of runs.
fn on_disk(node: &NodeFile, run: &Digest) -> Option<Box<RunSpec>> {
    let of = |folder: &Path| Run::of_folder(folder).filter(|here| here.digest == *run).and_then(|run| decoded(&run));
    if let Some(home) = &node.home {
        return of(home);
    }
    let folders = std::fs::read_dir(node_file::runs_folder()).ok()?;
    folders.flatten().take(FOLDERS_MAX).find_map(|folder| of(&folder.path()))
}

/// Reads the ticket that a flag names: text, a file that holds it, or `-` for standard input.
pub fn read_ticket(flag: &str, text: &str) -> Result<Ticket, Failure> {
    let usage = |why: String| Failure::message(Code::Usage, why);
    if text == "-" {
        let cannot = |e| usage(format!("{flag} -: cannot read standard input: {}", starling_words::of(&e)));
        let text = from_stdin().map_err(cannot)?;
        return text.parse::<Ticket>().map_err(|e| usage(format!("{flag} -: {e}")));
    }
    match text.parse::<Ticket>() {
        Ok(ticket) => Ok(ticket),
        Err(_) if Path::new(text).is_file() => {
            let held = config_file::read(Path::new(text)).map_err(|e| usage(format!("{flag}: {e}")))?;
            held.parse::<Ticket>().map_err(|e| usage(format!("{flag} {text}: {e}")))
        }
        Err(e @ TicketError::NotATicket) => Err(usage(format!("{flag}: there is no file of that name, and {e}"))),
        Err(e) => Err(usage(format!("{flag}: {e}"))),
    }
}

/// A line from a terminal, or all that another program writes, up to the length of a ticket.
fn from_stdin() -> std::io::Result<String> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        return piped(stdin.lock());
    }
    let mut text = String::new();
    stdin.read_line(&mut text)?;
    Ok(text)
}

/// No more than shows that a text is too long for a ticket.
fn piped(input: impl Read) -> std::io::Result<String> {
    let mut text = String::new();
    input.take(TICKET_CHARS_MAX as u64 + 1).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tickets_come_from_text_and_from_files() {
        let address = "/ip4/192.0.2.7/tcp/7400/p2p/12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp";
        let own = [address.parse().expect("an address")];
        let ticket = Ticket::new(Digest([7; 32]), &own, &[], None).expect("a ticket");
        let text = ticket.to_string();
        let said = |text: &str| {
            read_ticket("--join", text).map_err(|failure| {
                assert_eq!(failure.code, Code::Usage);
                failure.error.to_string()
            })
        };
        assert_eq!(said(&text), Ok(ticket.clone()));
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("ticket.txt");
        std::fs::write(&path, format!("{text}\n")).expect("written");
        let path = path.to_string_lossy();
        assert_eq!(said(&path), Ok(ticket));
        std::fs::write(&*path, &text[..50]).expect("written");
        let cut = said(&path).expect_err("cut");
        assert!(cut.contains("ticket.txt: the ticket is cut: 50 of its 115 characters"), "{cut}");
        assert!(said("starling1aiaqc").is_err_and(|why| why.contains("of an older release: ask for a new one")));
        assert!(said("tickets.txt").is_err_and(|why| why.contains("no file of that name, and this is no ticket")));
    }

    #[test]
    fn a_ticket_that_another_program_writes_is_read_up_to_a_limit() {
        assert_eq!(piped(&b"starling2abc\n"[..]).expect("it is text"), "starling2abc\n");
        let endless = piped(std::io::repeat(b'a')).expect("it ends");
        assert_eq!(endless.len(), TICKET_CHARS_MAX + 1);
        assert!(matches!(endless.parse::<Ticket>(), Err(TicketError::TooLong)));
        assert!(piped(&[0xff, 0xfe][..]).is_err());
    }

    #[test]
    fn a_run_file_beside_a_ticket_must_be_of_its_run() {
        let spec = starling_protocol::sample::spec();
        let me = NodeId([9; 32]);
        let with = |run| {
            let ticket = Ticket { run, addresses: Vec::new(), admission: None };
            Origin { run: RunSource::Spec(Box::new(spec.clone())), ticket: Some(Box::new(ticket)) }
        };
        assert_eq!(with(spec.digest()).admission(&spec, &me).ok(), Some(Vec::new()));
        let other = with(Digest([7; 32])).admission(&spec, &me).expect_err("another run");
        assert_eq!(other.code, Code::ConfigMismatch);
        assert!(other.error.to_string().contains("leave out --run"), "{}", other.error);
    }
}
