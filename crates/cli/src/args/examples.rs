//! Examples of the main commands, at the end of their help and of their pages of the manual. A test parses each.

/// A command, and its examples: what one does, and the command line.
type Examples = (&'static str, &'static [(&'static str, &'static str)]);

const ALL: [Examples; 12] = [
    (
        "key new",
        &[
            (
                "Make the key of a publisher; its passphrase is asked for",
                "bulla key new --out site.key",
            ),
            (
                "For a machine that publishes by itself",
                "bulla key new --out site.key --no-passphrase",
            ),
        ],
    ),
    (
        "publish",
        &[
            (
                "The next version of a directory, or a new volume",
                "bulla publish site /srv/site --key site.key",
            ),
            (
                "With a name, for 30 days, without some files",
                "bulla publish site /srv/site --key site.key --tag v2 --valid 30d --exclude '*.tmp'",
            ),
            (
                "From a tar archive",
                "bulla publish - /srv/site --key site.key",
            ),
        ],
    ),
    (
        "renew",
        &[
            ("For another week", "bulla renew /srv/site --key site.key"),
            (
                "From cron, beside a pull or a publish that may be under way",
                "bulla renew /srv/site --key site.key --wait 10m",
            ),
        ],
    ),
    (
        "serve",
        &[
            ("To readers on this machine", "bulla serve /srv/site"),
            (
                "To the network, also by HTTP, with metrics",
                "bulla serve /srv/site --listen 0.0.0.0:28552 --http 0.0.0.0:8080 --metrics 127.0.0.1:9100",
            ),
        ],
    ),
    (
        "pull",
        &[
            (
                "Make a replica, or bring it up to date",
                "bulla pull vol1ID@bulla://docs.example.org /srv/copy",
            ),
            (
                "At most 2 MB per second, and keep three versions",
                "bulla pull docs /srv/copy --bwlimit 2MB --keep 3",
            ),
        ],
    ),
    (
        "mount",
        &[
            (
                "Mount a volume, with a second location and a cache on disk",
                "bulla mount vol1ID@bulla://docs.example.org /mnt/docs --mirror https://m.example.org/docs --cache /var/cache/docs",
            ),
            (
                "A version by its name, for good",
                "bulla mount docs /mnt/docs --at v2",
            ),
            ("Unmount it", "bulla umount /mnt/docs"),
        ],
    ),
    (
        "ls",
        &[
            (
                "The root directory, with sizes and times",
                "bulla ls -l vol1ID@bulla://docs.example.org",
            ),
            (
                "Everything below a directory, in a version",
                "bulla ls -R docs guide --at 7",
            ),
        ],
    ),
    (
        "cat",
        &[
            (
                "A file of a volume that a web server has",
                "bulla cat vol1ID@https://docs.example.org/docs index.html",
            ),
            (
                "As it was in a version",
                "bulla cat docs index.html --at v2",
            ),
        ],
    ),
    (
        "extract",
        &[
            (
                "Copy a volume into a directory",
                "bulla extract vol1ID@bulla://docs.example.org copy",
            ),
            ("A version, by its number", "bulla extract docs copy --at 7"),
        ],
    ),
    (
        "verify",
        &[
            (
                "Read and verify every block",
                "bulla verify vol1ID@bulla://docs.example.org",
            ),
            (
                "A directory of it, in a replica on this machine",
                "bulla verify vol1ID@/srv/copy guide",
            ),
            (
                "The directory of a stopped server of a shared volume; mend it from a backup",
                "bulla verify /srv/notes --repair --from /backup/notes",
            ),
        ],
    ),
    (
        "status",
        &[
            ("All mounts of this user", "bulla status"),
            ("One of them, for a script", "bulla --json status /mnt/docs"),
        ],
    ),
    (
        "put",
        &[
            (
                "A file into the root directory of a shared volume",
                "bulla put report.pdf notes",
            ),
            (
                "A directory with all that is in it",
                "bulla put -r photos notes trips",
            ),
            (
                "Replace a file only if nobody has changed it since entry 120",
                "bulla put plan notes trips --expect 120",
            ),
        ],
    ),
];

/// The examples of a command, as its help shows them. Lines with spaces before them stay as they are in a manual.
pub fn of(command: &str) -> String {
    let mut text = "Examples:".to_owned();
    for (_, examples) in ALL.iter().filter(|(name, _)| *name == command) {
        for (what, line) in *examples {
            text.push_str(&format!("\n  {what}:\n    {}", wrapped(line)));
        }
    }
    text
}

/// A command line over several lines, as a shell takes it, where it is long.
fn wrapped(line: &str) -> String {
    const WIDTH: usize = 90;
    let (mut out, mut column) = (String::new(), 0);
    for word in line.split(' ') {
        if column > 0 && column + word.len() > WIDTH {
            out.push_str(" \\\n      ");
            column = 2;
        } else if column > 0 {
            out.push(' ');
        }
        out.push_str(word);
        column += word.len() + 1;
    }
    out
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;
    use crate::args::Cli;

    #[test]
    fn examples_are_valid_command_lines_and_stand_in_the_help_of_their_command() {
        for (name, examples) in ALL {
            let mut command = Cli::command();
            command.build();
            for part in name.split(' ') {
                command = command.find_subcommand(part).unwrap().clone();
            }
            for help in [command.render_help(), command.render_long_help()] {
                let help = help.to_string();
                for (what, line) in examples {
                    assert!(help.contains(what), "{name}: {what}");
                    let plain = help.replace(" \\\n      ", " ");
                    assert!(plain.contains(line), "{name}: {line}\n{help}");
                }
            }
            let mut own = 0;
            for (_, line) in examples {
                let words: Vec<&str> = line.split(' ').collect();
                Cli::try_parse_from(&words).unwrap_or_else(|e| panic!("{line}: {e}"));
                own += usize::from(line.contains(name));
            }
            assert!(own > 0, "{name}");
        }
    }
}
