//! Reads a passphrase from a file, a descriptor, a command, or the terminal. Never from the command line,
//! which every user of the machine can see. Design: *Flags*.

use std::fs::File;
use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use zeroize::Zeroizing;

use crate::args::Passphrase;
use crate::failure::{Failure, Kind, Outcome};
use crate::{output, session};

/// Longest passphrase, bytes. A longer first line means that the wrong file was named.
const MAX_BYTES: u64 = 4096;

/// A passphrase; wiped when dropped.
pub type Secret = Zeroizing<Vec<u8>>;

/// Reads a passphrase. With `twice`, the prompt asks for it two times and compares.
pub fn get(flags: &Passphrase, no_input: bool, prompt: &str, twice: bool) -> Outcome<Secret> {
    let secret = if let Some(path) = file_of(flags) {
        from_file(&path)?
    } else if let Some(command) = &flags.passphrase_command {
        from_command(command)?
    } else {
        ask(no_input, prompt, twice)?
    };
    not_empty(secret)
}

fn not_empty(secret: Secret) -> Outcome<Secret> {
    if secret.is_empty() {
        return Err(Failure::new(Kind::NoInput, "the passphrase is empty")
            .with_hint("give a passphrase, or make the key with --no-passphrase"));
    }
    Ok(secret)
}

/// Passphrases of several keys, in the order in which they are needed. Of a file or a descriptor each line is for one key,
/// and the last one for all that follow; a command runs for each key, and the terminal asks for each.
pub struct Several<'a> {
    flags: &'a Passphrase,
    no_input: bool,
    file: Option<File>,
    last: Secret,
}

impl Several<'_> {
    /// Nothing is read yet.
    pub fn of(flags: &Passphrase, no_input: bool) -> Several<'_> {
        Several {
            flags,
            no_input,
            file: None,
            last: Secret::default(),
        }
    }

    /// The passphrase of the next key. `prompt` asks for it.
    pub fn next(&mut self, prompt: &str) -> Outcome<Secret> {
        let Some(path) = file_of(self.flags) else {
            return get(self.flags, self.no_input, prompt, false);
        };
        // Opened once: a file would begin again, and a pipe would not.
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(open(&path)?),
        };
        let line = first_line(file).map_err(|e| unreadable(&path, &e))?;
        if !line.is_empty() {
            self.last = line;
        }
        not_empty(self.last.clone())
    }
}

/// The file that the flags name, or the descriptor.
fn file_of(flags: &Passphrase) -> Option<PathBuf> {
    let number = flags.passphrase_fd;
    let descriptor = || number.map(|number| PathBuf::from(format!("/proc/self/fd/{number}")));
    flags.passphrase_file.clone().or_else(descriptor)
}

fn open(path: &Path) -> Outcome<File> {
    File::open(path).map_err(|e| unreadable(path, &e))
}

fn unreadable(path: &Path, error: &std::io::Error) -> Failure {
    let what = format!("cannot read the passphrase from {}", path.display());
    Failure::io(what, error)
}

fn from_file(path: &Path) -> Outcome<Secret> {
    first_line(open(path)?).map_err(|e| unreadable(path, &e))
}

fn from_command(command: &str) -> Outcome<Secret> {
    output_of(command, "passphrase", first_line)
}

/// The bytes of a key: the whole output of a command, at most `most` bytes and one more.
pub fn key_from_command(command: &str, most: usize) -> Outcome<Secret> {
    output_of(command, "key", |stdout| whole(stdout, most))
}

/// Reads everything, at most `most` bytes and one more. The memory is taken at once, because a growing buffer would leave
/// copies behind.
pub fn whole(from: impl Read, most: usize) -> std::io::Result<Secret> {
    let mut bytes = Secret::new(Vec::with_capacity(most + 1));
    from.take(most as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn output_of(
    command: &str,
    what: &str,
    read: impl FnOnce(std::process::ChildStdout) -> std::io::Result<Secret>,
) -> Outcome<Secret> {
    let failed = |e: std::io::Error| Failure::io(format!("cannot run the {what} command"), &e);
    let mut child = Command::new("/bin/sh")
        .args(["-c", command])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let secret = match child.stdout.take() {
        Some(stdout) => read(stdout).map_err(failed)?,
        None => Secret::default(),
    };
    let status = child.wait().map_err(failed)?;
    if !status.success() {
        let mut failure = Failure::new(Kind::NoInput, format!("the {what} command failed"));
        failure.push_cause(format!("it ended with {status}"));
        return Err(failure);
    }
    Ok(secret)
}

/// Reads byte by byte, because the rest of the descriptor may be for another reader.
fn first_line(mut from: impl Read) -> std::io::Result<Secret> {
    let mut line = Secret::new(Vec::with_capacity(MAX_BYTES as usize));
    let mut byte = [0];
    while from.read(&mut byte)? == 1 && byte != *b"\n" {
        if line.len() as u64 >= MAX_BYTES {
            return Err(std::io::Error::other(
                "the first line is longer than 4096 bytes",
            ));
        }
        line.extend_from_slice(&byte);
    }
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    Ok(line)
}

fn ask(no_input: bool, prompt: &str, twice: bool) -> Outcome<Secret> {
    if no_input || !std::io::stdin().is_terminal() {
        return Err(Failure::new(
            Kind::NoInput,
            format!(
                "{prompt}: a passphrase is needed, but it cannot be asked for (no terminal, or --no-input)"
            ),
        ));
    }
    let first = prompt_once(format!("{prompt}: "))?;
    if twice && *prompt_once(format!("{prompt}, again: "))? != *first {
        return Err(Failure::new(Kind::NoInput, "the two passphrases differ")
            .with_hint("run the command again and type the same one twice"));
    }
    Ok(first)
}

/// Asks once. If a signal ends the command, the terminal's echo is restored first.
fn prompt_once(text: String) -> Outcome<Secret> {
    let failed = |e: std::io::Error| Failure::io("cannot ask for the passphrase", &e);
    let terminal = Terminal::now();
    let typed = session::unless_interrupted(move || {
        let cut_off = |e: &std::io::Error| e.kind() == std::io::ErrorKind::Interrupted;
        Some(rpassword::prompt_password(text)).filter(|typed| !typed.as_ref().is_err_and(cut_off))
    })?;
    match typed {
        Some(typed) => {
            let typed = typed.map_err(failed)?;
            Ok(Secret::new(typed.into_bytes()))
        }
        None => {
            terminal.map_err(failed)?.restore();
            // Ends the line of the prompt.
            output::say("\n");
            Err(Failure::new(Kind::Interrupted, "interrupted"))
        }
    }
}

/// The saved modes of the terminal.
struct Terminal {
    file: File,
    modes: Termios,
}

impl Terminal {
    fn now() -> std::io::Result<Terminal> {
        let file = File::open("/dev/tty")?;
        let modes = tcgetattr(&file)?;
        Ok(Terminal { file, modes })
    }

    fn restore(&self) {
        // If the terminal is gone, there is nothing to restore.
        let _ = tcsetattr(&self.file, OptionalActions::Now, &self.modes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_line_is_the_passphrase_and_is_bounded() {
        assert_eq!(**first_line(&b"secret\r\nrest"[..]).unwrap(), *b"secret");
        assert_eq!(**first_line(&b"no end"[..]).unwrap(), *b"no end");
        assert!(first_line(&vec![b'x'; 5000][..]).is_err());
    }

    #[test]
    fn a_failing_command_gives_no_passphrase() {
        assert_eq!(**from_command("printf 'a b\\nc'").unwrap(), *b"a b");
        assert_eq!(
            from_command("echo x; exit 3").unwrap_err().kind,
            Kind::NoInput
        );
    }
}
