//! `bulla completions SHELL`: the script that clap generates, and what it cannot know: the names of sources. The scripts ask
//! `bulla source list` for them, so a new name can be completed at once.

use clap::CommandFactory;
use clap_complete::Shell;

use super::manual::document;
use crate::args::{Cli, Completions};
use crate::failure::Outcome;
use crate::output::{Done, Output};

/// Prints completions for a shell.
pub fn completions(args: &Completions, output: &mut Output) -> Outcome<Done> {
    document(output, "completions", script(args.shell).as_bytes())
}

fn script(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "bulla", &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    match shell {
        Shell::Bash => bash(script),
        Shell::Zsh => zsh(&script),
        Shell::Fish => fish(script),
        _ => script,
    }
}

/// The commands with an argument that can be the name of a source, as `ls` or `fork show`.
fn with_names() -> Vec<String> {
    let mut root = Cli::command();
    root.build();
    let mut found = Vec::new();
    for command in root.get_subcommands() {
        if takes_name(command) {
            found.push(command.get_name().to_owned());
        }
        for below in command.get_subcommands().filter(|it| takes_name(it)) {
            found.push(format!("{} {}", command.get_name(), below.get_name()));
        }
    }
    found
}

fn takes_name(command: &clap::Command) -> bool {
    let names = command.get_positionals().any(|arg| {
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        help.contains(NAME) || help.starts_with(ONLY_NAME)
    });
    names && command.get_name() != "add"
}

/// What the help of an argument says if it can be the name of a source.
const NAME: &str = "a name from the configuration";
/// What it says in the commands about names themselves.
const ONLY_NAME: &str = "A name, a volume id";

fn bash(script: String) -> String {
    let cases: Vec<String> = with_names()
        .iter()
        .map(|command| match command.contains(' ') {
            true => format!("\"{command}\""),
            false => format!("\"{command} \"*"),
        })
        .collect();
    let own = format!(
        r#"
# Names of sources, in the commands that take one.
_bulla_with_names() {{
    _bulla "$@"
    local cur="${{COMP_WORDS[COMP_CWORD]}}"
    if [[ ${{cur}} == -* || ${{COMP_CWORD}} -lt 2 ]] ; then
        return 0
    fi
    case "${{COMP_WORDS[1]}} ${{COMP_WORDS[2]}}" in
        {})
            COMPREPLY+=($(compgen -W "$("${{COMP_WORDS[0]}}" source list 2>/dev/null | sed 's/ .*//')" -- "${{cur}}"))
            ;;
    esac
}}
"#,
        cases.join("|")
    );
    match script.find("\nif [[ \"${BASH_VERSINFO[0]}\"") {
        Some(at) => {
            let (functions, register) = script.split_at(at);
            let register = register.replace("-F _bulla ", "-F _bulla_with_names ");
            format!("{functions}{own}{register}")
        }
        None => script,
    }
}

fn zsh(script: &str) -> String {
    let own = r#"
# Names of sources, and files.
_bulla_sources() {
    local -a names
    names=(${(f)"$(_call_program sources bulla source list 2>/dev/null)"})
    names=(${names%% *})
    compadd -a names
    _default
}

_bulla() {
"#;
    let lines = script.lines().map(|line| {
        match (line.contains(NAME) || line.contains(ONLY_NAME)) && line.contains(":_default'") {
            true => line.replace(":_default'", ":_bulla_sources'"),
            false => line.to_owned(),
        }
    });
    let script: Vec<String> = lines.collect();
    format!("{}\n", script.join("\n")).replacen("\n_bulla() {\n", own, 1)
}

fn fish(mut script: String) -> String {
    let mut commands: Vec<String> = with_names();
    for command in &mut commands {
        command.truncate(command.find(' ').unwrap_or(command.len()));
    }
    commands.dedup();
    script.push_str(&format!(
        "# Names of sources, in the commands that take one.\n\
         complete -c bulla -n \"__fish_bulla_using_subcommand {}\" -d 'named source' \
         -a \"(bulla source list 2>/dev/null | string replace -r ' .*' '')\"\n",
        commands.join(" ")
    ));
    script
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_that_read_a_source_complete_names() {
        let commands = with_names();
        for command in [
            "ls",
            "cat",
            "mount",
            "pull",
            "verify",
            "fork show",
            "source show",
        ] {
            assert!(
                commands.iter().any(|it| it == command),
                "{command}: {commands:?}"
            );
        }
        for command in ["publish", "umount", "key show", "source add"] {
            assert!(
                !commands.iter().any(|it| it == command),
                "{command}: {commands:?}"
            );
        }
        assert!(script(Shell::Bash).contains("-F _bulla_with_names "));
        let zsh = script(Shell::Zsh);
        assert!(zsh.matches(":_bulla_sources'").count() >= commands.len());
        assert!(zsh.contains("\n_bulla_sources() {\n"));
        let fish = script(Shell::Fish);
        let last = fish.lines().last().unwrap_or_default();
        assert!(
            last.contains(" ls ") && last.contains("bulla source list"),
            "{last}"
        );
    }
}
