//! A refused publication leaves nothing behind: no incomplete repository that the next one would publish or
//! continue with.

use std::fs;

use crate::support::Home;

#[test]
fn repository_inside_the_tree_is_not_created() {
    let home = Home::new();
    let tree = home.path("tree");
    home.published();
    let publish = ["publish", "tree", "tree/sub/new/repo", "--key", "key"];
    let refused = home.run(&publish).ends(2);
    assert!(refused.err.contains("lies in the tree"), "{}", refused.err);
    assert!(!tree.join("sub/new").exists());
    // An existing directory stays, and stays empty.
    fs::create_dir(tree.join("sub/mine")).unwrap();
    home.run(&["publish", "tree", "tree/sub/mine", "--key", "key"])
        .ends(2);
    assert_eq!(fs::read_dir(tree.join("sub/mine")).unwrap().count(), 0);
    // The other solution of the hint works.
    let exclude = [&publish[..], &["--exclude", "/sub/new/"]].concat();
    home.run(&exclude).ends(0);
    // A refusal does not remove a volume that was published there.
    home.run(&publish).ends(2);
    assert!(tree.join("sub/new/repo/head").exists());
}

#[test]
fn new_volume_without_a_publisher_makes_no_repository() {
    let home = Home::new();
    fs::create_dir(home.path("tree")).unwrap();
    let unsigned = ["publish", "tree", "repo", "--unsigned", "--out", "request"];
    let refused = home.run(&unsigned).ends(2);
    assert!(refused.err.contains("whose it will be"), "{}", refused.err);
    assert!(!home.path("repo").exists());
    assert!(!home.path("request").exists());
}

#[test]
fn invalid_name_leaves_no_repository() {
    let home = Home::new();
    home.run(&["key", "new", "--out", "key", "--no-passphrase"])
        .ends(0);
    fs::create_dir(home.path("tree")).unwrap();
    let wrong = [
        "publish", "tree", "repo", "--key", "key", "--name", "a\u{7}b",
    ];
    home.run(&wrong).ends(1);
    assert!(!home.path("repo").exists());
}
