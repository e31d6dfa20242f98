_rooflight() {
    local line="${COMP_LINE:0:COMP_POINT}" candidate
    local -a typed
    read -ra typed <<<"$line"
    [[ $line == *[[:space:]] ]] && typed+=("")
    local word="${typed[-1]}"
    local before="${word%"${word##*[:=]}"}"
    COMPREPLY=()
    while IFS= read -r candidate; do
        [[ -n $candidate ]] && COMPREPLY+=("${candidate#"$before"}")
    done < <(rooflight --complete-words "${typed[@]:1}" 2>/dev/null)
}
complete -o default -F _rooflight rooflight
# to use it: eval "$(rooflight completion bash)", for instance in ~/.bashrc
