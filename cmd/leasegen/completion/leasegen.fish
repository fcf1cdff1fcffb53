# Completion of leasegen for fish: source this, or put it into ~/.config/fish/completions.
function __leasegen_complete
    set -l words (commandline -opc)
    set -l word (commandline -ct)
    for candidate in ($words[1] __complete $words[2..-1] "$word" 2>/dev/null)
        if test "$candidate" = :directories
            __fish_complete_directories "$word"
        else
            echo $candidate
        end
    end
end
complete -c leasegen -f -k -a '(__leasegen_complete)'
