//! A program that signs. Its stdin is a file with the message, so that programs which want to know its length can use
//! `/dev/stdin` as a file name; it prints the signature. Its stderr is that of this process, and so is its terminal: it may
//! ask for a PIN there. No shell is involved.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, Signal, kill_process};
use trust::history::signed_note::unbase64;
use trust::key::SIGNATURE_BYTES;

use super::{ElsewhereError, TICK, Wait};

/// Most bytes that a program may print.
const MAX_PRINTED: usize = 4096;
/// Letters of the base64 text of a signature, with and without its padding.
const BASE64: usize = SIGNATURE_BYTES.div_ceil(3) * 4;
const UNPADDED: usize = BASE64 - 2;
const HEX: usize = SIGNATURE_BYTES * 2;
/// How long a program that shall end may tidy up, for instance switch on the terminal's echo again.
const GRACE: Duration = Duration::from_secs(1);

/// Runs a program with the message as its stdin. The caller verifies the signature that it prints.
pub(super) fn sign(
    arguments: &[String],
    message: &[u8],
    wait: &Wait,
) -> Result<[u8; SIGNATURE_BYTES], ElsewhereError> {
    let mut words = arguments.iter();
    let mut command = Command::new(words.next().map_or("", String::as_str));
    command
        .args(words)
        .stdin(file_of(message)?)
        .stdout(Stdio::piped());
    let mut child = command.spawn().map_err(ElsewhereError::NotStarted)?;
    let stdout = child.stdout.take();
    let mut running = Running(child);
    let (printed, status) = match stdout {
        Some(stdout) => running.output(stdout, wait)?,
        None => return Err(ElsewhereError::NotASignature(0)),
    };
    match status.success() {
        true => signature(&printed).ok_or(ElsewhereError::NotASignature(printed.len())),
        false => Err(ElsewhereError::Failed(status)),
    }
}

/// A file without a name, at its beginning.
fn file_of(message: &[u8]) -> Result<File, ElsewhereError> {
    let mut file = File::from(memfd_create("bulla-message", MemfdFlags::CLOEXEC)?);
    file.write_all(message)?;
    file.rewind()?;
    Ok(file)
}

/// The signature that was printed: its 64 bytes, or their base64 or hexadecimal text.
fn signature(printed: &[u8]) -> Option<[u8; SIGNATURE_BYTES]> {
    if let Ok(signature) = printed.try_into() {
        return Some(signature);
    }
    let text = std::str::from_utf8(printed).ok()?.trim_ascii();
    let bytes = match text.len() {
        HEX => unhex(text)?,
        BASE64 => unbase64(text)?,
        UNPADDED => unbase64(&format!("{text}=="))?,
        _ => return None,
    };
    bytes.try_into().ok()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let digit = |letter: u8| char::from(letter).to_digit(16);
    let byte = |[high, low]: &[u8; 2]| u8::try_from(digit(*high)? << 4 | digit(*low)?).ok();
    let bytes = pairs.iter().map(byte).collect::<Option<Vec<u8>>>()?;
    rest.is_empty().then_some(bytes)
}

/// A program that is ended when this is dropped.
struct Running(Child);

/// What can be said of a pipe.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pipe {
    Open,
    Closed,
}

impl Running {
    /// What the program prints until its end. Programs that it has started may keep the pipe open for longer.
    fn output(
        &mut self,
        mut stdout: ChildStdout,
        wait: &Wait,
    ) -> Result<(Vec<u8>, ExitStatus), ElsewhereError> {
        rustix::io::ioctl_fionbio(&stdout, true)?;
        let mut printed = Vec::new();
        loop {
            // Asked before the pipe is read: all that the program has printed is then in the pipe.
            let ended = self.0.try_wait()?;
            let pipe = drain(&mut stdout, &mut printed)?;
            if let Some(status) = ended {
                return Ok((printed, status));
            }
            wait.goes_on()?;
            pause(&stdout, pipe)?;
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !matches!(self.0.try_wait(), Ok(None)) {
            return;
        }
        // Errors mean that it has just ended.
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        let until = Instant::now() + GRACE;
        while Instant::now() < until && matches!(self.0.try_wait(), Ok(None)) {
            std::thread::sleep(TICK);
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Reads what is there.
fn drain(stdout: &mut ChildStdout, printed: &mut Vec<u8>) -> Result<Pipe, ElsewhereError> {
    let mut buffer = [0; 512];
    loop {
        match stdout.read(&mut buffer) {
            Ok(0) => return Ok(Pipe::Closed),
            Ok(count) => printed.extend_from_slice(buffer.get(..count).unwrap_or_default()),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(Pipe::Open),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
        if printed.len() > MAX_PRINTED {
            return Err(ElsewhereError::TooMuch);
        }
    }
}

/// Waits for more, but not for long: the program's end shows nowhere else.
fn pause(stdout: &ChildStdout, pipe: Pipe) -> Result<(), ElsewhereError> {
    if pipe == Pipe::Closed {
        std::thread::sleep(TICK);
        return Ok(());
    }
    let tick = Timespec {
        tv_sec: 0,
        tv_nsec: i64::from(TICK.subsec_nanos()),
    };
    match poll(&mut [PollFd::new(stdout, PollFlags::IN)], Some(&tick)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
