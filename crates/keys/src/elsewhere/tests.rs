//! Programs and agents that work, and those that lie, hang, print too much or die.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread;

use rustix::process::Pid;
use trust::key::SecretKey;
use trust::signer::{WrongSignature, signature};

use super::agent::{Agent, Identity};
use super::*;

fn key() -> SecretKey {
    SecretKey::from_seed(&[1; 32])
}

fn reference(by: By) -> Reference {
    Reference {
        public: key().public(),
        within: Duration::from_secs(60),
        by,
    }
}

fn words(words: &[&str]) -> By {
    By::Command(words.iter().map(|word| (*word).to_owned()).collect())
}

/// A signer that runs a script of the shell in `dir`, within `seconds`.
fn script(dir: &Path, seconds: u64, text: &str) -> Elsewhere {
    let text = format!("cd {} && {text}", dir.display());
    let reference = Reference {
        within: Duration::from_secs(seconds),
        ..reference(words(&["sh", "-c", &text]))
    };
    Elsewhere::new(reference, Reach::default())
}

fn asked(signer: &Elsewhere) -> ElsewhereError {
    let error = signer.ask(b"m").unwrap_err();
    *error.downcast::<ElsewhereError>().unwrap()
}

#[test]
fn reference_has_one_text() {
    let command = reference(words(&["pkcs11-tool", "--id", "", " a  b=c\t"]));
    let text = command.to_text().unwrap();
    assert_eq!(Reference::parse(&text).unwrap(), command);
    let expected = format!(
        "bulla-key-reference-1\npublic {}\nwithin 60\nby ssh-agent\n",
        key().public()
    );
    let agent = reference(By::Agent);
    assert_eq!(agent.to_text().unwrap(), expected);
    assert_eq!(Reference::parse(&expected).unwrap(), agent);
    let mut bad = vec![
        text.replace("within 60", "within 060"),
        text.replace("within 60", "within 0"),
        text.replace("within 60", "within 86401"),
        text.replace("within 60", "within 99999999999999999999"),
        text.replace("by command", "by magic"),
        text.replace("by command", "by ssh-agent"),
        text.replace("reference-1", "reference-2"),
        text.replace("public key1", "public key2"),
        text.replace("argument --id", "--id"),
        text.replace("argument --id", "argument --\0id"),
        text.replace("argument pkcs11-tool", "argument "),
        expected.replace("ssh-agent", "command"),
        format!("{text}\n"),
        format!("{text}{}", "argument x\n".repeat(61)),
    ];
    bad.extend((0..expected.len()).map(|n| expected[..n].to_owned()));
    for text in bad {
        assert!(Reference::parse(&text).is_err(), "{text:?}");
    }
    for arguments in [&[][..], &[""], &["a\nargument b"], &["a", "b\nc"], &["a\0"]] {
        assert!(reference(words(arguments)).to_text().is_err());
    }
}

#[test]
fn program_prints_a_signature_in_any_of_its_forms() {
    let dir = tempfile::tempdir().unwrap();
    let expected = key().sign(b"m");
    let hex: String = expected.iter().map(|byte| format!("{byte:02x}")).collect();
    let base64 = trust::history::signed_note::base64(&expected);
    let forms: [(&str, Vec<u8>); 5] = [
        ("raw", expected.to_vec()),
        ("hex", format!("{hex}\n").into()),
        ("capitals", hex.to_uppercase().into()),
        ("base64", format!(" {base64}\r\n").into()),
        ("unpadded", base64.trim_end_matches('=').into()),
    ];
    for (name, printed) in forms {
        std::fs::write(dir.path().join("printed"), printed).unwrap();
        let signer = script(dir.path(), 60, "cat >got && cat printed");
        assert_eq!(signature(&signer, b"m").unwrap(), expected, "{name}");
        assert_eq!(std::fs::read(dir.path().join("got")).unwrap(), b"m");
    }
}

#[test]
fn message_is_a_file_whose_length_programs_see() {
    let dir = tempfile::tempdir().unwrap();
    let message = vec![b'x'; 200_000];
    std::fs::write(dir.path().join("printed"), key().sign(&message)).unwrap();
    let text = "stat -Lc %s /dev/stdin >length && cat /dev/stdin >got && cat printed";
    let signer = script(dir.path(), 60, text);
    signature(&signer, &message).unwrap();
    assert_eq!(std::fs::read(dir.path().join("got")).unwrap(), message);
    let length = std::fs::read_to_string(dir.path().join("length")).unwrap();
    assert_eq!(length.trim(), "200000");
}

#[test]
fn program_that_lies_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let lies = [
        key().sign(b"another"),
        SecretKey::from_seed(&[2; 32]).sign(b"m"),
    ];
    for lie in lies {
        std::fs::write(dir.path().join("printed"), lie).unwrap();
        let refused = signature(&script(dir.path(), 60, "cat printed"), b"m").unwrap_err();
        assert!(refused.why.is::<WrongSignature>(), "{refused:?}");
        assert!(refused.to_string().contains("\"sh\""), "{refused}");
    }
}

#[test]
fn program_that_fails_gives_no_signature() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("printed"), key().sign(b"m")).unwrap();
    let says = |text: &str| asked(&script(dir.path(), 60, text));
    assert!(matches!(
        says("cat printed; exit 3"),
        ElsewhereError::Failed(_)
    ));
    assert!(matches!(
        says("cat printed; kill -9 $$"),
        ElsewhereError::Failed(_)
    ));
    assert!(matches!(says("yes"), ElsewhereError::TooMuch));
    assert!(matches!(
        says("head -c 5000 /dev/zero"),
        ElsewhereError::TooMuch
    ));
    assert!(matches!(says("true"), ElsewhereError::NotASignature(0)));
    for text in [
        "cat printed printed",
        "head -c 63 printed",
        "printf '%0128dx' 1",
        "printf '%088d' 1",
    ] {
        assert!(
            matches!(says(text), ElsewhereError::NotASignature(_)),
            "{text}"
        );
    }
    let file = dir.path().join("printed");
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
    for program in [file.to_str().unwrap(), "/nowhere/at-all"] {
        let signer = Elsewhere::new(reference(words(&[program])), Reach::default());
        assert!(matches!(asked(&signer), ElsewhereError::NotStarted(_)));
    }
}

/// Whether the process whose number `file` has is gone, or will be soon.
fn is_gone(file: &Path) -> bool {
    let id = std::fs::read_to_string(file).unwrap();
    let place = format!("/proc/{}", id.trim());
    (0..500).any(|_| {
        thread::sleep(TICK);
        !Path::new(&place).exists()
    })
}

#[test]
fn process_may_wait_less_than_the_file_says_and_stop() {
    let dir = tempfile::tempdir().unwrap();
    let mut signer = script(dir.path(), 20, "exec sleep 600");
    signer.reach.longest = Some(Duration::from_secs(1));
    let late = asked(&signer);
    assert!(matches!(late, ElsewhereError::Late(1)), "{late:?}");
    // A program that cannot be started shows whether it was tried.
    signer.reference.by = words(&["/nowhere/program"]);
    let refused = asked(&signer);
    assert!(matches!(refused, ElsewhereError::NotStarted(_)));
    signer.reach.stop.store(true, Ordering::Relaxed);
    assert!(matches!(asked(&signer), ElsewhereError::Stopped));
}

#[test]
fn program_that_hangs_is_ended() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("printed"), key().sign(b"m")).unwrap();
    // The second one has closed its output, the third one does not want to end.
    for text in [
        "echo $$ >id; exec sleep 30",
        "cat printed; exec >&-; echo $$ >id; exec sleep 30",
        "trap '' TERM; echo $$ >id; for i in $(seq 30); do sleep 1; done",
    ] {
        let late = asked(&script(dir.path(), 1, text));
        assert!(matches!(late, ElsewhereError::Late(1)), "{late:?}");
        assert!(is_gone(&dir.path().join("id")), "{text}");
    }
}

#[test]
fn wait_for_a_program_is_stopped_from_outside() {
    let dir = tempfile::tempdir().unwrap();
    let reach = Reach::default();
    let reference = script(dir.path(), 600, "echo $$ >id; exec sleep 30").reference;
    let signer = Elsewhere::new(reference, reach.clone());
    let asking = thread::spawn(move || asked(&signer));
    while std::fs::read(dir.path().join("id")).is_ok_and(|id| id.is_empty())
        || !dir.path().join("id").exists()
    {
        thread::sleep(TICK);
    }
    reach.stop.store(true, Ordering::Relaxed);
    assert!(matches!(asking.join().unwrap(), ElsewhereError::Stopped));
    assert!(is_gone(&dir.path().join("id")));
}

#[test]
fn what_a_program_leaves_running_does_not_hold_up_its_signature() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("printed"), key().sign(b"m")).unwrap();
    let text = "cat printed; sleep 60 & echo $! >id";
    let signer = script(dir.path(), 30, text);
    assert!(signature(&signer, b"m").is_ok());
    let id = std::fs::read_to_string(dir.path().join("id")).unwrap();
    let id = Pid::from_raw(id.trim().parse().unwrap()).unwrap();
    rustix::process::kill_process(id, rustix::process::Signal::KILL).unwrap();
}

/// Runs an agent that `acts` on one connection, and `asks` it.
fn with_agent<T>(
    acts: impl FnOnce(UnixStream) + Send + 'static,
    seconds: u64,
    asks: impl FnOnce(&mut Agent<'_>) -> T,
) -> T {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("agent");
    let listener = UnixListener::bind(&socket).unwrap();
    let acting = thread::spawn(move || acts(listener.accept().unwrap().0));
    let wait = Wait::begin(Duration::from_secs(seconds), Arc::default());
    let asked = {
        let mut agent = Agent::of(Some(&socket), &wait).unwrap();
        asks(&mut agent)
    };
    acting.join().unwrap();
    asked
}

/// Reads one request.
fn request(stream: &mut UnixStream) -> Vec<u8> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut request = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut request).unwrap();
    request
}

fn string(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_be_bytes(), bytes].concat()
}

fn answer(stream: &mut UnixStream, bytes: &[u8]) {
    // The client may have gone, which is what it shall do.
    let _ = stream.write_all(&string(bytes));
}

/// The answer with the signature `of` a key of `kind`.
fn signed(kind: &[u8], of: &[u8]) -> Vec<u8> {
    let signature = [string(kind), string(of)].concat();
    [vec![14], string(&signature)].concat()
}

fn sign(agent: &mut Agent<'_>) -> Result<[u8; SIGNATURE_BYTES], ElsewhereError> {
    agent.sign(&key().public(), b"m")
}

#[test]
fn agent_signs_exactly_the_message() {
    let honest = |mut stream: UnixStream| {
        let blob = [string(b"ssh-ed25519"), string(key().public().as_bytes())].concat();
        let expected = [vec![13], string(&blob), string(b"m"), vec![0; 4]].concat();
        assert_eq!(request(&mut stream), expected);
        answer(&mut stream, &signed(b"ssh-ed25519", &key().sign(b"m")));
    };
    let signature = with_agent(honest, 60, sign).unwrap();
    assert_eq!(signature, key().sign(b"m"));
}

#[test]
fn keys_of_other_types_are_counted() {
    let lists = |mut stream: UnixStream| {
        assert_eq!(request(&mut stream), [11]);
        let fits = [string(b"ssh-ed25519"), string(key().public().as_bytes())].concat();
        let security = [string(b"sk-ssh-ed25519@openssh.com"), string(&[1; 32])].concat();
        let keys = [security, fits, b"junk".to_vec()];
        let mut list = vec![12, 0, 0, 0, 3];
        for key in keys {
            list.extend([string(&key), string(b"ada\x1b[2J")].concat());
        }
        answer(&mut stream, &list);
    };
    let found = with_agent(lists, 60, |agent| agent.identities()).unwrap();
    let fits = Identity {
        key: key().public(),
        comment: b"ada\x1b[2J".to_vec(),
    };
    assert_eq!((found.keys, found.others), (vec![fits], 2));
}

#[test]
fn agent_that_refuses_says_whether_it_has_the_key() {
    fn refuses(mut stream: UnixStream, keys: &[SecretKey]) {
        assert_eq!(request(&mut stream)[0], 13);
        answer(&mut stream, &[5]);
        assert_eq!(request(&mut stream), [11]);
        let mut list = vec![12, 0, 0, 0, keys.len() as u8];
        for key in keys {
            let blob = [string(b"ssh-ed25519"), string(key.public().as_bytes())].concat();
            list.extend([string(&blob), string(b"")].concat());
        }
        answer(&mut stream, &list);
    }
    let other = with_agent(|s| refuses(s, &[SecretKey::from_seed(&[2; 32])]), 60, sign);
    assert!(matches!(other, Err(ElsewhereError::NoSuchKey)), "{other:?}");
    let own = with_agent(|s| refuses(s, &[key()]), 60, sign);
    assert!(matches!(own, Err(ElsewhereError::Refused)), "{own:?}");
}

#[test]
fn agent_that_answers_nonsense_is_refused() {
    let good = signed(b"ssh-ed25519", &[0; 64]);
    let nonsense = [
        (string(b""), "an answer of this length"),
        (vec![0xff; 4], "an answer of this length"),
        (string(&[9, 9, 9]), "no signature"),
        (string(&signed(b"ssh-rsa", &[0; 64])), "another type"),
        (string(&signed(b"ssh-ed25519", &[0; 63])), "another length"),
        (string(&[good.clone(), vec![0]].concat()), "too long"),
        (string(&good[..70]), "cut off"),
        (string(&[14, 0xff, 0xff, 0xff, 0xff]), "cut off"),
        (vec![0, 0, 0], "closes the connection"),
        (string(&good)[..50].to_vec(), "closes the connection"),
    ];
    for (bytes, says) in nonsense {
        let acts = move |mut stream: UnixStream| {
            request(&mut stream);
            let _ = stream.write_all(&bytes);
        };
        let refused = with_agent(acts, 60, sign).unwrap_err();
        assert!(
            matches!(refused, ElsewhereError::Nonsense(why) if why.contains(says)),
            "{says}: {refused:?}"
        );
    }
    let many = |mut stream: UnixStream| {
        request(&mut stream);
        answer(&mut stream, &[12, 0xff, 0xff, 0xff, 0xff]);
    };
    let refused = with_agent(many, 60, |agent| agent.identities());
    let too_many = |why: &str| why.contains("2048");
    assert!(matches!(refused, Err(ElsewhereError::Nonsense(why)) if too_many(why)));
}

#[test]
fn agent_that_is_slow_does_not_hold_up_the_wait() {
    let silent: fn(UnixStream) = |mut s| drop(s.read_to_end(&mut Vec::new()));
    let trickles: fn(UnixStream) = |mut s| {
        request(&mut s);
        let mut bytes = string(&signed(b"ssh-ed25519", &[0; 64])).into_iter();
        while let Some(byte) = bytes.next()
            && s.write_all(&[byte]).is_ok()
        {
            thread::sleep(Duration::from_millis(100));
        }
    };
    for acts in [silent, trickles] {
        let late = with_agent(acts, 1, sign);
        assert!(matches!(late, Err(ElsewhereError::Late(1))), "{late:?}");
    }
}

#[test]
fn agent_that_is_not_there_is_an_error() {
    let wait = Wait::begin(Duration::from_secs(60), Arc::default());
    let none = Agent::of(None, &wait).map(drop);
    assert!(matches!(none, Err(ElsewhereError::NoAgent)));
    let gone = Agent::of(Some(Path::new("/nowhere/agent")), &wait).map(drop);
    assert!(matches!(gone, Err(ElsewhereError::Unreachable { .. })));
}
