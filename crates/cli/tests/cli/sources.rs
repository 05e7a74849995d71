//! Names of sources: `bulla source`, and the commands, mounts and completions that use the names.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::{Home, Mounted, Ran, copy, skipped};

/// The words of a volume id.
fn words(home: &Home, volume: &str) -> String {
    let shown = home.run(&["--json", "source", "show", volume]).ends(0);
    shown.field("words").as_str().unwrap().to_owned()
}

#[test]
fn name_stands_for_a_source_with_its_mirrors() {
    let home = Home::new();
    let volume = home.published();
    copy(&home.path("repo"), &home.path("mirror"));
    let gone = home.source(&volume, "gone");
    // A relative mirror means the same wherever the name is used.
    home.run(&["source", "add", "docs", &gone, "--mirror", "mirror"])
        .ends(0);
    fs::create_dir(home.path("elsewhere")).unwrap();
    let mut elsewhere = home.command(&["cat", "docs", "a"]);
    let read = elsewhere.current_dir(home.path("elsewhere")).output();
    assert_eq!(Ran::of(read.unwrap()).ends(0).out, "hello\n");
    home.run(&["pull", "docs", "replica"]).ends(0);
    home.run(&["fork", "show", "docs"]).ends(0);

    let listed = home.run(&["--json", "source", "list"]).ends(0);
    let record = &listed.records("source")[0];
    assert_eq!(record["name"], "docs");
    assert_eq!(record["volume"], volume.as_str());
    let mirror = home.path("mirror").display().to_string();
    assert_eq!(record["mirrors"], serde_json::json!([mirror]));
    let shown = home.run(&["source", "show", "docs"]).ends(0).out;
    assert!(
        shown.contains(&volume) && shown.contains(&mirror),
        "{shown}"
    );

    let again = ["source", "add", "docs", &home.source(&volume, "repo")];
    let refused = home.run(&again).ends(1);
    assert!(refused.err.contains("--replace"), "{}", refused.err);
    home.run(&[&again[..], &["--replace"]].concat()).ends(0);
    let listed = home.run(&["source", "list"]).ends(0).out;
    assert!(!listed.contains("mirror"), "{listed}");

    home.run(&["source", "remove", "docs"]).ends(0);
    home.run(&["source", "remove", "docs"]).ends(10);
    home.run(&["source", "show", "docs"]).ends(10);
    home.run(&["cat", "docs", "a"]).ends(2);
}

#[test]
fn files_that_people_wrote_are_not_touched() {
    let home = Home::new();
    let volume = home.published();
    let source = home.source(&volume, "repo");
    let file = home.path(".config/bulla/config.toml");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    let text = format!("# mine\n[sources.hand] # by hand\nsource = \"{source}\"\n");
    fs::write(&file, &text).unwrap();
    for refused in [
        &["source", "add", "hand", &source][..],
        &["source", "add", "hand", &source, "--replace"],
        &["source", "remove", "hand"],
    ] {
        let refused = home.run(refused).ends(2);
        assert!(refused.err.contains("config.toml"), "{}", refused.err);
    }
    home.run(&["source", "add", "other", &source]).ends(0);
    home.run(&["ls", "hand"]).ends(0);
    home.run(&["ls", "other"]).ends(0);
    home.run(&["source", "remove", "other"]).ends(0);
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
    for bad in ["a/b", "..", "vol 1", volume.as_str()] {
        home.run(&["source", "add", bad, &source]).ends(2);
    }
    // With another file, names are kept beside that one.
    fs::create_dir(home.path("team")).unwrap();
    fs::write(home.path("team/bulla.toml"), "").unwrap();
    let team = ["--config", "team/bulla.toml"];
    home.run(&[&team[..], &["source", "add", "docs", &source]].concat())
        .ends(0);
    assert!(home.path("team/sources/docs.toml").is_file());
    home.run(&[&team[..], &["ls", "docs"]].concat()).ends(0);
    home.run(&["ls", "docs"]).ends(2);
}

#[test]
fn pins_of_a_name_are_kept_by_every_command() {
    let home = Home::new();
    let volume = home.published();
    let source = home.source(&volume, "repo");
    let log = home.run(&["--json", "log", &source]).ends(0);
    let entries = log.records("entry");
    let entry = |what| entries.iter().find(|it| it["what"] == what).unwrap();
    let record = entry("version")["record"].as_str().unwrap();
    let policy = entry("policy")["policy"].as_str().unwrap();
    let pin = format!("pinned=1:{record}");
    fs::write(home.path("tree/new"), "new").unwrap();
    home.publish().ends(0);
    home.run(&["source", "add", "first", &source, "--freshness", &pin])
        .ends(0);
    home.run(&["cat", "first", "new"]).ends(10);
    home.run(&["cat", "first", "new", "--freshness", "strict"])
        .ends(0);

    home.run(&["source", "add", "own", &source, "--policy", policy])
        .ends(0);
    home.run(&["cat", "own", "new"]).ends(0);
    home.run(&["pull", "own", "replica"]).ends(0);
    let other = Home::new();
    let stranger = other.published();
    let log = other.run(&["--json", "log", &other.source(&stranger, "repo")]);
    let foreign = log.ends(0).records("entry");
    let foreign = foreign.iter().find(|it| it["what"] == "policy").unwrap();
    let foreign = foreign["policy"].as_str().unwrap().to_owned();
    home.run(&["source", "add", "strange", &source, "--policy", &foreign])
        .ends(0);
    for args in [
        &["cat", "strange", "new"][..],
        &["log", "strange"],
        &["pull", "strange", "other"],
        &["cat", &source, "new", "--policy", &foreign],
        &["cat", "first", "a", "--policy", &foreign],
    ] {
        let refused = home.run(args).ends(30);
        assert!(
            refused.err.contains("pinned policy"),
            "{args:?}: {}",
            refused.err
        );
    }
    for bad in ["pol1x", &volume] {
        home.run(&["source", "add", "bad", &source, "--policy", bad])
            .ends(2);
    }
}

#[test]
fn words_of_another_volume_id_add_nothing() {
    let home = Home::new();
    let volume = home.published();
    let source = home.source(&volume, "repo");
    let said = words(&home, &volume);
    assert_eq!(said.split(' ').count(), 6, "{said}");
    let other = Home::new();
    let stranger = words(&other, &other.published());
    let add = |words: &str| home.run(&["source", "add", "docs", &source, "--words", words]);
    let refused = add(&stranger).ends(20);
    assert!(refused.err.contains(&said), "{}", refused.err);
    home.run(&["source", "show", "docs"]).ends(10);
    add("zoo zoo").ends(2);
    let typed = said.to_uppercase().replace(' ', "-");
    let added = add(&typed).ends(0);
    assert!(added.out.contains(&said), "{}", added.out);
    assert_eq!(words(&home, "docs"), said);
    assert_eq!(words(&home, &source), said);
}

#[test]
fn mount_and_status_say_the_name() {
    if !Path::new("/dev/fuse").exists() {
        return skipped("names of mounts", "there is no /dev/fuse");
    }
    let home = Home::new();
    let volume = home.published();
    home.run(&["source", "add", "docs", &home.source(&volume, "repo")])
        .ends(0);
    fs::create_dir(home.path("mnt")).unwrap();
    let _mounted = Mounted {
        home: &home,
        dir: "mnt",
    };
    let mounted = home.run(&["mount", "docs", "mnt"]).ends(0);
    assert!(mounted.err.contains("of docs"), "{}", mounted.err);
    let status = home.run(&["status"]).ends(0).out;
    assert!(status.contains(&format!("docs ({volume})")), "{status}");
    home.run(&["source", "add", "b", &home.source(&volume, "repo")])
        .ends(0);
    let status = home.run(&["--json", "status"]).ends(0);
    let names = &status.records("mount")[0]["names"];
    assert_eq!(*names, serde_json::json!(["b", "docs"]));
}

#[test]
fn bash_completes_names() {
    if !Path::new("/bin/bash").exists() {
        return skipped("completions of names", "bash is not installed");
    }
    let home = Home::new();
    let volume = home.published();
    for name in ["docs", "data"] {
        home.run(&["source", "add", name, &home.source(&volume, "repo")])
            .ends(0);
    }
    let script = home.run(&["completions", "bash"]).ends(0).out;
    fs::write(home.path("script"), script).unwrap();
    let complete = |words: &[&str]| {
        let mut bash = Command::new("/bin/bash");
        let program = env!("CARGO_BIN_EXE_bulla");
        let of = home.command(&[] as &[&str]);
        bash.envs(of.get_envs().filter_map(|(k, v)| Some((k, v?))))
            .current_dir(home.path(""))
            .args(["-c", COMPLETE, "bash", program])
            .args(words);
        let shown = Ran::of(bash.output().unwrap());
        assert_eq!(shown.code, 0, "{}", shown.err);
        shown.out.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(complete(&["ls", "do"]), ["docs"]);
    let all = complete(&["fork", "show", ""]);
    assert!(all.contains(&"data".to_owned()) && all.contains(&"docs".to_owned()));
    let none = complete(&["publish", "do"]);
    assert!(!none.contains(&"docs".to_owned()), "{none:?}");
}

/// Completes the last of the words after the program.
const COMPLETE: &str = r#"
source ./script 2>/dev/null
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_bulla_with_names "$1" "${!#}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%s\n' "${COMPREPLY[@]}"
"#;
