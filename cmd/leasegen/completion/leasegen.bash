# Completion of leasegen for bash: source this, or put it where bash-completion looks.
# shellcheck shell=bash
_leasegen() {
	local line=${COMP_LINE:0:COMP_POINT} words=() word i candidate prefix
	# bash has cut the words at = and : as well: those without a blank between belong together.
	for ((i = 0; i <= COMP_CWORD; i++)); do
		word=${COMP_WORDS[i]}
		if [[ $line == [[:blank:]]* || i -eq 0 ]]; then
			line=${line#"${line%%[![:blank:]]*}"}
			words+=('')
		fi
		[[ i -eq COMP_CWORD ]] && word=$line
		line=${line#"$word"}
		words[${#words[@]} - 1]+=${word//[\"\'\\]/}
	done
	word=${words[${#words[@]} - 1]}
	# What bash replaces begins behind the last of those characters.
	prefix=''
	[[ $COMP_WORDBREAKS == *=* && $word == *=* ]] && prefix=${word%=*}=
	COMPREPLY=()
	while IFS= read -r candidate; do
		if [[ $candidate == :directories ]]; then
			compopt -o filenames
			while IFS= read -r candidate; do COMPREPLY+=("$candidate"); done < <(compgen -d -- "$word")
			continue
		fi
		candidate=${candidate%%$'\t'*}
		COMPREPLY+=("${candidate#"$prefix"}")
	done < <("${words[0]}" __complete "${words[@]:1}" 2>/dev/null)
}
complete -F _leasegen leasegen
