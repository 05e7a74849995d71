//! Publishing with two machines and the real binary: one has the tree, the other the key.

use sim::time::now;

use crate::support::{Home, Ran, copy, wait_until};

/// The two machines; files between them are copied by hand.
struct Machines {
    tree: Home,
    key: Home,
    public: String,
}

impl Machines {
    fn new() -> Machines {
        let (tree, key) = (Home::new(), Home::new());
        let made = key.run(&["--json", "key", "new", "--out", "key", "--no-passphrase"]);
        let public = made.ends(0).field("key").as_str().unwrap().to_owned();
        std::fs::create_dir(tree.path("tree")).unwrap();
        std::fs::write(tree.path("tree/a"), vec![b'1'; 5000]).unwrap();
        Machines { tree, key, public }
    }

    fn request(&self, out: &str) -> Ran {
        let publisher = self.public.as_str();
        let unsigned = [
            "--json",
            "publish",
            "tree",
            "repo",
            "--unsigned",
            "--out",
            out,
        ];
        self.tree
            .run(&[&unsigned[..], &["--publisher", publisher]].concat())
    }

    fn to_key(&self, name: &str) {
        std::fs::copy(self.tree.path(name), self.key.path(name)).unwrap();
    }

    fn sign(&self, record: &str, out: &str) -> Ran {
        self.key.run(&[
            "--json", "--yes", "sign", record, "--key", "key", "--out", out,
        ])
    }

    fn to_tree(&self, name: &str) {
        std::fs::copy(self.key.path(name), self.tree.path(name)).unwrap();
    }

    fn install(&self, file: &str) -> Ran {
        self.tree
            .run(&["--json", "publish", "--install", file, "repo"])
    }

    /// All three steps.
    fn version(&self, name: &str) -> Ran {
        self.request(name).ends(0);
        self.to_key(name);
        let signed = format!("{name}.signed");
        self.sign(name, &signed).ends(0);
        self.to_tree(&signed);
        self.install(&signed).ends(0)
    }

    fn write(&self, fill: u8) {
        std::fs::write(self.tree.path("tree/a"), vec![fill; 5000]).unwrap();
    }
}

#[test]
fn key_and_tree_can_be_on_two_machines() {
    let two = Machines::new();
    // A new volume needs --publisher; a key is neither needed nor accepted.
    let nobody = ["publish", "tree", "repo", "--unsigned", "--out", "r"];
    two.tree.run(&nobody).ends(2);
    two.tree
        .run(&[&nobody[..], &["--key", "key"]].concat())
        .ends(2);
    let request = two.request("r1").ends(0);
    let volume = request.field("volume").as_str().unwrap().to_owned();
    assert!(std::fs::metadata(two.tree.path("r1")).unwrap().len() < 1000);
    let source = two.tree.source(&volume, "repo");
    two.tree.run(&["ls", &source]).ends(30);
    // The request itself cannot be installed.
    let unsigned = two.install("r1").ends(20);
    assert!(unsigned.err.contains("`bulla sign` it"), "{}", unsigned.err);
    two.to_key("r1");
    // Without a terminal to ask on, it needs --yes.
    let sign = ["sign", "r1", "--key", "key", "--out", "s1"];
    let refused = two.key.run(&sign).ends(2);
    assert!(refused.err.contains(&volume), "{}", refused.err);
    assert!(!two.key.path("s1").exists());
    let signed = two.sign("r1", "s1").ends(0);
    assert_eq!(signed.field("volume"), volume.as_str());
    assert_eq!(
        (signed.field("version"), signed.field("again")),
        (1.into(), false.into())
    );
    two.to_tree("s1");
    let installed = two.install("s1").ends(0);
    assert_eq!(installed.field("record"), signed.field("record"));
    two.tree.run(&["verify", &source]).ends(0);
    assert_eq!(two.install("s1").ends(0).field("again"), true);

    two.write(b'2');
    let second = two.request("r2").ends(0);
    assert_eq!(second.field("volume"), volume.as_str());
    assert_eq!(second.field("version"), 2);
    // Until it is installed, readers and the other publisher see version 1.
    let stat = two.tree.run(&["--json", "stat", &source]).ends(0);
    assert_eq!(stat.field("version"), 1);
    two.to_key("r2");
    two.sign("r2", "s2").ends(0);
    two.to_tree("s2");
    two.install("s2").ends(0);
    let log = two.tree.run(&["--json", "log", &source]).ends(0);
    assert_eq!(log.field("versions"), 2);
    two.tree.run(&["verify", &source]).ends(0);
    // The first version cannot be installed again.
    two.install("s1").ends(21);
    assert_eq!(
        two.tree
            .run(&["--json", "stat", &source])
            .ends(0)
            .field("version"),
        2
    );
}

#[test]
fn older_version_is_not_installed_by_a_machine_that_remembers_nothing() {
    let two = Machines::new();
    two.version("r1");
    two.write(b'2');
    two.version("r2");
    let install = ["--json", "publish", "--install", "r1.signed", "repo"];
    let mut elsewhere = two.tree.command(&install);
    elsewhere.env("BULLA_STATE_DIR", two.tree.path("no-state"));
    let refused = Ran::of(elsewhere.output().unwrap()).ends(21);
    assert_eq!(refused.field("error")["kind"], "rollback");
}

#[test]
fn signer_refuses_to_make_a_fork() {
    let two = Machines::new();
    two.version("r1");
    two.write(b'2');
    two.request("r2").ends(0);
    two.to_key("r2");
    two.sign("r2", "s2").ends(0);
    // The same request gives the same signature again, because the file may have been lost.
    let again = two.sign("r2", "again").ends(0);
    assert_eq!(again.field("again"), true);
    let bytes = |name: &str| std::fs::read(two.key.path(name)).unwrap();
    assert_eq!(bytes("s2"), bytes("again"));
    // Another tree as version 2 is refused, and nothing is written.
    two.write(b'3');
    two.request("r2b").ends(0);
    two.to_key("r2b");
    let fork = two.sign("r2b", "s2b").ends(22);
    assert!(!two.key.path("s2b").exists(), "{}", fork.err);
    // So is version 1 again, from a copy of the first request.
    std::fs::remove_dir_all(two.tree.path("repo")).unwrap();
    two.to_key("r1");
    assert_eq!(two.sign("r1", "s1b").ends(21).code, 21);
    // After the installation the volume continues.
    let three = Machines::new();
    three.version("r1");
    three.write(b'2');
    three.version("r2");
    three.write(b'3');
    assert_eq!(three.version("r3").field("version"), 3);
}

#[test]
fn changed_or_unsigned_files_are_refused() {
    let two = Machines::new();
    two.request("r1").ends(0);
    two.to_key("r1");
    two.sign("r1", "s1").ends(0);
    two.to_tree("s1");
    // A stranger's key signs nothing.
    two.key
        .run(&["key", "new", "--out", "other", "--no-passphrase"])
        .ends(0);
    let args = ["--yes", "sign", "r1", "--key", "other", "--out", "x"];
    two.key.run(&args).ends(12);
    // Unsigned, it cannot be installed.
    two.install("r1").ends(20);
    let signed = std::fs::read(two.tree.path("s1")).unwrap();
    for at in (0..signed.len()).step_by(37) {
        let mut bent = signed.clone();
        bent[at] ^= 1;
        std::fs::write(two.tree.path("bent"), &bent).unwrap();
        let code = two.install("bent").code;
        assert!(code == 20 || code == 1, "byte {at}: {code}");
    }
    std::fs::write(two.tree.path("bent"), &signed[..signed.len() - 1]).unwrap();
    two.install("bent").ends(20);
    std::fs::write(two.tree.path("bent"), vec![0; 3 << 20]).unwrap();
    two.install("bent").ends(20);
    two.install("nothing").ends(10);
    // Another repository has another volume.
    let other = Machines::new();
    other.version("r1");
    std::fs::copy(two.tree.path("s1"), other.tree.path("foreign")).unwrap();
    other.install("foreign").ends(20);
    // A version without its blocks is not installed.
    copy(&two.tree.path("repo"), &two.tree.path("whole"));
    std::fs::remove_dir_all(two.tree.path("repo")).unwrap();
    let lost = ["key", "new", "--out", "key", "--no-passphrase"];
    two.tree.run(&lost).ends(0);
    std::fs::create_dir(two.tree.path("empty")).unwrap();
    let unsigned = ["publish", "empty", "repo", "--unsigned", "--out", "e"];
    two.tree
        .run(&[&unsigned[..], &["--publisher", &two.public]].concat())
        .ends(0);
    let refused = two.install("s1").ends(1);
    assert!(refused.err.contains("not whole"), "{}", refused.err);
    std::fs::remove_dir_all(two.tree.path("repo")).unwrap();
    copy(&two.tree.path("whole"), &two.tree.path("repo"));
    two.install("s1").ends(0);
}

#[test]
fn expired_signed_version_is_not_installed() {
    let two = Machines::new();
    two.request("r1").ends(0);
    two.to_key("r1");
    let args = [
        "--yes", "sign", "r1", "--key", "key", "--out", "s1", "--valid", "1s",
    ];
    two.key.run(&args).ends(0);
    two.to_tree("s1");
    // The program takes the time from the system. It counts whole seconds.
    let signed = now();
    wait_until("its one second is over", || now() > signed);
    two.install("s1").ends(24);
}

/// A USB stick that is not plugged in, or a directory that is not a repository, beside a good location.
#[test]
fn missing_local_mirror_counts_as_unavailable() {
    let home = Home::new();
    let volume = home.published();
    std::fs::create_dir(home.path("empty")).unwrap();
    copy(&home.path("repo"), &home.path("damaged"));
    std::fs::write(home.path("damaged/head"), b"junk").unwrap();
    let good = home.source(&volume, "repo");
    for place in ["nowhere", "empty", "damaged"] {
        home.run(&["verify", &good, "--mirror", place]).ends(0);
        let bad = home.source(&volume, place);
        home.run(&["verify", &bad, "--mirror", "repo"]).ends(0);
        home.run(&["verify", &bad]).ends(30);
    }
}
