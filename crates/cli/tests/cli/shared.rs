//! Shared volumes from the command line: a server and devices as processes of their own.

use crate::shared_lab::{Admission, Orderer, founded, joined};
use crate::support::{Home, noise};

#[test]
fn first_device_puts_and_reads_files() {
    let (_orderer, ada) = founded(&[]);
    let big = noise(7, 3_000_000);
    std::fs::create_dir_all(ada.path("tree/sub")).unwrap();
    std::fs::write(ada.path("tree/sub/big"), &big).unwrap();
    std::fs::write(ada.path("tree/small"), b"hello\n").unwrap();
    std::fs::write(ada.path("tree/empty"), b"").unwrap();
    std::os::unix::fs::symlink("sub/big", ada.path("tree/link")).unwrap();
    let put = ada.run(&["--json", "put", "-r", "tree", "notes"]).ends(0);
    assert_eq!(put.field("files"), 3);
    assert_eq!(put.field("bytes"), 3_000_006);
    let listed = ada.run(&["ls", "-R", "notes"]).ends(0);
    let names = "tree\ntree/empty\ntree/link\ntree/small\ntree/sub\ntree/sub/big\n";
    assert_eq!(listed.out, names);
    assert_eq!(
        ada.run(&["cat", "notes", "tree/small"]).ends(0).out,
        "hello\n"
    );
    let read = ada
        .command(&["cat", "notes", "tree/link"])
        .output()
        .unwrap();
    assert!(read.status.success() && read.stdout == big);
    let shown = ada
        .run(&["--json", "stat", "notes", "tree/sub/big"])
        .ends(0);
    assert_eq!(shown.field("size"), 3_000_000);
    assert_eq!(shown.field("owner"), "everybody");

    let whole = ada.run(&["--json", "verify", "notes"]).ends(0);
    assert_eq!(
        (whole.field("files"), whole.field("bytes")),
        (3.into(), 3_000_006.into())
    );
    ada.run(&["extract", "notes", "copy"]).ends(0);
    ada.run(&["extract", "notes", "copy"]).ends(1);
    let same = std::process::Command::new("diff")
        .args(["-r", "--no-dereference"])
        .args([ada.path("tree"), ada.path("copy/tree")])
        .status();
    assert!(same.unwrap().success());
    ada.run(&["mkdir", "notes", "other", "other/deep"]).ends(0);
    ada.run(&["mv", "notes", "tree/small", "other/deep"])
        .ends(0);
    assert_eq!(
        ada.run(&["cat", "notes", "other/deep/small"]).ends(0).out,
        "hello\n"
    );
    ada.run(&["cat", "notes", "tree/small"]).ends(10);
    ada.run(&["rm", "notes", "tree"]).ends(1);
    let removed = ada.run(&["--json", "rm", "-r", "notes", "tree"]).ends(0);
    assert_eq!(
        (removed.field("files"), removed.field("directories")),
        (3.into(), 2.into())
    );
    assert_eq!(ada.run(&["ls", "notes"]).ends(0).out, "other\n");
}

#[test]
fn rm_removes_a_tree_of_many_names_and_refuses_first_what_it_cannot_remove() {
    let (_orderer, ada) = founded(&[]);
    std::fs::create_dir_all(ada.path("many/a/b/c")).unwrap();
    std::fs::create_dir_all(ada.path("many/empty")).unwrap();
    let write = |name: String| std::fs::write(ada.path(&name), &name).unwrap();
    // More than one page of names.
    (0..1100).for_each(|number| write(format!("many/f{number}")));
    (0..20).for_each(|number| write(format!("many/a/b/c/f{number}")));
    ada.run(&["put", "-r", "many", "notes"]).ends(0);
    assert_eq!(put(&ada, "keep", "kept"), 0);
    for words in [
        &["rm", "-r", "notes", "keep", "."][..],
        &["rm", "notes", "keep", "many"],
    ] {
        ada.run(words).ends(1);
        assert_eq!(
            ada.run(&["cat", "notes", "keep"]).ends(0).out,
            "kept",
            "{words:?}"
        );
    }
    let removed = ada.run(&["--json", "rm", "-r", "notes", "many"]).ends(0);
    assert_eq!(
        (removed.field("files"), removed.field("directories")),
        (1120.into(), 5.into())
    );
    assert_eq!(ada.run(&["ls", "notes"]).ends(0).out, "keep\n");
}

#[test]
fn hole_of_a_file_takes_no_space_where_it_is_extracted() {
    use std::os::unix::fs::MetadataExt;
    let (_orderer, ada) = founded(&[]);
    let len = 40 << 20;
    let sparse = std::fs::File::create(ada.path("sparse")).unwrap();
    std::io::Write::write_all(&mut &sparse, b"begins").unwrap();
    sparse.set_len(len).unwrap();
    ada.run(&["put", "sparse", "notes"]).ends(0);
    let whole = ada.run(&["--json", "verify", "notes"]).ends(0);
    assert_eq!(whole.field("bytes"), len);
    ada.run(&["extract", "notes", "copy"]).ends(0);
    let copy = ada.path("copy/sparse");
    let taken = copy.metadata().unwrap().blocks() * 512;
    assert!(taken < len / 4, "{taken} bytes");
    let same = std::process::Command::new("cmp")
        .args([ada.path("sparse"), copy])
        .status();
    assert!(same.unwrap().success());
}

/// As of published volumes (decision 0081). The limit of the process stands for that of a file system.
#[test]
fn file_that_is_too_long_for_the_file_system_is_left_out_by_extract() {
    let (_orderer, ada) = founded(&[]);
    std::fs::create_dir(ada.path("tree")).unwrap();
    let long = std::fs::File::create(ada.path("tree/long")).unwrap();
    long.set_len(300 << 20).unwrap();
    std::fs::hard_link(ada.path("tree/long"), ada.path("tree/long2")).unwrap();
    std::fs::write(ada.path("tree/short"), "short\n").unwrap();
    ada.run(&["put", "-r", "tree", "notes"]).ends(0);
    let extract = ada.command(&["--json", "extract", "notes", "copy"]);
    let mut limited = std::process::Command::new("bash");
    // 200 MiB. Without the trap, the signal ends the process.
    limited.args(["-c", "trap '' XFSZ; ulimit -f 204800; exec \"$@\"", "-"]);
    limited.arg(extract.get_program()).args(extract.get_args());
    for (name, value) in extract.get_envs() {
        limited.env(name, value.unwrap_or_default());
    }
    limited.current_dir(extract.get_current_dir().unwrap());
    let told = crate::support::Ran::of(limited.output().unwrap()).ends(3);
    let skipped = told.records("skipped");
    assert_eq!(skipped.len(), 2, "{}", told.out);
    let why = skipped[0]["why"].as_str().unwrap();
    assert!(why.contains("takes no file of 314572800 bytes"), "{why}");
    assert_eq!(
        (told.field("files"), told.field("skipped")),
        (1.into(), 2.into())
    );
    let copied = std::fs::read_to_string(ada.path("copy/tree/short")).unwrap();
    assert_eq!(copied, "short\n");
    assert!(!ada.path("copy/tree/long").exists() && !ada.path("copy/tree/long2").exists());
}

#[test]
fn link_in_the_volume_does_not_lead_put_and_rm_elsewhere() {
    let (_orderer, ada) = founded(&[]);
    ada.run(&["mkdir", "notes", "private"]).ends(0);
    assert_eq!(put(&ada, "mine", "mine\n"), 0);
    ada.run(&["mv", "notes", "mine", "private"]).ends(0);
    std::fs::create_dir(ada.path("tree")).unwrap();
    std::fs::write(ada.path("tree/mine"), b"another\n").unwrap();
    std::fs::create_dir(ada.path("shared")).unwrap();
    std::os::unix::fs::symlink("../private", ada.path("shared/tree")).unwrap();
    ada.run(&["put", "-r", "shared", "notes"]).ends(0);
    let led = ada.run(&["put", "-r", "tree", "notes", "shared"]).ends(1);
    assert!(led.err.contains("shared/tree"), "{}", led.err);
    let kept = ada.run(&["cat", "notes", "private/mine"]).ends(0);
    assert_eq!(kept.out, "mine\n");
    // A link on the way, which the user names, is followed.
    ada.run(&["rm", "-r", "notes", "shared"]).ends(0);
    assert_eq!(
        ada.run(&["ls", "-R", "notes"]).ends(0).out,
        "private\nprivate/mine\n"
    );
}

#[test]
fn second_device_is_admitted_by_words_and_writes() {
    let (_orderer, ada) = founded(&[]);
    std::fs::write(ada.path("a"), b"from the first\n").unwrap();
    ada.run(&["put", "a", "notes"]).ends(0);
    let laptop = joined(&ada, "ada");
    assert_eq!(
        laptop.run(&["cat", "notes", "a"]).ends(0).out,
        "from the first\n"
    );
    std::fs::write(laptop.path("b"), b"from the second\n").unwrap();
    laptop.run(&["put", "b", "notes"]).ends(0);
    assert_eq!(
        ada.run(&["cat", "notes", "b"]).ends(0).out,
        "from the second\n"
    );
    let devices = ada
        .run(&["--json", "share", "device", "list", "notes"])
        .ends(0);
    let users: Vec<_> = devices
        .records("device")
        .iter()
        .map(|it| it["user"].clone())
        .collect();
    assert_eq!(users, ["ada", "ada"]);
}

/// Puts a file with this content.
fn put(home: &Home, name: &str, content: &str) -> i32 {
    std::fs::write(home.path(name), content).unwrap();
    home.run(&["put", name, "notes"]).code
}

#[test]
fn reader_may_look_and_not_write() {
    let (_orderer, ada) = founded(&[]);
    assert_eq!(put(&ada, "a", "hello\n"), 0);
    ada.run(&["share", "user", "add", "notes", "bob", "--role", "reader"])
        .ends(0);
    ada.run(&["share", "user", "add", "notes", "bob"]).ends(1);
    let bob = joined(&ada, "bob");
    assert_eq!(bob.run(&["cat", "notes", "a"]).ends(0).out, "hello\n");
    std::fs::write(bob.path("b"), b"x").unwrap();
    for refused in [
        &["put", "b", "notes"][..],
        &["mkdir", "notes", "d"],
        &["rm", "notes", "a"],
        &["share", "user", "add", "notes", "eve"],
        &["share", "invite", "notes"],
    ] {
        let told = bob.run(refused).ends(23);
        assert!(told.err.contains("hint: "), "{}", told.err);
    }
    ada.run(&["share", "grant", "notes", "everybody", "bob", "writer"])
        .ends(0);
    bob.run(&["put", "b", "notes"]).ends(0);
    ada.run(&["share", "revoke", "notes", "everybody", "bob"])
        .ends(0);
    bob.run(&["ls", "notes"]).ends(23);
    let none = ["share", "revoke", "notes", "everybody", "bob"];
    let none = ada.run(&none).ends(10);
    assert!(none.err.contains("no such role"), "{}", none.err);
    let last = ["share", "revoke", "notes", "everybody", "ada"];
    let last = ada.run(&last).ends(1);
    assert!(last.err.contains("make another user"), "{}", last.err);
}

#[test]
fn last_administrator_of_a_group_stays_unless_the_user_says_so() {
    let (_orderer, ada) = founded(&[]);
    for user in ["bob", "eve"] {
        ada.run(&["share", "user", "add", "notes", user]).ends(0);
    }
    ada.run(&["share", "group", "add", "notes", "team"]).ends(0);
    let roles = || ada.run(&["share", "group", "list", "notes"]).ends(0).out;
    let (grant, revoke) = (
        ["share", "grant", "notes", "team"],
        ["share", "revoke", "notes", "team"],
    );
    let grant = |user, role| ada.run(&[&grant[..], &[user, role]].concat());
    let revoke = |user| ada.run(&[&revoke[..], &[user]].concat());
    // The user who makes a group becomes its administrator.
    assert!(revoke("ada").ends(1).err.contains("no administrator"));
    grant("bob", "admin").ends(0);
    revoke("ada").ends(0);
    let before = roles();
    for told in [revoke("bob"), grant("bob", "writer")] {
        let told = told.ends(1);
        assert!(told.err.contains("no administrator"), "{}", told.err);
        assert!(told.err.contains("hint: make another user"), "{}", told.err);
    }
    assert_eq!(roles(), before);
    grant("eve", "admin").ends(0);
    revoke("bob").ends(0);
    let args = ["share", "revoke", "notes", "team", "eve", "--without-admin"];
    ada.run(&args).ends(0);
    // An administrator of the volume can still change its members.
    grant("bob", "admin").ends(0);
}

#[test]
fn removed_device_is_refused_and_what_it_wrote_stays() {
    let (_orderer, ada) = founded(&[]);
    let laptop = joined(&ada, "ada");
    assert_eq!(put(&laptop, "b", "before\n"), 0);
    ada.run(&["share", "device", "remove", "notes", "7"])
        .ends(10);
    // It does not remove itself: the answer would never reach it.
    let own = laptop.run(&["share", "device", "remove", "notes", "1"]);
    assert!(own.ends(2).err.contains("is this device"));
    assert_eq!(put(&laptop, "c", "still there\n"), 0);
    ada.run(&["share", "device", "remove", "notes", "1"])
        .ends(0);
    let told = laptop.run(&["--json", "ls", "notes"]).ends(23);
    assert_eq!(told.field("error")["kind"], "refused");
    assert!(told.err.contains("bulla share forget"), "{}", told.err);
    assert_eq!(ada.run(&["cat", "notes", "b"]).ends(0).out, "before\n");
}

#[test]
fn device_has_a_name_for_people_and_stays_known_by_its_number() {
    let (_orderer, ada) = founded(&[]);
    ada.run(&["share", "user", "add", "notes", "ben"]).ends(0);
    let ben = joined(&ada, "ben");
    let device = |args: &[&str]| ada.run(&[&["share", "device"], args].concat());
    let named = device(&["name", "notes", "1", "laptop", "--json"]).ends(0);
    assert_eq!(
        (named.field("device"), named.field("device_name")),
        (1.into(), "laptop".into())
    );
    assert_eq!(put(&ben, "plan", "by ben\n"), 0);
    let log = ada.run(&["log", "notes", "--max", "2"]).ends(0).out;
    assert!(log.contains("author   ben's laptop, device 1\n"), "{log}");
    assert!(log.contains("author   ada, device 0\n"), "{log}");
    assert!(log.contains("device name 1 laptop"), "{log}");
    let list = device(&["list", "notes"]).ends(0).out;
    assert!(
        list.contains("  ben/laptop\n") && list.contains("  ada  (this"),
        "{list}"
    );
    let status = ben.run(&["share", "status", "notes"]).ends(0).out;
    assert!(
        status.contains("device    1 of ben (laptop) (this device): "),
        "{status}"
    );
    let json = ada.run(&["--json", "share", "status", "notes"]).ends(0);
    let names: Vec<_> = json
        .records("device")
        .iter()
        .map(|it| it["device_name"].clone())
        .collect();
    assert_eq!(names, [serde_json::Value::Null, "laptop".into()]);
    std::fs::write(ada.path("plan"), "by ada\n").unwrap();
    let told = ada.run(&["put", "plan", "notes"]).ends(0);
    assert!(
        told.err.contains("ben's laptop (device 1) changed it"),
        "{}",
        told.err
    );

    // Names that nobody could read, and users who may not give any.
    for wrong in ["", "lap\ntop", "lap\u{200b}top", " laptop", &"x".repeat(65)] {
        device(&["name", "notes", "1", wrong]).ends(2);
    }
    ben.run(&["share", "device", "name", "notes", "1", "desk"])
        .ends(23);
    device(&["name", "notes", "ben/desk", "desk"]).ends(10);

    // The second device gets its name with its admission. It is the same one.
    let second = Home::new();
    let admission = Admission::begin(&ada, &second);
    admission.inviting.end().ends(0);
    let words = [
        "add",
        "notes",
        &admission.words,
        "--user",
        "ben",
        "--device-name",
        "laptop",
    ];
    let added = device(&words).ends(0).out;
    assert!(
        added.starts_with("device 2 of ben (laptop) is admitted"),
        "{added}"
    );
    admission.joining.end().ends(0);
    let both = device(&["remove", "notes", "ben/laptop"]).ends(2);
    assert!(both.err.contains("its number: 1, 2"), "{}", both.err);
    device(&["name", "notes", "2", "desk"]).ends(0);
    let list = second
        .run(&["share", "device", "list", "notes"])
        .ends(0)
        .out;
    assert!(
        list.contains("  ben/laptop\n") && list.contains("  ben/desk  (this"),
        "{list}"
    );
    device(&["remove", "notes", "ben/laptop"]).ends(0);
    ben.run(&["cat", "notes", "plan"]).ends(23);
    second.run(&["cat", "notes", "plan"]).ends(0);
    // Its earlier entries still belong to it.
    let log = ada.run(&["log", "notes", "plan"]).ends(0).out;
    assert!(log.contains("author   ben's laptop, device 1\n"), "{log}");
}

#[test]
fn groups_own_directories_of_their_own() {
    let (_orderer, ada) = founded(&[]);
    ada.run(&["share", "user", "add", "notes", "bob"]).ends(0);
    let bob = joined(&ada, "bob");
    ada.run(&["share", "group", "add", "notes", "family"])
        .ends(0);
    ada.run(&["mkdir", "notes", "private", "--group", "family"])
        .ends(0);
    std::fs::write(ada.path("a"), b"secret\n").unwrap();
    ada.run(&["put", "a", "notes", "private"]).ends(0);
    bob.run(&["cat", "notes", "private/a"]).ends(23);
    ada.run(&["share", "grant", "notes", "family", "bob", "reader"])
        .ends(0);
    assert_eq!(
        bob.run(&["cat", "notes", "private/a"]).ends(0).out,
        "secret\n"
    );
    let groups = ada
        .run(&["--json", "share", "group", "list", "notes"])
        .ends(0);
    let names: Vec<_> = groups
        .records("group")
        .iter()
        .map(|it| it["group"].clone())
        .collect();
    assert_eq!(names, ["everybody", "family"]);
    ada.run(&["share", "group", "remove", "notes", "everybody"])
        .ends(1);
}

#[test]
fn wrong_words_admit_nobody() {
    let (_orderer, ada) = founded(&[]);
    let laptop = Home::new();
    let none = "abandon abandon abandon abandon abandon abandon";
    ada.run(&["share", "device", "add", "notes", none, "--user", "ada"])
        .ends(10);
    let admission = Admission::begin(&ada, &laptop);
    admission.inviting.end().ends(0);
    for wrong in [
        none,
        "five words are not enough",
        "no such word in the list",
    ] {
        ada.run(&["share", "device", "add", "notes", wrong, "--user", "ada"])
            .ends(20);
    }
    let words = &admission.words;
    ada.run(&["share", "device", "add", "notes", words, "--user", "eve"])
        .ends(10);
    let listed = ada
        .run(&["--json", "share", "device", "list", "notes"])
        .ends(0);
    assert_eq!(listed.field("devices"), 1);
    let said = words.to_uppercase().replace(' ', "-");
    ada.run(&["share", "device", "add", "notes", &said, "--user", "ada"])
        .ends(0);
    admission.joining.end().ends(0);
    ada.run(&["share", "device", "add", "notes", words, "--user", "ada"])
        .ends(10);
}

#[test]
fn mistyped_invitation_asks_nobody() {
    let home = Home::new();
    let (mut orderer, ada) = founded(&[]);
    let invite = ["--json", "share", "invite", "notes", "--wait", "2s"];
    let mut inviting = crate::shared_lab::Talk::begin(&mut ada.command(&invite));
    let line = inviting.record("invitation", "line");
    inviting.end().ends(30);
    let mut mistyped = line.clone();
    let last = if mistyped.pop() == Some('q') {
        'p'
    } else {
        'q'
    };
    mistyped.push(last);
    for wrong in [mistyped.as_str(), &line[..line.len() - 1], "inv1", ""] {
        home.run(&["share", "join", wrong]).ends(2);
    }
    assert!(!home.path(".local/state/bulla/shared").exists());
    // The inviter has stopped waiting.
    home.run(&["share", "join", &line, "--wait", "1s"]).ends(30);
    orderer.kill();
    home.run(&["share", "join", &line, "--wait", "1s"]).ends(30);
    home.run(&["share", "status", "notes"]).ends(10);
}

#[test]
fn names_and_paths_that_do_not_fit_are_refused() {
    let (mut orderer, ada) = founded(&[]);
    std::fs::write(ada.path("notes"), b"x").unwrap();
    std::fs::create_dir(ada.path("dir")).unwrap();
    ada.run(&["put", "notes", "notes"]).ends(0);
    let both = ada.run(&["put", "x", "notes", "notes"]).ends(2);
    assert!(both.err.contains("/notes"), "{}", both.err);
    ada.run(&["put", "notes", "nothing"]).ends(2);
    ada.run(&["put", "notes", "elsewhere", "path"]).ends(10);
    ada.run(&["put", "missing", "notes"]).ends(10);
    ada.run(&["put", "dir", "notes"]).ends(1);
    ada.run(&["put", "notes", "dir", "notes", "nowhere"])
        .ends(10);
    ada.run(&["put", "notes", "notes", "a/../b"]).ends(2);
    ada.run(&["mkdir", "notes", "notes"]).ends(1);
    ada.run(&["mkdir", "notes", "a/b"]).ends(10);
    ada.run(&["mkdir", "-p", "notes", "a/b", "a/b"]).ends(0);
    ada.run(&["mv", "notes", "a", "a/b"]).ends(1);
    ada.run(&["mv", "notes", "", "a"]).ends(1);
    ada.run(&["ls", "unknown"]).ends(2);
    ada.run(&["ls", "notes", "--mirror", "x"]).ends(2);
    ada.run(&["log", "notes", "--mirror", "x"]).ends(2);
    ada.run(&["share", "status", "unknown"]).ends(10);
    orderer.kill();
    let late = ada
        .run(&["--json", "ls", "notes", "--deadline", "1s"])
        .ends(30);
    assert_eq!(late.field("error")["kind"], "unavailable");
}

#[test]
fn server_needs_its_key_and_the_right_genesis() {
    let (mut orderer, ada) = founded(&[]);
    orderer.kill();
    let server = &orderer.home;
    server.run(&["serve", "repo"]).ends(2);
    server
        .run(&["orderer", "new", "--out", "other", "--no-passphrase"])
        .ends(0);
    server
        .run(&["serve", "repo", "--orderer-key", "other"])
        .ends(12);
    let genesis = ada.path("genesis");
    let genesis = genesis.to_str().unwrap();
    server
        .run(&[
            "serve",
            "new",
            "--orderer-key",
            "other",
            "--accept",
            genesis,
        ])
        .ends(12);
    std::fs::write(server.path("junk"), b"junk").unwrap();
    server
        .run(&["serve", "new", "--orderer-key", "key", "--accept", "junk"])
        .ends(20);
    server
        .run(&[
            "serve",
            "new",
            "--orderer-key",
            "key",
            "--accept",
            "missing",
        ])
        .ends(10);
    server.run(&["serve", "new", "--accept", genesis]).ends(2);
    std::fs::create_dir_all(server.path("full/of")).unwrap();
    server
        .run(&["serve", "full", "--orderer-key", "key", "--accept", genesis])
        .ends(1);
    // Accepting it again changes nothing.
    assert_eq!(orderer_again(&mut orderer, genesis, &ada), 0);
    let address = orderer.address();
    orderer
        .home
        .run(&[
            "serve",
            "repo",
            "--orderer-key",
            "key",
            "--shared",
            &address,
        ])
        .ends(11);
}

fn orderer_again(orderer: &mut Orderer, genesis: &str, ada: &Home) -> i32 {
    orderer.start_with(&["--accept", genesis]);
    put(ada, "again", "x")
}
