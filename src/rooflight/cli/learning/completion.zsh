#compdef rooflight
_rooflight() {
    local -a candidates
    candidates=(${(f)"$(rooflight --complete-words "${(@)words[2,CURRENT]}" 2>/dev/null)"})
    if (( $#candidates )); then
        compadd -a candidates
    else
        _files
    fi
}
compdef _rooflight rooflight
# to use it: eval "$(rooflight completion zsh)" after compinit, for instance in ~/.zshrc
