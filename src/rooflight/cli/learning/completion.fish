function __rooflight_candidates
    set -l typed (commandline -opc) (commandline -ct)
    rooflight --complete-words $typed[2..-1] 2>/dev/null
end
complete -c rooflight -f -a '(__rooflight_candidates)'
complete -c rooflight -l plot -r -F
complete -c rooflight -l trace -r -F
# to use it: rooflight completion fish | source, for instance in ~/.config/fish/config.fish
