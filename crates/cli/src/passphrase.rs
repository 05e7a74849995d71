//! Where a passphrase comes from: a file, a descriptor, a command, or the person at the terminal.
//! Never the command line itself, which every user of the machine can read. Design: *Flags*.

use std::fs::File;
use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use zeroize::Zeroizing;

use crate::args::Passphrase;
use crate::failure::{Failure, Kind, Outcome};
use crate::{output, session};

/// Longest passphrase, bytes: whoever gives a whole file by mistake is told so.
const MAX_BYTES: u64 = 4096;

/// A passphrase; wiped when dropped.
pub type Secret = Zeroizing<Vec<u8>>;

/// Gets a passphrase; `twice` asks a person for it two times.
pub fn get(flags: &Passphrase, no_input: bool, prompt: &str, twice: bool) -> Outcome<Secret> {
    let secret = if let Some(path) = &flags.passphrase_file {
        from_file(path)?
    } else if let Some(number) = flags.passphrase_fd {
        from_file(&PathBuf::from(format!("/proc/self/fd/{number}")))?
    } else if let Some(command) = &flags.passphrase_command {
        from_command(command)?
    } else {
        ask(no_input, prompt, twice)?
    };
    if secret.is_empty() {
        return Err(Failure::new(Kind::NoInput, "the passphrase is empty")
            .with_hint("give a passphrase, or make the key with --no-passphrase"));
    }
    Ok(secret)
}

fn from_file(path: &Path) -> Outcome<Secret> {
    let what = || format!("cannot read the passphrase from {}", path.display());
    let file = File::open(path).map_err(|e| Failure::io(what(), &e))?;
    first_line(file).map_err(|e| Failure::io(what(), &e))
}

fn from_command(command: &str) -> Outcome<Secret> {
    let what = "cannot run the passphrase command";
    let mut child = Command::new("/bin/sh")
        .args(["-c", command])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| Failure::io(what, &e))?;
    let secret = match child.stdout.take() {
        Some(stdout) => first_line(stdout).map_err(|e| Failure::io(what, &e))?,
        None => Secret::default(),
    };
    let status = child.wait().map_err(|e| Failure::io(what, &e))?;
    if !status.success() {
        let mut failure = Failure::new(Kind::NoInput, "the passphrase command failed");
        failure.push_cause(format!("it ended with {status}"));
        return Err(failure);
    }
    Ok(secret)
}

/// Reads byte by byte: a descriptor may hold more that is not ours.
fn first_line(mut from: impl Read) -> std::io::Result<Secret> {
    let mut line = Secret::new(Vec::with_capacity(MAX_BYTES as usize));
    let mut byte = [0];
    while from.read(&mut byte)? == 1 && byte != *b"\n" {
        if line.len() as u64 >= MAX_BYTES {
            return Err(std::io::Error::other("its first line is over 4096 bytes"));
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
            format!("{prompt}: a passphrase is needed, and there is nobody to ask"),
        ));
    }
    let first = prompt_once(format!("{prompt}: "))?;
    if twice && *prompt_once(format!("{prompt}, again: "))? != *first {
        return Err(Failure::new(Kind::NoInput, "the two passphrases differ")
            .with_hint("run the command again and type the same one twice"));
    }
    Ok(first)
}

/// Asks once. A signal meanwhile gives the terminal its echo back before the command ends.
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
            // The prompt's line is still open.
            output::say("\n");
            Err(Failure::new(Kind::Interrupted, "interrupted"))
        }
    }
}

/// The terminal as it was.
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
        // A terminal that has gone needs no echo.
        let _ = tcsetattr(&self.file, OptionalActions::Now, &self.modes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_line_counts_and_it_is_bounded() {
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
