//! The completions of the shells: each asks `cenote complete`.

/// The tools that have completions of their own names.
pub const NAMES: [&str; 6] = ["cenote", "zpool", "zfs", "zdb", "zstream", "zinject"];

/// bash. Words are taken from the line itself, since bash divides names at `@`, `=` and `:`; what stands before the
/// last of these is not part of what it replaces.
const BASH: &str = r#"_cenote() {
    local line=${COMP_LINE:0:COMP_POINT} words current head word i
    COMPREPLY=()
    read -r -a words <<<"$line"
    [[ $line != *[[:space:]] ]] || words+=("")
    current=${words[${#words[@]} - 1]}
    head=
    for ((i = ${#current}; i > 0; i--)); do
        if [[ $COMP_WORDBREAKS == *"${current:i-1:1}"* ]]; then
            head=${current:0:i}
            break
        fi
    done
    while IFS=$'\t' read -r word _; do
        case $word in
            :files) compopt -o filenames 2>/dev/null; mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -f -- "$current") ;;
            :directories) compopt -o filenames 2>/dev/null; mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -d -- "$current") ;;
            *[=@/]) compopt -o nospace 2>/dev/null; COMPREPLY+=("${word#"$head"}") ;;
            ?*) COMPREPLY+=("${word#"$head"}") ;;
        esac
    done < <(command cenote complete -- "${words[@]}" 2>/dev/null </dev/null)
}
"#;

const ZSH: &str = r#"_cenote_words() {
    local line word about
    local -a plain open texts_plain texts_open
    while IFS=$'\t' read -r word about; do
        case $word in
            :files) _files ;;
            :directories) _files -/ ;;
            *[=@/]) open+=("$word"); texts_open+=("$word${about:+  -- $about}") ;;
            ?*) plain+=("$word"); texts_plain+=("$word${about:+  -- $about}") ;;
        esac
    done < <(command cenote complete -- "${(@)words[1,CURRENT]}" 2>/dev/null </dev/null)
    (( ${#plain} )) && compadd -l -d texts_plain -a plain
    (( ${#open} )) && compadd -S '' -l -d texts_open -a open
    return 0
}
_cenote_words
"#;

const FISH: &str = r#"function __cenote_complete
    set -l current (commandline -ct)
    command cenote complete -- (commandline -opc) "$current" 2>/dev/null </dev/null | while read -l line
        switch $line
            case :files
                __fish_complete_path "$current"
            case :directories
                __fish_complete_directories "$current"
            case '*'
                printf '%s\n' $line
        end
    end
end
"#;

/// The completion of `name` for a shell: its file's name, and what is in it.
pub fn script(shell: &str, name: &str) -> (String, String) {
    match shell {
        "bash" => (format!("{name}.bash"), format!("{BASH}complete -F _cenote {name}\n")),
        "zsh" => (format!("_{name}"), format!("#compdef {name}\n{ZSH}")),
        _ => (
            format!("{name}.fish"),
            format!("{FISH}complete -c {name} -f -a '(__cenote_complete)'\n"),
        ),
    }
}
