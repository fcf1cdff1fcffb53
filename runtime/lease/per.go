package lease

import "strings"

// Per says what has exactly one owner.
type Per int

const (
	// PerTopic gives each topic that matches the consumer's patterns its own lease.
	PerTopic Per = iota + 1
	// PerGroup gives the whole consumer one lease: one drainer, total order, hot standbys.
	PerGroup
	// PerCluster gives the consumer one lease and no messages: a singleton.
	PerCluster
)

// String returns the word used in annotations.
func (p Per) String() string {
	switch p {
	case PerTopic:
		return "topic"
	case PerGroup:
		return "group"
	case PerCluster:
		return "cluster"
	}
	return "unknown"
}

// MatchTopic reports whether topic matches any of the patterns. In a pattern,
// * stands for any run of characters, dots and slashes included; everything
// else stands for itself.
func MatchTopic(patterns []string, topic string) bool {
	for _, p := range patterns {
		if matchOne(p, topic) {
			return true
		}
	}
	return false
}

func matchOne(pattern, s string) bool {
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return pattern == s
	}
	if !strings.HasPrefix(s, parts[0]) {
		return false
	}
	s = s[len(parts[0]):]
	last := parts[len(parts)-1]
	for _, part := range parts[1 : len(parts)-1] {
		i := strings.Index(s, part)
		if i < 0 {
			return false
		}
		s = s[i+len(part):]
	}
	return strings.HasSuffix(s, last)
}
