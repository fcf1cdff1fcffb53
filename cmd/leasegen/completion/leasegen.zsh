#compdef leasegen
# Completion of leasegen for zsh: a file _leasegen in a directory of $fpath, or sourced after compinit.
_leasegen() {
	local line before
	local -a typed candidates
	typed=("${(@Q)words[2,CURRENT-1]}")
	for line in "${(@f)$("${(Q)words[1]}" __complete "${typed[@]}" "${(Q)PREFIX}" 2>/dev/null)}"; do
		case $line in
		'') ;;
		:directories) _path_files -/ ;;
		*$'\t'*) candidates+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}") ;;
		*) candidates+=("${line//:/\\:}") ;;
		esac
	done
	(( ${#candidates} )) && _describe -V leasegen candidates
}
if [[ $funcstack[1] == _leasegen ]]; then
	_leasegen "$@"
else
	compdef _leasegen leasegen
fi
