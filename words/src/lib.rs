//! Words for people: the errors of the operating system in plain English, without numbers and names of a library, and
//! counts with the right plural. Every message of Starling that tells of such an error takes its words from here.

use std::error::Error;
use std::fmt;
use std::io::{self, ErrorKind};

/// The mark behind the text of a system's error, with its number.
const NUMBER: &str = " (os error ";
/// The system's numbers of errors for which the standard library has no kind that fits; the same on Linux and macOS.
const EIO: i32 = 5;
const ENFILE: i32 = 23;
const EMFILE: i32 = 24;
/// A thread that cannot start has this one. Its kind is that of an answer that does not come.
const EAGAIN: i32 = if cfg!(target_os = "macos") { 35 } else { 11 };

/// The words for an error of the system: what stands behind "cannot read FILE: ".
pub fn of(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(EIO) => return "the disk or the device reports a fault".to_owned(),
        Some(ENFILE | EMFILE) => return "too many files are open (`ulimit -n` says how many may be)".to_owned(),
        Some(EAGAIN) => return "the system has no room for it now".to_owned(),
        _ => {}
    }
    if let Some(inner) = error.get_ref() {
        // A library that wraps an error of the system has nothing to add.
        return match root(inner) {
            Some(root) => of(root),
            None => of_wrapped(error.kind(), &inner.to_string()),
        };
    }
    match of_kind(error.kind()) {
        Some(words) => words.to_owned(),
        None => plain(&error.to_string()),
    }
}

/// The words for any error: those of the system's error if it is one, else its own text.
pub fn of_any(error: &(dyn Error + 'static)) -> String {
    match error.downcast_ref::<io::Error>() {
        Some(error) => of(error),
        None => plain(&error.to_string()),
    }
}

/// An error and its causes in one sentence. A cause that the text before already states is left out.
pub fn of_chain<'a>(links: impl IntoIterator<Item = &'a (dyn Error + 'static)>) -> String {
    let mut said = String::new();
    for link in links {
        let link = of_any(link);
        if said.is_empty() {
            said = link;
        } else if !said.contains(&link) {
            said = format!("{said}: {link}");
        }
    }
    said
}

/// A text of others without the numbers of the system's errors.
pub fn plain(text: &str) -> String {
    let mut said = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(NUMBER) {
        said.push_str(before);
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    said + rest
}

/// Whether a terminal would obey this character and not show it: it moves the cursor, or turns the order of letters.
/// Line ends and tabs are among them.
pub fn is_obeyed(c: char) -> bool {
    let turns = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    turns || c.is_control()
}

/// A number of things: "1 peer", "2 peers", "3 addresses". For words whose plural ends in `s`.
pub fn count(number: impl fmt::Display, thing: &str) -> String {
    let number = number.to_string();
    let plural = match thing.ends_with('s') {
        _ if number == "1" => "",
        true => "es",
        false => "s",
    };
    format!("{number} {thing}{plural}")
}

/// The error of the system within another; none if there is none.
fn root<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a io::Error> {
    let mut link = Some(error);
    while let Some(error) = link {
        if let Some(io) = error.downcast_ref::<io::Error>() {
            return Some(io);
        }
        link = error.source();
    }
    None
}

/// The words for an error that somebody made with a text of their own.
fn of_wrapped(kind: ErrorKind, text: &str) -> String {
    match kind {
        // TLS ends a connection with a message; most processes that are killed or stopped do not send it.
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
            of_kind(kind).unwrap_or(text).to_owned()
        }
        _ => plain(text),
    }
}

fn of_kind(kind: ErrorKind) -> Option<&'static str> {
    Some(match kind {
        ErrorKind::NotFound => "no such file or folder",
        ErrorKind::PermissionDenied => "no permission",
        ErrorKind::AlreadyExists => "it exists already",
        ErrorKind::IsADirectory => "it is a folder, not a file",
        ErrorKind::NotADirectory => "a part of the path is a file, not a folder",
        ErrorKind::DirectoryNotEmpty => "the folder is not empty",
        ErrorKind::ReadOnlyFilesystem => "the disk is read-only",
        ErrorKind::StorageFull => "the disk is full",
        ErrorKind::QuotaExceeded => "the quota of this user on the disk is used up",
        ErrorKind::FileTooLarge => "the file would be larger than the disk allows",
        ErrorKind::InvalidFilename => "no file can have that name",
        ErrorKind::ResourceBusy | ErrorKind::ExecutableFileBusy => "another process uses it",
        ErrorKind::CrossesDevices => "the two paths are on different disks",
        ErrorKind::StaleNetworkFileHandle => "the network disk no longer knows it",
        ErrorKind::InvalidData => "it is not text in UTF-8",
        ErrorKind::UnexpectedEof => "the end is missing",
        ErrorKind::OutOfMemory => "the memory is used up",
        ErrorKind::ConnectionRefused => "nothing listens there",
        ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted => "the other side broke the connection off",
        ErrorKind::BrokenPipe => "the other side has closed it",
        ErrorKind::NotConnected => "there is no connection",
        ErrorKind::TimedOut | ErrorKind::WouldBlock => "no answer in time",
        ErrorKind::AddrInUse => "another process listens there",
        ErrorKind::AddrNotAvailable => "it is not an address of this machine",
        ErrorKind::NetworkDown | ErrorKind::NetworkUnreachable | ErrorKind::HostUnreachable => {
            "there is no way to that network"
        }
        ErrorKind::Interrupted => "it was interrupted",
        ErrorKind::Unsupported => "the system does not offer that",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An error of a library around one of the system.
    #[derive(Debug)]
    struct Wrapped(io::Error);

    impl fmt::Display for Wrapped {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "decode error: i/o error: {}", self.0)
        }
    }

    impl Error for Wrapped {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn no_number_of_the_system_is_said() {
        for number in 1..140 {
            let said = of(&io::Error::from_raw_os_error(number));
            assert!(!said.is_empty() && !said.contains("os error"), "{number}: {said}");
        }
    }

    #[test]
    fn files_that_cannot_be_read_say_why() {
        let folder = std::env::temp_dir();
        let opened = std::fs::read_to_string(folder.join("starling-words-no-such-file"));
        assert_eq!(of(&opened.expect_err("no such file")), "no such file or folder");
        let read = std::fs::read_to_string(&folder);
        assert_eq!(of(&read.expect_err("a folder")), "it is a folder, not a file");
        let text = io::read_to_string(&[0xff_u8, 0xfe][..]);
        assert_eq!(of(&text.expect_err("no text")), "it is not text in UTF-8");
    }

    #[test]
    fn a_library_s_sentence_gives_way_to_the_system_s_error_in_it() {
        let eof = io::Error::new(ErrorKind::UnexpectedEof, "peer closed connection without sending TLS close_notify");
        assert_eq!(of(&io::Error::other(Wrapped(eof))), "the end is missing");
        let reset = io::Error::from(ErrorKind::ConnectionReset);
        assert_eq!(of(&io::Error::other(Wrapped(reset))), "the other side broke the connection off");
        assert_eq!(of(&io::Error::other("our own words")), "our own words");
    }

    #[test]
    fn a_thread_that_cannot_start_is_no_late_answer() {
        assert_eq!(of(&io::Error::from_raw_os_error(EAGAIN)), "the system has no room for it now");
        assert_eq!(of(&ErrorKind::WouldBlock.into()), "no answer in time");
        assert_eq!(io::Error::from_raw_os_error(EAGAIN).kind(), ErrorKind::WouldBlock, "the number of this system");
    }

    #[test]
    fn causes_are_said_once() {
        let missing = io::Error::from_raw_os_error(2);
        let telling = io::Error::other("cannot read it: no such file or folder; check the path");
        let links: [&(dyn Error + 'static); 2] = [&telling, &missing];
        assert_eq!(of_chain(links), telling.to_string());
        let silent = io::Error::other("cannot read it");
        let links: [&(dyn Error + 'static); 2] = [&silent, &missing];
        assert_eq!(of_chain(links), "cannot read it: no such file or folder");
    }

    #[test]
    fn numbers_are_cut_out_of_the_texts_of_others() {
        assert_eq!(plain("No such file (os error 2); and (os error 13) too"), "No such file; and too");
        assert_eq!(plain("fine"), "fine");
    }

    #[test]
    fn letters_are_shown_and_what_moves_or_turns_them_is_obeyed() {
        let obeyed = ['\x1b', '\u{9b}', '\n', '\t', '\x7f', '\u{61c}', '\u{200f}', '\u{202a}', '\u{202e}', '\u{2066}'];
        assert!(obeyed.into_iter().all(is_obeyed));
        assert!(!"/home/müller/模型 ü…\u{2027}\u{2030}".contains(is_obeyed));
    }

    #[test]
    fn one_thing_has_no_plural() {
        assert_eq!([count(1, "peer"), count(0, "peer"), count(2, "address")], ["1 peer", "0 peers", "2 addresses"]);
    }
}
